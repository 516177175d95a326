package established_test

import (
	"errors"
	"log/slog"
	"path/filepath"
	"testing"

	"sluice.dev/sluice/internal/accelerate/established"
	"sluice.dev/sluice/internal/driver"
	"sluice.dev/sluice/internal/driver/nftables"
	"sluice.dev/sluice/internal/kernel/sysctl"
	"sluice.dev/sluice/test/drivertest"
	"sluice.dev/sluice/test/world"
)

// The table of packets, beside nftables; each row for one family.
func TestPackets(t *testing.T) {
	world.MountBPF(t)
	drivertest.RunHalf(t, func() (driver.Driver, error) {
		base, err := nftables.Open(nftables.Options{Options: driver.Options{Fabric: true}})
		if err != nil {
			return nil, err
		}
		if _, err := sysctl.Set(filepath.Join(t.TempDir(), "sysctls"), established.Sysctls); err != nil {
			return nil, errors.Join(err, base.Close())
		}
		return established.Open(base, slog.New(slog.DiscardHandler)), nil
	}, 1)
}
