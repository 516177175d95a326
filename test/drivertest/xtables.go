package drivertest

import (
	"os"
	"path/filepath"
	"testing"
	"time"
)

// LockWait is how long drivers wait for the lock of xtables, which the tests of a process have in
// turn: one may have it for a large policy.
const LockWait = 5 * time.Minute

// OwnLock is TestMain for packages that use iptables: their namespaces, which nobody else changes,
// have a lock of xtables of their own. It returns the exit status.
func OwnLock(m *testing.M) int {
	dir, err := os.MkdirTemp("", "xtables")
	if err != nil {
		panic(err)
	}
	defer func() { _ = os.RemoveAll(dir) }()
	if err := os.Setenv("XTABLES_LOCKFILE", filepath.Join(dir, "xtables.lock")); err != nil {
		panic(err)
	}
	return m.Run()
}
