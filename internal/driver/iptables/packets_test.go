package iptables_test

import (
	"net/netip"
	"os"
	"testing"

	"sluice.dev/sluice/internal/driver"
	"sluice.dev/sluice/internal/driver/iptables"
	"sluice.dev/sluice/internal/kernel/xtables"
	"sluice.dev/sluice/internal/model"
	"sluice.dev/sluice/internal/reconcile"
	"sluice.dev/sluice/test/drivertest"
)

func TestMain(m *testing.M) { os.Exit(drivertest.OwnLock(m)) }

// each runs a test with each variant of iptables.
func each(t *testing.T, test func(*testing.T, drivertest.Open, int)) {
	t.Parallel()
	for i, v := range []xtables.Variant{xtables.Legacy, xtables.NFTables} {
		t.Run(string(v), func(t *testing.T) {
			test(t, func() (driver.Driver, error) {
				return iptables.Open(iptables.Options{Options: driver.Options{Fabric: true}, Variant: v, LockWait: drivertest.LockWait})
			}, i)
		})
	}
}

// The variants load the same rules, each in its way.
func TestPackets(t *testing.T) { each(t, drivertest.RunHalf) }
func TestFlood(t *testing.T)   { each(t, drivertest.FloodHalf) }

func TestTunnelPort(t *testing.T) {
	each(t, func(t *testing.T, open drivertest.Open, _ int) { drivertest.TunnelPort(t, open) })
}

// From one variant to the other and back: no connection fails.
func TestUpgrade(t *testing.T) {
	with := func(v xtables.Variant) drivertest.Open {
		return func() (driver.Driver, error) {
			return iptables.Open(iptables.Options{Variant: v, LockWait: drivertest.LockWait})
		}
	}
	drivertest.Upgrade(t, with(xtables.Legacy), with(xtables.NFTables))
}

func TestRefusals(t *testing.T) {
	drivertest.Refusals(t, func(refused func(netip.Addr) bool) (driver.Driver, error) {
		return iptables.OpenRefusing(iptables.Options{Variant: xtables.Legacy, LockWait: drivertest.LockWait}, refused, func(model.PolicyKey) bool { return false })
	})
}

// withPolicy are the options for a variant.
func withPolicy(v xtables.Variant) iptables.Options {
	return iptables.Options{Options: driver.Options{Policy: true}, Variant: v, LockWait: drivertest.LockWait}
}

func TestRefusedPolicies(t *testing.T) {
	drivertest.RefusedPolicies(t, func(refused func(model.PolicyKey) bool) (driver.Driver, error) {
		return iptables.OpenRefusing(withPolicy(xtables.Legacy), func(netip.Addr) bool { return false }, refused)
	})
}

// What another driver has in place of this one's is the rules of the other variant.
func TestFailingParts(t *testing.T) {
	with := func(v xtables.Variant) func(func(reconcile.Part) bool) (driver.Driver, error) {
		return func(failing func(reconcile.Part) bool) (driver.Driver, error) {
			return iptables.OpenFailing(withPolicy(v), failing)
		}
	}
	drivertest.FailingParts(t, with(xtables.Legacy), with(xtables.NFTables))
}
