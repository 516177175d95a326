package established_test

import (
	"errors"
	"log/slog"
	"path/filepath"
	"testing"

	"sluice.dev/sluice/internal/accelerate/established"
	"sluice.dev/sluice/internal/accelerate/sockets"
	"sluice.dev/sluice/internal/driver"
	"sluice.dev/sluice/internal/driver/nftables"
	"sluice.dev/sluice/internal/kernel/sysctl"
	"sluice.dev/sluice/test/drivertest"
	"sluice.dev/sluice/test/world"
)

// The table of packets, beside nftables; each row for one family.
func TestPackets(t *testing.T) {
	drivertest.RunHalf(t, beside(t, func(base driver.Driver) driver.Driver { return base }), 1)
}

// The table of packets, with services at the socket, too; each row for the other family.
func TestPacketsWithSockets(t *testing.T) {
	drivertest.RunHalf(t, beside(t, func(base driver.Driver) driver.Driver {
		return sockets.Open(base, slog.New(slog.DiscardHandler))
	}), 0)
}

// beside opens the driver beside what is made of nftables'.
func beside(t *testing.T, made func(driver.Driver) driver.Driver) drivertest.Open {
	world.MountBPF(t)
	return func() (driver.Driver, error) {
		base, err := nftables.Open(nftables.Options{Options: driver.Options{Fabric: true}})
		if err != nil {
			return nil, err
		}
		if _, err := sysctl.Set(filepath.Join(t.TempDir(), "sysctls"), established.Sysctls); err != nil {
			return nil, errors.Join(err, base.Close())
		}
		return established.Open(made(base), slog.New(slog.DiscardHandler)), nil
	}
}
