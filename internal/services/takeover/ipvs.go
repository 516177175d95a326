package takeover

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"os"
	"strings"

	"github.com/moby/ipvs"
	"github.com/sirupsen/logrus"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"sluice.dev/sluice/internal/kernel/link"
	"sluice.dev/sluice/internal/model"
	"sluice.dev/sluice/internal/state"
)

// proxyDevice carries the addresses of services in IPVS mode, so that their packets come to IPVS as
// input.
const proxyDevice = "kube-ipvs0"

// proxySets are the sets of ipset that IPVS mode makes; those of IPv6 begin with "KUBE-6-". The
// ports of the first are node ports.
var proxySets = []string{"KUBE-NODE-PORT-TCP", "KUBE-NODE-PORT-UDP", "KUBE-NODE-PORT-SCTP-HASH",
	"KUBE-NODE-PORT-LOCAL-TCP", "KUBE-NODE-PORT-LOCAL-UDP", "KUBE-NODE-PORT-LOCAL-SCTP-HASH",
	"KUBE-LOOP-BACK", "KUBE-CLUSTER-IP", "KUBE-EXTERNAL-IP", "KUBE-EXTERNAL-IP-LOCAL",
	"KUBE-LOAD-BALANCER", "KUBE-LOAD-BALANCER-FW", "KUBE-LOAD-BALANCER-LOCAL", "KUBE-LOAD-BALANCER-SOURCE-IP", "KUBE-LOAD-BALANCER-SOURCE-CIDR",
	"KUBE-HEALTH-CHECK-NODE-PORT", "KUBE-IPVS-IPS"}

// maxSetName is how long the name of a set can be (IPSET_MAXNAMELEN in
// linux/netfilter/ipset/ip_set.h, with its zero); kube-proxy cuts longer ones off.
const maxSetName = 31

// ipvsState is what kube-proxy has in IPVS mode besides rules of iptables.
type ipvsState struct {
	servers []server
	others  int                 // virtual servers that are not kube-proxy's
	device  bool                // it is there
	own     map[netip.Addr]bool // the device's addresses, also those that routes stand in for
	sets    []string
}

// server is a virtual server of kube-proxy's.
type server struct {
	*ipvs.Service
	key   state.FrontendKey
	conns int // connections that it still carries
	dests int
}

func (v *ipvsState) frontends() []Frontend {
	frontends := make([]Frontend, 0, len(v.servers))
	for _, s := range v.servers {
		key := s.key
		if !v.own[key.Addr] {
			key = anyAddress(key)
		}
		frontends = append(frontends, Frontend{Key: key, Served: s.dests > 0})
	}
	return frontends
}

func (v *ipvsState) notes() []string {
	if v.others == 0 {
		return nil
	}
	return []string{fmt.Sprintf("not kube-proxy's, and left alone: %s of IPVS", model.Count(v.others, "virtual server"))}
}

func (v *ipvsState) String() string {
	what := []string{model.Count(len(v.servers), "virtual server") + " with " + model.Count(v.connections(), "connection")}
	if v.device {
		what = append(what, "device "+proxyDevice)
	}
	if len(v.own) > 0 {
		what = append(what, model.Count(len(v.own), "local address"))
	}
	if len(v.sets) > 0 {
		what = append(what, model.Count(len(v.sets), "set")+" of ipset")
	}
	return "IPVS: " + strings.Join(what, ", ")
}

func (v *ipvsState) connections() int {
	n := 0
	for _, s := range v.servers {
		n += s.conns
	}
	return n
}

func findIPVS(context.Context) ([]footprint, error) {
	v := &ipvsState{}
	index, err := link.Here.Index(proxyDevice)
	if err != nil {
		return nil, err
	}
	v.device = index != 0
	ports, err := v.readSets()
	if err != nil {
		return nil, err
	}
	if err := v.readServers(ports); err != nil {
		return nil, err
	}
	if !v.device && len(v.own)+len(v.sets)+len(v.servers) == 0 {
		return nil, nil
	}
	return []footprint{{what: v.String(), frontends: v.frontends(), notes: v.notes(), remove: v.remove}}, nil
}

// readSets finds kube-proxy's sets, and the node ports in them.
func (v *ipvsState) readSets() (ports map[uint16]bool, err error) {
	ports = map[uint16]bool{}
	if _, err := os.Stat("/sys/module/ip_set"); errors.Is(err, os.ErrNotExist) {
		return ports, nil // asking would load it
	}
	for _, prefix := range []string{"KUBE-", "KUBE-6-"} {
		for i, name := range proxySets {
			name = prefix + strings.TrimPrefix(name, "KUBE-")
			name = name[:min(len(name), maxSetName)]
			set, err := netlink.IpsetList(name)
			if errors.Is(err, unix.ENOENT) {
				continue
			}
			if err != nil {
				return nil, fmt.Errorf("read ipset %s: %w", name, err)
			}
			v.sets = append(v.sets, name)
			for _, e := range set.Entries {
				if i < 3 && e.Port != nil {
					ports[*e.Port] = true
				}
			}
		}
	}
	return ports, nil
}

// readServers finds the virtual servers on the addresses of kube-proxy's device, and those on other
// addresses of this node with a node port's number.
func (v *ipvsState) readServers(ports map[uint16]bool) error {
	host, own, err := addresses()
	if err != nil {
		return err
	}
	v.own = own
	if _, err := os.Stat("/proc/thread-self/net/ip_vs"); errors.Is(err, os.ErrNotExist) {
		return nil // asking would load it
	}
	conn, err := openIPVS()
	if err != nil {
		return err
	}
	defer conn.Close()
	all, err := conn.GetServices()
	if err != nil {
		return fmt.Errorf("list virtual servers: %w", err)
	}
	for _, s := range all {
		addr, _ := netip.AddrFromSlice(s.Address)
		key := state.FrontendKey{Addr: addr.Unmap(), Protocol: model.Protocol(s.Protocol), Port: s.Port}
		if s.FWMark != 0 || !own[key.Addr] && !(host[key.Addr] && ports[key.Port]) {
			v.others++
			continue
		}
		found := server{Service: s, key: key}
		dests, err := conn.GetDestinations(s)
		if err != nil {
			return fmt.Errorf("list destinations of virtual server %s: %w", key, err)
		}
		for _, d := range dests {
			found.conns += d.ActiveConnections + d.InactiveConnections
		}
		found.dests = len(dests)
		v.servers = append(v.servers, found)
	}
	return nil
}

// openIPVS connects to the IPVS of the calling thread's network namespace; to call it where the
// kernel has none loads it.
func openIPVS() (*ipvs.Handle, error) {
	logrus.SetOutput(io.Discard) // the library logs that it can't load what is there already; nobody else uses this logger
	conn, err := ipvs.New("")
	if err != nil {
		return nil, fmt.Errorf("open IPVS: %w", err)
	}
	return conn, nil
}

// remove removes it all, what carries connections once these have ended.
func (v *ipvsState) remove(ctx context.Context, d drain) error {
	ctx, cancel := context.WithTimeout(ctx, d.limit)
	defer cancel()
	if err := v.replaceDevice(); err != nil {
		return err
	}
	if err := v.drainServers(ctx, d.say); err != nil {
		return err
	}
	if err := v.drainAddresses(ctx, d.say); err != nil {
		return err
	}
	for _, name := range v.sets {
		if err := netlink.IpsetDestroy(name); err != nil && !errors.Is(err, unix.ENOENT) {
			return fmt.Errorf("destroy ipset %s: %w", name, err)
		}
	}
	return nil
}
