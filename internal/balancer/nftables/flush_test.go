package nftables_test

import (
	"errors"
	"strings"
	"testing"

	farms "sluice.dev/sluice/internal/balancer/nftables"
	"sluice.dev/sluice/internal/driver"
	"sluice.dev/sluice/internal/driver/table"
	"sluice.dev/sluice/internal/model"
)

// TestFlush has another program flush the ruleset while clients connect. Tables that are owned
// stay; others are put back.
func TestFlush(t *testing.T) {
	t.Parallel()
	for name, shared := range map[string]bool{"owned": false, "shared": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w, _ := newDirectSite(t, 3)
			if !shared {
				w.balancer.In(func() error {
					if err := table.Protection.Met(t.Context()); err != nil {
						t.Skip(err)
					}
					return nil
				})
			}
			w.open = func() (driver.Driver, error) { return farms.Open(farms.Options{Shared: shared}) }
			w.restart()
			w.set(dsr(virtual4, true, port(80)), &model.Farm{Name: "snat", Mode: model.SNAT, Addresses: []model.FarmAddress{at(virtual4, port(81))}, Backends: backends(3, true, 81)})
			load := func() {}
			if !shared {
				load = w.load(hostPort(virtual4, "80"), hostPort(virtual4, "81"))
			}
			w.balancer.Exec("nft", "flush", "ruleset")
			tampered, err := w.driver.Tampered(t.Context())
			if err != nil || tampered != shared {
				t.Errorf("tampered: %t, %v", tampered, err)
			}
			if shared {
				w.apply(w.driver.Adopt(t.Context(), w.state, driver.Keep{}))
			}
			w.settled()
			for _, at := range []string{"80", "81"} {
				w.answers(1, "tcp", hostPort(virtual4, at))
			}
			load()
		})
	}
}

// TestOwner has a second driver come while the first one runs, and after it ended.
func TestOwner(t *testing.T) {
	t.Parallel()
	w := newSite(t, 1)
	w.set(persistent())
	w.askAs("10.0.0.2")
	var second *farms.Driver
	w.balancer.In(func() (err error) { second, err = farms.Open(farms.Options{MayMiss: true}); return err })
	defer func() { _ = second.Close() }()
	if !second.CanOwn() {
		t.Skip("this kernel knows no owners of tables")
	}
	adopt := func() error {
		p, err := second.Adopt(t.Context(), w.state, driver.Keep{})
		w.must(err)
		return p.Apply(t.Context())
	}
	if err := adopt(); !errors.Is(err, driver.ErrBusy) {
		t.Errorf("adopt: %v", err)
	}
	if err := second.Purge(t.Context()); !errors.Is(err, driver.ErrBusy) {
		t.Errorf("purge: %v", err)
	}
	w.close()
	w.answers(1, "tcp", hostPort(virtual4, "80")) // while none runs
	w.must(adopt())
	w.driver = second
	w.settled()
	if have := w.remembered(); !have["10.0.0.2"] {
		t.Errorf("remembered are %v", have)
	}
	w.must(second.Purge(t.Context()))
	if out := w.balancer.Exec("nft", "list", "tables"); strings.Contains(out, farms.TableName) {
		t.Error(out)
	}
}
