// Package machine lends what all tests on a machine share. Whatever else they use has a name of its
// own (a namespace, a lab, a folder, a port that the kernel chooses), so that they run in parallel.
package machine

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// A Resource is shared by the tests of all processes. So many of them have it at the same time.
type Resource struct {
	name   string
	places int
}

var (
	// Conntrack is the table of connection tracking, of which the machine has one for all
	// namespaces: for tests that fill it, or change its size.
	Conntrack = Resource{"conntrack", 1}
	// ControlPlane is a Kubernetes API with its database and controllers: each takes a good part of
	// a core for some seconds when it starts, and half a gigabyte.
	ControlPlane = Resource{"control-plane", 3}
)

// Take waits until the resource has a place, which the test has until it ends.
func (r Resource) Take(t testing.TB) {
	t.Helper()
	place := r.wait(t)
	t.Cleanup(func() { _ = place.Close() }) // which gives the lock back
}

// Keep is Take for what the tests of a process share: they have one place, until the process ends.
func (r Resource) Keep(t testing.TB) {
	t.Helper()
	kept.Lock()
	defer kept.Unlock()
	if kept.places[r.name] == nil {
		kept.places[r.name] = r.wait(t)
	}
}

// kept are the places that last.
var kept = struct {
	sync.Mutex
	places map[string]*os.File
}{places: map[string]*os.File{}}

func (r Resource) wait(t testing.TB) *os.File {
	t.Helper()
	for {
		for i := range r.places {
			place, err := r.try(i)
			if err != nil {
				t.Fatal(err)
			}
			if place != nil {
				return place
			}
		}
		select {
		case <-t.Context().Done():
			t.Fatalf("wait for %s: %v", r.name, t.Context().Err())
		case <-time.After(20 * time.Millisecond):
		}
	}
}

// try locks a place, whose lock ends with the process at the latest; nil: another has it.
func (r Resource) try(i int) (*os.File, error) {
	path := filepath.Join(os.TempDir(), fmt.Sprintf("sluice-test-%s-%d", r.name, i))
	file, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR|unix.O_CLOEXEC, 0o600)
	if err != nil {
		return nil, fmt.Errorf("take %s: %w", r.name, err)
	}
	switch err := unix.Flock(int(file.Fd()), unix.LOCK_EX|unix.LOCK_NB); {
	case err == nil:
		return file, nil
	case errors.Is(err, unix.EWOULDBLOCK):
		return nil, file.Close()
	default:
		return nil, errors.Join(fmt.Errorf("take %s: %w", r.name, err), file.Close())
	}
}
