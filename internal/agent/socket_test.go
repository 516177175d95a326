package agent

import (
	"errors"
	"net"
	"os"
	"path/filepath"
	"sync"
	"testing"

	"golang.org/x/sys/unix"
)

func TestSocketMode(t *testing.T) {
	path := filepath.Join(t.TempDir(), "run", "sluice.sock")
	l, err := Listen(path)
	if err != nil {
		t.Fatal(err)
	}
	fi, err := os.Stat(path)
	if err != nil {
		t.Fatal(err)
	}
	if fi.Mode() != os.ModeSocket|0o600 {
		t.Errorf("mode of the socket is %s", fi.Mode())
	}
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(path); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the socket is still there after Close: %v", err)
	}
}

func TestLiveSocketIsRefused(t *testing.T) {
	path := filepath.Join(t.TempDir(), "sluice.sock")
	l, err := Listen(path)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = l.Close() }()
	if _, err := Listen(path); !errors.Is(err, ErrInUse) {
		t.Errorf("second Listen: %v", err)
	}
}

// An agent that accepts no connections at the moment is alive nevertheless.
func TestHungSocketIsRefused(t *testing.T) {
	path := filepath.Join(t.TempDir(), "sluice.sock")
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = unix.Close(fd) }()
	if err := errors.Join(unix.Bind(fd, &unix.SockaddrUnix{Name: path}), unix.Listen(fd, 0)); err != nil {
		t.Fatal(err)
	}
	for range 100 { // fill the backlog
		c, err := net.Dial("unix", path)
		if errors.Is(err, unix.EAGAIN) {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = c.Close() }()
	}
	if !Alive(path) {
		t.Error("a hung agent is taken for dead")
	}
	if _, err := Listen(path); !errors.Is(err, ErrInUse) {
		t.Errorf("Listen: %v", err)
	}
	if _, err := os.Lstat(path); err != nil {
		t.Errorf("the socket is gone: %v", err)
	}
}

func TestDeadSocketIsReplaced(t *testing.T) {
	path := filepath.Join(t.TempDir(), "sluice.sock")
	dead, err := net.ListenUnix("unix", &net.UnixAddr{Name: path})
	if err != nil {
		t.Fatal(err)
	}
	dead.SetUnlinkOnClose(false)
	if err := dead.Close(); err != nil {
		t.Fatal(err)
	}
	l, err := Listen(path)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = l.Close() }()
	if !Alive(path) {
		t.Error("the new socket does not answer")
	}
}

// If many agents find a dead socket at once, one gets it.
func TestOneOfManyListens(t *testing.T) {
	path := filepath.Join(t.TempDir(), "sluice.sock")
	for range 20 {
		dead, err := net.ListenUnix("unix", &net.UnixAddr{Name: path})
		if err != nil {
			t.Fatal(err)
		}
		dead.SetUnlinkOnClose(false)
		if err := dead.Close(); err != nil {
			t.Fatal(err)
		}
		var mu sync.Mutex
		var listening []net.Listener
		var all sync.WaitGroup
		for range 8 {
			all.Go(func() {
				l, err := Listen(path)
				mu.Lock()
				defer mu.Unlock()
				if err == nil {
					listening = append(listening, l)
				} else if !errors.Is(err, ErrInUse) {
					t.Error(err)
				}
			})
		}
		all.Wait()
		if len(listening) != 1 {
			t.Errorf("%d listen at once", len(listening))
		}
		for _, l := range listening {
			_ = l.Close()
		}
	}
}

func TestOtherFileIsKept(t *testing.T) {
	path := filepath.Join(t.TempDir(), "precious")
	if err := os.WriteFile(path, []byte("x"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := Listen(path); err == nil {
		t.Error("Listen replaced a file that is no socket")
	}
	if b, err := os.ReadFile(path); err != nil || string(b) != "x" {
		t.Errorf("the file is changed: %q, %v", b, err)
	}
}
