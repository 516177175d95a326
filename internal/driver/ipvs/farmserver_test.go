package ipvs

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	farm "sluice.dev/sluice/internal/balancer/compile"
	"sluice.dev/sluice/internal/model"
	"sluice.dev/sluice/internal/state"
)

// farmOf is a farm at one address and port, with backends 10.1.0.1 to 10.1.0.3, changed by edit.
func farmOf(edit func(*model.Farm)) *model.Farm {
	f := &model.Farm{Name: "web", Mode: model.DNAT, Addresses: []model.FarmAddress{{
		Addr: netip.MustParseAddr("192.0.2.1"), IPv4: true, Protocols: []model.Protocol{model.TCP}, Ports: []model.PortSpan{{First: 80, Last: 80}},
	}}}
	for i := range 3 {
		f.Backends = append(f.Backends, model.FarmBackend{Name: fmt.Sprint("b", i+1), Addr: netip.AddrFrom4([4]byte{10, 1, 0, byte(i + 1)}), Weight: i + 1, Priority: 1})
	}
	edit(f)
	return f
}

// compiled is the farm on a machine to which the first backend is a neighbour, the second one is
// reached in IPIP, and the third one not at all, where the mode needs it.
func compiled(f *model.Farm) *state.Farm {
	return farm.Compile(f, func(a netip.Addr) int {
		tunnel, _ := state.FarmTunnel(a)
		return map[byte]int{1: 7, 2: tunnel}[a.As4()[3]]
	})
}

// What farms come to in IPVS.
func TestFarmServers(t *testing.T) {
	t.Parallel()
	const all = " 10.1.0.1:80 weight 1, 10.1.0.2:80 weight 2, 10.1.0.3:80 weight 3"
	for name, c := range map[string]struct {
		edit func(*model.Farm)
		want string
	}{
		"in turns": {func(*model.Farm) {}, "TCP 192.0.2.1:80 scheduler wrr:" + all},
		"random":   {func(f *model.Farm) { f.Scheduler = model.Weighted }, "TCP 192.0.2.1:80 scheduler wrr:" + all},
		"hash":     {func(f *model.Farm) { f.Scheduler, f.HashBy = model.Hash, model.SrcIP }, "TCP 192.0.2.1:80 scheduler sh:" + all},
		"hash of the port": {func(f *model.Farm) { f.Scheduler, f.HashBy = model.Maglev, model.SrcIP|model.SrcPort },
			"TCP 192.0.2.1:80 scheduler mh with ports:" + all},
		"least connections": {func(f *model.Farm) { f.Scheduler = model.LeastConnections }, "TCP 192.0.2.1:80 scheduler wlc:" + all},
		"persistence": {func(f *model.Farm) { f.Persist, f.PersistFor = model.SrcIP, 90*time.Second },
			"TCP 192.0.2.1:80 scheduler wrr, persistence 90 s:" + all},
		"ports of their own": {func(f *model.Farm) { f.Backends = f.Backends[:1]; f.Backends[0].Port = 8080 }, "TCP 192.0.2.1:80 scheduler wrr: 10.1.0.1:8080 weight 1"},
		"one drains, one is down": {func(f *model.Farm) {
			f.Backends[0].State, f.Backends[1].State = model.BackendDraining, model.BackendDown
		},
			"TCP 192.0.2.1:80 scheduler wrr: 10.1.0.1:80 weight 0, 10.1.0.3:80 weight 3"},
		"a backup": {func(f *model.Farm) { f.Backends[1].Priority = 2 },
			"TCP 192.0.2.1:80 scheduler wrr: 10.1.0.1:80 weight 1, 10.1.0.2:80 weight 0, 10.1.0.3:80 weight 3"},
		"a backup serves": {func(f *model.Farm) { f.Backends[0].State, f.Backends[1].Priority = model.BackendDown, 2 },
			"TCP 192.0.2.1:80 scheduler wrr: 10.1.0.2:80 weight 2, 10.1.0.3:80 weight 3"},
		"nobody": {func(f *model.Farm) { f.Backends = nil }, "TCP 192.0.2.1:80 scheduler wrr:"},
		"direct": {func(f *model.Farm) { f.Mode = model.DSR },
			"TCP 192.0.2.1:80 scheduler wrr: 10.1.0.1:80 weight 1, direct routing, 10.1.0.2:80 weight 2, tunnelling"},
		"many virtual servers": {func(f *model.Farm) {
			f.Backends = append(f.Backends[:1], model.FarmBackend{Addr: netip.MustParseAddr("2001:db8:1::1"), Weight: 1})
			f.Addresses[0].Ports = []model.PortSpan{{First: 80, Last: 81}}
			f.Addresses = append(f.Addresses, model.FarmAddress{Addr: netip.MustParseAddr("2001:db8::1"), IPv6: true,
				Protocols: []model.Protocol{model.TCP, model.UDP}, Ports: []model.PortSpan{{First: 443, Last: 443}}})
		}, "TCP 192.0.2.1:80 scheduler wrr: 10.1.0.1:80 weight 1; TCP 192.0.2.1:81 scheduler wrr: 10.1.0.1:81 weight 1; " +
			"TCP [2001:db8::1]:443 scheduler wrr: [2001:db8:1::1]:443 weight 1; UDP [2001:db8::1]:443 scheduler wrr: [2001:db8:1::1]:443 weight 1"},
	} {
		f := farmOf(c.edit)
		if err := checkFarm(f); err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		var got []string
		for k, s := range farmServers(compiled(f)) {
			var dests []string
			for _, b := range sorted(s.dests) {
				dests = append(dests, fmt.Sprintf(" %s %s", b, s.dests[b]))
			}
			got = append(got, fmt.Sprintf("%s %s:%s", k, s.method, strings.Join(dests, ",")))
		}
		slices.Sort(got)
		if text := strings.Join(got, "; "); text != c.want {
			t.Errorf("%s: %s, want %s", name, text, c.want)
		}
	}
}

// Changes of a farm are what differs alone, and what serves comes before what no longer does.
func TestFarmChanges(t *testing.T) {
	t.Parallel()
	key := state.FrontendKey{Addr: netip.MustParseAddr("192.0.2.1"), Protocol: model.TCP, Port: 80}
	at := func(f *state.Farm) *server { return farmServers(f)[key] }
	direct := farmOf(func(f *model.Farm) { f.Mode = model.DSR })
	near, far := compiled(direct), farm.Compile(direct, func(a netip.Addr) int { tunnel, _ := state.FarmTunnel(a); return tunnel })
	drains := compiled(farmOf(func(f *model.Farm) {
		f.Mode, f.Backends[0].State, f.Backends[1].Weight = model.DSR, model.BackendDraining, 9
	}))
	stays := compiled(farmOf(func(f *model.Farm) { f.Mode, f.Persist, f.PersistFor = model.DSR, model.SrcIP, time.Minute }))
	for _, c := range []struct {
		from, to *state.Farm
		want     string
	}{
		{near, near, ""},
		{near, far, "change 10.1.0.1:80 of virtual server TCP 192.0.2.1:80: weight 1, tunnelling; add 10.1.0.3:80 to virtual server TCP 192.0.2.1:80, weight 3, tunnelling"},
		{near, drains, "change 10.1.0.2:80 of virtual server TCP 192.0.2.1:80: weight 9, tunnelling; change 10.1.0.1:80 of virtual server TCP 192.0.2.1:80: weight 0, direct routing"},
		{near, stays, "change virtual server TCP 192.0.2.1:80: scheduler wrr, persistence 60 s"},
	} {
		before, after := changes(nil, nil, key, at(c.from), at(c.to))
		var got []string
		for _, o := range append(before, after...) {
			got = append(got, o.String())
		}
		if text := strings.Join(got, "; "); text != c.want {
			t.Errorf("%s, want %s", text, c.want)
		}
	}
}

// What IPVS cannot do is refused with the name of the attribute.
func TestFarmRefusals(t *testing.T) {
	t.Parallel()
	for want, edit := range map[string]func(*model.Farm){
		"policies: ": func(f *model.Farm) { f.Lists = []string{"bad"} },
		"mode: IPVS carries out dnat and dsr, not snat":     func(f *model.Farm) { f.Mode = model.SNAT },
		"mode: IPVS carries out dnat and dsr, not stlsdnat": func(f *model.Farm) { f.Mode = model.StatelessDNAT },
		"mode: IPVS carries out dnat and dsr, not local":    func(f *model.Farm) { f.Mode = model.Local },
		"scheduler: ":   func(f *model.Farm) { f.Scheduler = model.SymHash },
		"sched-param: ": func(f *model.Farm) { f.Scheduler, f.HashBy = model.Hash, model.DstIP },
		"persistence: IPVS remembers clients by srcip": func(f *model.Farm) { f.Persist = model.SrcIP | model.DstPort },
		"persist-ttl: ": func(f *model.Farm) { f.Persist, f.PersistFor = model.SrcIP, 365*24*time.Hour },
		"persistence: IPVS remembers clients at each": func(f *model.Farm) {
			f.Persist, f.Addresses[0].Ports = model.SrcIP, []model.PortSpan{{First: 80, Last: 81}}
		},
		"sessions: ":                func(f *model.Farm) { f.Sessions = []model.FarmSession{{Backend: "b1"}} },
		"mark: ":                    func(f *model.Farm) { f.Mark = 1 },
		"helper: ":                  func(f *model.Farm) { f.Helper = "ftp" },
		"log: ":                     func(f *model.Farm) { f.Log = true },
		"new-rtlimit: ":             func(f *model.Farm) { f.Limits.New.Packets = 1 },
		"rst-rtlimit: ":             func(f *model.Farm) { f.Limits.RST.Packets = 1 },
		"est-connlimit: ":           func(f *model.Farm) { f.Limits.Established = 1 },
		"tcp-strict: ":              func(f *model.Farm) { f.Limits.Strict = true },
		"syn-proxy: ":               func(f *model.Farm) { f.Limits.SYNProxy = true },
		"backends: est-connlimit: ": func(f *model.Farm) { f.Backends[2].EstLimit = 1 },
		"virtual-addr: ":            func(f *model.Farm) { f.Addresses[0].Addr = netip.Addr{} },
		"virtual-ports: ":           func(f *model.Farm) { f.Addresses[0].Ports = nil },
		"virtual-ports: each port is a virtual server of IPVS, and a farm has 1024": func(f *model.Farm) {
			f.Addresses[0].Ports = []model.PortSpan{{First: 1, Last: 1025}}
		},
	} {
		if err := checkFarm(farmOf(edit)); err == nil || !strings.HasPrefix(err.Error(), want) {
			t.Errorf("%v, want %s", err, want)
		}
	}
}

// The kernel's table of connections as it prints them; only templates tell of clients that stay.
func TestTemplates(t *testing.T) {
	t.Parallel()
	const table = `Pro FromIP   FPrt ToIP     TPrt DestIP   DPrt State       Expires PEName PEData
TCP 0A000002 A3F2 0A000064 0050 0A01000B 1F90 ESTABLISHED     899
TCP 0A000002 0000 0A000064 0050 0A01000B 1F90 NONE            359
UDP fd00:0000:0000:0000:0000:0000:0000:0002 0000 fd00:0000:0000:0000:0000:0000:0000:0100 0035 fd01:0000:0000:0000:0000:0000:0000:0011 0035 UDP              60
`
	var got []string
	err := eachTemplate(strings.NewReader(table), func(k state.FrontendKey, s model.LiveSession, to netip.AddrPort) {
		got = append(got, fmt.Sprintf("%s at %s to %s for %s", s.Client.SrcIP, k, to, s.Left))
	})
	want := "10.0.0.2 at TCP 10.0.0.100:80 to 10.1.0.11:8080 for 5m59s, fd00::2 at UDP [fd00::100]:53 to [fd01::11]:53 for 1m0s"
	if text := strings.Join(got, ", "); err != nil || text != want {
		t.Errorf("%s, %v; want %s", text, err, want)
	}
}
