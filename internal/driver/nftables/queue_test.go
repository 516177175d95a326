package nftables

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"net"
	"net/netip"
	"os"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"sluice.dev/sluice/internal/driver"
	"sluice.dev/sluice/internal/driver/nftables/nft"
	"sluice.dev/sluice/internal/driver/nftables/program"
	"sluice.dev/sluice/internal/model"
	"sluice.dev/sluice/internal/state"
	"sluice.dev/sluice/test/world"
)

// hooks sees what is taken from the kernel's hooks in a namespace: each time, the kernel drops all
// packets that wait in queues there. Where it has queues, some packets of another program's wait in
// one.
type hooks struct {
	monitor int
	dormant map[string]bool // tables
	based   map[string]bool // base chains
	queue   int             // of which the packets are not read; -1: there is none
	node    *world.Host
}

// waiting is how many packets wait.
const waiting = 3

func watchHooks(t *testing.T, node *world.Host) *hooks {
	t.Helper()
	w := &hooks{dormant: map[string]bool{}, based: map[string]bool{}, queue: -1, node: node}
	node.In(func() (err error) {
		if w.monitor, err = unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.NETLINK_NETFILTER); err != nil {
			return err
		}
		if err = unix.SetsockoptInt(w.monitor, unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, 64<<20); err != nil {
			return err
		}
		return unix.Bind(w.monitor, &unix.SockaddrNetlink{Family: unix.AF_NETLINK, Groups: 1 << (unix.NFNLGRP_NFTABLES - 1)})
	})
	t.Cleanup(func() { _ = unix.Close(w.monitor) })
	// It asks for connections, as others do: connection tracking, too, leaves its hooks when nobody
	// does any more.
	const guard = "table inet guard { chain out { type filter hook output priority 200; ct state invalid drop; udp dport 7777 queue num 7; }; }"
	if out, err := node.NS.Run("nft", guard); err != nil {
		t.Logf("no packet waits: %s", bytes.SplitN(out, []byte("\n"), 2)[0])
		return w
	}
	node.In(w.bind)
	t.Cleanup(func() { _ = unix.Close(w.queue) })
	node.In(func() error {
		c, err := net.Dial("udp4", "127.0.0.1:7777")
		for i := 0; err == nil && i < waiting; i++ {
			_, err = c.Write([]byte("x"))
		}
		return err
	})
	w.counts(t, "at the start")
	return w
}

// bind takes the queue.
func (w *hooks) bind() (err error) {
	if w.queue, err = unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.NETLINK_NETFILTER); err != nil {
		return err
	}
	if err := unix.Bind(w.queue, &unix.SockaddrNetlink{Family: unix.AF_NETLINK}); err != nil {
		return err
	}
	config := func(attr uint16, value []byte) error {
		const msgConfig = 3<<8 | 2 // NFNL_SUBSYS_QUEUE, NFQNL_MSG_CONFIG
		b := make([]byte, unix.SizeofNlMsghdr+4+4)
		binary.BigEndian.PutUint16(b[18:], 7) // the number of the queue
		binary.NativeEndian.PutUint16(b[20:], uint16(4+len(value)))
		binary.NativeEndian.PutUint16(b[22:], attr)
		b = append(b, value...)
		b = append(b, make([]byte, -len(b)&3)...)
		binary.NativeEndian.PutUint32(b, uint32(len(b)))
		binary.NativeEndian.PutUint16(b[4:], msgConfig)
		binary.NativeEndian.PutUint16(b[6:], unix.NLM_F_REQUEST|unix.NLM_F_ACK)
		if err := unix.Sendto(w.queue, b, 0, &unix.SockaddrNetlink{Family: unix.AF_NETLINK}); err != nil {
			return err
		}
		answer := make([]byte, 1024)
		n, _, err := unix.Recvfrom(w.queue, answer, 0)
		if err == nil && n >= 20 {
			if code := int32(binary.NativeEndian.Uint32(answer[16:])); code != 0 {
				return unix.Errno(-code)
			}
		}
		return err
	}
	if err := config(1, []byte{1, 0, 0, 0}); err != nil { // NFQA_CFG_CMD: bind
		return err
	}
	return config(2, []byte{0, 0, 0, 64, 2}) // NFQA_CFG_PARAMS: 64 bytes of each packet
}

// counts reports packets that no longer wait.
func (w *hooks) counts(t *testing.T, when string) {
	t.Helper()
	if w.queue < 0 {
		return
	}
	var list []byte
	w.node.In(func() (err error) {
		list, err = os.ReadFile("/proc/thread-self/net/netfilter/nfnetlink_queue")
		return err
	})
	if f := strings.Fields(string(list)); len(f) < 3 || f[0] != "7" || f[2] != fmt.Sprint(waiting) {
		t.Fatalf("%s: not %d packets wait: %s", when, waiting, list)
	}
}

// intact reports what was taken from hooks since it was last asked, of which nothing was to go.
func (w *hooks) intact(t *testing.T, when string) {
	t.Helper()
	if gone := w.gone(t); len(gone) > 0 {
		t.Errorf("%s: %v left their hooks", when, gone)
	}
	w.counts(t, when)
}

// gone are the base chains and flowtables that were deleted since it was last asked.
func (w *hooks) gone(t *testing.T) (names []string) {
	t.Helper()
	b := make([]byte, 1<<20)
	for {
		n, _, err := unix.Recvfrom(w.monitor, b, unix.MSG_DONTWAIT)
		if err == unix.EAGAIN {
			return names
		}
		if err != nil {
			t.Fatal(err)
		}
		nft.EachMessage(b[:n], func(typ uint16, _ uint32, body []byte) {
			const ofTable = unix.NFTA_TABLE_NAME // and of all others
			table := nft.CString(nft.FindAttr(body, ofTable))
			chain := table + " " + nft.CString(nft.FindAttr(body, unix.NFTA_CHAIN_NAME))
			switch {
			case typ == unix.NFT_MSG_NEWTABLE:
				flags := nft.FindAttr(body, unix.NFTA_TABLE_FLAGS)
				w.dormant[table] = flags[3]&nft.FlagDormant != 0
			case w.dormant[table]:
			case typ == unix.NFT_MSG_NEWCHAIN && nft.FindAttr(body, unix.NFTA_CHAIN_HOOK) != nil:
				w.based[chain] = true
			case typ == unix.NFT_MSG_DELCHAIN && w.based[chain]:
				names = append(names, chain)
			case typ == unix.NFT_MSG_DELFLOWTABLE:
				names = append(names, table+" flowtable")
			}
		})
	}
}

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
	for id, port := range map[state.ProgramID]uint16{"a": 1000, "b": 1001} {
		ports := &state.Ports{ID: state.SetID(port), Ranges: []state.PortRange{{Protocol: model.UDP, First: 999, Last: 999}, {Protocol: model.UDP, First: port, Last: port}}}
		p.PortSets[ports.ID], p.Programs[id] = ports, noPorts(id, ports)
	}
	p.Hosts[w.e0.Index] = w.host("a", w.e0)
	w.denied("192.0.2.66/32")
	return w
}

// noPorts denies some ports, and leaves all else to be tracked and judged by others.
func noPorts(id state.ProgramID, ports *state.Ports) *state.Program {
	return &state.Program{ID: id, Default: model.Allow, Tiers: []state.Tier{{Name: "t", Default: model.Pass, Policies: []*state.PolicyRules{{
		ID: string(id), Policy: model.PolicyKey{Kind: model.GlobalNetworkPolicy, Name: model.Name{Name: "no-" + string(id)}},
		Rules: []state.Rule{{Name: "a", Action: model.Deny, Destination: state.End{Ports: ports}}},
	}}}}}
}

func (w *queueWorld) host(id state.ProgramID, d state.Device) *state.Host {
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

// The kernel drops all packets that wait in queues of the namespace, whoever's they are, when a base
// chain is deleted. None is while the agent works and when another one follows, and what is denied
// is denied at every moment.
func TestNoBaseChainGoes(t *testing.T) {
	t.Parallel()
	modes(t, func(t *testing.T, o Options) {
		o.Policy = true
		w := newQueueWorld(t)
		hooks := watchHooks(t, w.node)
		ns := w.node.NS
		d := openIn(t, ns, o)
		if err := d.Probe(t.Context()); err != nil {
			t.Fatal(err)
		}
		hooks.intact(t, "the driver was opened, and asked the kernel what it can do")
		adopt(t, d, w.want)
		hooks.intact(t, "the table was created")
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
			hooks.intact(t, c.what)
			d.doubt = true
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
			hooks.intact(t, what)
			if want := what != "an agent starts"; want != (n > 0) {
				t.Errorf("%s: %d changes", what, n)
			}
			d.doubt = true
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
			hooks.intact(t, what)
		}
		for _, name := range []string{"raw-in", "raw-out", program.DenyEntryName(w.e0)} {
			if rules, err := ns.Run("nft", "list", "chain", "inet", program.TableName, name); err != nil || strings.Count(string(rules), "\n") > 6 {
				t.Errorf("chain %s, which nothing needs, has rules (%v):\n%s", name, err, rules)
			}
		}
		hooks.intact(t, "nothing happened")
		if err := d.Purge(t.Context()); err != nil {
			t.Fatal(err)
		}
		if gone := hooks.gone(t); len(gone) < 10 {
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

// What takes a base chain away: what needs no such chain any more is not to be paid for by every
// packet.
func TestBaseChainsThatGo(t *testing.T) {
	t.Parallel()
	w := newQueueWorld(t)
	hooks := watchHooks(t, w.node)
	with := Options{Options: driver.Options{Policy: true}}
	d := openIn(t, w.node.NS, with)
	adopt(t, d, w.want)
	if err := d.Close(); err != nil {
		t.Fatal(err)
	}
	d = openIn(t, w.node.NS, Options{})
	w.want.Policy = nil
	adopt(t, d, w.want)
	gone := hooks.gone(t)
	slices.Sort(gone)
	want := []string{"sluice arrival", "sluice " + program.DenyEntryName(w.e0), "sluice local-out", "sluice raw-in", "sluice raw-out", "sluice service-out"}
	slices.Sort(want)
	if !slices.Equal(gone, want) {
		t.Errorf("without policy %v went, want %v", gone, want)
	}
}
