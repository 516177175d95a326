package model_test

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"testing"

	"sluice.dev/sluice/internal/model"
)

// isAbout reports whether an advertisement is about a pool.
func isAbout(ad *model.L2Advertisement, p *model.IPAddressPool) bool {
	switch {
	case ad.Name.Namespace != p.Name.Namespace:
		return false
	case slices.Contains(ad.Pools, p.Name.Name):
		return true
	case ad.PoolSelector.IsZero():
		return len(ad.Pools) == 0
	}
	return ad.PoolSelector.Matches(model.LabelMap(p.Labels))
}

// Each pool has the first advertisements that are about it, and the next is told, as comparing each
// with each says.
func TestShare(t *testing.T) {
	beyond := 0
	for seed := range uint64(60) {
		r := rand.New(rand.NewPCG(seed, 5))
		pick := func(options ...string) string { return options[r.IntN(len(options))] }
		var pools []*model.IPAddressPool
		for i := range r.IntN(80) {
			pools = append(pools, &model.IPAddressPool{Name: model.Name{Namespace: pick("x", "y"), Name: fmt.Sprint("p", i)}, Labels: map[string]string{"team": pick("a", "b", "c")}})
		}
		var adverts []*model.L2Advertisement
		for i := range r.IntN(400) {
			ad := &model.L2Advertisement{Name: model.Name{Namespace: pick("x", "y", "z"), Name: fmt.Sprint("ad", i)}}
			for range r.IntN(3) * r.IntN(3) {
				ad.Pools = append(ad.Pools, fmt.Sprint("p", r.IntN(10)))
			}
			ad.PoolSelector = []model.Selector{{}, {}, model.Equal("team", pick("a", "b")), model.Not(model.Equal("team", "a"))}[r.IntN(4)]
			adverts = append(adverts, ad)
		}
		got, want := map[string][]string{}, map[string][]string{}
		add := func(to map[string][]string, p *model.IPAddressPool, name string) {
			to[p.Name.String()] = append(to[p.Name.String()], name)
		}
		model.Share(model.NewPools(pools), adverts, func(p *model.IPAddressPool, ad *model.L2Advertisement) { add(got, p, ad.Name.Name) },
			func(p *model.IPAddressPool, ad *model.L2Advertisement) { add(got, p, "beyond: "+ad.Name.Name) })
		for _, p := range pools {
			n := 0
			for _, ad := range adverts {
				if !isAbout(ad, p) {
					continue
				}
				if n++; n <= model.MaxAdverts {
					add(want, p, ad.Name.Name)
				} else if n == model.MaxAdverts+1 {
					add(want, p, "beyond: "+ad.Name.Name)
					beyond++
				}
			}
		}
		if !maps.EqualFunc(got, want, slices.Equal) {
			t.Fatalf("seed %d: %v, want %v", seed, got, want)
		}
	}
	if beyond < 50 {
		t.Errorf("only %d pools had more", beyond)
	}
}

// However many advertisements are about however many pools, each pool is found as often as one more
// than those that count for it, and no more.
func TestWorkOfSearch(t *testing.T) {
	var pools []*model.IPAddressPool
	for i := range 200 {
		pools = append(pools, &model.IPAddressPool{Name: model.Name{Namespace: "x", Name: fmt.Sprint("p", i)}})
	}
	search, found := model.NewPools(pools).Search(), 0
	for range 1000 {
		times := map[*model.IPAddressPool]int{}
		search.Find("x", &model.Advertised{Pools: []string{"p1", "p1"}, PoolSelector: model.Everything()}, func(p *model.IPAddressPool) bool {
			found++
			times[p]++
			return found > 300
		})
		for p, n := range times {
			if n != 1 {
				t.Errorf("%s is found %d times", p.Name, n)
			}
		}
	}
	if found != 500 { // each once, and 100 again; and those once more of which there was not enough
		t.Errorf("pools are found %d times", found)
	}
}
