package ipvs_test

import (
	"errors"
	"net/netip"
	"os"
	"path/filepath"
	"testing"

	"sluice.dev/sluice/internal/driver"
	"sluice.dev/sluice/internal/driver/ipvs"
	"sluice.dev/sluice/internal/driver/nftables"
	"sluice.dev/sluice/internal/kernel/probe"
	"sluice.dev/sluice/test/drivertest"
)

// needIPVS skips a test where the kernel has no IPVS.
func needIPVS(t *testing.T) {
	t.Helper()
	if err := probe.Missing(t.Context(), ipvs.Requirements); errors.Is(err, probe.ErrNotSupported) {
		t.Skip(err)
	}
}

// opener opens drivers that note the parameters they change, each namespace's in a file of its own.
func opener(t *testing.T) drivertest.Open {
	dir := t.TempDir()
	return func() (driver.Driver, error) {
		ns, err := os.Readlink("/proc/thread-self/ns/net")
		if err != nil {
			return nil, err
		}
		return ipvs.Open(ipvs.Options{Options: driver.Options{Fabric: true}, Record: filepath.Join(dir, ns)})
	}
}

func TestPackets(t *testing.T) {
	needIPVS(t)
	drivertest.Run(t, opener(t))
}

// From nftables to IPVS and back, no connection fails.
func TestUpgrade(t *testing.T) {
	needIPVS(t)
	drivertest.Upgrade(t, opener(t), func() (driver.Driver, error) {
		return nftables.Open(nftables.Options{Options: driver.Options{Fabric: true}})
	})
}

func TestRefusals(t *testing.T) {
	needIPVS(t)
	drivertest.Refusals(t, func(refused func(netip.Addr) bool) (driver.Driver, error) {
		return ipvs.OpenRefusing(ipvs.Options{}, refused)
	})
}

func TestFlood(t *testing.T) {
	needIPVS(t)
	drivertest.Flood(t, opener(t))
}
