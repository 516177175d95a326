package nftables

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"sluice.dev/sluice/internal/kernel/nft"
	"sluice.dev/sluice/internal/model"
	"sluice.dev/sluice/internal/state"
)

// Sources of packets to farms that name lists are looked up as the packets arrive by an interface,
// and at prerouting where they came by one that has no chain of its own.
//
// Addresses of all lists are in one hash set, under a number for each list and length of prefix
// (docs/decisions/0012): a list costs a look-up for each length in it. Farms that name the same
// lists share a chain that asks for them.

const beforeStateless = beforeTracking - 1

// listing is a list in the kernel.
type listing struct {
	*model.FarmList
	lengths [2][129]int // how many prefixes have each length, by family
}

// listings are lists by name; those that nobody knows are empty.
type listings map[string]*listing

func (l listings) get(name string) *listing {
	if list := l[name]; list != nil {
		return list
	}
	return &listing{FarmList: &model.FarmList{Name: name}}
}

// sameRules reports whether chains that ask for the one do for the other: all but the addresses.
func (l *listing) sameRules(o *listing) bool {
	for i, lengths := range l.lengths {
		for bits, n := range lengths {
			if (n > 0) != (o.lengths[i][bits] > 0) {
				return false
			}
		}
	}
	return l.Allow == o.Allow && l.Log == o.Log && l.LogPrefix == o.LogPrefix
}

func familyIndex(is4 bool) int {
	if is4 {
		return 0
	}
	return 1
}

// each yields the prefixes of ranges.
func each(ranges []model.AddressRange, yield func(netip.Prefix)) {
	for _, r := range ranges {
		for p := range r.Prefixes() {
			yield(p)
		}
	}
}

// listChange is a change of lists.
type listChange struct{ before, after listings }

// list has a list follow another one of the name, either of which may be nil, and returns the
// ranges that go and come.
func (c *tableChange) list(name string, now *model.FarmList) (gone, come []model.AddressRange) {
	if now == nil {
		now = &model.FarmList{Name: name}
	}
	old := c.lists.after.get(name)
	next := &listing{now, old.lengths}
	gone, come = model.DiffRanges(old.Ranges, now.Ranges)
	for n, ranges := range map[int][]model.AddressRange{-1: gone, 1: come} {
		each(ranges, func(p netip.Prefix) { next.lengths[familyIndex(p.Addr().Is4())][p.Bits()] += n })
	}
	c.lists.after[name] = next
	if len(now.Ranges) == 0 {
		delete(c.lists.after, name)
	}
	return gone, come
}

// members are the elements of ranges of a list.
func (c *tableChange) members(list string, ranges []model.AddressRange) func(yield func(*nft.Element)) {
	return func(yield func(*nft.Element)) {
		var numbers [129]uint32 // by length
		each(ranges, func(p netip.Prefix) {
			if numbers[p.Bits()] == 0 {
				numbers[p.Bits()] = c.numbers.number(listKey(list, p.Bits()))
			}
			fp := c.rs.family(p.Addr().Is4())
			e := nft.Element{Set: fp.members}
			e.AppendUint32(numbers[p.Bits()])
			e.Append(fp.ip.Addr(p.Addr())...)
			yield(&e)
		})
	}
}

// listKey is what has a number: a list with a length of prefixes.
func listKey(list string, bits int) string { return fmt.Sprintf("list %s/%d", list, bits) }

// Listed returns the networks that the kernel has on these lists, by name, whichever driver put
// them there. It is safe for concurrent use.
func (d *Driver) Listed(ctx context.Context, lists []string) (nets map[string][]netip.Prefix, err error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	type listed struct {
		list string
		bits int
	}
	numbers, of := newNumbers(), map[uint32]listed{}
	for _, name := range lists {
		for bits := range 129 {
			of[numbers.number(listKey(name, bits))] = listed{name, bits}
		}
	}
	read := func(table string, fp *family) error {
		return d.Sock.ReadSet(ctx, table, fp.members, func(e nft.Element) {
			l, wanted := of[nft.NativeUint32(e.Key[:4])]
			addr, _ := netip.AddrFromSlice(e.Key[4 : 4+fp.ip.Bits/8])
			if p, err := addr.Prefix(l.bits); wanted && err == nil {
				nets[l.list] = append(nets[l.list], p)
			}
		})
	}
	err = nft.Uninterrupted(func() error {
		nets = map[string][]netip.Prefix{}
		for _, table := range []string{d.Name, d.Next()} {
			for _, fp := range d.ruleset.families {
				if err := read(table, fp); err != nil && !errors.Is(err, unix.ENOENT) {
					return fmt.Errorf("read lists of table %s: %w", d.Title(table), err)
				}
			}
		}
		return nil
	})
	return nets, err
}

// follow plans changes of lists, and returns the farms for which others have to be asked for.
func (c *tableChange) follow(have *state.Farms, d state.FarmsDelta) map[string]*state.Farm {
	asking := map[string]*state.Farm{}
	if !c.rs.hasLists() {
		return asking
	}
	for _, name := range slices.Sorted(maps.Keys(d.Lists)) {
		gone, come := c.list(name, d.Lists[name])
		c.Replace(c.members(name, gone), c.members(name, come))
	}
	other := func(name string) bool { return !c.lists.before.get(name).sameRules(c.lists.after.get(name)) }
	rules := map[string]bool{}
	for name := range d.Lists {
		rules[name] = other(name)
	}
	for name, f := range have.Farms {
		if slices.ContainsFunc(f.Lists, func(l string) bool { return rules[l] }) {
			asking[name] = f
		}
	}
	return asking
}

// listed yields what farms that name lists become, for one family.
func (h *half) listed(lists listings) {
	if !h.rs.hasLists() {
		return
	}
	asks, identity := h.asks(lists)
	if len(asks) == 0 {
		return
	}
	name := h.fp.ip.Name + "-lists-" + digest(identity)
	h.chain(name, func() nft.Chain {
		return nft.Chain{Name: name, Comment: "lists " + strings.Join(h.Lists, ", "), Rules: asks}
	})
	for _, p := range h.addrs {
		if !p.addr.IsValid() {
			h.chain("owned", h.rs.owned)
			h.put(h.fp.owned, p, h.at(p, nft.Goto(name)))
			continue
		}
		h.chain(listedName(h.fp, p.kind), func() nft.Chain { return listedChain(h.fp, p.kind) })
		h.chain("listed", h.rs.elsewhere)
		h.put(h.fp.listed, p, nft.Goto(name))
		if h.Mode == model.DSR && len(h.slots) > 0 {
			h.put(h.fp.errors, p, nft.Goto(name))
		}
	}
}

// asks are the rules that ask for the farm's lists in their order, and what they consist of.
func (h *half) asks(lists listings) (rules []nft.Rule, identity string) {
	for _, name := range h.Lists {
		l := lists.get(name)
		for bits, n := range l.lengths[familyIndex(h.fp.is4())] {
			if n == 0 {
				continue
			}
			number := h.numbers.number(listKey(name, bits))
			identity += fmt.Sprintf("%d/%d %t %t %q\n", number, bits, l.Allow, l.Log, l.LogPrefix)
			r := rule(listKey(name, bits)).Number(0, number).Load(1, nft.Masked(h.fp.ip.Saddr, bits)).Has(h.fp.members, 0)
			switch {
			case l.Allow:
				r = r.Accept()
			case l.Log:
				r = r.Logged(l.LogPrefix).Drop()
			default:
				r = r.Drop()
			}
			rules = append(rules, r)
		}
	}
	return rules, identity
}

func listedName(fp *family, k kind) string { return fp.ip.Name + "-listed" + k.String() }

// listedChain looks for farms that name lists.
func listedChain(fp *family, k kind) nft.Chain {
	return nft.Chain{Name: listedName(fp, k), Comment: "packets to farms that name lists", Rules: []nft.Rule{
		rule().Family(fp.ip).Load(0, fp.dest()...).Follow(fp.listed[k], 0),
		rule("an ICMP error about one").Family(fp.ip).Quotes(fp.ip).Load(0, fp.quoted().dest()...).Follow(fp.errors[k], 0),
	}}
}

// elsewhere is for packets that came by an interface without a chain of its own.
func (rs *ruleset) elsewhere() nft.Chain {
	c := nft.Chain{Name: "listed", Comment: "packets that have not met lists as they arrived", Hook: nft.FilterHook(unix.NF_INET_PRE_ROUTING, beforeStateless), Rules: []nft.Rule{
		rule().In(rs.covered, nft.IIF).Accept(),
	}}
	for _, fp := range rs.families {
		for k := range kinds {
			c.Rules = append(c.Rules, rule().Family(fp.ip).Load(0, fp.dest()...).Follow(fp.listed[k], 0))
		}
	}
	return c
}

// owned is for farms at every address of the machine: which those are cannot be asked before
// prerouting.
func (rs *ruleset) owned() nft.Chain {
	c := nft.Chain{Name: "owned", Comment: "packets to farms at every address that name lists", Hook: nft.FilterHook(unix.NF_INET_PRE_ROUTING, beforeStateless)}
	for _, fp := range rs.families {
		c.Rules = append(c.Rules, rule().Family(fp.ip).Load(0, fp.dest()...).Follow(fp.owned[ranged], 0))
	}
	return c
}

// hasLists reports whether the table is the one in which farms look in lists.
func (rs *ruleset) hasLists() bool { return rs.NFProto == unix.NFPROTO_INET }

// covered plans what becomes of the set of interfaces with chains of their own.
func (c *tableChange) covered() { c.Replace(c.coverElements(c.t.covers), c.coverElements(c.covers)) }

// coverElements are those of interfaces.
func (c *tableChange) coverElements(indexes []int) func(yield func(*nft.Element)) {
	return func(yield func(*nft.Element)) {
		for _, index := range indexes {
			if c.rs.covered != nil {
				e := nft.Element{Set: c.rs.covered}
				e.AppendUint32(uint32(index))
				yield(&e)
			}
		}
	}
}
