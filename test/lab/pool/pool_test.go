package pool

import (
	"math/rand/v2"
	"net/netip"
	"testing"
)

func TestTakeGoesRound(t *testing.T) {
	for _, tt := range []struct {
		prefix string
		want   []string // addresses of six owners that come and go in turn
	}{
		{"10.0.0.0/30", []string{"10.0.0.1", "10.0.0.2", "10.0.0.1", "10.0.0.2", "10.0.0.1", "10.0.0.2"}},
		{"10.0.0.8/29", []string{"10.0.0.9", "10.0.0.10", "10.0.0.11", "10.0.0.12", "10.0.0.13", "10.0.0.14"}},
		{"10.0.0.13/29", []string{"10.0.0.9", "10.0.0.10", "10.0.0.11", "10.0.0.12", "10.0.0.13", "10.0.0.14"}},
		{"fd00::/126", []string{"fd00::1", "fd00::2", "fd00::3", "fd00::1", "fd00::2", "fd00::3"}},
		{"255.255.255.252/30", []string{"255.255.255.253", "255.255.255.254", "255.255.255.253", "255.255.255.254", "255.255.255.253", "255.255.255.254"}},
		{"fd00::/64", []string{"fd00::1", "fd00::2", "fd00::3", "fd00::4", "fd00::5", "fd00::6"}},
	} {
		p := New[int](netip.MustParsePrefix(tt.prefix))
		for i, want := range tt.want {
			got, err := p.Take(i)
			if err != nil || got.String() != want {
				t.Errorf("%s: owner %d has %s (%v), want %s", tt.prefix, i, got, err, want)
			}
			p.Release(i)
		}
	}
}

func TestFull(t *testing.T) {
	p := New[int](netip.MustParsePrefix("10.0.0.0/29"))
	for i := range 6 {
		if _, err := p.Take(i); err != nil {
			t.Fatal(err)
		}
	}
	if a, err := p.Take(6); err == nil {
		t.Errorf("a seventh of six: %s", a)
	}
	p.Release(3)
	if a, err := p.Take(6); err != nil || a.String() != "10.0.0.4" {
		t.Errorf("after one was given back: %s %v", a, err)
	}
}

func TestClaim(t *testing.T) {
	p := New[string](netip.MustParsePrefix("10.0.0.0/29"))
	for _, tt := range []struct {
		owner, addr string
		want        bool
	}{
		{"a", "10.0.0.5", true},
		{"a", "10.0.0.5", true}, // it has it
		{"b", "10.0.0.5", false},
		{"b", "10.0.0.0", false},
		{"b", "10.0.0.7", false},
		{"b", "10.0.1.1", false},
		{"b", "fd00::1", false},
		{"b", "10.0.0.2", true},
		{"a", "10.0.0.4", true}, // and gives the other back
		{"c", "10.0.0.5", true},
	} {
		if got := p.Claim(tt.owner, netip.MustParseAddr(tt.addr)); got != tt.want {
			t.Errorf("%s claims %s: %v", tt.owner, tt.addr, got)
		}
	}
	if a, err := p.Take("a"); err != nil || a.String() != "10.0.0.4" {
		t.Errorf("what a has: %s %v", a, err)
	}
}

// Whatever happens, no two owners have the same address, and every free address can be assigned.
func TestNoTwoOwners(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	p := New[int](netip.MustParsePrefix("10.0.0.0/28"))
	has := map[int]netip.Addr{}
	for range 10_000 {
		owner := rng.IntN(20)
		if rng.IntN(2) == 0 {
			p.Release(owner)
			delete(has, owner)
			continue
		}
		a, err := p.Take(owner)
		if had, ok := has[owner]; ok && a != had {
			t.Fatalf("owner %d had %s and now has %s", owner, had, a)
		}
		if err != nil {
			if len(has) != 14 {
				t.Fatalf("%d of 14 in use: %v", len(has), err)
			}
			continue
		}
		has[owner] = a
		for o, b := range has {
			if o != owner && a == b {
				t.Fatalf("owners %d and %d have %s", o, owner, a)
			}
		}
	}
}
