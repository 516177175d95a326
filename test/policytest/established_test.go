package policytest

import (
	"errors"
	"fmt"
	"net/netip"
	"path/filepath"
	"testing"
	"time"

	"github.com/cilium/ebpf"

	"sluice.dev/sluice/internal/accelerate/established"
	"sluice.dev/sluice/internal/driver"
	"sluice.dev/sluice/internal/kernel/sysctl"
	"sluice.dev/sluice/internal/model"
	"sluice.dev/sluice/internal/state"
	"sluice.dev/sluice/test/drivertest"
	"sluice.dev/sluice/test/world"
)

// shortcuts are planes whose established connections pass by the chains, by a program of ours.
type shortcuts struct{ opened *established.Driver }

func (s *shortcuts) open(t testing.TB, o options) (driver.Driver, error) {
	world.MountBPF(t)
	base, err := openNFTables(t, o)
	if err != nil {
		return nil, err
	}
	if _, err := sysctl.Set(filepath.Join(t.TempDir(), "sysctls"), established.Sysctls); err != nil {
		return nil, errors.Join(err, base.Close())
	}
	s.opened = established.Open(base, o.Log)
	return s.opened, nil
}

// plane skips the test where the kernel cannot do that.
func (s *shortcuts) plane(t testing.TB) plane {
	t.Helper()
	if err := established.Probe(); errors.Is(err, ebpf.ErrNotSupported) {
		t.Skip(err)
	}
	return plane{s.open, share{0, 2}, share{0, 8}, manySets}
}

// taken has connections speak until the program takes all their packets.
func (s *shortcuts) taken(t testing.TB, pairs map[string]*drivertest.Pair) {
	t.Helper()
	for begun := time.Now(); ; {
		together(pairs, func(name string, p *drivertest.Pair) { goesOn(t, name, p) })
		missing := ""
		for name, p := range pairs {
			before := s.opened.Taken()
			if goesOn(t, name, p); s.opened.Taken()-before < 2 {
				missing = name
			}
		}
		if missing == "" {
			return
		}
		if t.Failed() || time.Since(begun) > 4*drivertest.Patient {
			t.Fatalf("the program does not take the packets of %s: %+v", missing, s.opened.Status())
		}
	}
}

// TestEstablished runs the tests with connections that pass by the chains as soon as they can.
func TestEstablished(t *testing.T) {
	p := new(shortcuts).plane(t)
	p.open = func(t testing.TB, o options) (driver.Driver, error) { return new(shortcuts).open(t, o) }
	p.run(t, fates)
}

// TestEstablishedPassBy shows that packets of established connections meet no chain any more.
func TestEstablishedPassBy(t *testing.T) {
	t.Parallel()
	var s shortcuts
	k := s.plane(t).kernel(t, threePods)
	k.declare(t, row{services: frontB()})
	pairs := k.pairs(t)
	s.taken(t, pairs)
	k.shutForward(t)
	together(pairs, func(name string, p *drivertest.Pair) { goesOn(t, name, p) })
}

// TestCutEstablished shows that what policy comes to forbid ends also where it passes by the
// chains.
func TestCutEstablished(t *testing.T) {
	t.Parallel()
	var s shortcuts
	k := s.plane(t).kernel(t, threePods)
	k.cut(t, func(pairs map[string]*drivertest.Pair) { s.taken(t, pairs) })
}

// TestDenyListEstablished shows that a deny list ends connections that pass by the chains.
func TestDenyListEstablished(t *testing.T) {
	t.Parallel()
	var s shortcuts
	k := s.plane(t).kernel(t, threePods)
	k.declare(t, row{})
	pairs := map[string]*drivertest.Pair{}
	for _, proto := range []model.Protocol{tcp, udp} {
		for family := range Families {
			server := netip.AddrPortFrom(names["b"][family], 80)
			p, err := k.mesh.Pair(t, "outside", proto, server, server)
			if err != nil {
				t.Fatal(err)
			}
			pairs[fmt.Sprint(proto, " ", server)] = p
		}
	}
	s.taken(t, pairs)
	k.declare(t, row{denied: []string{names["outside"][0].String(), names["outside"][1].String()}})
	together(pairs, func(name string, p *drivertest.Pair) {
		if p.Speak(true, drivertest.Silent) {
			t.Errorf("%s: it goes on from an address that a list denies", name)
		}
	})
}

// TestForgedEstablished shows that a pod cannot use the way of another one's connection that passes
// by the chains.
func TestForgedEstablished(t *testing.T) {
	t.Parallel()
	var s shortcuts
	k := s.plane(t).kernel(t, threePods)
	k.declare(t, row{})
	for family := range Families {
		server := netip.AddrPortFrom(names["b"][family], 81)
		p, err := k.mesh.Pair(t, "a", udp, server, server)
		if err != nil {
			t.Fatal(err)
		}
		s.taken(t, map[string]*drivertest.Pair{"a": p})
		for host, want := range map[string]bool{"c": false, "a": true} {
			before := k.dropped(t, state.DropSpoofed)
			arrived, err := k.mesh.Forge(server.Addr(), "of "+host, drivertest.ForgedDatagram(host, clientOf(p), server, "of "+host))
			if err != nil {
				t.Fatal(err)
			}
			if spoofed := k.dropped(t, state.DropSpoofed) > before; arrived != want || spoofed == want {
				t.Errorf("%v: a datagram of a's connection that %s sends arrives: %v, is dropped as spoofed: %v", server, host, arrived, spoofed)
			}
		}
	}
}
