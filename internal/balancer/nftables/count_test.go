package nftables_test

import (
	"fmt"
	"net/netip"
	"slices"
	"testing"

	farm "sluice.dev/sluice/internal/balancer/compile"
	farms "sluice.dev/sluice/internal/balancer/nftables"
	"sluice.dev/sluice/internal/driver"
	"sluice.dev/sluice/internal/model"
	"sluice.dev/sluice/internal/state"
	"sluice.dev/sluice/test/world"
)

// TestTraffic has what backends get be counted: connections, or packets and their bytes where no
// connections are tracked. What was counted once stays so, whatever becomes of slots.
func TestTraffic(t *testing.T) {
	t.Parallel()
	for name, one := range map[string]struct {
		farm func(virtual string, is4 bool) *model.Farm
		site func(*testing.T) *site
	}{
		"dnat":     {func(virtual string, is4 bool) *model.Farm { return dnat(virtual, is4, 3) }, func(t *testing.T) *site { return newSite(t, 3) }},
		"stlsdnat": {func(virtual string, is4 bool) *model.Farm { return stateless(virtual, is4, port(80)) }, func(t *testing.T) *site { return newSite(t, 3) }},
		"dsr":      {func(virtual string, is4 bool) *model.Farm { return dsr(virtual, is4, port(80)) }, func(t *testing.T) *site { w, _ := newDirectSite(t, 3); return w }},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			eachFamily(t, func(t *testing.T, is4 bool, virtual, _ string) {
				w, f := one.site(t), one.farm(virtual, is4)
				w.set(f)
				counted := func() (sum driver.Traffic, by map[driver.Backend]driver.Traffic) {
					by, err := w.rules().Traffic(t.Context())
					w.must(err)
					for _, b := range by {
						sum.Chosen, sum.TotalChosen, sum.TotalBytes = sum.Chosen+b.Chosen, sum.TotalChosen+b.TotalChosen, sum.TotalBytes+b.TotalBytes
						if b.Untracked != f.Mode.Stateless() {
							t.Errorf("%+v", b)
						}
					}
					return sum, by
				}
				counted()
				const asked = 40
				w.answers(asked, "tcp", hostPort(virtual, "80"))
				sum, by := counted()
				if f.Mode.Stateless() {
					// SYN, ACK, question, FIN at the least
					if n := sum.TotalChosen; n < 4*asked || sum.TotalBytes < 40*n || sum.TotalBytes > 1500*n {
						t.Errorf("%d packets with %d bytes", n, sum.TotalBytes)
					}
				} else if sum.TotalChosen != asked || sum.Chosen != asked || sum.TotalBytes > 0 {
					t.Errorf("%d connections with %d bytes", sum.TotalChosen, sum.TotalBytes)
				}
				w.set(down(f, 1))
				w.answers(asked, "tcp", hostPort(virtual, "80"))
				w.set(f)
				_, later := counted()
				for b, was := range by {
					if now := later[b]; was.TotalChosen == 0 || now.TotalChosen < was.TotalChosen || now.TotalBytes < was.TotalBytes {
						t.Errorf("%s had %+v, and has %+v", b.Name, was, now)
					}
				}
				w.set()
				if _, none := counted(); len(none) > 0 {
					t.Errorf("a farm that is gone has %v", none)
				}
			})
		})
	}
}

// down is a farm with one of its backends down.
func down(f *model.Farm, backend int) *model.Farm {
	g := *f
	g.Backends = slices.Clone(f.Backends)
	g.Backends[backend].State = model.BackendDown
	return &g
}

// BenchmarkTraffic reads what 10,000 backends have got.
func BenchmarkTraffic(b *testing.B) {
	host := world.NewHost(b, "balancer")
	var d *farms.Driver
	host.In(func() (err error) { d, err = farms.Open(farms.Options{}); return err })
	defer func() { _ = d.Close() }()
	want := &state.State{Farms: state.NewFarms()}
	for i := range 100 {
		f := &model.Farm{Name: fmt.Sprint("farm", i), Scheduler: model.Weighted, Addresses: []model.FarmAddress{at(fmt.Sprintf("10.0.0.%d", i+1), port(80))}}
		for j := range 100 {
			f.Backends = append(f.Backends, model.FarmBackend{Name: fmt.Sprint("b", j), Addr: netip.AddrFrom4([4]byte{10, 1, byte(i), byte(j)}), Port: 8080, Weight: 1, Priority: 1})
		}
		want.Farms.Farms[f.Name] = farm.Compile(f, func(netip.Addr) int { return 0 })
	}
	p, err := d.Adopt(b.Context(), want, driver.Keep{})
	if err == nil {
		err = p.Apply(b.Context())
	}
	for err == nil && b.Loop() {
		_, err = d.Traffic(b.Context())
	}
	if err != nil {
		b.Fatal(err)
	}
}
