package drivertest

import (
	"net/netip"
	"slices"
	"testing"

	"sluice.dev/sluice/internal/driver"
)

// Refusals shows that what the kernel refuses of a service is set aside with its name while all
// else works, at the start, while services change, and after a restart; and that it works once the
// kernel takes it. The driver that open opens finds that its kernel refuses what is made of
// frontends at the addresses for which refused answers true.
func Refusals(t *testing.T, open func(refused func(netip.Addr) bool) (driver.Driver, error)) {
	t.Parallel()
	lent := &topologies{parent: t}
	for _, f := range []family{ipv4, ipv6} {
		t.Run(f.String(), func(t *testing.T) {
			t.Parallel()
			refusing, w := true, lent.lend(t)
			r := &run{topology: w, family: f}
			r.open = func() (driver.Driver, error) {
				return open(func(a netip.Addr) bool { return refusing && a == w.addr("vip2", f) })
			}
			r.refusals(t, func() { refusing = false })
		})
	}
}

func (r *run) refusals(t *testing.T, heal func()) {
	r.start(t, config{})
	services := func(on string) []svc {
		return []svc{{at: "vip", on: on}, {name: "bad", at: "vip2", on: on}}
	}
	aside := func(want ...string) {
		t.Helper()
		var names []string
		for _, s := range r.driver.SetAside() {
			names = append(names, s.Kind+" "+s.Name.Name)
		}
		if !slices.Equal(names, want) {
			t.Errorf("set aside: %v, want %v", names, want)
		}
	}
	lost := tcp("c", "vip2:80", fate{outcome: rejected})
	r.step(t, 0, step{services: services("a"), sends: []send{tcp("c", "vip:80", by("a")), lost}})
	aside("Service bad")
	r.step(t, 1, step{services: services("a b"), sends: []send{tcp("c", "vip:80", by("a b")), lost}})
	aside("Service bad")
	if r.driver.Capabilities().Can&driver.Survives != 0 {
		if err := r.driver.Close(); err != nil {
			t.Fatalf("close the driver: %v", err)
		}
		r.reopen(t)
		r.adopt(t, false)
		aside("Service bad")
		r.step(t, 2, step{services: services("b"), sends: []send{tcp("c", "vip:80", by("b")), lost}})
	}
	heal()
	r.step(t, 3, step{services: services("a x"), sends: []send{tcp("c", "vip:80", by("a x")), tcp("c", "vip2:80", by("a x"))}})
	aside()
	r.adopt(t, true)
}
