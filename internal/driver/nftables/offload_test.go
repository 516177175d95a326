package nftables_test

import (
	"errors"
	"log/slog"
	"testing"

	"sluice.dev/sluice/internal/driver"
	"sluice.dev/sluice/internal/driver/nftables"
	"sluice.dev/sluice/internal/kernel/link"
	"sluice.dev/sluice/internal/kernel/probe"
	"sluice.dev/sluice/test/drivertest"
)

// offloading opens drivers with which established connections pass by the chains. It skips the test
// where the kernel cannot do that.
func offloading(t *testing.T, o driver.Options) drivertest.Open {
	t.Helper()
	if err := nftables.FlowOffload.Met(t.Context()); errors.Is(err, probe.ErrNotSupported) {
		t.Skip(err)
	}
	return func() (driver.Driver, error) {
		devices, err := link.WatchRouting(t.Context(), slog.Default())
		if err != nil {
			return nil, err
		}
		o.FlowOffload, o.Devices = true, devices
		return nftables.Open(nftables.Options{Options: o})
	}
}

func TestPacketsOffloaded(t *testing.T) {
	drivertest.Run(t, offloading(t, driver.Options{Fabric: true}))
}

// The option is given and taken away on a node with clients.
func TestUpgradeToOffload(t *testing.T) {
	drivertest.Upgrade(t, func() (driver.Driver, error) { return nftables.Open(nftables.Options{}) }, offloading(t, driver.Options{}))
}
