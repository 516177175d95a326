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
	end := func(name, to, carrier string) model.FarEnd {
		return model.FarEnd{Node: name, Device: "eth0", Remote: netip.MustParseAddr(to), To: netip.MustParseAddr(to), Carrier: carrier}
	}
	four, six := end("four", "192.0.2.2", "UDP 4789 (VXLAN)"), end("six", "fd00:2::2", "UDP 4789 (VXLAN)")
	plain := end("plain", "192.0.2.3", "")
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
				silent := of.Carrier != "" && slices.ContainsFunc(faults, func(f string) bool {
					return strings.HasPrefix(f, "Node "+of.Node+":") || strings.HasPrefix(f, "Node here:")
				})
				right = right && (of.Carrier == "" || silent == h.Silent())
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
	wait("this node's kernel does not send", "Node here: 2 other nodes cannot be asked through eth0 whether they are heard: this node's own kernel says: operation not permitted")
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
