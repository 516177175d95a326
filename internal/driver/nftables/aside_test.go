package nftables

import (
	"bytes"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"sluice.dev/sluice/internal/driver"
	"sluice.dev/sluice/internal/driver/nftables/ruleset"
	"sluice.dev/sluice/internal/driver/table"
	"sluice.dev/sluice/internal/kernel/attr"
	"sluice.dev/sluice/internal/kernel/nft"
	"sluice.dev/sluice/internal/model"
	"sluice.dev/sluice/internal/state"
	"sluice.dev/sluice/test/netns"
	"sluice.dev/sluice/test/world"
)

// poison is what a kernel refuses.
type poison struct {
	frontends []state.FrontendKey
	addrs     []netip.Addr    // cluster IPs
	sets      []state.SetID   // groups, lists, port sets and named ports
	policy    model.PolicyKey // rules of it, as soon as they are written
	deep      model.PolicyKey // what leads to a chain with rules of it
}

// refuse has the driver's kernel refuse it.
func (p poison) refuse(d *Driver) {
	var keys [][]byte
	for _, k := range p.frontends {
		var e nft.Element
		e.AppendDestination(d.ruleset.Family(k.Addr.Is4()).IP, k.Addr, uint8(k.Protocol), k.Port)
		keys = append(keys, slices.Clone(e.Key[:e.KeyLen]))
	}
	clusterIPs := map[string]bool{}
	for _, a := range p.addrs {
		clusterIPs[string(a.AsSlice())] = true
	}
	deep := map[string]bool{} // chains with such rules
	var led [][]byte          // the expressions of all rules: some lead to chains
	leads := func(rule []byte, chain string) bool { return bytes.Contains(rule, append([]byte(chain), 0)) }
	names := func(text string, k model.PolicyKey) bool { return k.Kind != "" && strings.Contains(text, k.String()) }
	d.Refuse(func(m Message) error {
		switch m.Type {
		case unix.NFT_MSG_NEWSETELEM:
			name := attr.Text(attr.Find(m.Body, unix.NFTA_SET_ELEM_LIST_SET))
			i := slices.IndexFunc(d.ruleset.Sets, func(s *nft.Set) bool { return s.Name == name })
			if i < 0 {
				return nil
			}
			s := d.ruleset.Sets[i]
			var refused error
			for _, v := range attr.All(attr.Find(m.Body, unix.NFTA_SET_ELEM_LIST_ELEMENTS)) {
				e := nft.ReadElement(s, v)
				key := e.Key[:e.KeyLen]
				switch {
				case slices.ContainsFunc(keys, func(k []byte) bool { return !d.ruleset.OfPolicy(s) && bytes.Contains(key, k) }),
					strings.HasSuffix(name, "-cluster-ips") && clusterIPs[string(key)]:
					refused = unix.EINVAL
				case d.ruleset.OfPolicy(s) && s.Key[0].Datatype == nft.Number.Datatype:
					id := state.SetID(nft.NativeUint32(key[:4]) >> 8)
					for _, of := range p.sets {
						if of == id {
							refused = unix.ENFILE
						}
					}
				case s.Verdict && deep[e.Verdict.Chain]:
					refused = unix.EMLINK
				}
				if refused != nil {
					break
				}
			}
			return refused
		case unix.NFT_MSG_NEWRULE:
			comment := string(attr.Find(m.Body, unix.NFTA_RULE_USERDATA))
			if names(comment, p.policy) {
				return unix.EFBIG
			}
			rule := slices.Clone(attr.Find(m.Body, unix.NFTA_RULE_EXPRESSIONS))
			led = append(led, rule)
			if names(comment, p.deep) {
				chain := attr.Text(attr.Find(m.Body, unix.NFTA_RULE_CHAIN))
				deep[chain] = true
				if slices.ContainsFunc(led, func(r []byte) bool { return leads(r, chain) }) {
					return unix.EMLINK
				}
			}
			for chain := range deep {
				if leads(rule, chain) {
					return unix.EMLINK
				}
			}
		}
		return nil
	})
}

// hits reports whether the rules are refused.
func (p poison) hits(rules *state.Rules) bool {
	if rules == nil {
		return false
	}
	for _, t := range rules.Tiers {
		for _, own := range t.Policies {
			if own.Policy == p.deep || own.Policy == p.policy {
				return true
			}
		}
	}
	return slices.ContainsFunc(p.sets, func(id state.SetID) bool {
		return slices.ContainsFunc([]unitKind{groupUnit, listUnit, portSetUnit, namedPortsUnit}, func(k unitKind) bool { return refers(rules, unit{k, id}) })
	})
}

// without is the state that the kernel takes of want.
func (p poison) without(want *state.State) *state.State {
	rest := want.Clone()
	for _, k := range p.frontends {
		delete(rest.Services.Frontends, k)
	}
	for _, a := range p.addrs {
		delete(rest.Services.ClusterIPs, a)
	}
	for id, rules := range want.Policy.Rules {
		if p.hits(rules) {
			delete(rest.Policy.Rules, id)
			rest.Policy.Rules[standInFor(id)] = standIn(rules)
		}
	}
	of := func(id state.RulesID) state.RulesID {
		if p.hits(want.Policy.Rules[id]) {
			return standInFor(id)
		}
		return id
	}
	for a, w := range want.Policy.Workloads {
		rest.Policy.Workloads[a] = redirected(w, of)
	}
	for i, h := range want.Policy.Hosts {
		rest.Policy.Hosts[i] = redirected(h, of)
	}
	for _, id := range p.sets {
		delete(rest.Policy.Groups, id)
		delete(rest.Policy.Lists, id)
		delete(rest.Policy.PortSets, id)
		delete(rest.Policy.NamedPorts, id)
	}
	return rest
}

// held is what the kernel holds of the table: chains with their number of rules, and elements. Base
// chains that the state does not need now may be there or not.
func held(t *testing.T, d *Driver) (lines []string) {
	t.Helper()
	have, err := d.Read(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for name := range have.Chains {
		if ruleset.IsEntry(name) && have.Rules[name] == 0 {
			continue // it was needed once
		}
		lines = append(lines, fmt.Sprintf("chain %s %d", name, have.Rules[name]))
	}
	for _, s := range d.ruleset.Sets {
		if s.Dynamic || s == d.ruleset.Notes {
			continue
		}
		elements, err := d.Content(t.Context(), s)
		if err != nil {
			t.Fatal(err)
		}
		for _, e := range elements {
			lines = append(lines, fmt.Sprintf("%s %s", s.Name, &e))
		}
	}
	slices.Sort(lines)
	return lines
}

func sameHeld(t *testing.T, what string, got, want []string) {
	t.Helper()
	for _, l := range got {
		if !slices.Contains(want, l) {
			t.Errorf("%s: the kernel holds %s", what, l)
		}
	}
	for _, l := range want {
		if !slices.Contains(got, l) {
			t.Errorf("%s: the kernel lacks %s", what, l)
		}
	}
	if t.Failed() {
		t.FailNow()
	}
}

// poisoned makes some of a random state poison that the kernel does not hold already.
func poisoned(r *rand.Rand, s, have *state.State, p *poison) {
	for k := range s.Services.Frontends {
		_, there := have.Services.ClusterIPs[k.Addr]
		if have.Services.Frontends[k] == nil && r.IntN(4) == 0 {
			p.frontends = append(p.frontends, k)
		} else if !there && r.IntN(4) == 0 {
			p.addrs = append(p.addrs, k.Addr)
		}
	}
	for _, ids := range [][]state.SetID{slices.Collect(maps.Keys(s.Policy.Groups)), slices.Collect(maps.Keys(s.Policy.Lists)),
		slices.Collect(maps.Keys(s.Policy.PortSets)), slices.Collect(maps.Keys(s.Policy.NamedPorts))} {
		for _, id := range ids {
			if r.IntN(16) == 0 {
				p.sets = append(p.sets, id)
			}
		}
	}
	for _, rules := range s.Policy.Rules {
		t := &rules.Tiers[0]
		switch r.IntN(5) {
		case 0:
			t.Policies = slices.Insert(t.Policies, 0, &state.PolicyRules{Policy: p.policy, Rules: []state.Rule{{Name: "ingress[0]", Action: model.Allow}}})
		case 1:
			// With a rule, or its chain could be the one of a stand-in.
			t.Policies = slices.Insert(t.Policies, 0, &state.PolicyRules{ID: "deep", Policy: p.deep, Rules: []state.Rule{{Name: "ingress[0]", Action: model.Allow, Protocol: 132}}})
		}
	}
}

// Whatever the kernel refuses, and however it comes to be wanted, all else is in the kernel, and
// what was refused comes when the kernel takes it.
func TestRefusedIsSetAside(t *testing.T) {
	t.Parallel()
	modes(t, func(t *testing.T, o Options) {
		o.Policy = true
		refusals(t, o, seedOf(o))
	})
}

func refusals(t *testing.T, o Options, seed uint64) {
	r := rand.New(rand.NewPCG(seed, 16))
	ns := testNS(t)
	devices := addLinks(t, ns)
	p := poison{policy: key("poison"), deep: key("deep")}
	want := state.New()
	next := func() *state.State {
		s := testState()
		for k := range s.Services.Frontends {
			if r.IntN(3) == 0 {
				delete(s.Services.Frontends, k)
				delete(s.Services.ClusterIPs, k.Addr)
			}
		}
		s.Policy = randomPolicy(r, devices...)
		poisoned(r, s, want, &p)
		return s
	}
	expect := func(what string, want *state.State, d *Driver) {
		t.Helper()
		clean := testNS(t)
		addLinks(t, clean)
		other := openIn(t, clean, o)
		adopt(t, other, want)
		sameHeld(t, what, held(t, d), held(t, other))
	}
	d := openIn(t, ns, o)
	want = next()
	p.refuse(d)
	adopt(t, d, want) // an empty kernel
	expect("at the start", p.without(want), d)
	for round := range 2 {
		after := next()
		p.refuse(d)
		update(t, d, state.Delta{Services: state.ServicesDelta{Frontends: mapDelta(want.Services.Frontends, after.Services.Frontends), ClusterIPs: setDelta(want.Services.ClusterIPs, after.Services.ClusterIPs)},
			Policy: policyDelta(want.Policy, after.Policy)})
		want = after
		expect(fmt.Sprint("round ", round), p.without(want), d)
		d.Doubt = true
		if n, text := adopt(t, d, want); n != 0 {
			t.Fatalf("round %d: the audit finds\n%s", round, text)
		}
		if tampered, err := d.Tampered(t.Context()); tampered || err != nil {
			t.Fatalf("round %d: tampered %v, %v", round, tampered, err)
		}
	}
	for _, s := range d.SetAside() {
		if s.Kind == "" || s.Reason == "" {
			t.Errorf("set aside: %+v", s)
		}
	}
	if err := d.Close(); err != nil {
		t.Fatal(err)
	}
	d = openIn(t, ns, o)
	want = next()
	p.refuse(d)
	adopt(t, d, want) // a kernel that holds another state
	expect("after a restart", p.without(want), d)

	d.Refuse(func(Message) error { return nil })
	for range 1000 {
		if len(d.aside.why) == 0 {
			break
		}
		for u, r := range d.aside.why {
			r.tried = r.tried.Add(-retryAfter)
			d.aside.why[u] = r
		}
		adopt(t, d, want)
	}
	expect("once the kernel takes all", want, d)
	if list := d.SetAside(); len(list) > 0 {
		t.Errorf("still set aside: %v", list)
	}
}

func key(name string) model.PolicyKey {
	return model.PolicyKey{Kind: model.NetworkPolicy, Name: model.Name{Namespace: "test", Name: name}}
}

// Whatever makes adoptions fail again and again, a fresh table takes the place of ours.
func TestAdoptionsThatFailEndInAFreshTable(t *testing.T) {
	t.Parallel()
	modes(t, func(t *testing.T, o Options) {
		ns, want := testNS(t), testState()
		d := openIn(t, ns, o)
		adopt(t, d, want)
		if err := d.Close(); err != nil {
			t.Fatal(err)
		}
		d = openIn(t, ns, o)
		want = clone(want)
		want.Services.Settings.ClusterCIDRs = prefixes("10.2.0.0/16")
		d.Refuse(func(m Message) error {
			if m.Type == unix.NFT_MSG_DELSETELEM && strings.HasSuffix(m.Label, "-cidrs") {
				return unix.ENOENT
			}
			return nil
		})
		failed := table.Failures(0)
		for ; failed < 2*table.RebuildAfter; failed++ {
			p, err := d.Adopt(t.Context(), want, driver.Keep{})
			if err != nil {
				t.Fatal(err)
			}
			if err := p.Apply(t.Context()); err == nil {
				break
			}
		}
		if failed != table.RebuildAfter {
			t.Errorf("%d adoptions failed", failed)
		}
		d.Doubt = true
		if n, text := adopt(t, d, want); n != 0 {
			t.Errorf("the fresh table lacks\n%s", text)
		}
		if tables := tableNames(t, ns); !slices.Equal(tables, []string{ruleset.TableName}) {
			t.Errorf("tables: %v", tables)
		}
	})
}

func tableNames(t *testing.T, ns *netns.NS) (names []string) {
	t.Helper()
	tables, err := libConn(t, ns).ListTables()
	if err != nil {
		t.Fatal(err)
	}
	for _, table := range tables {
		names = append(names, table.Name)
	}
	return names
}

// A rebuilding that ends in between, wherever, is mended by the next driver; and cleaning up
// removes all of it. Each of the modes meets every second end.
func TestRebuildingThatEndsInBetween(t *testing.T) {
	t.Parallel()
	modes(t, func(t *testing.T, o Options) {
		o.Policy = true
		want := testState()
		want.Policy = isolated().Policy
		for last := 1 + int(seedOf(o)); ; last += 2 {
			ns := testNS(t)
			d := openIn(t, ns, o)
			adopt(t, d, want)
			d.failures.set(d.parts(), table.RebuildAfter)
			sent := 0
			d.Sock.Refuse = func([][]byte, []string) error {
				if sent++; sent > last {
					return unix.EBADF
				}
				return nil
			}
			p, err := d.Adopt(t.Context(), want, driver.Keep{})
			if err != nil {
				t.Fatal(err)
			}
			done := p.Apply(t.Context()) == nil
			if err := d.Close(); err != nil {
				t.Fatal(err)
			}
			d = openIn(t, ns, o)
			if last%4 < 2 {
				adopt(t, d, want)
				d.Doubt = true
				if n, text := adopt(t, d, want); n != 0 {
					t.Errorf("ended after %d transactions: the next driver's table lacks\n%s", last, text)
				}
				if tables := tableNames(t, ns); !slices.Equal(tables, []string{ruleset.TableName}) {
					t.Errorf("ended after %d transactions: tables %v", last, tables)
				}
			} else if err := purged(t, d); err != nil || len(tableNames(t, ns)) > 0 {
				t.Errorf("ended after %d transactions: purge leaves %v, %v", last, tableNames(t, ns), err)
			}
			if done {
				if last < 10 {
					t.Errorf("rebuilt with %d transactions", last)
				}
				return
			}
		}
	})
}

// purged purges once nobody owns the table any more: a process that a test has just started has a
// copy of all sockets for a moment, also of those that are closed here.
func purged(t *testing.T, d *Driver) error {
	for end := time.Now().Add(world.Patience); ; time.Sleep(time.Millisecond) {
		if err := d.Purge(t.Context()); !errors.Is(err, driver.ErrBusy) || time.Now().After(end) {
			return err
		}
	}
}

// Something that is refused while a source lacks something takes nothing away that is kept.
func TestRefusedWhileKeeping(t *testing.T) {
	t.Parallel()
	ns, full := testNS(t), testState()
	d := openIn(t, ns, Options{})
	adopt(t, d, full)
	if err := d.Close(); err != nil {
		t.Fatal(err)
	}
	d = openIn(t, ns, Options{})
	want, lacking := clone(full), state.FrontendKey{Addr: netip.MustParseAddr("10.96.0.2"), Protocol: model.TCP, Port: 80}
	delete(want.Services.Frontends, lacking)
	bad := state.FrontendKey{Addr: netip.MustParseAddr("10.96.0.66"), Protocol: model.TCP, Port: 80}
	good := state.FrontendKey{Addr: netip.MustParseAddr("10.96.0.67"), Protocol: model.TCP, Port: 80}
	want.Services.Frontends[bad], want.Services.Frontends[good] = &state.Frontend{Reject: true}, &state.Frontend{Reject: true}
	poison{frontends: []state.FrontendKey{bad}}.refuse(d)
	p, _, err := adoptKeeping(t, d, want, driver.Keep{Services: true, Policy: true})
	if err != nil {
		t.Fatal(err)
	}
	if err := p.Apply(t.Context()); err != nil {
		t.Fatal(err)
	}
	found, err := d.Frontends(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for k, want := range map[state.FrontendKey]bool{lacking: true, good: true, bad: false} {
		if _, is := found[k]; is != want {
			t.Errorf("the kernel has %s: %t", k, is)
		}
	}
}

// An agent that ends between the steps of a change leaves sets without a note: the next one does
// not take them for empty.
func TestSetsWithoutNotesAreRead(t *testing.T) {
	t.Parallel()
	modes(t, func(t *testing.T, o Options) {
		o.Policy = true
		ns, want := testNS(t), isolated()
		d := openIn(t, ns, o)
		adopt(t, d, want)
		sent := 0
		d.Sock.Refuse = func([][]byte, []string) error {
			if sent++; sent == 2 {
				return unix.EBADF
			}
			return nil
		}
		none := clone(want)
		none.Policy = state.NewPolicy()
		p, err := d.Adopt(t.Context(), none, driver.Keep{})
		if err != nil {
			t.Fatal(err)
		}
		if err := p.Apply(t.Context()); err == nil || sent != 2 {
			t.Fatalf("%v after %d transactions", err, sent)
		}
		if err := d.Close(); err != nil {
			t.Fatal(err)
		}
		d = openIn(t, ns, o)
		adopt(t, d, none)
		for _, line := range held(t, d) {
			if strings.Contains(line, "10.1.0.") {
				t.Errorf("the kernel still holds %s", line)
			}
		}
	})
}

// What is held after a start that sets something aside is all but that.
func TestHeldAfterRefusedStart(t *testing.T) {
	t.Parallel()
	ns, want := testNS(t), isolated()
	bad := state.FrontendKey{Addr: netip.MustParseAddr("10.96.0.66"), Protocol: model.TCP, Port: 80}
	want.Services.Frontends[bad] = &state.Frontend{Reject: true}
	d := openIn(t, ns, Options{Options: driver.Options{Policy: true}})
	poison{frontends: []state.FrontendKey{bad}}.refuse(d)
	adopt(t, d, want)
	held := false
	d.Held(func(s *state.State) {
		held = s.Services.Frontends[bad] == nil && s.Policy.Workloads[netip.MustParseAddr("10.1.0.1")] != nil
	})
	if !held {
		t.Error("what the driver says that the kernel holds has what was set aside, or lacks something else")
	}
}
