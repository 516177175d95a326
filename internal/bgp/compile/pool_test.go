package compile

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/gaissmai/bart"

	"sluice.dev/sluice/internal/model"
	"sluice.dev/sluice/internal/store"
)

// What lies in a pool is passed on unless it overlaps one within that which is not exported.
func TestPassOnOfPools(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	within := func(p, in netip.Prefix) bool { return in.Bits() <= p.Bits() && in.Contains(p.Addr()) }
	for range 2_000 {
		c := New(Config{})
		c.pools = new(bart.Table[*model.IPPool])
		var pools []*model.IPPool
		for i := range random.IntN(8) {
			base := []string{"10.0.0.0", "255.255.255.0", "ffff::"}[random.IntN(3)]
			a := netip.MustParseAddr(base).As16()
			a[15] |= byte(random.IntN(16))
			addr := netip.AddrFrom16(a).Unmap()
			p := netip.PrefixFrom(addr, addr.BitLen()-random.IntN(5)).Masked()
			if _, has := c.pools.Get(p); !has {
				pool := &model.IPPool{Name: fmt.Sprint("p", i), CIDR: p, DisableBGPExport: random.IntN(2) == 0}
				pools = append(pools, pool)
				c.pools.Insert(p, pool)
			}
		}
		got := c.passOn()
		for _, pool := range pools {
			for bits := pool.CIDR.Bits(); bits <= pool.CIDR.Addr().BitLen(); bits++ {
				for a := pool.CIDR.Addr(); pool.CIDR.Contains(a); a = a.Next() {
					p := netip.PrefixFrom(a, bits)
					if p.Masked() != p {
						continue
					}
					want := slices.ContainsFunc(pools, func(o *model.IPPool) bool {
						return !o.DisableBGPExport && within(p, o.CIDR) && !slices.ContainsFunc(pools, func(hole *model.IPPool) bool {
							return hole.DisableBGPExport && hole.CIDR != o.CIDR && within(hole.CIDR, o.CIDR) && hole.CIDR.Overlaps(p)
						})
					})
					if is := slices.ContainsFunc(got, func(o netip.Prefix) bool { return within(p, o) }); is != want {
						t.Fatalf("of %v: %s is passed on: %t, of %v", got, p, is, show(pools))
					}
				}
			}
		}
	}
}

func show(pools []*model.IPPool) (list []string) {
	for _, p := range pools {
		list = append(list, fmt.Sprint(p.CIDR, " ", !p.DisableBGPExport))
	}
	return list
}

// However many BGPPeers and rules there are, few are looked at for each node, and all nodes share
// the rules; the oldest counts.
func TestManyPeers(t *testing.T) {
	w := newWorldOf(t, "own")
	f := &model.BGPFilter{Name: "f", Import: []model.BGPFilterRule{{Accept: true, CIDR: netip.MustParsePrefix("10.0.0.0/8")}}}
	objects := []model.Object{f, &model.BGPConfiguration{Name: model.BGPDefault, NoMesh: true}}
	for i := range 3 * maxRivals {
		objects = append(objects, &model.BGPPeer{Name: fmt.Sprintf("p%03d", i), Created: time.Unix(int64(99-i), 0), Peers: model.Everything(), Filters: []string{"f"}})
	}
	for i, name := range []string{"own", "a", "b"} {
		objects = append(objects, &model.Node{Name: name, IPs: []netip.Addr{netip.AddrFrom4([4]byte{192, 0, 2, byte(1 + i)})}})
	}
	w.set(objects...)
	if n := len(w.asked[model.Ref{Kind: model.NodeKind, Name: model.Name{Name: "a"}}]); n != maxRivals {
		t.Errorf("%d are looked at", n)
	}
	a, b := w.Compiler.allPeers["BGPPeer p047 a"], w.Compiler.allPeers["BGPPeer p047 b"]
	if a == nil || b == nil || len(w.Compiler.allPeers) != 2 || &a.Import[0] != &b.Import[0] {
		t.Errorf("the peers are %v", w.Compiler.allPeers)
	}
}

// Only so many BGPAdvertisements count for a pool, the oldest.
func TestManyAdvertisements(t *testing.T) {
	c := New(Config{Node: "own", Services: none{}})
	s := store.New()
	pool := &model.IPAddressPool{Name: model.Name{Namespace: "lb", Name: "p"}}
	objects := []model.Object{pool, &model.Node{Name: "own", IPs: []netip.Addr{netip.MustParseAddr("192.0.2.1")}}}
	for i := range model.MaxAdverts + 6 {
		objects = append(objects, &model.BGPAdvertisement{Name: model.Name{Namespace: "lb", Name: fmt.Sprintf("ad%03d", i)}, Created: time.Unix(int64(99-i), 0), Length4: 32, Length6: 128,
			Advertised: model.Advertised{Pools: []string{"p", "p"}, Nodes: model.Everything(), Services: model.Everything()}})
	}
	s.Apply(events(objects...))
	s.Read(func(v *store.View) {
		c.FollowAdverts(v, v.All())
		c.Update(v, v.All())
	})
	if n := len(c.adverts[pool.Name]); n != model.MaxAdverts {
		t.Errorf("%d count", n)
	}
	if got := fmt.Sprint(c.Issues()); !strings.Contains(got, "IPAddressPool lb/p: more than 64 BGPAdvertisements select it: ad005, and those newer than it, announce none") {
		t.Error(got)
	}
}

// none are Services without addresses.
type none struct{}

func (none) Moved() []netip.Addr                                    { return nil }
func (none) At(netip.Addr) (*model.IPAddressPool, []*model.Service) { return nil, nil }
func (none) Given() []netip.Addr                                    { return nil }
