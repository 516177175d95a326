package iptables_test

import (
	"net/netip"
	"testing"

	"sluice.dev/sluice/internal/driver"
	"sluice.dev/sluice/internal/driver/drivertest"
	"sluice.dev/sluice/internal/driver/iptables"
)

// each runs a test with each variant of iptables.
func each(t *testing.T, test func(*testing.T, drivertest.Open)) {
	for _, v := range []iptables.Variant{iptables.Legacy, iptables.NFTables} {
		t.Run(string(v), func(t *testing.T) {
			test(t, func() (driver.Driver, error) {
				return iptables.Open(iptables.Options{Options: driver.Options{Fabric: true}, Variant: v})
			})
		})
	}
}

func TestPackets(t *testing.T) { each(t, drivertest.Run) }
func TestFlood(t *testing.T)   { each(t, drivertest.Flood) }

// From one variant to the other and back: no connection fails.
func TestUpgrade(t *testing.T) {
	with := func(v iptables.Variant) drivertest.Open {
		return func() (driver.Driver, error) { return iptables.Open(iptables.Options{Variant: v}) }
	}
	drivertest.Upgrade(t, with(iptables.Legacy), with(iptables.NFTables))
}

func TestRefusals(t *testing.T) {
	drivertest.Refusals(t, func(refused func(netip.Addr) bool) (driver.Driver, error) {
		return iptables.OpenRefusing(iptables.Options{Variant: iptables.Legacy}, refused)
	})
}
