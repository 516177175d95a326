package nftables

import (
	"errors"
	"log/slog"
	"net/netip"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"sluice.dev/sluice/internal/driver"
	"sluice.dev/sluice/internal/driver/table"
	"sluice.dev/sluice/internal/kernel/attr"
	"sluice.dev/sluice/internal/kernel/nft"
	"sluice.dev/sluice/internal/model"
	"sluice.dev/sluice/internal/reconcile"
	"sluice.dev/sluice/internal/state"
)

// While no change of policy gets through, services are changed and adopted as ever; and the other
// way round. Once it gets through, all is in the kernel.
func TestPartsFailApart(t *testing.T) {
	t.Parallel()
	modes(t, func(t *testing.T, o Options) {
		failing := policyPart // one in each of the modes
		if o.Shared {
			failing = servicesPart
		}
		o.Policy = true
		ns, want := testNS(t), isolated()
		d := openIn(t, ns, o)
		r := reconcile.New(d, func() *state.State { return want }, slog.New(slog.DiscardHandler))
		r.Lack(reconcile.Lacking{})
		attempt := func(change state.Delta, fails bool) {
			t.Helper()
			want.Apply(change)
			r.Hurry()
			if _, err := r.Attempt(t.Context(), change, 0); (err != nil) != fails {
				t.Fatalf("attempt: %v, want an error: %v", err, fails)
			}
		}
		change := func(services, policy byte) (c state.Delta) {
			if services > 0 {
				f := &state.Frontend{Backends: addrPorts("10.1.0.2:80")}
				c.Services.Frontends = map[state.FrontendKey]*state.Frontend{vip(netip.AddrFrom4([4]byte{10, 96, 1, services}).String()): f}
			}
			if policy > 0 {
				c.Policy.Workloads = map[netip.Addr]*state.Workload{netip.AddrFrom4([4]byte{10, 1, 0, policy}): {Device: int(policy), Ingress: "deny"}}
			}
			return c
		}
		holds := func(set *nft.Set, n int) {
			t.Helper()
			elements, err := d.Content(t.Context(), set)
			if err != nil || len(elements) != n {
				t.Fatalf("%d elements in %s, want %d (%v)", len(elements), set.Name, n, err)
			}
		}
		frontends, pods := d.ruleset.Families[0].Frontends, d.ruleset.Families[0].Policy.To
		attempt(state.Delta{}, false)
		holds(frontends, 0)
		holds(pods, 2)

		d.Refuse(func(m Message) error {
			if m.Type != unix.NFT_MSG_NEWSETELEM {
				return nil
			}
			name := attr.Text(attr.Find(m.Body, unix.NFTA_SET_ELEM_LIST_SET))
			for _, s := range d.ruleset.Sets {
				if s.Name == name && s != d.ruleset.Notes && failing.hold(partOf(d.ruleset, s)) {
					return unix.EAGAIN // nothing that the kernel refuses for what it is
				}
			}
			return nil
		})
		attempt(change(1, 11), true)
		attempt(change(2, 0), true) // what failed is tried again
		attempt(change(0, 12), true)
		for range table.RebuildAfter { // a fresh table would not help
			r.Doubt("")
			attempt(state.Delta{}, true)
		}
		attempt(change(3, 13), true)
		if failing == policyPart {
			holds(frontends, 3)
			holds(pods, 2)
		} else {
			holds(frontends, 0)
			holds(pods, 5)
		}
		if failed := r.Failed(); len(failed) != 1 {
			t.Errorf("failed: %v", failed)
		}

		d.Refuse(func(Message) error { return nil })
		attempt(state.Delta{}, false)
		holds(frontends, 3)
		holds(pods, 5)
		attempt(change(4, 14), false)
		holds(frontends, 4)
		holds(pods, 6)
		if n, text := adopt(t, d, want); n != 0 {
			t.Errorf("an adoption plans\n%s", text)
		}
	})
}

// A part that fails from the first programming on, after the table was lost, or after a restart of
// the agent, holds up no other; and nothing of it that was in force is taken from the kernel. Only
// a table without an owner is lost; TestFailingParts has one with an owner.
func TestPartsFailApartFromTheStart(t *testing.T) {
	t.Parallel()
	o := Options{Options: driver.Options{Policy: true}, Shared: true}
	for _, failing := range []reconcile.Part{reconcile.Policy, reconcile.Services} {
		t.Run(failing.String(), func(t *testing.T) {
			t.Parallel()
			ns, want := testNS(t), isolated()
			want.Policy.HostDevices[3] = struct{}{}
			want.Services.Frontends[vip("10.96.0.1")] = &state.Frontend{Backends: addrPorts("10.1.0.1:80")}
			var d *Driver
			var r *reconcile.Reconciler
			fails := true
			start := func() {
				t.Helper()
				d = openIn(t, ns, o)
				r = reconcile.New(d, func() *state.State { return want }, slog.New(slog.DiscardHandler))
				r.Lack(reconcile.Lacking{})
				fp := d.ruleset.Families[0]
				set := map[reconcile.Part]*nft.Set{reconcile.Policy: fp.Policy.To, reconcile.Services: fp.Frontends}[failing]
				d.Refuse(func(m Message) error {
					if fails && m.Type == unix.NFT_MSG_NEWSETELEM && attr.Text(attr.Find(m.Body, unix.NFTA_SET_ELEM_LIST_SET)) == set.Name {
						return unix.EAGAIN // nothing that the kernel refuses for what it is
					}
					return nil
				})
			}
			holds := func(frontends, pods int) {
				t.Helper()
				r.Hurry()
				if _, err := r.Attempt(t.Context(), state.Delta{}, 0); (err != nil) != fails {
					t.Fatalf("attempt: %v, want an error: %v", err, fails)
				}
				for _, c := range []struct {
					set  *nft.Set
					want int
				}{{d.ruleset.Families[0].Frontends, frontends}, {d.ruleset.Families[0].Policy.To, pods}, {d.ruleset.Policy.HostDevices, 1}} {
					if got, err := d.Content(t.Context(), c.set); err != nil || len(got) != c.want {
						t.Fatalf("%d elements in %s, want %d (%v)", len(got), c.set.Name, c.want, err)
					}
				}
			}
			one := func(n int) (frontends, pods int) {
				if failing == reconcile.Policy {
					return n, 0
				}
				return 0, 2
			}
			start()
			holds(one(1))
			for range table.RebuildAfter {
				r.Doubt("")
				holds(one(1))
			}
			if out, err := ns.Run("nft", "flush", "ruleset"); err != nil {
				t.Fatalf("%s: %v", out, err)
			}
			r.Doubt("")
			holds(one(1))
			fails = false
			holds(1, 2)

			if err := d.Close(); err != nil {
				t.Fatal(err)
			}
			want.Services.Frontends[vip("10.96.0.2")] = &state.Frontend{Backends: addrPorts("10.1.0.1:80")}
			want.Policy.Workloads[netip.MustParseAddr("10.1.0.77")] = &state.Workload{Device: 77, Ingress: "deny"}
			fails = true
			start()
			if failing == reconcile.Policy {
				holds(2, 2)
			} else {
				holds(1, 3)
			}
			fails = false
			holds(2, 3)
			if n, text := adopt(t, d, want); n != 0 {
				t.Errorf("an adoption plans\n%s", text)
			}
		})
	}
}

// A part cannot be adopted apart where the ruleset has to be written: into a kernel that has none,
// has another one, or has lost it.
func TestWholeIsNeeded(t *testing.T) {
	t.Parallel()
	ns, want := testNS(t), isolated()
	o := Options{Options: driver.Options{Policy: true}, Shared: true}
	d := openIn(t, ns, o)
	adoptPart := func(fails bool) {
		t.Helper()
		for _, part := range []*state.State{{Services: want.Services}, {Policy: want.Policy}} {
			p, err := d.Adopt(t.Context(), part, driver.Keep{})
			if err == nil && p.Len() > 0 {
				t.Errorf("there is to do:\n%s", p)
			}
			if (err != nil) != fails || err != nil && !strings.Contains(err.Error(), driver.ErrWhole.Error()) {
				t.Errorf("adopt a part: %v", err)
			}
		}
	}
	adoptPart(true)
	adopt(t, d, want)
	adoptPart(false)
	if out, err := ns.Run("nft", "flush", "ruleset"); err != nil {
		t.Fatalf("%s: %v", out, err)
	}
	adoptPart(true)
	adopt(t, d, want)
	if n, text := adopt(t, d, want); n != 0 {
		t.Errorf("an adoption plans\n%s", text)
	}
}

// What a change of policy left half done is found by the next adoption of policy, though services
// were adopted in between.
func TestHalfDoneChangeIsFound(t *testing.T) {
	t.Parallel()
	modes(t, func(t *testing.T, o Options) {
		o.Policy = true
		d := openIn(t, testNS(t), o)
		want := isolated()
		want.Policy.Groups[8] = map[netip.Addr]struct{}{netip.MustParseAddr("10.8.8.8"): {}}
		adopt(t, d, want)
		group := state.SetID(7)
		pod := netip.MustParseAddr("10.1.0.1")
		var change state.Delta
		change.Policy.Groups = map[state.SetID]map[netip.Addr]bool{group: {netip.MustParseAddr("10.9.9.9"): true}}
		change.Policy.Rules = map[state.RulesID]*state.Rules{"new": {ID: "new", Tiers: []state.Tier{{Name: "default", Default: model.Deny,
			Policies: []*state.PolicyRules{{ID: "rules", Policy: model.PolicyKey{Kind: model.NetworkPolicy, Name: model.Name{Namespace: "test", Name: "new"}},
				Rules: []state.Rule{{Name: "ingress[0]", Action: model.Allow, Source: state.End{In: []state.Term{{Groups: []state.SetID{group}}}}}}}}}}}}
		change.Policy.Workloads = map[netip.Addr]*state.Workload{pod: {Pod: model.Name{Namespace: "test", Name: "closed"}, Device: 5, Ingress: "new"}}
		to := d.ruleset.Families[0].Policy.To.Name
		d.Refuse(func(m Message) error {
			if m.Type == unix.NFT_MSG_NEWSETELEM && attr.Text(attr.Find(m.Body, unix.NFTA_SET_ELEM_LIST_SET)) == to {
				return unix.EAGAIN
			}
			return nil
		})
		p, err := d.Update(t.Context(), change)
		if err == nil {
			err = p.Apply(t.Context())
		}
		if err == nil {
			t.Fatal("the change is not refused")
		}
		d.Refuse(func(Message) error { return nil })
		if p, err = d.Adopt(t.Context(), &state.State{Services: want.Services}, driver.Keep{}); err == nil {
			err = p.Apply(t.Context())
		}
		if err != nil && !errors.Is(err, driver.ErrWhole) {
			t.Fatal(err)
		}
		adopt(t, d, want)
		d.Doubt = true // trust no note
		if n, text := adopt(t, d, want); n != 0 {
			t.Errorf("what was left half done is not found:\n%s", text)
		}
	})
}
