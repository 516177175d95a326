package compile

import (
	"errors"
	"fmt"
	"math"
	"net/netip"
	"slices"
	"testing"

	"sluice.dev/sluice/internal/model"
	"sluice.dev/sluice/internal/state"
)

func members(n int) (all []member) {
	for i := range n {
		all = append(all, member{index: int16(i), weight: 1, key: fmt.Sprintf("10.0.%d.%d", i/250, i%250)})
	}
	return all
}

// TestMaglev takes one of N backends away, for many N. Where it is out of service no flow moves but
// its own; where it is deleted, too, few others do. The shares of those that stay differ by little.
func TestMaglev(t *testing.T) {
	for _, n := range []int{2, 3, 5, 10, 30, 100, 300} {
		size, all := maglevSize(n, false), members(n)
		before := maglev(size, all, all)
		for _, gone := range []int{0, n / 2, n - 1} {
			rest := slices.DeleteFunc(members(n), func(m member) bool { return int(m.index) == gone })
			down, deleted := 0, 0
			for i, s := range maglev(size, all, rest) {
				if before[i] != s {
					down++
					if int(before[i]) != gone {
						t.Fatalf("%d backends, %d down: slot %d of %d moves", n, gone, i, before[i])
					}
				}
			}
			for i, s := range maglev(size, rest, rest) {
				if before[i] != s {
					deleted++
				}
			}
			if share := float64(down) / float64(size); share > 1.03/float64(n) {
				t.Errorf("%d backends, %d down: %.2f/N of the slots move", n, gone, share*float64(n))
			}
			if share := float64(deleted) / float64(size); n <= 10 && share > 1.3/float64(n) || share > 6/float64(n) {
				t.Errorf("%d backends, %d deleted: %.2f/N of the slots move", n, gone, share*float64(n))
			}
		}
		counts := make([]int, n)
		for _, s := range before {
			counts[s]++
		}
		if most, least := slices.Max(counts), slices.Min(counts); float64(most) > 1.03*float64(least)+1 {
			t.Errorf("%d backends have between %d and %d slots", n, least, most)
		}
	}
}

// TestMaglevWeights has weights be shares, and the order of the members be of no importance.
func TestMaglevWeights(t *testing.T) {
	m := members(3)
	m[1].weight, m[2].weight = 2, 5
	table := maglev(1021, m, m)
	counts := make([]float64, 3)
	for _, s := range table {
		counts[s]++
	}
	for i, want := range []float64{1, 2, 5} {
		if got := counts[i] * 8 / 1021; math.Abs(got-want) > 0.05 {
			t.Errorf("backend %d has %.2f eighths, not %.0f", i, got, want)
		}
	}
	slices.Reverse(m)
	if !slices.Equal(table, maglev(1021, m, m)) {
		t.Error("the table depends on the order")
	}
}

// TestHashed takes members away one by one: each slot of one that stays, stays.
func TestHashed(t *testing.T) {
	all := members(7)
	before := hashed(interleave(all), all)
	up := slices.Clone(all)
	for len(up) > 1 {
		gone := up[len(up)/2].index
		up = slices.DeleteFunc(up, func(m member) bool { return m.index == gone })
		after := hashed(interleave(all), up)
		for i, s := range before {
			if s != gone && after[i] != s {
				t.Fatalf("without %d, slot %d goes from %d to %d", gone, i, s, after[i])
			}
		}
		before = after
	}
}

// TestDrawn has slot 0 always lead somewhere, and never less than half of the slots.
func TestDrawn(t *testing.T) {
	for n := 1; n <= 12; n++ {
		all := members(n)
		for mask := 1; mask < 1<<n; mask += 1 + mask/7 {
			var up []member
			for i, m := range all {
				if mask&(1<<i) != 0 {
					up = append(up, m)
				}
			}
			table := drawn(all, up)
			used := map[int16]int{}
			for _, s := range table {
				if s != state.Empty {
					used[s]++
				}
			}
			if table[0] == state.Empty || len(used) != len(up) || 2*len(up) < len(table) {
				t.Fatalf("%d members, up %b: %v", n, mask, table)
			}
		}
	}
}

// TestInterleave spreads what comes often.
func TestInterleave(t *testing.T) {
	m := members(3)
	m[0].weight, m[1].weight = 3, 2
	if got := interleave(m); !slices.Equal(got, []int16{0, 1, 0, 2, 1, 0}) && got[0] != 0 {
		t.Errorf("weights 3, 2, 1: %v", got)
	}
	big := members(3)
	big[0].weight, big[1].weight, big[2].weight = 1_000_000, 500_000, 1
	if got := shares(big, mostSlots); got[2].weight != 1 || got[0].weight > mostSlots || got[0].weight < 2*got[1].weight-1 {
		t.Errorf("large weights: %+v", got)
	}
}

// TestInRanges has farms that are found by ranges have fewer slots.
func TestInRanges(t *testing.T) {
	f := &model.Farm{Name: "web", Addresses: []model.FarmAddress{{Addr: netip.MustParseAddr("192.0.2.1"), Ports: []model.PortSpan{{First: 80, Last: 80}}}}}
	for i, weight := range []int{65535, 1, 100, 65535} {
		f.Backends = append(f.Backends, model.FarmBackend{Name: string(rune('a' + i)), Addr: netip.MustParseAddr("10.0.0.1"), Weight: weight, Priority: 1})
	}
	if n := len(Compile(f, nil).Table(true).Slots); n < 1000 || n > 1030 {
		t.Errorf("%d slots at one port", n)
	}
	f.Addresses[0].Ports[0].Last = 90
	if n := len(Compile(f, nil).Table(true).Slots); n < 60 || n > 70 {
		t.Errorf("%d slots at a range", n)
	}
}

// TestServing follows nftlb's levels of priority.
func TestServing(t *testing.T) {
	const up, down, draining = model.BackendUp, model.BackendDown, model.BackendDraining
	type b = model.FarmBackend
	for _, c := range []struct {
		name     string
		backends []b
		want     []bool
	}{
		{"all of the first priority", []b{{Priority: 1}, {Priority: 1}, {Priority: 2}}, []bool{true, true, false}},
		{"one down: the next priority", []b{{Priority: 1}, {Priority: 1, State: down}, {Priority: 2}}, []bool{true, false, true}},
		{"one drains: the same", []b{{Priority: 1, State: draining}, {Priority: 2}}, []bool{false, true}},
		{"two down: two levels", []b{{Priority: 1, State: down}, {Priority: 1, State: down}, {Priority: 2}, {Priority: 3}, {Priority: 4}}, []bool{false, false, true, true, false}},
		{"a backup down, too", []b{{Priority: 1, State: down}, {Priority: 2, State: down}, {Priority: 3}}, []bool{false, false, true}},
		{"none", nil, []bool{}},
	} {
		if got := Serving(c.backends); !slices.Equal(got, c.want) {
			t.Errorf("%s: %v, want %v", c.name, got, c.want)
		}
	}
}

// TestCompile has families apart, and a stateless mode hash.
func TestCompile(t *testing.T) {
	f := &model.Farm{Name: "web", Mode: model.DSR, Scheduler: model.RoundRobin, Backends: []model.FarmBackend{
		{Name: "a", Addr: netip.MustParseAddr("10.0.0.1"), Weight: 2, Priority: 1}, {Name: "b", Addr: netip.MustParseAddr("fd00::1"), Weight: 1, Priority: 1},
	}}
	c := Compile(f, func(netip.Addr) int { return 1 })
	if !slices.Equal(slices.Compact(c.Table(true).Slots), []int16{0}) || !slices.Equal(slices.Compact(c.Table(false).Slots), []int16{1}) {
		t.Errorf("tables: %v", c.Tables)
	}
}

// TestCommon has farms of mode DSR have the common number of slots where that changes nothing but
// where the flows of a backend go that is down: to all others.
func TestCommon(t *testing.T) {
	f := &model.Farm{Mode: model.DSR, Addresses: []model.FarmAddress{{Addr: netip.MustParseAddr("10.0.0.1"), Ports: []model.PortSpan{{First: 80, Last: 80}}}}}
	for n := 1; n <= 13; n++ {
		all := members(n)
		few, table := interleave(all), slots(f, all, all)
		if want := state.CommonSlots%n == 0; (len(table) == state.CommonSlots) != want {
			t.Errorf("%d backends: %d slots", n, len(table))
		}
		for hash := uint64(0); hash < 1<<32; hash += 99_999_999 { // as the kernel scales it
			if table[hash*uint64(len(table))>>32] != few[hash*uint64(n)>>32] {
				t.Errorf("%d backends: %v in place of %v", n, table, few)
				break
			}
		}
	}
	all := members(3)
	if down := slots(f, all, all[1:]); !slices.Contains(down[:4], 1) || !slices.Contains(down[:4], 2) || slices.Contains(down, 0) || down[4] != 1 || down[11] != 2 {
		t.Errorf("one of three is down: %v", down)
	}
	f.Addresses[0].Ports[0].Last = 90
	if table := slots(f, all, all); len(table) != 3 {
		t.Errorf("a farm at a range: %v", table)
	}
}

// TestDevices has backends be reached by the interface whose network is the smallest, and those on
// none, or on this machine, have no slots where the kernel has no IPIP.
func TestDevices(t *testing.T) {
	addr, prefix := netip.MustParseAddr, netip.MustParsePrefix
	c := New(func() error { return errors.New("it lacks IPIP") })
	c.SetLinks(model.Links{
		Links:  []model.Link{{Index: 1, Addresses: []netip.Addr{addr("127.0.0.1")}}, {Index: 2, Addresses: []netip.Addr{addr("10.0.0.9")}}},
		Routes: []model.LinkRoute{{Prefix: prefix("10.0.0.0/16"), Link: 2}, {Prefix: prefix("10.0.1.0/24"), Link: 3}},
		Local:  []netip.Addr{addr("10.0.0.9")},
	})
	f := &model.Farm{Name: "web", Mode: model.DSR}
	for _, a := range []string{"10.0.0.1", "10.0.1.1", "10.9.0.9", "10.0.0.9"} {
		f.Backends = append(f.Backends, model.FarmBackend{Name: "b" + a, Addr: addr(a), Weight: 1, Priority: 1})
	}
	c.set("web", Compile(f, c.device))
	now := c.now.Farms["web"]
	if !slices.Equal(now.Devices, []int{2, 3, 0, 0}) || now.Serves(2) || now.Serves(3) || !now.Serves(0) || !now.Serves(1) {
		t.Errorf("%+v", now)
	}
	if issues := c.Issues(); len(issues) != 2 || issues[0].Reason != "backend b10.9.0.9 (10.9.0.9) is not on a network of this machine, and dsr cannot send to others: modprobe sit (it lacks IPIP)" {
		t.Errorf("%v", issues)
	}
	c.SetLinks(model.Links{Routes: []model.LinkRoute{{Prefix: prefix("10.9.0.0/16"), Link: 4}}})
	if now := c.now.Farms["web"]; !slices.Equal(now.Devices, []int{0, 0, 4, 0}) || len(c.now.Devices) != 0 || len(c.now.Tunnels) != 0 {
		t.Errorf("after a change: %+v", now)
	}
}

// TestTunnels has backends on no network of the machine be reached through tunnels, which are there
// while a farm needs them; others than IPv4 ones, and the machine itself, are not.
func TestTunnels(t *testing.T) {
	addr := netip.MustParseAddr
	c, asked := New(nil), 0
	c.ipip = func() error { asked++; return nil }
	near := model.Links{Routes: []model.LinkRoute{{Prefix: netip.MustParsePrefix("10.0.0.0/24"), Link: 2}}, Local: []netip.Addr{addr("10.0.0.1")}}
	c.SetLinks(near)
	farm := func(name string, backends ...string) {
		f := &model.Farm{Name: name, Mode: model.DSR}
		for _, b := range backends {
			f.Backends = append(f.Backends, model.FarmBackend{Name: b, Addr: addr(b), Weight: 1, Priority: 1, State: model.BackendDown})
		}
		f.Backends[0].State = model.BackendUp
		c.set(name, Compile(f, c.device))
	}
	tunnels := func(want ...string) {
		t.Helper()
		var have []string
		for to := range c.now.Tunnels {
			have = append(have, to.String())
		}
		slices.Sort(have)
		if !slices.Equal(have, want) {
			t.Errorf("tunnels to %v, want %v", have, want)
		}
	}
	farm("near", "10.0.0.9")
	if tunnels(); asked > 0 {
		t.Error("asked for IPIP, which no farm needs")
	}
	farm("far", "10.9.0.9", "10.9.0.8", "10.0.0.9", "10.0.0.1", "127.0.0.7", "fd00::9")
	tunnels("10.9.0.8", "10.9.0.9") // the one that is down, too
	if f := c.now.Farms["far"]; !slices.Equal(f.Devices, []int{0x4a090009, 0x4a090008, 2, 0, 0, 0}) || !f.Serves(0) || f.Serves(1) {
		t.Errorf("%+v", f)
	}
	var reasons []string
	for _, i := range c.Issues() {
		reasons = append(reasons, i.Reason)
	}
	if want := []string{
		"backend 10.0.0.1 (10.0.0.1) is this machine itself, which dsr does not send to",
		"backend 127.0.0.7 (127.0.0.7) is this machine itself, which dsr does not send to",
		"backend fd00::9 (fd00::9) is not on a network of this machine, which dsr needs for IPv6",
	}; !slices.Equal(reasons, want) {
		t.Errorf("%q", reasons)
	}
	farm("also", "10.9.0.9")
	farm("far", "10.9.0.8")
	tunnels("10.9.0.8", "10.9.0.9")
	if d := c.tunnels.Flush(); len(d) != 2 || !d[addr("10.9.0.8")] || !d[addr("10.9.0.9")] {
		t.Errorf("changes: %v", d)
	}
	c.set("also", nil)
	tunnels("10.9.0.8")
	near.Routes = append(near.Routes, model.LinkRoute{Prefix: netip.MustParsePrefix("10.9.0.0/24"), Link: 3})
	c.SetLinks(near)
	tunnels() // it has become a neighbour
	if d := c.tunnels.Flush(); len(d) != 2 || d[addr("10.9.0.8")] || d[addr("10.9.0.9")] {
		t.Errorf("changes: %v", d)
	}
	if _, name := state.FarmTunnel(addr("10.9.0.9")); name != "sluice-4a090009" {
		t.Error(name)
	}
}
