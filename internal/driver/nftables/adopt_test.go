package nftables

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"net/netip"
	"strings"
	"testing"
	"time"

	lib "github.com/google/nftables"

	"sluice.dev/sluice/internal/driver"
	"sluice.dev/sluice/internal/driver/nftables/ruleset"
	"sluice.dev/sluice/internal/driver/table"
	"sluice.dev/sluice/internal/model"
	"sluice.dev/sluice/internal/state"
	"sluice.dev/sluice/test/netns"
	"sluice.dev/sluice/test/world"
)

// testNS is a network namespace that lives as long as the test.
func testNS(t *testing.T) *netns.NS {
	t.Helper()
	return world.NewHost(t, "node").NS
}

func openIn(t *testing.T, ns *netns.NS, o Options) *Driver {
	t.Helper()
	return openWith(t, ns, func(Options) (*Driver, error) { return Open(o) })
}

// adopt applies the plan that leads to the state, and returns its length and text.
func adopt(t *testing.T, d *Driver, s *state.State) (int, string) {
	t.Helper()
	p, err := d.Adopt(t.Context(), s, driver.Keep{})
	if err != nil {
		t.Fatal(err)
	}
	n, text := p.Len(), p.String()
	if err := p.Apply(t.Context()); err != nil {
		t.Fatalf("apply: %v\n%s", err, text)
	}
	return n, text
}

func update(t *testing.T, d *Driver, delta state.Delta) string {
	t.Helper()
	p, err := d.Update(t.Context(), delta)
	if err != nil {
		t.Fatal(err)
	}
	text := p.String()
	if err := p.Apply(t.Context()); err != nil {
		t.Fatalf("apply: %v\n%s", err, text)
	}
	return text
}

// testState holds a frontend of every sort, in both families.
func testState() *state.State {
	s := state.New()
	s.Services.Settings = state.Settings{
		ServiceCIDRs: prefixes("10.96.0.0/16", "fd00:96::/112"),
		ClusterCIDRs: prefixes("10.1.0.0/16", "fd00:1::/64"), LocalCIDRs: prefixes("10.1.0.0/24"),
	}
	for fam, pod := range map[string]string{"10.96.0.": "10.1.0.%d:80", "fd00:96::": "[fd00:1::%d]:80"} {
		backends := func(n int) []netip.AddrPort {
			var b []string
			for i := range n {
				b = append(b, fmt.Sprintf(pod, i+1))
			}
			return addrPorts(b...)
		}
		put := func(host int, f state.Frontend) {
			a := netip.MustParseAddr(fmt.Sprintf("%s%d", fam, host))
			f.Service = model.Name{Namespace: "test", Name: fmt.Sprint("s", host)}
			f.Alive = f.Backends
			s.Services.Frontends[state.FrontendKey{Addr: a, Protocol: model.TCP, Port: 80}] = &f
			s.Services.ClusterIPs[a] = struct{}{}
		}
		put(1, state.Frontend{Backends: backends(1)})
		put(2, state.Frontend{Backends: backends(5)})
		put(3, state.Frontend{Reject: true})
		put(4, state.Frontend{Kind: state.NodePort, Backends: backends(3), LocalOnly: true, Local: backends(2)})
		put(5, state.Frontend{Kind: state.LoadBalancer, Backends: backends(9), Affinity: 10800 * time.Second,
			SourceRanges: prefixes("192.0.2.0/24", "fd00:2::/64")})
		put(6, state.Frontend{Backends: backends(2), Affinity: time.Minute})
		s.Services.Hairpins[backends(1)[0].Addr()] = struct{}{}
		s.Services.OtherIPs[netip.MustParseAddr(fam+"99")] = struct{}{}
	}
	return s
}

func clone(s *state.State) *state.State {
	return &state.State{Services: &state.Services{Settings: s.Services.Settings, Frontends: maps.Clone(s.Services.Frontends),
		ClusterIPs: maps.Clone(s.Services.ClusterIPs), OtherIPs: maps.Clone(s.Services.OtherIPs), Hairpins: maps.Clone(s.Services.Hairpins)}}
}

// modes are the two ways to hold the table: protected where the kernel can,
// and open to all.
func modes(t *testing.T, f func(t *testing.T, o Options)) {
	t.Run("owned", func(t *testing.T) {
		t.Parallel()
		ns := testNS(t)
		if !openIn(t, ns, Options{}).CanOwn() {
			t.Log("this kernel has no owned tables that persist (Linux 6.9): running without an owner")
		}
		f(t, Options{})
	})
	t.Run("shared", func(t *testing.T) {
		t.Parallel()
		f(t, Options{Shared: true})
	})
}

func TestAdoptionOfTheSameIsEmpty(t *testing.T) {
	t.Parallel()
	modes(t, func(t *testing.T, o Options) {
		ns, want := testNS(t), testState()
		d := openIn(t, ns, o)
		if n, _ := adopt(t, d, want); n == 0 {
			t.Fatal("an empty kernel, and nothing to do")
		}
		if n, text := adopt(t, d, want); n != 0 {
			t.Errorf("the same driver again plans\n%s", text)
		}
		if err := d.Close(); err != nil {
			t.Fatal(err)
		}
		d = openIn(t, ns, o)
		if n, text := adopt(t, d, testState()); n != 0 {
			t.Errorf("a new driver plans\n%s", text)
		}
	})
}

// What changed while no agent ran is all that the next one changes.
func TestAdoptionPlansTheDifference(t *testing.T) {
	t.Parallel()
	ns, want := testNS(t), testState()
	d := openIn(t, ns, Options{})
	adopt(t, d, want)
	_ = d.Close()

	key := state.FrontendKey{Addr: netip.MustParseAddr("10.96.0.2"), Protocol: model.TCP, Port: 80}
	f := *want.Services.Frontends[key]
	f.Backends = append(f.Backends[:4:4], netip.MustParseAddrPort("10.1.0.99:80"))
	want = clone(want)
	want.Services.Frontends[key] = &f
	delete(want.Services.Frontends, state.FrontendKey{Addr: netip.MustParseAddr("10.96.0.6"), Protocol: model.TCP, Port: 80})

	d = openIn(t, ns, Options{})
	_, text := adopt(t, d, want)
	for line := range strings.Lines(text) {
		if !strings.Contains(line, "10.96.0.2 ") && !strings.Contains(line, "10.96.0.6 ") && !strings.Contains(line, "ip-learn-60") {
			t.Errorf("plans %s", line)
		}
	}
	if !strings.Contains(text, "10.1.0.99") || !strings.Contains(text, "delete chain ip-learn-60") {
		t.Errorf("plan lacks the new backend, or the removal of the chain for a time-out that is gone:\n%s", text)
	}
	_ = d.Close()
	d = openIn(t, ns, Options{})
	if n, text := adopt(t, d, want); n != 0 {
		t.Errorf("still to do:\n%s", text)
	}
}

// However a state is arrived at, the kernel holds the same.
func TestUpdatesAddUp(t *testing.T) {
	t.Parallel()
	ns, want := testNS(t), testState()
	d := openIn(t, ns, Options{})
	adopt(t, d, state.New())
	settings := want.Services.Settings
	update(t, d, state.Delta{Services: state.ServicesDelta{Settings: &settings}})
	for k, f := range want.Services.Frontends {
		more := *f
		more.Backends = append(more.Backends[:len(more.Backends):len(more.Backends)], testKey{k}.backend(250))
		more.Affinity = 30 * time.Second
		update(t, d, state.Delta{Services: state.ServicesDelta{Frontends: map[state.FrontendKey]*state.Frontend{k: &more}}})
	}
	delta := state.Delta{Services: state.ServicesDelta{Frontends: maps.Clone(want.Services.Frontends), ClusterIPs: map[netip.Addr]bool{}, OtherIPs: map[netip.Addr]bool{}, Hairpins: map[netip.Addr]bool{}}}
	for a := range want.Services.ClusterIPs {
		delta.Services.ClusterIPs[a] = true
	}
	for a := range want.Services.OtherIPs {
		delta.Services.OtherIPs[a] = true
	}
	for a := range want.Services.Hairpins {
		delta.Services.Hairpins[a] = true
	}
	update(t, d, delta)
	d.Doubt = true // have it read everything
	if n, text := adopt(t, d, want); n != 0 {
		t.Errorf("the kernel differs:\n%s", text)
	}
	for k := range want.Services.Frontends {
		update(t, d, state.Delta{Services: state.ServicesDelta{Frontends: map[state.FrontendKey]*state.Frontend{k: nil}}})
	}
	for _, c := range chainNames(t, ns) {
		if ruleset.IsLearnChain(c) {
			t.Errorf("chain %s is left of frontends that are gone", c)
		}
	}
}

type testKey struct{ state.FrontendKey }

// backend is one that no other frontend of the test has, in the key's family.
func (k testKey) backend(host byte) netip.AddrPort {
	a := k.Addr.AsSlice()
	a[len(a)-1] = host
	b, _ := netip.AddrFromSlice(a)
	return netip.AddrPortFrom(b, 80)
}

func chainNames(t *testing.T, ns *netns.NS) (names []string) {
	t.Helper()
	chains, err := libConn(t, ns).ListChains()
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range chains {
		names = append(names, c.Name)
	}
	return names
}

func libConn(t *testing.T, ns *netns.NS) *lib.Conn {
	t.Helper()
	c, err := lib.New(lib.WithNetNSFd(ns.Fd()))
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// Other programs flush everything now and then. Once it is put right, a driver that starts finds
// every set of services and policy with all its members (projectcalico/calico#13275).
func TestFlushByOthers(t *testing.T) {
	t.Parallel()
	modes(t, func(t *testing.T, o Options) {
		ns, want := testNS(t), testState()
		o.Policy = true
		want.Policy = randomPolicy(rand.New(rand.NewPCG(5, 6)), addLinks(t, ns)...)
		d := openIn(t, ns, o)
		adopt(t, d, want)
		c := libConn(t, ns)
		c.FlushRuleset()
		_ = c.Flush()
		tampered, err := d.Tampered(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if tampered == d.Owned {
			t.Errorf("owned %t, tampered with %t", d.Owned, tampered)
		}
		if n, text := adopt(t, d, want); (n > 0) == d.Owned {
			t.Errorf("owned %t; to heal:\n%s", d.Owned, text)
		}
		if tampered, err := d.Tampered(t.Context()); tampered || err != nil {
			t.Errorf("healed, but tampered = %t, %v", tampered, err)
		}
		_ = d.Close()
		d = openIn(t, ns, o)
		d.Doubt = true // have it read everything
		if n, text := adopt(t, d, want); n > 0 {
			t.Errorf("healed, but a driver that starts finds to do:\n%s", text)
		}
	})
}

// Without an owner, anyone can take single elements out; the audit puts them back.
func TestAuditFindsSingleElements(t *testing.T) {
	t.Parallel()
	ns, want := testNS(t), testState()
	d := openIn(t, ns, Options{Shared: true})
	adopt(t, d, want)
	deleteClusterIP(t, ns, netip.MustParseAddr("10.96.0.1"))
	if tampered, err := d.Tampered(t.Context()); tampered || err != nil {
		t.Errorf("tampered = %t, %v: an element is not seen at a glance", tampered, err)
	}
	d.Compared = d.Compared.Add(-table.DoubtInterval)
	if tampered, err := d.Tampered(t.Context()); !tampered || err != nil {
		t.Errorf("a minute after the last look, with others at work since: tampered = %t, %v", tampered, err)
	}
	n, text := adopt(t, d, want)
	if n != 1 || !strings.Contains(text, "add element ip-cluster-ips { 10.96.0.1 }") {
		t.Errorf("plan %q", text)
	}
	d.Compared = d.Compared.Add(-table.DoubtInterval)
	if tampered, err := d.Tampered(t.Context()); tampered || err != nil {
		t.Errorf("nobody was at work since the last look, but tampered = %t, %v", tampered, err)
	}
}

func deleteClusterIP(t *testing.T, ns *netns.NS, a netip.Addr) {
	t.Helper()
	c := libConn(t, ns)
	set, err := c.GetSetByName(&lib.Table{Name: ruleset.TableName, Family: lib.TableFamilyINet}, "ip-cluster-ips")
	if err != nil {
		t.Fatal(err)
	}
	if err := c.SetDeleteElements(set, []lib.SetElement{{Key: a.AsSlice()}}); err != nil {
		t.Fatal(err)
	}
	if err := c.Flush(); err != nil {
		t.Fatal(err)
	}
}

// What others did to an open table while no agent ran is found by the first audit.
func TestTamperingWhileAway(t *testing.T) {
	t.Parallel()
	ns, want := testNS(t), testState()
	d := openIn(t, ns, Options{Shared: true})
	adopt(t, d, want)
	_ = d.Close()
	deleteClusterIP(t, ns, netip.MustParseAddr("10.96.0.1"))
	d = openIn(t, ns, Options{Shared: true})
	adopt(t, d, want)
	if n, text := adopt(t, d, want); n != 1 {
		t.Errorf("the audit plans %d operations:\n%s", n, text)
	}
	if n, text := adopt(t, d, want); n != 0 {
		t.Errorf("healed, but the next audit plans\n%s", text)
	}
}

// A table that was made without an owner, by an older kernel's agent or from a
// saved rule set, stays open to all, and is watched as such.
func TestTableWithoutOwner(t *testing.T) {
	t.Parallel()
	ns, want := testNS(t), testState()
	d := openIn(t, ns, Options{Shared: true})
	adopt(t, d, want)
	_ = d.Close()
	d = openIn(t, ns, Options{})
	adopt(t, d, want)
	c := libConn(t, ns)
	c.FlushRuleset()
	_ = c.Flush()
	if tampered, err := d.Tampered(t.Context()); !tampered || err != nil {
		t.Errorf("flushed, but tampered = %t, %v", tampered, err)
	}
	if n, _ := adopt(t, d, want); n == 0 {
		t.Error("flushed, and nothing to do")
	}
}

func TestTamperedAfterFailedUpdate(t *testing.T) {
	t.Parallel()
	ns, want := testNS(t), testState()
	d := openIn(t, ns, Options{Shared: true})
	adopt(t, d, want)
	c := libConn(t, ns)
	c.FlushRuleset()
	if err := c.Flush(); err != nil {
		t.Fatal(err)
	}
	p, err := d.Update(t.Context(), state.Delta{Services: state.ServicesDelta{ClusterIPs: map[netip.Addr]bool{netip.MustParseAddr("10.96.9.9"): true}}})
	if err != nil {
		t.Fatal(err)
	}
	if err := p.Apply(t.Context()); err == nil {
		t.Fatal("applied to a table that is gone")
	}
	if tampered, err := d.Tampered(t.Context()); !tampered || err != nil {
		t.Errorf("tampered = %t, %v", tampered, err)
	}
}

// Transactions of other programs in other tables are none of our business, with whatever rules:
// these are Tailscale's (projectcalico/calico#13579).
func TestOthersMayWork(t *testing.T) {
	t.Parallel()
	ns := testNS(t)
	d := openIn(t, ns, Options{Shared: true})
	adopt(t, d, testState())
	for _, command := range []string{
		"add table ip filter; add chain ip filter FORWARD { type filter hook forward priority filter; policy accept; }; add chain ip filter ts-forward",
		"add rule ip filter FORWARD counter jump ts-forward",
		"add rule ip filter ts-forward iifname tailscale0 counter meta mark set meta mark & 0xff00ffff | 0x00040000",
		"add rule ip filter ts-forward meta mark & 0x00ff0000 == 0x00040000 counter accept",
		"add table ip nat; add chain ip nat ts-postrouting; add rule ip nat ts-postrouting meta mark & 0x00ff0000 == 0x00040000 counter masquerade",
	} {
		if out, err := ns.Run("nft", command); err != nil {
			t.Fatalf("%v: %s", err, out)
		}
	}
	if tampered, err := d.Tampered(t.Context()); tampered || err != nil {
		t.Errorf("tampered = %t, %v", tampered, err)
	}
	if n, text := adopt(t, d, testState()); n > 0 {
		t.Errorf("to do:\n%s", text)
	}
}

func TestTwoAgents(t *testing.T) {
	t.Parallel()
	ns := testNS(t)
	first := openIn(t, ns, Options{})
	if !first.CanOwn() {
		t.Log("this kernel cannot own a table for good (Linux 6.9): a second agent would not be kept out")
		return
	}
	adopt(t, first, testState())
	second := openIn(t, ns, Options{})
	p, err := second.Adopt(t.Context(), state.New(), driver.Keep{})
	if err != nil {
		t.Fatal(err)
	}
	if err := p.Apply(t.Context()); !errors.Is(err, driver.ErrBusy) {
		t.Errorf("apply: %v, want ErrBusy", err)
	}
	if err := second.Purge(t.Context()); !errors.Is(err, driver.ErrBusy) {
		t.Errorf("purge: %v, want ErrBusy", err)
	}
	_ = first.Close()
	adopt(t, second, testState())
	if err := second.Purge(t.Context()); err != nil {
		t.Error(err)
	}
}

func TestPurgeLeavesOthersAlone(t *testing.T) {
	t.Parallel()
	modes(t, func(t *testing.T, o Options) {
		ns := testNS(t)
		c := libConn(t, ns)
		c.AddTable(&lib.Table{Name: "theirs", Family: lib.TableFamilyINet})
		if err := c.Flush(); err != nil {
			t.Fatal(err)
		}
		d := openIn(t, ns, o)
		adopt(t, d, testState())
		_ = d.Close()
		d = openIn(t, ns, o)
		for range 2 { // purging what is not there succeeds
			if err := d.Purge(t.Context()); err != nil {
				t.Fatal(err)
			}
		}
		tables, err := c.ListTables()
		if err != nil {
			t.Fatal(err)
		}
		if len(tables) != 1 || tables[0].Name != "theirs" {
			t.Errorf("tables left: %v", tables)
		}
	})
}

func TestFailedApplyIsAdoptedAgain(t *testing.T) {
	t.Parallel()
	ns, want := testNS(t), testState()
	d := openIn(t, ns, Options{})
	adopt(t, d, want)
	ctx, cancel := context.WithCancel(t.Context())
	p, err := d.Update(ctx, state.Delta{Services: state.ServicesDelta{ClusterIPs: map[netip.Addr]bool{netip.MustParseAddr("10.96.9.9"): true}}})
	if err != nil {
		t.Fatal(err)
	}
	cancel()
	if err := p.Apply(ctx); err == nil {
		t.Fatal("applied under a context that has ended")
	}
	if n, text := adopt(t, d, want); n != 0 {
		t.Errorf("plans\n%s", text)
	}
}

// A transaction is carried out whole or not at all, and the error says where it failed.
func TestBatchIsAtomic(t *testing.T) {
	t.Parallel()
	ns, want := testNS(t), testState()
	d := openIn(t, ns, Options{})
	adopt(t, d, want)
	c := d.newChange()
	d.ruleset.ClusterIPElement(netip.MustParseAddr("10.96.9.9"), c.Add)
	d.ruleset.ClusterIPElement(netip.MustParseAddr("10.96.8.8"), c.Remove) // not there
	err := c.plan(d.parts(), func() {}).Apply(t.Context())
	if err == nil || !strings.Contains(err.Error(), "delete elements of ip-cluster-ips") {
		t.Errorf("apply: %v", err)
	}
	d.Doubt = true
	if n, text := adopt(t, d, want); n != 0 {
		t.Errorf("half a transaction was carried out:\n%s", text)
	}
}

// While something could not be read, what the kernel has beyond want stays, and works.
func TestAdoptKeeping(t *testing.T) {
	t.Parallel()
	for name, open := range map[string]func(Options) (*Driver, error){"same ruleset": Open, "another ruleset": OpenNext} {
		t.Run(name, func(t *testing.T) {
			ns, full := testNS(t), testState()
			d := openWith(t, ns, open)
			adopt(t, d, full)
			_ = d.Close()

			// One frontend is known to be smaller, one is not known any more, and one is new.
			part := clone(full)
			smaller, lost := vip("10.96.0.5"), vip("10.96.0.6")
			f := *full.Services.Frontends[smaller]
			f.Backends = f.Backends[:2]
			part.Services.Frontends[smaller] = &f
			delete(part.Services.Frontends, lost)
			delete(part.Services.ClusterIPs, lost.Addr)
			part.Services.Frontends[vip("10.96.0.7")] = &state.Frontend{Backends: f.Backends[:1]}
			d = openIn(t, ns, Options{})
			p, kept, err := adoptKeeping(t, d, part, driver.Keep{Services: true, Policy: true})
			if err != nil {
				t.Fatal(err)
			}
			if err := p.Apply(t.Context()); err != nil {
				t.Fatalf("apply: %v\n%s", err, p)
			}
			if kept != 1 {
				t.Errorf("kept %d frontends, want 1", kept)
			}
			if p, kept, err := adoptKeeping(t, d, part, driver.Keep{Services: true, Policy: true}); err != nil || kept != 1 || p.Len() != 0 {
				t.Errorf("again: kept %d, %v\n%s", kept, err, p)
			}
			if _, err := d.Update(t.Context(), state.Delta{Services: state.ServicesDelta{Frontends: map[state.FrontendKey]*state.Frontend{lost: nil}}}); err == nil {
				t.Error("an update goes on as if nothing were kept")
			}

			// What was declared since the start and is no more was seen to go.
			fewer := clone(part)
			delete(fewer.Services.Frontends, vip("10.96.0.7"))
			p, kept, err = adoptKeeping(t, d, fewer, driver.Keep{Services: true, Policy: true})
			if err != nil || kept != 1 || !strings.Contains(p.String(), "delete element ip-frontends { 10.96.0.7 ") {
				t.Errorf("after a deletion: kept %d, %v\n%s", kept, err, p)
			}

			// What is whole again needs nothing for what was kept.
			whole := clone(part)
			whole.Services.Frontends[lost] = full.Services.Frontends[lost]
			whole.Services.ClusterIPs[lost.Addr] = struct{}{}
			if n, text := adopt(t, d, whole); n != 0 {
				t.Errorf("what was lost is back, and to do is\n%s", text)
			}
			if n, _ := adopt(t, d, part); n == 0 {
				t.Error("what is deleted now stays")
			}
		})
	}
}

// A ruleset whose sets are others cannot keep what it does not know; so it waits.
func TestAdoptKeepingAcrossLayouts(t *testing.T) {
	t.Parallel()
	ns, full := testNS(t), testState()
	d := openWith(t, ns, OpenOther)
	adopt(t, d, full)
	_ = d.Close()
	d = openIn(t, ns, Options{})
	p, kept, err := adoptKeeping(t, d, state.New(), driver.Keep{Services: true, Policy: true})
	if err != nil || kept == 0 || p.Len() != 0 {
		t.Fatalf("kept %d, %v\n%s", kept, err, p)
	}
	if err := p.Apply(t.Context()); err != nil {
		t.Fatal(err)
	}
	if n, _ := adopt(t, d, full); n == 0 {
		t.Error("the ruleset was replaced before")
	}
}

func vip(a string) state.FrontendKey {
	return state.FrontendKey{Addr: netip.MustParseAddr(a), Protocol: model.TCP, Port: 80}
}

func openWith(t *testing.T, ns *netns.NS, open func(Options) (*Driver, error)) (d *Driver) {
	t.Helper()
	err := ns.Do(func() (err error) {
		d, err = open(Options{})
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = d.Close() })
	return d
}

// adoptKeeping plans an adoption that keeps something, and returns how much it does.
func adoptKeeping(t *testing.T, d driver.Driver, want *state.State, keep driver.Keep) (driver.Plan, int, error) {
	p, err := d.Adopt(t.Context(), want, keep)
	if err != nil {
		return nil, 0, err
	}
	return p, p.Kept().Elements(), nil
}

func prefixes(s ...string) (ps []netip.Prefix) {
	for _, s := range s {
		ps = append(ps, netip.MustParsePrefix(s))
	}
	return ps
}

func addrPorts(s ...string) (as []netip.AddrPort) {
	for _, s := range s {
		as = append(as, netip.MustParseAddrPort(s))
	}
	return as
}
