package sockets_test

import (
	"log/slog"
	"testing"

	"sluice.dev/sluice/internal/accelerate/sockets"
	"sluice.dev/sluice/internal/driver"
	"sluice.dev/sluice/internal/driver/nftables"
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
		d := sockets.Open(base, slog.New(slog.DiscardHandler))
		if s := d.Status(); s.Off != "" {
			t.Error(s.Off)
		}
		return d, nil
	}, 0)
}
