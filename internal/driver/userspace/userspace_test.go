package userspace_test

import (
	"os"
	"testing"

	"golang.org/x/sys/unix"

	"sluice.dev/sluice/internal/driver"
	"sluice.dev/sluice/internal/driver/userspace"
	"sluice.dev/sluice/test/drivertest"
)

// TestMain has room for the files of thousands of clients, servers and flows in between, where that
// is allowed.
func TestMain(m *testing.M) {
	const files = 1 << 17
	_ = unix.Setrlimit(unix.RLIMIT_NOFILE, &unix.Rlimit{Cur: files, Max: files})
	os.Exit(m.Run())
}

// What the modes have in common is shown in one of them for each family.
func TestPackets(t *testing.T) {
	t.Parallel()
	for i, mode := range []string{"masquerade", userspace.Transparent} {
		t.Run(mode, func(t *testing.T) {
			o := userspace.Options{ClientAddress: []string{"", userspace.Transparent}[i]}
			drivertest.RunHalf(t, func() (driver.Driver, error) { return userspace.Open(o) }, i)
		})
	}
}
