package nftables_test

import (
	"net/netip"
	"testing"

	"sluice.dev/sluice/internal/driver"
	"sluice.dev/sluice/internal/driver/nftables"
	"sluice.dev/sluice/internal/model"
	"sluice.dev/sluice/internal/reconcile"
	"sluice.dev/sluice/test/drivertest"
)

// The rules for kernels that look maps up again hold those for others.
func TestPackets(t *testing.T) {
	drivertest.Run(t, func() (driver.Driver, error) {
		return nftables.Open(nftables.Options{Options: driver.Options{Fabric: true}, MayMiss: true})
	})
}

func TestTunnelPort(t *testing.T) {
	t.Parallel()
	drivertest.TunnelPort(t, func() (driver.Driver, error) {
		return nftables.Open(nftables.Options{Options: driver.Options{Fabric: true}})
	})
}

func TestUpgrade(t *testing.T) {
	drivertest.Upgrade(t,
		func() (driver.Driver, error) { return nftables.Open(nftables.Options{}) },
		func() (driver.Driver, error) { return nftables.OpenOther(nftables.Options{}) })
}

// Another release's ruleset takes the place of one with the same sets, and no packet notices.
func TestUpgradeInPlace(t *testing.T) {
	drivertest.Upgrade(t,
		func() (driver.Driver, error) { return nftables.Open(nftables.Options{}) },
		func() (driver.Driver, error) { return nftables.OpenNext(nftables.Options{}) })
}

func TestFlood(t *testing.T) {
	drivertest.Flood(t, func() (driver.Driver, error) { return nftables.Open(nftables.Options{}) })
}

// A fresh table takes the place of another one, and no packet notices.
func TestRebuild(t *testing.T) {
	rebuilding := func() (driver.Driver, error) { return nftables.OpenRebuilding(nftables.Options{}) }
	drivertest.Upgrade(t, rebuilding, rebuilding)
}

func TestRefusals(t *testing.T) {
	drivertest.Refusals(t, func(refused func(netip.Addr) bool) (driver.Driver, error) {
		return nftables.OpenRefusing(nftables.Options{}, refused, func(model.PolicyKey) bool { return false })
	})
}

var withPolicy = nftables.Options{Options: driver.Options{Policy: true}}

func TestRefusedPolicies(t *testing.T) {
	drivertest.RefusedPolicies(t, func(refused func(model.PolicyKey) bool) (driver.Driver, error) {
		return nftables.OpenRefusing(withPolicy, func(netip.Addr) bool { return false }, refused)
	})
}

func TestFailingParts(t *testing.T) {
	failing := func(open func(nftables.Options) (*nftables.Driver, error)) func(func(reconcile.Part) bool) (driver.Driver, error) {
		return func(failing func(reconcile.Part) bool) (driver.Driver, error) {
			d, err := open(withPolicy)
			if err == nil {
				d.FailParts(failing)
			}
			return d, err
		}
	}
	drivertest.FailingParts(t, failing(nftables.Open), failing(nftables.OpenNext))
}
