package iptables

import (
	"fmt"
	"net/netip"
	"testing"
	"time"

	"sluice.dev/sluice/internal/driver"
	"sluice.dev/sluice/internal/kernel/xtables"
	"sluice.dev/sluice/internal/model"
	"sluice.dev/sluice/internal/state"
	"sluice.dev/sluice/test/world"
)

// inside opens a driver in a network namespace of its own.
func inside(t testing.TB, o Options) *Driver {
	t.Helper()
	if o.LockWait == 0 {
		o.LockWait = 5 * time.Minute // other tests have the lock, too
	}
	var d *Driver
	world.NewHost(t, "iptables").In(func() (err error) {
		d, err = open(o)
		return err
	})
	t.Cleanup(func() {
		if err := d.Close(); err != nil {
			t.Error(err)
		}
	})
	return d
}

func addr(i int) netip.Addr { return netip.AddrFrom4([4]byte{10, 96, byte(i / 250), byte(i%250 + 1)}) }

// web is a service with that many backends of its own.
func web(i, backends int) (state.FrontendKey, *state.Frontend) {
	f := &state.Frontend{Service: model.Name{Namespace: "shop", Name: fmt.Sprint("web-", i)}, Reject: true}
	for b := range backends {
		n := i*10 + b
		f.Backends = append(f.Backends, netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, byte(100 + n/62500), byte(n / 250 % 250), byte(n%250 + 1)}), 8080))
	}
	return state.FrontendKey{Addr: addr(i), Protocol: model.TCP, Port: 80}, f
}

func services(n, backends int) *state.State {
	s := state.New()
	for i := range n {
		k, f := web(i, backends)
		s.Services.Frontends[k] = f
		s.Services.ClusterIPs[k.Addr] = struct{}{}
	}
	return s
}

func apply(t testing.TB, p driver.Plan, err error) driver.Plan {
	t.Helper()
	if err == nil {
		err = p.Apply(t.Context())
	}
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// BenchmarkChange is one endpoint more or less of one of many services.
func BenchmarkChange(b *testing.B) {
	for _, v := range []xtables.Variant{xtables.Legacy, xtables.NFTables} {
		for _, n := range []int{1000, 10000} {
			b.Run(fmt.Sprintf("%s/%d", v, n), func(b *testing.B) {
				d := inside(b, Options{Variant: v})
				p, err := d.Adopt(b.Context(), services(n, 10), driver.Keep{})
				apply(b, p, err)
				i := 0
				for b.Loop() {
					i++
					k, f := web(77, 9+i%2)
					p, err := d.Update(b.Context(), state.Delta{Services: state.ServicesDelta{Frontends: map[state.FrontendKey]*state.Frontend{k: f}}})
					apply(b, p, err)
				}
			})
		}
	}
}
