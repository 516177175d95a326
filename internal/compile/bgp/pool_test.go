package bgp

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"
	"testing"

	"github.com/gaissmai/bart"

	"sluice.dev/sluice/internal/model"
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
