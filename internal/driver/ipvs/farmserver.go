package ipvs

import (
	"cmp"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"time"

	"sluice.dev/sluice/internal/model"
	"sluice.dev/sluice/internal/state"
)

const (
	// mostFarmServers is the most virtual servers of a farm: one for each address, protocol and
	// port.
	mostFarmServers = 1024
	// longestPersistence is how long a client may be remembered: the kernel counts in ticks, in 32
	// bits.
	longestPersistence = 31 * 24 * time.Hour
)

// checkFarm says what IPVS cannot carry out. The error names the attribute as nftlb does.
func checkFarm(f *model.Farm) error {
	l := f.Limits
	for _, no := range []struct {
		asked bool
		why   string
	}{
		{len(f.Lists) > 0, "policies: IPVS looks in no lists"},
		{f.Mode != model.DNAT && f.Mode != model.DSR, fmt.Sprintf("mode: IPVS carries out dnat and dsr, not %s", f.Mode)},
		{f.Scheduler.IPVS() == "", fmt.Sprintf("scheduler: IPVS has none like %s; use hash or maglev", f.Scheduler)},
		{f.Scheduler.Hashes() && f.HashBy != model.SrcIP && f.HashBy != model.SrcIP|model.SrcPort, "sched-param: IPVS hashes srcip, or srcip and srcport"},
		{f.Persist&^model.SrcIP != 0, "persistence: IPVS remembers clients by srcip alone"},
		{f.Persist != 0 && f.PersistFor > longestPersistence, fmt.Sprintf("persist-ttl: IPVS remembers clients for %d seconds at most", int(longestPersistence.Seconds()))},
		{f.Persist != 0 && max(serversOf(f, true), serversOf(f, false)) > 1, "persistence: IPVS remembers clients at each address, protocol and port apart; give the farm one of them in each family"},
		{len(f.Sessions) > 0, "sessions: IPVS chooses the backends of clients itself"},
		{f.Mark != 0, "mark: IPVS gives none"},
		{f.Helper != "", "helper: IPVS has no helpers of connection tracking"},
		{f.Log, "log: IPVS logs no connections"},
		{l.New.Packets > 0, "new-rtlimit: IPVS limits no clients"},
		{l.RST.Packets > 0, "rst-rtlimit: IPVS limits no clients"},
		{l.Established > 0, "est-connlimit: IPVS limits no clients"},
		{l.Strict, "tcp-strict: IPVS leaves packets of no connection to the machine"},
		{l.SYNProxy, "syn-proxy: IPVS does not answer for backends"},
		{slices.ContainsFunc(f.Backends, func(b model.FarmBackend) bool { return b.EstLimit > 0 }), "backends: est-connlimit: IPVS gives the connections beyond it to other backends"},
		{slices.ContainsFunc(f.Addresses, func(a model.FarmAddress) bool { return !a.Addr.IsValid() }), "virtual-addr: IPVS needs one"},
		{serversOf(f, true)+serversOf(f, false) > mostFarmServers, fmt.Sprintf("virtual-ports: each port is a virtual server of IPVS, and a farm has %d at most", mostFarmServers)},
	} {
		if no.asked {
			return errors.New(no.why)
		}
	}
	return nil
}

// serversOf is how many virtual servers a farm has in a family: one for each address, protocol and
// port.
func serversOf(f *model.Farm, is4 bool) (n int) {
	(&state.Farm{Farm: f}).Each(func(_ netip.Addr, of4 bool, _ model.Protocol, ports model.PortSpan) {
		if of4 == is4 {
			n += int(ports.Last) - int(ports.First) + 1
		}
	})
	return n
}

// farmServers are the virtual servers of a farm that passes checkFarm, one for each address,
// protocol and port.
func farmServers(f *state.Farm) map[state.FrontendKey]*server {
	all := map[state.FrontendKey]*server{}
	serving := f.Serving()
	how := methodOf(f.Farm)
	f.Each(func(addr netip.Addr, is4 bool, p model.Protocol, ports model.PortSpan) {
		for port := int(ports.First); port <= int(ports.Last); port++ {
			s := &server{how, map[netip.AddrPort]destination{}}
			for i, b := range f.Backends {
				if b.State == model.BackendDown || b.Addr.Is4() != is4 || f.Mode == model.DSR && f.Devices[i] == 0 {
					continue
				}
				d := destination{forward: forwardOf(f, i)}
				if serving[i] {
					d.weight = uint32(max(b.Weight, 1))
				}
				s.dests[netip.AddrPortFrom(b.Addr, cmp.Or(b.Port, uint16(port)))] = d
			}
			all[state.FrontendKey{Addr: addr, Protocol: p, Port: uint16(port)}] = s
		}
	})
	return all
}

func forwardOf(f *state.Farm, backend int) uint32 {
	switch {
	case f.Mode != model.DSR:
		return masquerade
	case f.Tunnelled(backend):
		return tunnelling
	}
	return direct
}

// methodOf is how a farm's virtual servers choose. Weights count in all schedulers of farms, so in
// turns is wrr.
func methodOf(f *model.Farm) (m method) {
	if f.Persist != 0 {
		m.persist = uint32(max(f.PersistFor/time.Second, 1))
	}
	m.scheduler = f.Scheduler.IPVS()
	if f.Scheduler.Hashes() {
		m.flags = flagFallback
		if f.HashBy&model.SrcPort != 0 {
			m.flags |= flagPorts
		}
	}
	return m
}
