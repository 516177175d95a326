package nftables_test

import (
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"sluice.dev/sluice/internal/model"
	"sluice.dev/sluice/internal/state"
)

// TestRandomChanges has random farms and lists follow each other. After each change the kernel
// holds what a comparison of everything wants. Some farms it refuses, as they hash by nothing,
// which no source lets pass: these alone are set aside.
func TestRandomChanges(t *testing.T) {
	t.Parallel()
	w, _ := newDirectSite(t, 3)
	r := rand.New(rand.NewPCG(1, 2))
	one := func(i int) *model.Farm {
		f := &model.Farm{Name: fmt.Sprint("f", i), Mode: model.FarmMode(r.IntN(5)), Scheduler: []model.FarmScheduler{model.RoundRobin, model.Weighted, model.Maglev, model.Hash}[r.IntN(4)],
			HashBy: []model.FlowKey{0, model.SrcIP, model.SrcIP | model.SrcPort}[min(2, r.IntN(8))], Refuse: r.IntN(2) == 0, Backends: backends(r.IntN(4), r.IntN(4) > 0, 80)}
		ports := model.PortSpan{First: uint16(1000 + 100*i), Last: uint16(1000 + 100*i)}
		if r.IntN(3) == 0 {
			ports.Last += uint16(r.IntN(50))
		}
		f.Addresses = []model.FarmAddress{at(virtual4, ports)}
		if f.Mode != model.StatelessDNAT && r.IntN(2) == 0 {
			f.Lists = [][]string{{"a"}, {"b", "a"}}[r.IntN(2)]
		}
		if !f.Mode.Stateless() && r.IntN(2) == 0 {
			f.Persist, f.PersistFor = model.SrcIP, time.Minute
			f.Limits.Strict = r.IntN(2) == 0
			f.Checked = r.IntN(2) == 0
			if r.IntN(2) == 0 {
				f.Helper = "ftp"
			}
		}
		return f
	}
	refused := 0
	for i := range 40 {
		var all []*model.Farm
		for n := range 6 {
			if r.IntN(3) > 0 {
				all = append(all, one(n))
			}
		}
		delta := w.farms(all...)
		delta.Farms.Lists = map[string]*model.FarmList{}
		for _, name := range []string{"a", "b"} {
			delta.Farms.Lists[name] = list(name, r.IntN(2) == 0, "192.0.2.0/24", fmt.Sprintf("198.51.100.%d/32", r.IntN(9)), fmt.Sprintf("203.0.113.0/%d", 24+r.IntN(3)))
		}
		for name := range w.state.Farms.Farms {
			if f := delta.Farms.Farms[name]; f != nil && r.IntN(2) == 0 {
				delete(delta.Farms.Farms, name) // it stays as it is
			}
		}
		w.change(delta)
		w.driver.Held(func(held *state.State) {
			for name, f := range w.state.Farms.Farms {
				if held.Farms.Farms[name] == nil && f.HashBy != 0 {
					t.Errorf("%s is not held", name)
				}
			}
		})
		refused += len(w.aside())
		if i%10 == 9 {
			w.restart()
			w.change(state.Delta{})
			w.settled()
		}
	}
	if refused == 0 {
		t.Error("nothing was ever set aside")
	}
}
