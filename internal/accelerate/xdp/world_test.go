package xdp_test

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"strings"
	"testing"
	"time"

	"sluice.dev/sluice/internal/accelerate/xdp"
	farm "sluice.dev/sluice/internal/balancer/compile"
	farms "sluice.dev/sluice/internal/balancer/nftables"
	"sluice.dev/sluice/internal/driver"
	"sluice.dev/sluice/internal/kernel/link"
	"sluice.dev/sluice/internal/model"
	"sluice.dev/sluice/internal/state"
	"sluice.dev/sluice/test/world"
)

// site is a client, a balancer, and servers that share a network with both, behind a switch: server
// i has the addresses 10.1.0.1i and fd01::1i, and the virtual ones.
type site struct {
	t                        *testing.T
	client, balancer, middle *world.Host
	servers                  []*world.Host
	base                     *farms.Driver
	driver                   driver.Driver
	fast                     *xdp.Driver // nil: there is none
	state                    *state.State
	tunnels                  bool // to servers on other networks
}

const (
	virtual4 = "10.0.0.100"
	virtual6 = "fd00::100"
)

// newSite makes a site whose balancer is not accelerated yet.
func newSite(t *testing.T, servers int) *site {
	t.Helper()
	w := &site{t: t, state: &state.State{Farms: state.NewFarms()}}
	w.client, w.balancer, w.middle = world.NewHost(t, "client"), world.NewHost(t, "balancer"), world.NewHost(t, "switch")
	world.MountBPF(t)
	w.balancer.Forward()
	w.client.Join("eth0", w.balancer, "front")
	w.client.Address("eth0", "10.0.0.2/24", "fd00::2/64", "10.0.0.3/24", "fd00::3/64")
	w.balancer.Address("front", "10.0.0.1/24", "fd00::1/64", virtual4+"/32", virtual6+"/128")
	w.client.Gateway("10.0.0.1", "fd00::1")
	w.middle.Bridge("br")
	port := func(h *world.Host, device, name string) {
		h.Join(device, w.middle, name)
		w.middle.Port("br", name)
	}
	port(w.balancer, "back", "balancer")
	w.balancer.Address("back", "10.1.0.1/24", "fd01::1/64")
	port(w.client, "direct", "client")
	w.client.Address("direct", "10.1.0.200/24", "fd01::200/64")
	for i := range servers {
		name := fmt.Sprintf("s%d", i+1)
		s := world.NewHost(t, name)
		w.servers = append(w.servers, s)
		port(s, "eth0", name)
		s.Address("eth0", fmt.Sprintf("10.1.0.1%d/24", i+1), fmt.Sprintf("fd01::1%d/64", i+1))
		s.Set("net.ipv4.conf.all.arp_ignore", "1")
		s.Set("net.ipv4.conf.all.arp_announce", "2")
		s.Address("lo", virtual4+"/32", virtual6+"/128")
		for to, via := range map[string]string{"10.0.0.2/32": "10.1.0.200", "10.0.0.3/32": "10.1.0.200", "fd00::2/128": "fd01::200", "fd00::3/128": "fd01::200"} {
			s.Route(to, via)
		}
		s.ServeTCP(name, ":80")
		for _, addr := range []string{virtual4, virtual6} { // an answer is to come from where the client asked
			s.ServeUDP(name, hostPort(addr, "53"))
		}
	}
	w.client.Feature("eth0", "tx-checksum-ip-generic", false) // as on a wire
	w.middle.Feature("balancer", "rx-gro", true)              // so that it takes frames from programs
	w.open(false)
	t.Cleanup(func() {
		_ = w.driver.Close()
		w.balancer.In(xdp.Remove)
	})
	return w
}

// open has a process begin to serve, with the program or without.
func (w *site) open(accelerated bool) {
	w.t.Helper()
	w.balancer.In(func() (err error) {
		if w.base, err = farms.Open(farms.Options{MayMiss: true}); err != nil {
			return err
		}
		w.driver, w.fast = w.base, nil
		if !accelerated {
			return xdp.Remove()
		}
		w.fast, err = xdp.Open(w.base, xdp.Options{Stages: xdp.Stages{DSR: true, Drop: true}})
		w.driver = w.fast
		return err
	})
}

// restart has another process go on.
func (w *site) restart(accelerated bool) {
	w.t.Helper()
	w.must(w.driver.Close())
	w.open(accelerated)
	w.adopt()
}

func (w *site) must(err error) {
	w.t.Helper()
	if err != nil {
		w.t.Fatal(err)
	}
}

func (w *site) apply(p driver.Plan, err error) {
	w.t.Helper()
	if err == nil {
		err = p.Apply(w.t.Context())
	}
	w.must(err)
}

func (w *site) adopt() {
	w.t.Helper()
	adopt(w.t, w.driver, w.state, driver.Keep{})
}

// adopt has a driver adopt a state. The kernel may take a moment until a former driver's table has
// no owner any more.
func adopt(t *testing.T, d driver.Driver, want *state.State, keep driver.Keep) {
	t.Helper()
	for end := time.Now().Add(world.Patience); ; time.Sleep(time.Millisecond) {
		p, err := d.Adopt(t.Context(), want, keep)
		if err == nil {
			err = p.Apply(t.Context())
		}
		if err == nil {
			return
		}
		if !errors.Is(err, driver.ErrBusy) || time.Now().After(end) {
			t.Fatal(err)
		}
	}
}

// set has the balancer serve farms, by what changed alone once it has served any.
func (w *site) set(all ...*model.Farm) {
	w.t.Helper()
	w.change(nil, all...)
}

// change has lists be these, and farms come.
func (w *site) change(lists map[string]*model.FarmList, all ...*model.Farm) {
	w.t.Helper()
	delta := state.Delta{Farms: state.FarmsDelta{Farms: map[string]*state.Farm{}, Devices: map[int]bool{}, Lists: lists, Tunnels: map[netip.Addr]bool{}}}
	var links model.Links
	w.balancer.In(func() (err error) { links, err = link.Here.Links(); return err })
	for name := range w.state.Farms.Farms {
		if lists == nil {
			delta.Farms.Farms[name] = nil
		}
	}
	for _, l := range links.Links {
		if len(l.Addresses) > 0 && l.Name != "lo" {
			delta.Farms.Devices[l.Index] = true
		}
	}
	for _, f := range all {
		delta.Farms.Farms[f.Name] = farm.Compile(f, func(a netip.Addr) int {
			index := farm.Device(links, a)
			if index == 0 && w.tunnels {
				index, _ = state.FarmTunnel(a)
				delta.Farms.Tunnels[a] = true
			}
			return index
		})
	}
	held := false
	w.driver.Held(func(*state.State) { held = true })
	w.state.Apply(delta)
	if held {
		w.apply(w.driver.Update(w.t.Context(), delta))
	} else {
		w.adopt()
	}
}

// took is how many packets the program has forwarded.
func (w *site) took() uint64 {
	if w.fast == nil {
		return 0
	}
	return w.fast.Took()
}

// takes reports whether the interface to the servers takes frames from programs, as far as the
// kernel tells.
func (w *site) takes() bool {
	w.t.Helper()
	var cards map[int]link.Card
	w.balancer.In(func() (err error) { cards, err = link.Here.Cards(); return err })
	return cards[w.balancer.Device("back").Attrs().Index].TakesFrames
}

// forwarded fails the test if the program has forwarded fewer packets than that; or, where its
// interface takes no frames, any.
func (w *site) forwarded(n, least uint64) {
	w.t.Helper()
	if !w.takes() {
		if w.fast != nil && (n > 0 || !strings.Contains(w.fast.Status().Note, "not out of back: it takes no frames")) {
			w.t.Errorf("the program forwarded %d packets, and says %v", n, w.notes())
		}
		return
	}
	if n < least {
		w.t.Errorf("the program forwarded %d packets, not %d; %v", n, least, w.notes())
	}
}

// eventually fails the test unless a condition comes about.
func (w *site) eventually(what string, holds func() bool) {
	w.t.Helper()
	for end := time.Now().Add(world.Patience); !holds(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(end) {
			w.t.Fatalf("it does not come about that %s; %v", what, w.notes())
		}
	}
}

func (w *site) notes() driver.Accelerator {
	if w.fast == nil {
		return driver.Accelerator{}
	}
	return w.fast.Status()
}

func hostPort(addr, port string) string {
	return net.JoinHostPort(addr, port)
}

// dsr is a farm of the first so many servers.
func dsr(is4 bool, servers int, ports ...uint16) *model.Farm {
	virtual, first := virtual6, "fd01::1"
	if is4 {
		virtual, first = virtual4, "10.1.0.1"
	}
	at := model.FarmAddress{Addr: netip.MustParseAddr(virtual), IPv4: is4, IPv6: !is4, Protocols: []model.Protocol{model.TCP, model.UDP}}
	for _, p := range ports {
		at.Ports = append(at.Ports, model.PortSpan{First: p, Last: p})
	}
	f := &model.Farm{Name: map[bool]string{true: "four", false: "six"}[is4], Mode: model.DSR, Refuse: true, Addresses: []model.FarmAddress{at}}
	for i := range servers {
		f.Backends = append(f.Backends, model.FarmBackend{Name: fmt.Sprintf("s%d", i+1), Addr: netip.MustParseAddr(fmt.Sprintf("%s%d", first, i+1)), Weight: 1, Priority: 1})
	}
	return f
}
