package nftables

import (
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"sluice.dev/sluice/internal/driver"
	"sluice.dev/sluice/internal/driver/nftables/ruleset"
	"sluice.dev/sluice/internal/model"
	"sluice.dev/sluice/internal/state"
	"sluice.dev/sluice/test/nfttest"
	"sluice.dev/sluice/test/world"
)

// queueWorld is a node with an interface e0 towards a peer, and e2 towards nobody.
type queueWorld struct {
	node, peer *world.Host
	e0, e2     state.Device
	want       *state.State
}

func newQueueWorld(t *testing.T) *queueWorld {
	w := &queueWorld{node: world.NewHost(t, "node"), peer: world.NewHost(t, "peer"), want: state.New()}
	w.node.IP("link set lo up", "link add e2 type veth peer name e3", "link set e2 up", "link set e3 up")
	w.node.Join("e0", w.peer, "e1")
	w.node.Address("e0", "192.0.2.1/24")
	w.peer.Address("e1", "192.0.2.2/24", "192.0.2.66/24")
	device := func(name string) state.Device {
		return state.Device{Index: w.node.Device(name).Attrs().Index, Name: name}
	}
	w.e0, w.e2 = device("e0"), device("e2")
	w.want.Policy = state.NewPolicy()
	p := w.want.Policy
	p.HostDevices[w.e0.Index] = struct{}{}
	p.HostDevices[w.e2.Index] = struct{}{}
	for id, port := range map[state.RulesID]uint16{"a": 1000, "b": 1001} {
		ports := &state.Ports{ID: state.SetID(port), Ranges: []state.PortRange{{Protocol: model.UDP, First: 999, Last: 999}, {Protocol: model.UDP, First: port, Last: port}}}
		p.PortSets[ports.ID], p.Rules[id] = ports, noPorts(id, ports)
	}
	p.Hosts[w.e0.Index] = w.host("a", w.e0)
	w.denied("192.0.2.66/32")
	return w
}

// noPorts denies some ports, and leaves all else to be tracked and judged by others.
func noPorts(id state.RulesID, ports *state.Ports) *state.Rules {
	return &state.Rules{ID: id, Default: model.Allow, Tiers: []state.Tier{{Name: "t", Default: model.Pass, Policies: []*state.PolicyRules{{
		ID: string(id), Policy: model.PolicyKey{Kind: model.GlobalNetworkPolicy, Name: model.Name{Name: "no-" + string(id)}},
		Rules: []state.Rule{{Name: "a", Action: model.Deny, Destination: state.End{Ports: ports}}},
	}}}}}
}

func (w *queueWorld) host(id state.RulesID, d state.Device) *state.Host {
	return &state.Host{Name: "node-" + d.Name, Device: d.Name, UntrackedIn: id, UntrackedOut: id}
}

func (w *queueWorld) denied(cidrs ...string) state.Delta {
	w.want.Policy.Denied = state.Denied{Devices: []state.Device{w.e0}, Lists: []*state.List{{Name: "l", Prefixes: prefixes(cidrs...)}}}
	slices.SortFunc(w.want.Policy.Denied.Lists[0].Prefixes, netip.Prefix.Compare)
	denied := w.want.Policy.Denied
	return state.Delta{Policy: state.PolicyDelta{Denied: &denied}}
}

func (w *queueWorld) hosts(hosts map[int]*state.Host) (d state.Delta) {
	d.Policy.Hosts = hosts
	w.want.Policy.Apply(d.Policy)
	return d
}

// send has the peer send datagrams: to a port that is denied without tracking, from an address that
// is denied, and some that are answered. It returns what ends it.
func (w *queueWorld) send(t *testing.T) (end func()) {
	w.node.ServeUDP("node", ":2000")
	var wrong, right atomic.Int64
	for _, port := range []string{":999", ":3000"} {
		var c net.PacketConn
		w.node.In(func() (err error) { c, err = net.ListenPacket("udp4", port); return err })
		t.Cleanup(func() { _ = c.Close() })
		go func() {
			for {
				if _, _, err := c.ReadFrom(make([]byte, 16)); err != nil {
					return
				}
				wrong.Add(1)
			}
		}()
	}
	done, over := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(over)
		dial := func(from, to string) (c net.Conn) {
			w.peer.In(func() (err error) {
				c, err = (&net.Dialer{LocalAddr: &net.UDPAddr{IP: net.ParseIP(from)}}).Dial("udp4", to)
				return err
			})
			return c
		}
		denied, spoilt := dial("192.0.2.2", "192.0.2.1:999"), dial("192.0.2.66", "192.0.2.1:3000")
		for {
			select {
			case <-done:
				return
			default:
			}
			for range 20 {
				_, _ = denied.Write([]byte("x"))
				_, _ = spoilt.Write([]byte("x"))
			}
			if _, err := w.peer.Ask("udp", "192.0.2.2", "192.0.2.1:2000", 5*time.Second); err != nil {
				t.Error(err)
			}
			right.Add(1)
		}
	}()
	return func() {
		close(done)
		<-over
		if wrong.Load() > 0 || right.Load() == 0 {
			t.Errorf("%d datagrams passed that are denied; %d were answered", wrong.Load(), right.Load())
		}
	}
}

// The kernel drops all packets that wait in queues of the namespace, whoever's they are, when a
// base chain is deleted. None is while the agent works and when another one follows, and what is
// denied is denied at every moment.
func TestNoBaseChainGoes(t *testing.T) {
	t.Parallel()
	modes(t, func(t *testing.T, o Options) {
		o.Policy = true
		w := newQueueWorld(t)
		hooks := nfttest.WatchHooks(t, w.node.NS)
		ns := w.node.NS
		d := openIn(t, ns, o)
		if err := d.Probe(t.Context()); err != nil {
			t.Fatal(err)
		}
		hooks.Intact(t, "the driver was opened, and asked the kernel what it can do")
		adopt(t, d, w.want)
		hooks.Intact(t, "the table was created")
		end := w.send(t)
		e0, e2 := w.e0.Index, w.e2.Index
		for _, c := range []struct {
			what  string
			delta func() state.Delta
		}{
			{"another host endpoint comes", func() state.Delta { return w.hosts(map[int]*state.Host{e2: w.host("a", w.e2)}) }},
			{"its policies change", func() state.Delta { return w.hosts(map[int]*state.Host{e2: w.host("b", w.e2)}) }},
			{"those of the first one change", func() state.Delta { return w.hosts(map[int]*state.Host{e0: w.host("b", w.e0)}) }},
			{"the other one goes", func() state.Delta { return w.hosts(map[int]*state.Host{e2: nil}) }},
			{"a deny list has networks of another length", func() state.Delta { return w.denied("192.0.2.66/32", "198.51.100.0/24") }},
			{"it has other lengths", func() state.Delta { return w.denied("192.0.2.64/26", "fd00::/64") }},
			{"it has many addresses", func() state.Delta { return w.denied(append(addresses(2000), "192.0.2.66/32")...) }},
			{"it has few", func() state.Delta { return w.denied("192.0.2.66/32") }},
		} {
			update(t, d, c.delta())
			hooks.Intact(t, c.what)
			d.Doubt = true
			if n, text := adopt(t, d, w.want); n != 0 {
				t.Errorf("%s: the kernel differs:\n%s", c.what, text)
			}
		}
		follow := func(what string, open func(Options) (*Driver, error)) {
			t.Helper()
			if err := d.Close(); err != nil {
				t.Fatal(err)
			}
			d = openWith(t, ns, open)
			n, _ := adopt(t, d, w.want)
			hooks.Intact(t, what)
			if want := what != "an agent starts"; want != (n > 0) {
				t.Errorf("%s: %d changes", what, n)
			}
			d.Doubt = true
			if n, text := adopt(t, d, w.want); n != 0 {
				t.Errorf("%s: the kernel differs:\n%s", what, text)
			}
		}
		ours := func(Options) (*Driver, error) { return Open(o) }
		follow("an agent starts", ours)
		follow("another release follows", func(Options) (*Driver, error) { return OpenNext(o) })
		follow("this release follows again", ours)
		w.denied(append(addresses(2000), "192.0.2.66/32")...)
		follow("it starts with a longer deny list", ours)
		if FlowOffload.Met(t.Context()) == nil {
			with := o
			with.FlowOffload = true
			follow("connections are offloaded", func(Options) (*Driver, error) { return Open(with) })
		}
		end()
		for what, delta := range map[string]state.Delta{
			"the last host endpoint goes": w.hosts(map[int]*state.Host{e0: nil}), "the deny list is empty": w.denied(),
		} {
			update(t, d, delta)
			hooks.Intact(t, what)
		}
		for _, name := range []string{"raw-in", "raw-out", ruleset.DenyEntryName(w.e0)} {
			if rules, err := ns.Run("nft", "list", "chain", "inet", ruleset.TableName, name); err != nil || strings.Count(string(rules), "\n") > 6 {
				t.Errorf("chain %s, which nothing needs, has rules (%v):\n%s", name, err, rules)
			}
		}
		hooks.Intact(t, "nothing happened")
		if err := d.Purge(t.Context()); err != nil {
			t.Fatal(err)
		}
		if gone := hooks.Gone(t); len(gone) < 10 {
			t.Errorf("a table that was purged lost %v", gone)
		}
	})
}

// addresses are some that deny lists may have.
func addresses(n int) (all []string) {
	for i := range n {
		all = append(all, fmt.Sprintf("10.2.%d.%d/32", i>>8, i&0xff))
	}
	return all
}

// What needs no base chain, or no flowtable, any more takes it away: every packet would pay for it.
func TestBaseChainsThatGo(t *testing.T) {
	t.Parallel()
	w := newQueueWorld(t)
	hooks := nfttest.WatchHooks(t, w.node.NS)
	policy := w.want.Policy
	follow := func(o driver.Options, what string, want ...string) {
		t.Helper()
		w.want.Policy = nil
		if o.Policy {
			w.want.Policy = policy
		}
		d := openIn(t, w.node.NS, Options{Options: o})
		adopt(t, d, w.want)
		if gone := hooks.Gone(t); !slices.Equal(slices.Sorted(slices.Values(gone)), want) {
			t.Errorf("%s: %v went, want %v", what, gone, want)
		}
		d.Doubt = true
		if n, text := adopt(t, d, w.want); n != 0 {
			t.Errorf("%s: the kernel differs:\n%s", what, text)
		}
		if err := d.Close(); err != nil {
			t.Fatal(err)
		}
	}
	follow(driver.Options{Policy: true}, "with policy")
	follow(driver.Options{}, "without", "sluice arrival", "sluice "+ruleset.DenyEntryName(w.e0), "sluice local-out", "sluice raw-in", "sluice raw-out", "sluice service-out")
	follow(driver.Options{Policy: true}, "with policy again")
	if FlowOffload.Met(t.Context()) == nil {
		follow(driver.Options{Policy: true, FlowOffload: true}, "with flow offload")
		follow(driver.Options{Policy: true}, "without flow offload", "sluice flowtable")
	}
}

// An interface of a deny list goes, in some kernels with the chain that looks at what comes by it.
func TestDenyListGoesWithItsInterface(t *testing.T) {
	t.Parallel()
	w := newQueueWorld(t)
	w.want.Policy.Denied.Devices = []state.Device{w.e0, w.e2}
	d := openIn(t, w.node.NS, Options{Options: driver.Options{Policy: true}})
	adopt(t, d, w.want)
	w.node.IP("link delete e2")
	p, err := d.Update(t.Context(), w.denied("192.0.2.66/32"))
	if err == nil {
		err = p.Apply(t.Context())
	}
	if err != nil {
		t.Error(err)
	}
	if tampered, err := d.Tampered(t.Context()); err != nil || tampered {
		t.Errorf("the table differs from what is known of it: %v, %v", tampered, err)
	}
}
