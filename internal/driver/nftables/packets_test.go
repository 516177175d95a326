package nftables_test

import (
	"testing"

	"sluice.dev/sluice/internal/driver"
	"sluice.dev/sluice/internal/driver/drivertest"
	"sluice.dev/sluice/internal/driver/nftables"
)

func TestPackets(t *testing.T) {
	drivertest.Run(t, func() (driver.Driver, error) { return nftables.Open(nftables.Options{}) })
}

func TestUpgrade(t *testing.T) {
	drivertest.Upgrade(t,
		func() (driver.Driver, error) { return nftables.Open(nftables.Options{}) },
		func() (driver.Driver, error) { return nftables.OpenOther(nftables.Options{}) })
}

func TestFlood(t *testing.T) {
	drivertest.Flood(t, func() (driver.Driver, error) { return nftables.Open(nftables.Options{}) })
}
