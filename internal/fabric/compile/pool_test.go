package compile

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"sluice.dev/sluice/internal/model"
	"sluice.dev/sluice/internal/store"
)

// within is a random prefix of a few bits, so that many overlap.
func within(random *rand.Rand) netip.Prefix {
	return netip.PrefixFrom(netip.AddrFrom4([4]byte{10, byte(random.IntN(16) << 4)}), 8+random.IntN(5)).Masked()
}

// Of each pool that shares addresses with one that counts before it there is one fault, which names
// such a pool; the pool of a prefix is the first that holds it, smallest first.
func TestPoolsOverlap(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	for range 1_000 {
		c := newCluster(Config{Node: "a"})
		var events []store.Event
		for i := range 1 + random.IntN(8) {
			events = append(events, poolEvent(fmt.Sprintf("p%d %s", i, within(random))))
		}
		c.update(events...)
		faults := map[string]model.Issue{}
		for _, i := range c.c.Issues() {
			if _, twice := faults[i.Object.Name.Name]; twice {
				t.Fatalf("%s has two faults", i.Object)
			}
			faults[i.Object.Name.Name] = i
		}
		for i, p := range c.c.pools { // the smallest first
			before := slices.DeleteFunc(slices.Clone(c.c.pools[:i]), func(o *model.IPPool) bool { return !o.CIDR.Overlaps(p.CIDR) })
			said := faults[p.Name]
			named := func(o *model.IPPool) bool {
				return strings.Contains(said.Reason, fmt.Sprintf("overlaps %s of IPPool %s", o.CIDR, o.Name))
			}
			same := func(o *model.IPPool) bool { return o.CIDR == p.CIDR }
			if (said.Reason != "") != (len(before) > 0) || len(before) > 0 && !slices.ContainsFunc(before, named) {
				t.Fatalf("of %v beside %v: %q", p, before, said.Reason)
			}
			if (said.InForce == model.InForceNothing) != slices.ContainsFunc(before, same) {
				t.Fatalf("of %v beside %v: %q is in force", p, before, said.InForce)
			}
			if n := len(before); strings.Contains(said.Reason, " more, ") != (n > 1) || n > 1 && !strings.Contains(said.Reason, fmt.Sprintf(" and %d more, which count ", n-1)) {
				t.Fatalf("of %v beside %v: %q", p, before, said.Reason)
			}
		}
		for range 20 {
			p := within(random)
			i := slices.IndexFunc(c.c.pools, func(o *model.IPPool) bool { return o.CIDR.Bits() <= p.Bits() && o.CIDR.Contains(p.Addr()) })
			if got := c.c.pool(p); (i < 0) != (got == nil) || i >= 0 && got != c.c.pools[i] {
				t.Fatalf("%s is of %v", p, got)
			}
		}
	}
}

// A node's blocks count except for those that lie in its pod CIDRs or in others.
func TestBlocksOfNode(t *testing.T) {
	random := rand.New(rand.NewPCG(3, 4))
	for range 1_000 {
		c := newCluster(Config{Node: "a"})
		n := &model.Node{Name: "b"}
		for range random.IntN(3) {
			n.PodCIDRs = append(n.PodCIDRs, within(random))
		}
		events := []store.Event{{Kind: model.NodeKind, Name: model.Name{Name: "b"}, Object: n}}
		var blocks []netip.Prefix
		for i := range random.IntN(8) {
			blocks = append(blocks, within(random))
			events = append(events, blockEvent(fmt.Sprintf("x%d %s b", i, blocks[i])))
		}
		c.update(events...)
		want := slices.Clone(n.PodCIDRs)
		slices.SortFunc(blocks, netip.Prefix.Compare)
		for _, b := range blocks {
			if !slices.ContainsFunc(want, func(p netip.Prefix) bool { return p.Bits() <= b.Bits() && p.Contains(b.Addr()) }) {
				want = append(want, b)
			}
		}
		if got := c.c.nodes["b"].cidrs; !slices.Equal(got, want) {
			t.Fatalf("got %v, want %v", got, want)
		}
	}
}

// Who claims what many claim already has none of them compiled again.
func TestLoserComes(t *testing.T) {
	c := newCluster(Config{Node: "a"})
	const n = 200
	again := map[string]bool{}
	for i := range n {
		clear(again)
		c.c.addrs.add(netip.MustParseAddr("10.0.0.1"), &model.Node{Name: fmt.Sprintf("n%03d", i)}, again)
		if i > 0 && len(again) > 0 {
			t.Fatalf("with node %d, %d others are compiled", i, len(again))
		}
	}
	for i := range n - 1 {
		clear(again)
		c.c.addrs.drop(netip.MustParseAddr("10.0.0.1"), &model.Node{Name: fmt.Sprintf("n%03d", n-1-i)}, again)
		if len(again) > 0 {
			t.Fatalf("%d others are compiled", len(again))
		}
	}
}
