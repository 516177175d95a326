package nftables_test

import (
	"flag"
	"fmt"
	"net"
	"net/netip"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"sluice.dev/sluice/internal/accelerate/xdp"
	farm "sluice.dev/sluice/internal/balancer/compile"
	farms "sluice.dev/sluice/internal/balancer/nftables"
	"sluice.dev/sluice/internal/driver"
	"sluice.dev/sluice/internal/driver/ipvs"
	"sluice.dev/sluice/internal/kernel/link"
	"sluice.dev/sluice/internal/kernel/nft"
	"sluice.dev/sluice/internal/model"
	"sluice.dev/sluice/internal/state"
	"sluice.dev/sluice/test/world"
)

// site is a client, the balancer, and servers on a network of their own: server i has the addresses
// 10.1.0.1i and fd01::1i, and its way out leads through the balancer.
type site struct {
	t                *testing.T
	client, balancer *world.Host
	servers          []*world.Host
	open             func() (driver.Driver, error)
	driver           driver.Driver
	state            *state.State
	tunnels          bool // to backends on other networks
}

const (
	virtual4 = "10.0.0.100"
	virtual6 = "fd00::100"
)

var accelerated = flag.Bool("accelerate", false, "have the accelerators of farms on")

func newSite(t *testing.T, servers int) *site {
	t.Helper()
	w := &site{t: t, state: &state.State{Farms: state.NewFarms()}}
	w.open = func() (driver.Driver, error) { return farms.Open(farms.Options{MayMiss: true}) }
	if *accelerated {
		world.MountBPF(t)
		w.open = func() (driver.Driver, error) {
			base, err := farms.Open(farms.Options{MayMiss: true})
			if err != nil {
				return nil, err
			}
			return xdp.Open(base, xdp.Options{Stages: xdp.Stages{DSR: true, Drop: true}})
		}
	}
	w.client, w.balancer = world.NewHost(t, "client"), world.NewHost(t, "balancer")
	w.balancer.Forward()
	w.client.Join("eth0", w.balancer, "front")
	w.client.Address("eth0", "10.0.0.2/24", "fd00::2/64", "10.0.0.3/24", "fd00::3/64")
	w.balancer.Address("front", "10.0.0.1/24", "fd00::1/64", virtual4+"/32", virtual6+"/128")
	w.client.Gateway("10.0.0.1", "fd00::1")
	w.balancer.Bridge("back")
	w.balancer.Address("back", "10.1.0.1/24", "fd01::1/64")
	for i := range servers {
		name := fmt.Sprintf("s%d", i+1)
		s := world.NewHost(t, name)
		s.Join("eth0", w.balancer, name)
		w.balancer.Port("back", name)
		s.Address("eth0", fmt.Sprintf("10.1.0.1%d/24", i+1), fmt.Sprintf("fd01::1%d/64", i+1))
		s.Gateway("10.1.0.1", "fd01::1")
		s.Serve(name, ":80", ":81", ":8080")
		w.servers = append(w.servers, s)
	}
	w.start()
	t.Cleanup(func() { _ = w.driver.Close() })
	w.must(w.driver.Probe(t.Context()))
	return w
}

// rules is the driver that carries out farms by rules, nil: another one does.
func (w *site) rules() *farms.Driver {
	d := w.driver
	if fast, is := d.(*xdp.Driver); is {
		d = fast.Driver
	}
	rules, _ := d.(*farms.Driver)
	return rules
}

// start opens a driver.
func (w *site) start() {
	w.t.Helper()
	w.balancer.In(func() (err error) { w.driver, err = w.open(); return err })
}

// close closes the driver, and waits until no process has a copy of its sockets any more: one that
// a test has just started has them for a moment.
func (w *site) close() {
	w.t.Helper()
	w.must(w.driver.Close())
	w.balancer.In(func() error {
		s, err := nft.Dial()
		w.must(err)
		for _, s.Family = range []uint8{unix.NFPROTO_INET, unix.NFPROTO_NETDEV} {
			for end := time.Now().Add(world.Patience); time.Now().Before(end); time.Sleep(time.Millisecond) {
				if have, err := s.ReadFlags(w.t.Context(), farms.TableName); err != nil || have == nil || have.Flags&nft.FlagOwner == 0 {
					break
				}
			}
		}
		return s.Close()
	})
}

// restart has another driver take over.
func (w *site) restart() {
	w.t.Helper()
	w.close()
	w.start()
}

func (w *site) must(err error) {
	w.t.Helper()
	if err != nil {
		w.t.Fatal(err)
	}
}

// silence is how long nothing comes back from where nothing is to come from.
const silence = 300 * time.Millisecond

// exchange asks by a connection that is open.
func exchange(c net.Conn) (world.Answer, error) { return world.Exchange(c, world.Patience) }

// ask has the client open a connection, ask once and close it.
func (w *site) ask(network, to string) (world.Answer, error) {
	return w.askWithin(network, to, world.Patience)
}

func (w *site) askWithin(network, to string, limit time.Duration) (world.Answer, error) {
	return w.client.Ask(network, clientAddr(0, !strings.HasPrefix(to, "[")), to, limit)
}

// silent fails the test unless nothing answers the client.
func (w *site) silent(network, to, why string) {
	w.t.Helper()
	if g, err := w.askWithin(network, to, silence); !world.TimedOut(err) {
		w.t.Errorf("%s: %+v, %v\n%s", why, g, err, w.list())
	}
}

// answers asks several times, and counts who answered.
func (w *site) answers(n int, network, to string) map[string]int {
	w.t.Helper()
	counts := map[string]int{}
	for range n {
		g, err := w.ask(network, to)
		if err != nil {
			w.t.Fatalf("%s %s: %v\n%s", network, to, err, w.list())
		}
		counts[g.Server]++
	}
	return counts
}

func (w *site) list() string {
	w.t.Helper()
	if _, virtual := w.driver.(*ipvs.Farms); virtual {
		return w.table("ip_vs") + w.table("ip_vs_conn")
	}
	out, err := w.balancer.Run("nft", "list", "table", "inet", farms.TableName)
	if err != nil {
		w.t.Errorf("nft cannot list the table: %v", err)
	}
	return string(out)
}

// set has the balancer serve farms, by what changed alone once it has served any.
func (w *site) set(all ...*model.Farm) {
	w.t.Helper()
	w.change(w.farms(all...))
}

// farms is the change to these farms, and to the interfaces that there are.
func (w *site) farms(all ...*model.Farm) state.Delta {
	w.t.Helper()
	delta := state.Delta{Farms: state.FarmsDelta{Farms: map[string]*state.Farm{}, Devices: map[int]bool{}, Tunnels: map[netip.Addr]bool{}}}
	for name := range w.state.Farms.Farms {
		delta.Farms.Farms[name] = nil
	}
	links := w.links()
	for index := range w.state.Farms.Devices {
		delta.Farms.Devices[index] = false
	}
	for _, l := range links.Links {
		if len(l.Addresses) > 0 && l.Name != "lo" {
			delta.Farms.Devices[l.Index] = true
		}
	}
	for to := range w.state.Farms.Tunnels {
		delta.Farms.Tunnels[to] = false
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
	return delta
}

// change has the balancer carry out a change; the first is an adoption.
func (w *site) change(delta state.Delta) {
	w.t.Helper()
	held := false
	w.driver.Held(func(*state.State) { held = true })
	w.state.Apply(delta)
	if !held {
		w.apply(w.driver.Adopt(w.t.Context(), w.state, driver.Keep{}))
		return
	}
	w.apply(w.driver.Update(w.t.Context(), delta))
	w.settled()
}

// links are the balancer's.
func (w *site) links() (l model.Links) {
	w.t.Helper()
	w.balancer.In(func() (err error) { l, err = link.Here.Links(); return err })
	return l
}

func (w *site) apply(p driver.Plan, err error) {
	w.t.Helper()
	if err == nil {
		err = p.Apply(w.t.Context())
	}
	w.must(err)
}

// settled fails unless the kernel holds just what is wanted. Right after a large change it may not
// list all elements: it moves them to a larger table meanwhile.
func (w *site) settled() {
	w.t.Helper()
	for try := 1; ; try++ {
		p, err := w.driver.Adopt(w.t.Context(), w.state, driver.Keep{}) // as the notes say
		w.must(err)
		if d := w.rules(); d != nil && p.Len() == 0 {
			d.Distrust()
			p, err = d.Adopt(w.t.Context(), w.state, driver.Keep{})
			w.must(err)
		}
		if p.Len() == 0 {
			w.must(p.Apply(w.t.Context()))
			break
		}
		if try == 100 {
			w.t.Fatalf("the kernel differs from what is wanted:\n%s", p)
		}
		time.Sleep(10 * time.Millisecond)
	}
	w.list()
}

// at is where a farm is found.
func at(addr string, ports ...model.PortSpan) model.FarmAddress {
	a := model.FarmAddress{Protocols: []model.Protocol{model.TCP, model.UDP}, Ports: ports, IPv4: true, IPv6: true}
	if addr != "" {
		a.Addr = netip.MustParseAddr(addr)
		a.IPv4, a.IPv6 = a.Addr.Is4(), a.Addr.Is6()
	}
	return a
}

func port(n uint16) model.PortSpan { return model.PortSpan{First: n, Last: n} }

// backends are the first so many servers, of one family or the other.
func backends(n int, is4 bool, at uint16) (all []model.FarmBackend) {
	for i := range n {
		addr := fmt.Sprintf("fd01::1%d", i+1)
		if is4 {
			addr = fmt.Sprintf("10.1.0.1%d", i+1)
		}
		all = append(all, model.FarmBackend{Name: fmt.Sprintf("s%d", i+1), Addr: netip.MustParseAddr(addr), Port: at, Weight: 1, Priority: 1})
	}
	return all
}
