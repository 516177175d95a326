package iptables

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"sluice.dev/sluice/internal/driver"
	"sluice.dev/sluice/internal/kernel/xtables"
	"sluice.dev/sluice/internal/lib/wake"
	"sluice.dev/sluice/internal/state"
)

// clientsKind is the type of the sets of clients that stay on a backend: the frontend that they
// asked for, and their address.
const clientsKind = "hash:ip,port,ip"

// Update implements driver.Driver.
func (d *Driver) Update(ctx context.Context, delta state.Delta) (driver.Plan, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	if of := (parts{delta.Services.Len() > 0, d.policy && delta.Policy.Len() > 0}); !d.adopted.hold(of) {
		return nil, errors.New("update before everything was adopted that the change is about")
	}
	return d.planUpdate(delta)
}

func (d *Driver) planUpdate(delta state.Delta) (*plan, error) {
	p := &plan{d: d, delta: delta, of: parts{delta.Services.Len() > 0, d.policy && delta.Policy.Len() > 0}}
	var services [2]*shared
	var policy *state.Policy
	var enforced [2]*enforced
	if p.of.policy {
		policy = after(d.state.Policy, delta.Policy)
		if err := d.nameDevices(); err != nil {
			return nil, err
		}
	}
	for i, f := range d.families {
		before, after := newImage(), newImage()
		if p.of.services {
			services[i] = d.update(i, f, delta.Services, before, after)
		}
		if p.of.policy {
			enforced[i] = d.judges[i].update(d.state.Policy, delta.Policy, policy, d.enforced[i], before, after)
		}
		p.changes = append(p.changes, diffImages(f.v6, before, after))
	}
	if p.of.policy && !d.keep {
		p.again = delta.Policy.MayForbid(d.state.Policy)
	}
	p.done = func() {
		d.adopted.set(p.of, true)
		if p.of.services {
			d.updated(delta.Services, services)
		}
		if p.of.policy {
			d.state.Policy = policy
			for id := range delta.Policy.Rules {
				delete(d.rulesAside, id)
			}
			d.enforcing(enforced)
		}
	}
	return p, nil
}

// updated notes a change of services.
func (d *Driver) updated(delta state.ServicesDelta, next [2]*shared) {
	d.state.Services.Apply(delta)
	for k := range delta.Frontends {
		delete(d.aside, k)
	}
	for i, s := range next {
		d.trees[i] = s.tree
		for name, n := range s.uses {
			if d.uses[i][name] += n; d.uses[i][name] == 0 {
				delete(d.uses[i], name)
			}
		}
	}
}

// enforcing notes what the state's policy has become.
func (d *Driver) enforcing(now [2]*enforced) {
	d.enforced = now
	for _, j := range d.judges {
		j.forget(d.state.Policy)
	}
}

// nameDevices reads the names of interfaces, of which the state has the indexes.
func (d *Driver) nameDevices() error {
	links, err := d.ns.LinkList()
	if err != nil {
		return fmt.Errorf("list interfaces: %w", err)
	}
	names := map[int]string{}
	for _, l := range links {
		if name := l.Attrs().Name; !strings.ContainsAny(name, "\"'\\!+") { // what iptables reads otherwise
			names[l.Attrs().Index] = name
		}
	}
	for _, j := range d.judges {
		j.names = names
	}
	return nil
}

// shared is what frontends share, after a change.
type shared struct {
	tree *tree
	uses map[string]int // how many more than before
}

// update adds what a change is about to the images before and after it.
func (d *Driver) update(i int, f family, delta state.ServicesDelta, before, after *image) *shared {
	have := d.state.Services
	if delta.Settings != nil {
		f.settings(have.Settings, before)
		f.settings(*delta.Settings, after)
	}
	f.addresses(setIPs, have.ClusterIPs, delta.ClusterIPs, before, after)
	f.addresses(setOthers, have.OtherIPs, delta.OtherIPs, before, after)
	f.addresses(setEndpoints, have.Hairpins, delta.Hairpins, before, after)
	if f.fabric {
		f.addresses(setPeers, have.Peers, delta.Peers, before, after)
	}
	s := &shared{uses: map[string]int{}}
	goals := map[state.FrontendKey]goal{}
	chains := map[string][]string{}
	for k, fe := range delta.Frontends {
		if !f.holds(k.Addr) {
			continue
		}
		old := have.Frontends[k]
		f.frontend(k, old, before)
		f.frontend(k, fe, after)
		s.change(f.bundle(k, old), -1, chains)
		if g := s.change(f.bundle(k, fe), 1, chains); !g.equal(d.trees[i].goal[k]) {
			goals[k] = g
		}
	}
	for name, n := range s.uses {
		was := d.uses[i][name]
		for _, at := range []struct {
			image *image
			uses  int
		}{{before, was}, {after, was + n}} {
			if at.uses > 0 {
				at.image.shared(name, chains)
			}
		}
	}
	// A set that the image has in both states is no change except for its elements.
	for name, s := range before.sets {
		if after.sets[name] == nil && !s.timeout {
			after.set(name, s.kind)
		}
	}
	for name, s := range after.sets {
		if before.sets[name] == nil && !s.timeout {
			before.set(name, s.kind)
		}
	}
	var prefixes map[keyPrefix]bool
	s.tree, prefixes = d.trees[i].with(goals)
	for p := range prefixes {
		before.treeChain(d.trees[i], p)
		after.treeChain(s.tree, p)
	}
	return s
}

// change counts the uses of a bundle, notes the rules of its chains, and returns its goal.
func (s *shared) change(b *bundle, by int, chains map[string][]string) goal {
	for name, rules := range b.chains {
		s.uses[name] += by
		chains[name] = rules
	}
	for name := range b.sets {
		s.uses[name] += by
	}
	return b.goal
}

// shared adds a chain or a set that frontends share.
func (i *image) shared(name string, chains map[string][]string) {
	if rules, is := chains[name]; is {
		i.rule("nat", name, rules...)
	} else {
		i.set(name, clientsKind).timeout = true
	}
}

// treeChain adds the chain of a prefix, if the tree has it.
func (i *image) treeChain(t *tree, p keyPrefix) {
	if keys, is := t.find(p); is {
		t.chains(p, keys, i.nat)
	}
}

// nat adds a chain to the table for translation.
func (i *image) nat(name string, rules []string) { i.rule("nat", name, rules...) }

// addresses adds what really changes of a set of addresses.
func (f family) addresses(of string, have map[netip.Addr]struct{}, want map[netip.Addr]bool, before, after *image) {
	for a, in := range want {
		if _, is := have[a]; is {
			f.address(before, of, a)
		}
		if in {
			f.address(after, of, a)
		}
	}
}

// whole adds all services, and returns what their frontends share.
func (f family) whole(s *state.Services, i *image) *shared {
	f.settings(s.Settings, i)
	for a := range s.ClusterIPs {
		f.address(i, setIPs, a)
	}
	for a := range s.OtherIPs {
		f.address(i, setOthers, a)
	}
	for a := range s.Hairpins {
		f.address(i, setEndpoints, a)
	}
	for a := range s.Peers {
		if f.fabric {
			f.address(i, setPeers, a)
		}
	}
	all := &shared{uses: map[string]int{}}
	goals, chains := map[state.FrontendKey]goal{}, map[string][]string{}
	for k, fe := range s.Frontends {
		if !f.holds(k.Addr) {
			continue
		}
		f.frontend(k, fe, i)
		if g := all.change(f.bundle(k, fe), 1, chains); !g.none() {
			goals[k] = g
		}
	}
	for name := range all.uses {
		i.shared(name, chains)
	}
	all.tree, _ = f.frontendTree().with(goals)
	all.tree.each(func(p keyPrefix, keys []state.FrontendKey) { all.tree.chains(p, keys, i.nat) })
	return all
}

// frontendTree is a tree without any frontend.
func (f family) frontendTree() *tree {
	return &tree{bits: f.bits(), goal: map[state.FrontendKey]goal{}, root: treeChain, kind: "T", end: "-d "}
}

// plan is a change of both families.
type plan struct {
	d       *Driver
	changes []*imageDiff
	leave   [2]string   // what iptables-restore of the other variant shall do to remove our rules there
	done    func()      // nil: nothing is changed
	keep    driver.Keep // of an adoption
	kept    driver.Kept
	of      parts
	want    *state.State // of an adoption
	trees   [2]*tree     // of an adoption, afterwards
	delta   state.Delta  // of an update
	again   state.About  // of which packets are judged again afterwards
	spent   bool
}

// Len implements driver.Plan.
func (p *plan) Len() (n int) {
	for _, c := range p.changes {
		n += c.operations()
	}
	for _, l := range p.leave {
		n += strings.Count(l, "\n")
	}
	return n
}

// String implements driver.Plan.
func (p *plan) String() string {
	var b strings.Builder
	for _, c := range p.changes {
		b.WriteString(c.String())
	}
	for _, l := range p.leave {
		if l != "" {
			b.WriteString("# our rules in the other variant of iptables\n" + l)
		}
	}
	return b.String()
}

// Kept implements driver.Plan.
func (p *plan) Kept() driver.Kept { return p.kept }

// Apply implements driver.Plan.
func (p *plan) Apply(ctx context.Context) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	d := p.d
	if err := p.await(ctx); err != nil {
		return err
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if p.spent {
		return errors.New("apply a plan a second time")
	}
	if p.spent = true; p.done == nil {
		d.adopted.set(parts{p.kept.Services > 0, p.kept.Policy > 0}, false)
		return nil
	}
	err := d.apply(ctx, p)
	if err != nil && refused(err) {
		err = d.admit(ctx, p, err)
	}
	return err
}

// await waits for the lock of xtables, if the plan changes rules of the variant that has it. The
// driver answers meanwhile.
func (p *plan) await(ctx context.Context) error {
	if p.done == nil {
		return nil
	}
	p.d.mu.Lock()
	v, err := p.d.variant(ctx)
	p.d.adopted.set(p.of, false) // until it is carried out
	p.d.mu.Unlock()
	ours := func(c *imageDiff) bool { return c.restore != "" }
	if err == nil && (v == xtables.Legacy && slices.ContainsFunc(p.changes, ours) || v == xtables.NFTables && p.leave != [2]string{}) {
		err = p.d.programs.await(ctx)
	}
	return err
}

// apply carries out a plan as a whole.
func (d *Driver) apply(ctx context.Context, p *plan) error {
	d.adopted.set(p.of, false)
	v, err := d.variant(ctx)
	if err != nil {
		return err
	}
	if p.want == nil { // a change of ours would hide one of others
		if err := d.look(ctx); err != nil {
			d.log.Debug(cannotLook, "error", err)
		}
	}
	for _, c := range p.changes {
		if err := d.carryOut(ctx, v, c); err != nil {
			return err
		}
		d.judgeAgain(family{v6: c.v6}, p.again)
	}
	for i, l := range p.leave {
		if err := d.leave(ctx, v.Other(), i == 1, l); err != nil {
			return err
		}
	}
	p.done()
	if d.seen, err = d.trace(ctx); err != nil {
		d.log.Debug(cannotLook, "error", err)
	}
	return nil
}

// carryOut changes one family. Sets get what is new before rules ask for it, and lose what is old
// when no rule does any more. Frontends are in their set only while the tree of chains has them:
// the tree asks for no more than what tells one from the others.
func (d *Driver) carryOut(ctx context.Context, v xtables.Variant, c *imageDiff) error {
	if err := d.refuse(c); err != nil {
		return err
	}
	for name, s := range c.create {
		if err := d.createSet(c.v6, name, s); err != nil {
			return err
		}
	}
	frontends := family{v6: c.v6}.name(setFrontends)
	first := func(m membership) bool { return m.set != frontends }
	last := func(m membership) bool { return m.set == frontends }
	err := errors.Join(d.change(c.add, first, d.ns.IpsetAdd), d.change(c.remove, last, d.ns.IpsetDel))
	if err == nil && c.restore != "" {
		gone := d.countsOf(ctx, c)
		if err = d.restore(ctx, v, c.v6, c.restore); err == nil {
			d.counted.addAll(gone)
		}
	}
	if err == nil {
		err = errors.Join(d.change(c.add, last, d.ns.IpsetAdd), d.change(c.remove, first, d.ns.IpsetDel))
	}
	if err != nil {
		return err
	}
	for _, name := range c.destroy {
		if err := d.destroySet(ctx, name); err != nil {
			return fmt.Errorf("destroy ipset %s: %w", name, err)
		}
	}
	return nil
}

// destroySet destroys a set that nothing refers to. nftables lets go of it some time after the
// transaction that removes its last rule.
func (d *Driver) destroySet(ctx context.Context, name string) error {
	for end := time.Now().Add(time.Second); ; {
		err := d.ns.IpsetDestroy(name)
		switch {
		case errors.Is(err, unix.ENOENT):
			return nil
		case !errors.Is(err, nl.IPSetError(nl.IPSET_ERR_BUSY)) || time.Now().After(end):
			return err
		}
		if !wake.Sleep(ctx, time.Millisecond) {
			return ctx.Err()
		}
	}
}

// change adds or deletes some of the elements.
func (d *Driver) change(all []membership, some func(membership) bool, by func(string, *netlink.IPSetEntry) error) error {
	for _, m := range all {
		if !some(m) {
			continue
		}
		if err := by(m.set, m.entry()); err != nil {
			return fmt.Errorf("change %s in ipset %s: %w", m.element, m.set, err)
		}
	}
	return nil
}
