package netns

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"sync"
	"testing"

	"golang.org/x/sys/unix"
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
	home, mounts := where(t, "/proc/self/ns/net"), where(t, "/proc/self/ns/mnt")
	var wg sync.WaitGroup
	for i := range 200 {
		wg.Go(func() {
			err := ns.Do(func() error {
				if inside := where(t, "/proc/thread-self/ns/net"); inside == home {
					return errors.New("not inside")
				}
				if i%2 == 0 {
					return nil
				}
				runtime.LockOSThread() // as who changes more of the thread does
				return unix.Unshare(unix.CLONE_NEWNS)
			})
			if err != nil {
				t.Error(err)
			}
			if now := where(t, "/proc/thread-self/ns/net"); now != home {
				t.Error("another goroutine runs inside")
			}
			if now := where(t, "/proc/thread-self/ns/mnt"); now != mounts {
				t.Error("another goroutine runs among the mounts of a locked thread")
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

// On a machine where nobody has made a namespace yet, what is made here can be deleted after
// another program has made its first one with ip.
func TestBesideIPNetns(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root, to make network namespaces")
	}
	const fresh = "SLUICE_TEST_FRESH_RUN"
	if os.Getenv(fresh) == "" {
		cmd := exec.Command("unshare", "--mount", "--propagation", "private", os.Args[0], "-test.run", "^"+t.Name()+"$")
		cmd.Env = append(os.Environ(), fresh+"=1")
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Errorf("%v\n%s", err, out)
		}
		return
	}
	if err := unix.Mount("none", "/run", "tmpfs", 0, ""); err != nil {
		t.Fatal(err)
	}
	ns, err := New("first")
	if err != nil {
		t.Fatal(err)
	}
	if out, err := exec.Command("ip", "netns", "add", "second").CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	if err := ns.Delete(); err != nil {
		t.Error(err)
	}
	if out, err := exec.Command("ip", "netns", "delete", "second").CombinedOutput(); err != nil {
		t.Errorf("%v: %s", err, out)
	}
}
