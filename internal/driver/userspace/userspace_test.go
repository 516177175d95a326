package userspace_test

import (
	"os"
	"testing"

	"golang.org/x/sys/unix"

	"sluice.dev/sluice/internal/driver"
	"sluice.dev/sluice/internal/driver/drivertest"
	"sluice.dev/sluice/internal/driver/userspace"
)

// TestMain has room for the files of thousands of clients, servers and flows in between, where that
// is allowed.
func TestMain(m *testing.M) {
	const files = 1 << 17
	_ = unix.Setrlimit(unix.RLIMIT_NOFILE, &unix.Rlimit{Cur: files, Max: files})
	os.Exit(m.Run())
}

// The modes differ in the address that a backend sees of a client, and in how the proxy opens its
// connections.
func TestPackets(t *testing.T) {
	drivertest.RunHalf(t, func() (driver.Driver, error) { return userspace.Open(userspace.Options{}) }, 0)
}

func TestPacketsTransparent(t *testing.T) {
	drivertest.RunHalf(t, func() (driver.Driver, error) {
		return userspace.Open(userspace.Options{ClientAddress: userspace.Transparent})
	}, 1)
}
