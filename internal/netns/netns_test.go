package netns

import (
	"errors"
	"fmt"
	"os"
	"sync"
	"testing"
)

// Do acts inside the namespace and has no effect elsewhere: neither in other goroutines nor in what
// /proc shows of the process.
func TestDoLeavesTheProcessWhereItIs(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root, to make network namespaces")
	}
	ns, err := New(fmt.Sprintf("netns-%d", os.Getpid()))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := ns.Delete(); err != nil {
			t.Error(err)
		}
	})
	if _, err := New(ns.Name); !errors.Is(err, os.ErrExist) {
		t.Errorf("made the same namespace twice: %v", err)
	}
	home := where(t, "/proc/self/ns/net")
	var wg sync.WaitGroup
	for range 200 {
		wg.Go(func() {
			err := ns.Do(func() error {
				if inside := where(t, "/proc/thread-self/ns/net"); inside == home {
					return errors.New("not inside")
				}
				return nil
			})
			if err != nil {
				t.Error(err)
			}
			if now := where(t, "/proc/thread-self/ns/net"); now != home {
				t.Error("another goroutine runs inside")
			}
		})
	}
	wg.Wait()
	if now := where(t, "/proc/self/ns/net"); now != home {
		t.Error("the process's main thread is inside")
	}
}

func where(t *testing.T, path string) string {
	link, err := os.Readlink(path)
	if err != nil {
		t.Error(err)
	}
	return link
}
