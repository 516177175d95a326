package iptables

import (
	"context"
	"errors"
	"fmt"
	"maps"
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
			p.shared[i] = f.update(d.state.Services, d.shared[i], delta.Services, before, after)
		}
		if p.of.policy {
			enforced[i] = d.judges[i].update(d.state.Policy, delta.Policy, policy, nil, d.enforced[i], before, after)
		}
		p.changes = append(p.changes, diffImages(f.v6, before, after))
	}
	if p.of.policy && !d.keep {
		p.again = delta.Policy.MayForbid(d.state.Policy)
	}
	p.done = func() {
		d.adopted.set(p.of, true)
		if p.of.services {
			d.state.Services.Apply(delta.Services)
			d.shared = p.shared
			for k := range delta.Services.Frontends {
				delete(d.aside, k)
			}
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

// shared is what the frontends of a family share: the tree, and chains and sets, by how many use
// each.
type shared struct {
	tree *tree
	uses map[string]int
}

// unshared is what no frontends share.
func (f family) unshared() *shared {
	return &shared{f.newTree(treeChain, "T", "-d ", "", map[state.FrontendKey]goal{}), map[string]int{}}
}

// update adds what a change is about to the images before and after it, and returns what frontends
// share then.
func (f family) update(have *state.Services, was *shared, delta state.ServicesDelta, before, after *image) *shared {
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
	now := &shared{uses: maps.Clone(was.uses)}
	goals := map[state.FrontendKey]goal{}
	chains := map[string][]string{} // that are used, or were; of sets no rules
	use := func(b *bundle, by int) goal {
		for name, rules := range b.chains {
			now.uses[name] += by
			chains[name] = rules
		}
		for name := range b.sets {
			now.uses[name] += by
			chains[name] = nil
		}
		return b.goal
	}
	for k, fe := range delta.Frontends {
		if !f.holds(k.Addr) {
			continue
		}
		old := have.Frontends[k]
		f.frontend(k, old, before)
		f.frontend(k, fe, after)
		use(f.bundle(k, old), -1)
		if g := use(f.bundle(k, fe), 1); !g.equal(was.tree.goal[k]) {
			goals[k] = g
		}
	}
	for name, rules := range chains {
		before.shared(name, rules, was.uses[name])
		if after.shared(name, rules, now.uses[name]); now.uses[name] == 0 {
			delete(now.uses, name)
		}
	}
	before.setsOf(after)
	after.setsOf(before)
	var left, come map[keyPrefix][]state.FrontendKey
	now.tree, left, come = was.tree.with(goals)
	before.treeChains("nat", was.tree, left)
	after.treeChains("nat", now.tree, come)
	return now
}

// shared adds a chain that frontends share, or a set, which has no rules, if some use it.
func (i *image) shared(name string, rules []string, uses int) {
	switch {
	case uses == 0:
	case rules == nil:
		i.set(name, clientsKind).timeout = true
	default:
		i.rule("nat", name, rules...)
	}
}

// setsOf adds the sets of another state that are there in both, so that elements alone differ.
func (i *image) setsOf(o *image) {
	for name, s := range o.sets {
		if !s.timeout {
			i.set(name, s.kind)
		}
	}
}

// treeChains adds the chains of some prefixes.
func (i *image) treeChains(table string, t *tree, prefixes map[keyPrefix][]state.FrontendKey) {
	for p, keys := range prefixes {
		t.chains(p, keys, func(name string, rules []string) { i.rule(table, name, rules...) })
	}
}

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
	i.rule("nat", treeChain) // also without any frontend
	return f.update(state.NewServices(), f.unshared(), driver.Whole(s), newImage(), i)
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
	shared  [2]*shared   // afterwards
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
