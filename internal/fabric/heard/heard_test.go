package heard

import (
	"context"
	"log/slog"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"sluice.dev/sluice/internal/model"
	"sluice.dev/sluice/test/world"
)

// A far end that answers is heard; one that does not is a fault of its node after three questions,
// and none once it answers again; where nobody answers, it is one fault of this node.
func TestHeard(t *testing.T) {
	node, far := world.NewHost(t, "node"), world.NewHost(t, "far")
	node.Join("eth0", far, "eth0")
	node.Address("eth0", "192.0.2.1/24", "fd00:2::1/64")
	far.Address("eth0", "192.0.2.2/24", "fd00:2::2/64", "192.0.2.3/24")
	far.Exec("nft", "add table inet fw; add chain inet fw in { type filter hook prerouting priority -300; }")
	end := func(name, to string, carrier model.Carrier) model.FarEnd {
		return model.FarEnd{Node: name, Device: "eth0", Remote: netip.MustParseAddr(to), To: netip.MustParseAddr(to), Carrier: carrier}
	}
	vxlan := model.Carrier{Name: "VXLAN", Protocol: 17, Port: 4789}
	four, six := end("four", "192.0.2.2", vxlan), end("six", "fd00:2::2", vxlan)
	plain := end("plain", "192.0.2.3", model.Carrier{})
	var p *Prober
	node.In(func() error { p = Open("here", slog.New(slog.DiscardHandler)); return nil })
	p.tick = 20 * time.Millisecond
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() {
		defer close(done)
		p.Run(ctx, func() []model.FarEnd { return []model.FarEnd{four, six, plain} })
	}()
	t.Cleanup(func() { cancel(); <-done })
	wait := func(what string, faults ...string) {
		t.Helper()
		for begin := time.Now(); ; time.Sleep(5 * time.Millisecond) {
			heard, issues := p.Heard(), p.Issues()
			right := len(heard) == 3 && slices.EqualFunc(issues, faults, func(i model.Issue, fault string) bool { return strings.HasPrefix(i.String(), fault) })
			for of, h := range heard {
				silent := of.Carrier != (model.Carrier{}) && slices.ContainsFunc(faults, func(f string) bool {
					return strings.HasPrefix(f, "Node "+of.Node+":") || strings.HasPrefix(f, "Node here:")
				})
				right = right && (of.Carrier == (model.Carrier{}) || silent == h.Silent())
			}
			if right {
				return
			}
			if time.Since(begin) > time.Minute {
				t.Fatalf("%s: heard %v, faults %q, want %q", what, heard, issues, faults)
			}
		}
	}
	wait("all answer")
	const silent = ": it is not heard through eth0: its tunnel's address "
	far.Exec("nft", "add rule inet fw in ip daddr 192.0.2.2 drop")
	wait("one does not", "Node four"+silent+"192.0.2.2 does not answer ICMP echo")
	far.Exec("nft", "add rule inet fw in icmpv6 type echo-request drop")
	wait("nobody does", "Node here: none of 2 other nodes is heard through eth0: have firewalls let UDP 4789 (VXLAN) pass")
	far.Exec("nft", "flush chain inet fw in")
	wait("all do again")
	node.Exec("nft", "add table inet fw; add chain inet fw out { type filter hook output priority 0; }; add rule inet fw out ip daddr 192.0.2.2 drop; add rule inet fw out icmpv6 type echo-request drop")
	wait("this node's kernel does not send", "Node here: none of 2 other nodes is heard through eth0: a rule of this node drops what is sent there: operation not permitted")
	node.Exec("nft", "flush chain inet fw out")
	wait("it does again")
	if h := p.Heard()[plain]; h.Last.IsZero() {
		t.Errorf("without a tunnel: %v", h)
	}
	far.Exec("nft", "add rule inet fw in ip daddr 192.0.2.3 drop")
	for begin := time.Now(); !p.Heard()[plain].Silent(); time.Sleep(5 * time.Millisecond) {
		if time.Since(begin) > time.Minute {
			t.Fatal("without a tunnel it still answers")
		}
	}
	wait("without a tunnel it is no fault")
}

// Why a far end does not answer is said as the kernel has it: "firewall" only where packets leave
// and nothing comes back.
func TestWhyNotHeard(t *testing.T) {
	node, far := world.NewHost(t, "node"), world.NewHost(t, "far")
	node.Join("eth0", far, "eth0")
	node.Address("eth0", "192.0.2.1/24")
	far.Address("eth0", "192.0.2.2/24")
	far.IP("addr add 10.9.2.0/32 dev lo")
	node.IP("link add tunnel type vxlan id 9 dstport 4789", "link set tunnel up")
	far.Exec("nft", "add table inet fw; add chain inet fw in { type filter hook prerouting priority -300; }")
	way := func() { node.IP("route replace 10.9.2.0 via 192.0.2.2") }
	way()
	of := model.FarEnd{Node: "far", Device: "tunnel", Uplink: "eth0", Carrier: model.Carrier{Name: "IPIP", Protocol: 4},
		Remote: netip.MustParseAddr("192.0.2.2"), To: netip.MustParseAddr("10.9.2.0")}
	var p *Prober
	node.In(func() error { p = Open("here", slog.New(slog.DiscardHandler)); return nil })
	p.tick = 20 * time.Millisecond
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() {
		defer close(done)
		p.Run(ctx, func() []model.FarEnd { return []model.FarEnd{of} })
	}()
	t.Cleanup(func() { cancel(); <-done })
	const unheard = "it is not heard through tunnel: its tunnel's address 10.9.2.0 does not answer ICMP echo, "
	for _, c := range []struct {
		what     string
		do, undo func()
		want     string // "": it is heard
	}{
		{what: "nothing is wrong"},
		{"a firewall drops the tunnel", func() { far.Exec("nft", "add rule inet fw in ip daddr 10.9.2.0 drop") }, func() { far.Exec("nft", "flush chain inet fw in") },
			"Node far: " + unheard + "though 192.0.2.2 does: if its agent runs, have firewalls let protocol 4 (IPIP) pass between this node and 192.0.2.2"},
		{"a firewall drops all", func() { far.Exec("nft", "add rule inet fw in drop") }, func() { far.Exec("nft", "flush chain inet fw in") },
			"Node far: " + unheard + "and neither does 192.0.2.2: if the node is up, have firewalls"},
		{"a firewall drops the tunnel, and a rule of this node echoes", func() {
			far.Exec("nft", "add rule inet fw in ip daddr 10.9.2.0 drop")
			node.Exec("nft", "add table inet fw; add chain inet fw out { type filter hook output priority 0; }; add rule inet fw out ip daddr 192.0.2.2 icmp type echo-request drop")
		}, func() { far.Exec("nft", "flush chain inet fw in"); node.Exec("nft", "delete table inet fw") },
			"Node far: " + unheard + "and neither does 192.0.2.2: if the node is up, have firewalls"},
		{"a firewall rejects all", func() {
			far.Exec("nft", "add chain inet fw rejects { type filter hook input priority 0; }; add rule inet fw rejects reject")
		},
			func() { far.Exec("nft", "delete chain inet fw rejects") },
			"Node far: it is not heard through tunnel, at 192.0.2.2: a firewall rejects what is sent there: connection refused"},
		{"the uplink has no carrier", func() { far.IP("link set eth0 down") }, func() { far.IP("link set eth0 up") }, "Node here: node far is not heard through tunnel: eth0 has no carrier"},
		{"the uplink is down", func() { node.IP("link set eth0 down") }, func() { node.IP("link set eth0 up"); way() }, "Node here: node far is not heard through tunnel: eth0 is down"},
		{"the tunnel is down", func() { node.IP("link set tunnel down", "route replace blackhole 10.9.2.0") }, func() { node.IP("link set tunnel up", "route del blackhole 10.9.2.0"); way() },
			"Node here: node far is not heard through tunnel: tunnel is down"},
		{"there is no tunnel", func() { node.IP("link del tunnel", "route replace blackhole 10.9.2.0") },
			func() {
				node.IP("link add tunnel type vxlan id 9 dstport 4789", "link set tunnel up", "route del blackhole 10.9.2.0")
				way()
			},
			"Node here: node far is not heard through tunnel: there is no interface tunnel"},
		{"there is no route", func() { node.IP("route flush table main") }, func() { node.IP("route add 192.0.2.0/24 dev eth0"); way() },
			"Node here: node far is not heard through tunnel: this node has no route there"},
		{"a blackhole route", func() { node.IP("route replace blackhole 10.9.2.0") }, func() { node.IP("route del blackhole 10.9.2.0"); way() },
			"Node here: node far is not heard through tunnel: this node has a blackhole route there"},
		{"nobody answers ARP", func() { far.IP("addr del 192.0.2.2/24 dev eth0"); node.IP("neigh flush dev eth0") }, func() { far.IP("addr add 192.0.2.2/24 dev eth0") },
			"Node far: it is not heard through tunnel, at 192.0.2.2: no route to host: its address, or the router before it, does not answer ARP"},
		{"the kernel cannot send", func() { node.Exec("tc", "qdisc", "replace", "dev", "eth0", "root", "bfifo", "limit", "1") }, func() { node.Exec("tc", "qdisc", "del", "dev", "eth0", "root") },
			"Node here: node far is not heard through tunnel: this node's kernel cannot send: no buffer space available: its table of neighbours is likely to be full: raise the sysctl net.ipv4.neigh.default.gc_thresh3"},
	} {
		wait := func(what, want string) {
			t.Helper()
			for begin := time.Now(); ; time.Sleep(5 * time.Millisecond) {
				issues, h := p.Issues(), p.Heard()[of]
				if want == "" && issues == nil && !h.Last.IsZero() || len(issues) == 1 && want != "" && strings.HasPrefix(issues[0].String(), want) {
					if said := h.Why != ""; said == strings.Contains(want, unheard) && want != "" {
						t.Errorf("%s: heard %+v", what, h)
					}
					return
				}
				if time.Since(begin) > time.Minute {
					t.Fatalf("%s: %q, want %q", what, issues, want)
				}
			}
		}
		if c.do != nil {
			c.do()
		}
		wait(c.what, c.want)
		if c.undo != nil {
			c.undo()
			wait("after "+c.what, "")
		}
	}
}
