package sockets

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"net/netip"
	"slices"
	"testing"

	"github.com/cilium/ebpf"

	"sluice.dev/sluice/internal/model"
	"sluice.dev/sluice/internal/state"
)

// newMaps makes maps with room for so many frontends and pages of slots.
func newMaps(t *testing.T, frontends, pages uint32) *bpfMaps {
	t.Helper()
	spec, err := loadBpf()
	if err != nil {
		t.Fatal(err)
	}
	spec.Maps["frontends"].MaxEntries, spec.Maps["slots"].MaxEntries = frontends, pages
	for _, m := range spec.Maps {
		m.Pinning = ebpf.PinNone
	}
	var maps bpfMaps
	if err := spec.LoadAndAssign(&maps, nil); err != nil {
		t.Skipf("needs the right to make maps: %v", err)
	}
	t.Cleanup(func() { _ = maps.Close() })
	return &maps
}

func key(n int) state.FrontendKey {
	return state.FrontendKey{Addr: netip.AddrFrom4([4]byte{10, 96, 0, byte(n)}), Protocol: []model.Protocol{model.TCP, model.UDP}[n%2], Port: 80}
}

func backends(numbers ...int) (all []netip.AddrPort) {
	for _, n := range numbers {
		all = append(all, netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 1, 0, byte(n)}), 8080))
	}
	return all
}

func frontend(numbers ...int) *state.Frontend {
	return &state.Frontend{Backends: backends(numbers...), Serving: backends(numbers...)}
}

// programmed is what a socket may get, as the programs read the maps.
func programmed(t *testing.T, m *bpfMaps) map[bpfEndpoint][]netip.AddrPort {
	t.Helper()
	all := map[bpfEndpoint][]netip.AddrPort{}
	elements := 0
	err := each(m.Frontends, func(at bpfEndpoint, f bpfFrontend) {
		all[at] = nil
		for i := range f.Slots {
			e := slot(m, f, i)
			if e == (bpfEndpoint{}) {
				t.Errorf("slot %d of %v is empty", i, at.addrPort())
			}
			all[at] = append(all[at], e.addrPort())
		}
		elements += pages(int(f.Slots))
		slices.SortFunc(all[at], netip.AddrPort.Compare)
	})
	if err != nil {
		t.Fatal(err)
	}
	if err := each(m.Slots, func(bpfPage, bpfEndpoints) { elements-- }); err != nil || elements != 0 {
		t.Errorf("%d pages too few, %v", elements, err)
	}
	return all
}

// slot is what a socket finds in a slot; zero: nothing.
func slot(m *bpfMaps, f bpfFrontend, i uint32) bpfEndpoint {
	var page bpfEndpoints
	_ = m.Slots.Lookup(bpfPage{Frontend: f.Id, Number: i / perPage}, &page)
	return page.At[i%perPage]
}

// Whatever changes in whatever order, the maps hold what is served, and nothing else; also for an
// agent that comes later.
func TestTableFollows(t *testing.T) {
	m := newMaps(t, 64, 256)
	table, err := openTable(m)
	if err != nil {
		t.Fatal(err)
	}
	random := rand.New(rand.NewPCG(1, 2))
	want := map[state.FrontendKey]*state.Frontend{}
	for step := range 500 {
		if step%50 == 49 {
			if table, err = openTable(m); err != nil {
				t.Fatal(err)
			}
		}
		var c change
		for n := range 3 {
			k := key(random.IntN(4)*3 + n)
			f := frontend(random.Perm(9)[:random.IntN(9)]...)
			slices.SortFunc(f.Backends, netip.AddrPort.Compare)
			if len(f.Backends) == 0 {
				f = nil
			}
			if want[k] = f; f == nil {
				delete(want, k)
			}
			if !table.set(k, f, &c) {
				t.Fatal("no room")
			}
		}
		if err := table.write(&c); err != nil {
			t.Fatal(err)
		}
		got := programmed(t, m)
		for k, f := range want {
			if is := got[frontendAt(k)]; !slices.Equal(is, f.Backends) {
				t.Fatalf("step %d: %v goes to %v; want %v", step, k, is, f.Backends)
			}
		}
		if len(got) != len(want) {
			t.Fatalf("step %d: %d frontends are programmed; want %d", step, len(got), len(want))
		}
	}
}

// Between any two writes of a change, a socket gets an endpoint from before it or after it, or
// none.
func TestTableInTheMidstOfAChange(t *testing.T) {
	for name, to := range map[string]*state.Frontend{"fewer": frontend(3), "the last": frontend(5), "more": frontend(1, 2, 3, 4, 5, 6, 7, 8, 9), "others": frontend(7, 8), "none": nil} {
		t.Run(name, func(t *testing.T) {
			m := newMaps(t, 64, 256)
			table, err := openTable(m)
			if err != nil {
				t.Fatal(err)
			}
			var c change
			table.set(key(1), frontend(1, 2, 3, 4, 5), &c)
			if err := table.write(&c); err != nil {
				t.Fatal(err)
			}
			var next change
			table.set(key(1), to, &next)
			may := map[netip.AddrPort]bool{}
			for _, b := range backends(1, 2, 3, 4, 5) {
				may[b] = true
			}
			if to != nil {
				for _, b := range to.Backends {
					may[b] = true
				}
			}
			for i := range len(next.steps(m)) {
				if err := next.steps(m)[i](); err != nil {
					t.Fatal(err)
				}
				err := each(m.Frontends, func(_ bpfEndpoint, f bpfFrontend) {
					for i := range f.Slots {
						if e := slot(m, f, i); e != (bpfEndpoint{}) && !may[e.addrPort()] {
							t.Errorf("a socket may get %v", e.addrPort())
						}
					}
				})
				if err != nil {
					t.Fatal(err)
				}
			}
		})
	}
}

// An agent that was killed in the midst of a change leaves what the next one mends.
func TestTableOfOneThatWasKilled(t *testing.T) {
	for name, damage := range map[string]func(*bpfMaps) error{
		"a page is missing":          func(m *bpfMaps) error { return m.Slots.Delete(bpfPage{Frontend: 0, Number: 1}) },
		"a page is empty":            func(m *bpfMaps) error { return m.Slots.Put(bpfPage{Frontend: 0, Number: 1}, bpfEndpoints{}) },
		"a page is too many":         func(m *bpfMaps) error { return m.Slots.Put(bpfPage{Frontend: 0, Number: 3}, bpfEndpoints{}) },
		"pages of no frontend":       func(m *bpfMaps) error { return m.Slots.Put(bpfPage{Frontend: 9}, bpfEndpoints{}) },
		"two frontends of a number":  func(m *bpfMaps) error { return m.Frontends.Put(bpfEndpoint{Port: 1}, bpfFrontend{Id: 0, Slots: 1}) },
		"an endpoint of no frontend": func(m *bpfMaps) error { return m.Servings.Put(bpfServing{Frontend: 9}, uint8(1)) },
	} {
		t.Run(name, func(t *testing.T) {
			m := newMaps(t, 64, 256)
			table, err := openTable(m)
			if err != nil {
				t.Fatal(err)
			}
			want := map[state.FrontendKey]*state.Frontend{key(1): frontend(1, 2, 3, 4, 5), key(2): frontend(4)}
			serve := func() {
				t.Helper()
				var c change
				for _, k := range slices.SortedFunc(maps.Keys(want), state.FrontendKey.Compare) {
					table.set(k, want[k], &c)
				}
				if err := table.write(&c); err != nil {
					t.Fatal(err)
				}
			}
			serve()
			if err := damage(m); err != nil {
				t.Fatal(err)
			}
			if table, err = openTable(m); err != nil {
				t.Fatal(err)
			}
			serve()
			for at := range table.frontends {
				if at != frontendAt(key(1)) && at != frontendAt(key(2)) {
					var c change
					table.remove(at, &c)
					if err := table.write(&c); err != nil {
						t.Fatal(err)
					}
				}
			}
			got := fmt.Sprint(programmed(t, m)[frontendAt(key(1))], programmed(t, m)[frontendAt(key(2))])
			if wanted := fmt.Sprint(backends(1, 2, 3, 4, 5), backends(4)); got != wanted {
				t.Errorf("programmed: %s; want %s", got, wanted)
			}
		})
	}
}

// What finds no room is not served at the socket, and holds up nothing else.
func TestTableFull(t *testing.T) {
	m := newMaps(t, 2, 16)
	table, err := openTable(m)
	if err != nil {
		t.Fatal(err)
	}
	var c change
	write := func() {
		t.Helper()
		if err := table.write(&c); err != nil {
			t.Fatal(err)
		}
		c = change{}
	}
	for i, f := range []*state.Frontend{frontend(1, 2, 3), frontend(1, 2, 3, 4, 5), frontend(1)} {
		if room := table.set(key(i), f, &c); room != (i < 2) {
			t.Errorf("frontend %d: room %v", i, room)
		}
	}
	if table.set(key(0), frontend(rand.Perm(52)...), &c) {
		t.Error("a frontend has grown beyond the room that there is")
	}
	write()
	if !table.set(key(2), frontend(1), &c) {
		t.Error("there is no room though another frontend has gone")
	}
	write()
	if got := programmed(t, m); len(got) != 2 {
		t.Errorf("programmed: %v", got)
	}
}
