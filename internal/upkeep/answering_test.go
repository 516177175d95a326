package upkeep

import (
	"context"
	"log/slog"
	"net/netip"
	"sync"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"sluice.dev/sluice/internal/driver"
	"sluice.dev/sluice/internal/kernel/conntrack"
	"sluice.dev/sluice/internal/model"
	"sluice.dev/sluice/internal/state"
	"sluice.dev/sluice/test/world"
)

// tells is a Rejudger and Answerer that tells of the same connections as long as packets are judged
// again.
type tells struct{ tuples chan []conntrack.Tuple }

func (a tells) Answering(_ context.Context, yield func(from, to netip.AddrPort)) error {
	now := <-a.tuples
	a.tuples <- now
	for _, t := range now {
		yield(t.Src, t.Dst)
	}
	return nil
}

func (a tells) Calm(context.Context) error {
	<-a.tuples
	a.tuples <- nil
	return nil
}

// A connection that the driver tells of is cut, if policy forbids it, though no pass has gone
// through the table yet; one that it does not tell of, or that is allowed, is left to the pass; and
// one that has ended keeps none from being cut.
func TestAnsweringIsCut(t *testing.T) {
	t.Parallel()
	h := world.NewHost(t, "node")
	h.Exec("nft", "table inet test { chain labels { ct label set 127; }; }")
	const forbidden, allowed, untold, ended = "192.0.2.7:53", "192.0.2.8:53", "192.0.2.9:53", "192.0.2.10:53"
	at := func(s string) netip.AddrPort { return netip.MustParseAddrPort(s) }
	tuple := func(to string) conntrack.Tuple { return conntrack.Tuple{Src: at("198.51.100.1:9"), Dst: at(to)} }
	policy := state.NewPolicy()
	again := tells{make(chan []conntrack.Tuple, 1)}
	again.tuples <- nil
	var d *Driver
	h.In(func() (err error) {
		of := &stub{can: driver.Policy, again: again, answers: again, held: state.State{Policy: policy}}
		d, err = Open(of, driver.Options{Policy: true, Log: slog.New(slog.DiscardHandler)})
		for _, to := range []string{forbidden, allowed, untold} {
			if err != nil {
				break
			}
			from, to := tuple(to).Src, tuple(to).Dst
			err = netlink.ConntrackCreate(netlink.ConntrackTable, unix.AF_INET, &netlink.ConntrackFlow{FamilyType: unix.AF_INET, TimeOut: 600,
				Forward: netlink.IPTuple{SrcIP: from.Addr().AsSlice(), DstIP: to.Addr().AsSlice(), Protocol: unix.IPPROTO_UDP, SrcPort: from.Port(), DstPort: to.Port()},
				Reverse: netlink.IPTuple{SrcIP: to.Addr().AsSlice(), DstIP: from.Addr().AsSlice(), Protocol: unix.IPPROTO_UDP, SrcPort: to.Port(), DstPort: from.Port()}})
		}
		return err
	})
	defer d.Close()
	cut := func() map[string]bool {
		all := map[string]bool{}
		err := d.ct.All(t.Context(), func(f *conntrack.Flow) { all[f.Orig.Dst.String()] = f.Cut() })
		if err != nil {
			t.Error(err)
		}
		return all
	}
	if n := len(cut()); n != 3 {
		t.Fatalf("%d flows, want 3", n)
	}

	held, release := make(chan struct{}), make(chan struct{})
	let := sync.OnceFunc(func() { close(release) })
	defer let()
	go func() { // no pass gets through the table
		first := true
		_ = d.cut.ct.All(t.Context(), func(*conntrack.Flow) {
			if first {
				first = false
				close(held)
				<-release
			}
		})
	}()
	<-held
	deny := &state.Rules{ID: "deny", Default: model.Allow, Tiers: []state.Tier{{Name: "default", Default: model.Deny,
		Policies: []*state.PolicyRules{{Policy: model.PolicyKey{Kind: model.NetworkPolicy, Name: model.Name{Namespace: "test", Name: "deny"}}}}}}}
	change := state.Delta{Policy: state.PolicyDelta{Rules: map[state.RulesID]*state.Rules{"deny": deny}, Workloads: map[netip.Addr]*state.Workload{}}}
	for _, to := range []string{forbidden, untold} {
		change.Policy.Workloads[at(to).Addr()] = &state.Workload{Ingress: "deny", Device: 5}
	}
	p, err := d.Update(t.Context(), change)
	if err == nil {
		<-again.tuples
		again.tuples <- []conntrack.Tuple{tuple(ended), tuple(forbidden), tuple(allowed)}
		err = p.Apply(t.Context())
	}
	if err != nil {
		t.Fatal(err)
	}
	for deadline := time.Now().Add(20 * time.Second); !cut()[forbidden] && time.Now().Before(deadline); {
		time.Sleep(time.Millisecond)
	}
	if got := cut(); !got[forbidden] || got[allowed] || got[untold] {
		t.Errorf("while the pass waits, cut: %v", got)
	}
	let()
	if err := d.AwaitCuts(t.Context()); err != nil {
		t.Fatal(err)
	}
	if got := cut(); !got[forbidden] || got[allowed] || !got[untold] || d.FlowsCut() != 2 {
		t.Errorf("after the pass, cut: %v, counted: %d", got, d.FlowsCut())
	}
}
