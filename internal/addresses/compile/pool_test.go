package compile

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"sluice.dev/sluice/internal/model"
)

// Each address that several pools have counts to the oldest, and each pool that has lost some says
// so once, with an address and a pool to which that counts.
func TestClaim(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	for _, base := range []string{"192.0.2.0", "255.255.255.240", "2001:db8::", "ffff:ffff:ffff:ffff:ffff:ffff:ffff:fff0"} {
		at := func(i int) netip.Addr {
			a := ip(base)
			for range i {
				a = a.Next()
			}
			return a
		}
		for range 500 {
			w := newWorld(t, Config{})
			var pools []model.Object
			for i := range 1 + random.IntN(5) {
				p := w.pool(fmt.Sprint("p", i), "")
				for range 1 + random.IntN(4) {
					first := random.IntN(16)
					p.Ranges = append(p.Ranges, model.AddressRange{First: at(first), Last: at(first + random.IntN(16-first))})
				}
				pools = append(pools, p)
			}
			w.set(pools...)
			if !slices.IsSortedFunc(w.spans, func(a, b span) int { return a.Last.Compare(b.First) }) {
				t.Fatalf("%v overlap", w.spans)
			}
			for i := range 16 {
				want := slices.IndexFunc(pools, func(o model.Object) bool { return holds(o.(*model.IPAddressPool), at(i)) })
				got := slices.IndexFunc(pools, func(o model.Object) bool { p := w.poolOf(at(i)); return p != nil && p.Ref() == o.Ref() })
				if got != want {
					t.Fatalf("%s is of pool %d, want %d of %v", at(i), got, want, pools)
				}
			}
			for _, o := range pools {
				p, others := o.(*model.IPAddressPool), false
				for i := range 16 {
					others = others || holds(p, at(i)) && w.poolOf(at(i)).Ref() != p.Ref()
				}
				said := w.says(p)
				var first, name string
				if n, _ := fmt.Sscanf(said, "it has %s as the older IPAddressPool lb/%s has", &first, &name); (n == 2) != others || strings.Contains(said, ";") == (n != 2) {
					t.Fatalf("%s has lost some: %t, but %q", p.Ref(), others, said)
				}
				if !others {
					continue
				}
				a, _, _ := strings.Cut(first, "-")
				if rival := w.poolOf(ip(a)); !holds(p, ip(a)) || rival.Name.Name != name {
					t.Fatalf("%s is not of %s", a, name)
				}
			}
		}
	}
}

func holds(p *model.IPAddressPool, a netip.Addr) bool {
	return slices.ContainsFunc(p.Ranges, func(r model.AddressRange) bool { return r.Contains(a) })
}

// However many pools overlap, there is one fault for each, and no more spans than there are ranges;
// a Service that gets no address looks at none of those that are used up.
func TestManyPools(t *testing.T) {
	const n = 3_000
	w := newWorld(t, Config{})
	var objects []model.Object
	for i := range n {
		first := netip.AddrFrom4([4]byte{10, 0, byte(i >> 8), byte(i)})
		objects = append(objects, w.pool(fmt.Sprint("p", i), "", func(p *model.IPAddressPool) {
			p.Ranges = []model.AddressRange{{First: first, Last: netip.AddrFrom4([4]byte{10, 0, byte((i + n) >> 8), byte(i + n)})}}
		}))
	}
	for i := range 10 {
		objects = append(objects, w.service(fmt.Sprint("x/s", i)))
	}
	w.set(objects...)
	lost := 0
	for _, i := range w.Issues() {
		if strings.HasPrefix(i.Reason, "it has ") {
			lost++
		}
	}
	if lost != n-1 || len(w.spans) > n {
		t.Errorf("%d faults and %d spans", lost, len(w.spans))
	}
}

// Free addresses are found without looking again at ranges that are used up.
func TestUsedUpRanges(t *testing.T) {
	const n = 500
	w := newWorld(t, Config{})
	p := w.pool("p", "")
	objects := []model.Object{p}
	for i := range n {
		a := netip.AddrFrom4([4]byte{10, 0, byte(i >> 7), byte(2 * i)})
		p.Ranges = append(p.Ranges, model.AddressRange{First: a, Last: a})
		objects = append(objects, w.service(fmt.Sprint("x/s", i)))
	}
	w.set(objects...)
	in := &w.pools[0].four
	if got := w.free(w.pools[0], true); got.IsValid() || in.full != n {
		t.Errorf("%s is free, and %d ranges are used up", got, in.full)
	}
	w.remove(objects[5].Ref())
	if in.full != 4 {
		t.Errorf("one is free again, and %d ranges before it are used up", in.full)
	}
	w.set(w.service("y/z"))
	if got := w.services[model.Name{Namespace: "y", Name: "z"}].ips; len(got) != 1 || got[0] != p.Ranges[4].First {
		t.Errorf("the next one gets %v", got)
	}
}

// What is said of a Service goes with it.
func TestFaultGoes(t *testing.T) {
	w := newWorld(t, Config{})
	s := w.service("x/a")
	w.set(s)
	if w.says(s) == "" {
		t.Error("nothing is said of a Service that waits")
	}
	w.remove(s.Ref())
	if got := w.says(s); got != "" {
		t.Errorf("of one that is gone: %s", got)
	}
}

// Only so many advertisements count for a pool, the oldest, and the pool says so.
func TestManyAdvertisements(t *testing.T) {
	w := newWorld(t, Config{Node: "n1"})
	p := w.pool("p", "192.0.2.1-192.0.2.9")
	objects := []model.Object{p, w.service("x/a")}
	for i := range model.MaxAdverts + 6 {
		objects = append(objects, &model.L2Advertisement{Name: model.Name{Namespace: "lb", Name: fmt.Sprintf("ad%03d", i)}, Created: time.Unix(int64(99-i), 0),
			Advertised: model.Advertised{Pools: []string{"p", "p"}, PoolSelector: model.Everything(), Nodes: model.Everything(), Services: model.Everything()}})
	}
	w.set(objects...)
	if n := len(w.pools[0].adverts); n != model.MaxAdverts {
		t.Errorf("%d count", n)
	}
	if got := w.says(p); !strings.HasPrefix(got, "more than 64 L2Advertisements select it: ad005, and those newer than it, announce none") {
		t.Error(got)
	}
	w.remove(objects[2].Ref(), objects[3].Ref(), objects[4].Ref(), objects[5].Ref(), objects[6].Ref(), objects[7].Ref())
	if got := w.says(p); got != "" {
		t.Errorf("of %d: %s", len(w.pools[0].adverts), got)
	}
}
