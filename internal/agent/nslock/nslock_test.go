package nslock

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"sluice.dev/sluice/internal/driver"
	"sluice.dev/sluice/internal/kernel/nflog"
	"sluice.dev/sluice/test/logtest"
	"sluice.dev/sluice/test/world"
)

// claimLock takes a real lock, as the agent does.
func claimLock() (io.Closer, error) {
	c, err := nflog.Open(driver.ClaimGroup)
	if errors.Is(err, nflog.ErrBusy) {
		return nil, fmt.Errorf("%w: %w", driver.ErrBusy, err)
	}
	return c, err
}

// noLock is the lock of a kernel without locks.
func noLock() (io.Closer, error) { return nil, errors.ErrUnsupported }

// One agent at a time has a network namespace. A later agent waits, and has the namespace as soon
// as the first lets go.
func TestLock(t *testing.T) {
	h := world.NewHost(t, "agent")
	claim := func(patience time.Duration) (c *Lock, err error) {
		_ = h.Do(func() error {
			c, err = Acquire(t.Context(), patience, claimLock, slog.New(slog.DiscardHandler))
			return nil
		})
		return c, err
	}
	first, err := claim(time.Minute)
	if err != nil {
		t.Fatal(err)
	}
	defer first.Release()
	if _, err := claim(500 * time.Millisecond); err == nil || !strings.Contains(err.Error(), fmt.Sprintf("process %d", os.Getpid())) {
		t.Errorf("a second claim: %v", err)
	}
	type outcome struct {
		*Lock
		error
	}
	second := make(chan outcome, 1)
	go func() { c, err := claim(time.Minute); second <- outcome{c, err} }()
	eventually(t, "the other waits, or does no more", func() bool { return first.Waiting() == 1 })
	select {
	case o := <-second:
		t.Fatalf("two have the claim: %v", o.error)
	default:
	}
	first.Release()
	o := <-second
	if o.error != nil {
		t.Fatal(o.error)
	}
	defer o.Release()
	eventually(t, "the other waits, or does no more", func() bool { return first.Waiting() == 0 })
}

// Agents of different network namespaces do not affect each other, and a claim ends with its
// context.
func TestLockEnds(t *testing.T) {
	var claims []*Lock
	for i := range 2 {
		h := world.NewHost(t, "agent")
		h.In(func() error {
			c, err := Acquire(t.Context(), time.Minute, claimLock, slog.New(slog.DiscardHandler))
			claims = append(claims, c)
			return err
		})
		t.Cleanup(claims[i].Release)
		ended, cancel := context.WithCancel(t.Context())
		cancel()
		err := h.Do(func() error {
			_, err := Acquire(ended, time.Minute, claimLock, slog.New(slog.DiscardHandler))
			return err
		})
		if err == nil {
			t.Error("a second claim without time to wait")
		}
	}
}

// Another process that holds the name stops no agent.
func TestLockOfStranger(t *testing.T) {
	h := world.NewHost(t, "agent")
	h.In(func() error {
		const nobody, same = 65534, ^uintptr(0)
		unix.RawSyscall(unix.SYS_SETRESUID, same, nobody, same) // only this thread
		l, err := net.Listen("unix", socketName)
		unix.RawSyscall(unix.SYS_SETRESUID, same, 0, same)
		if err != nil {
			return err
		}
		defer l.Close()
		c, err := Acquire(t.Context(), time.Minute, claimLock, slog.New(slog.DiscardHandler))
		c.Release()
		return err
	})
}

// Processes of another user do not count as agents, and fill neither the agent's file descriptors
// nor its log.
func TestLockHoldsNoStrangers(t *testing.T) {
	c, log, dial := claimed(t)
	for range 50 {
		conn := dial(65534)
		if err := conn.SetReadDeadline(time.Now().Add(10 * time.Second)); err != nil {
			t.Fatal(err)
		}
		if _, err := conn.Read(make([]byte, 1)); !errors.Is(err, io.EOF) {
			t.Fatalf("a stranger's connection is kept: %v", err)
		}
	}
	if c.Waiting() != 0 || log.String() != "" {
		t.Errorf("%d rivals; it says\n%s", c.Waiting(), log)
	}
}

// However many connections a process makes, few are kept, and it is logged once.
func TestLockHoldsFewRivals(t *testing.T) {
	c, log, dial := claimed(t)
	for range maxRivals {
		dial(0)
	}
	eventually(t, "all of them wait", func() bool { return c.Waiting() == maxRivals })
	conn := dial(0)
	if err := conn.SetReadDeadline(time.Now().Add(10 * time.Second)); err != nil {
		t.Fatal(err)
	}
	if _, err := conn.Read(make([]byte, 1)); !errors.Is(err, io.EOF) {
		t.Errorf("one too many is kept: %v", err)
	}
	if n := strings.Count(log.String(), "another agent"); c.Waiting() != maxRivals || n != 1 {
		t.Errorf("%d rivals, told of %d times:\n%s", c.Waiting(), n, log)
	}
}

// claimed is a claim of a network namespace, its holder's log, and a way to connect to it as a
// user.
func claimed(t *testing.T) (c *Lock, log *logtest.Log, dial func(user uintptr) net.Conn) {
	t.Helper()
	h := world.NewHost(t, "agent")
	log = new(logtest.Log)
	h.In(func() (err error) {
		c, err = Acquire(t.Context(), time.Minute, claimLock, slog.New(slog.NewTextHandler(log, nil)))
		return err
	})
	t.Cleanup(c.Release)
	return c, log, func(user uintptr) (conn net.Conn) {
		t.Helper()
		h.In(func() (err error) {
			const same = ^uintptr(0)
			unix.RawSyscall(unix.SYS_SETRESUID, same, user, same) // only this thread
			conn, err = net.Dial("unix", socketName)
			unix.RawSyscall(unix.SYS_SETRESUID, same, 0, same)
			return err
		})
		t.Cleanup(func() { _ = conn.Close() })
		return conn
	}
}

// squatter is the environment in which a test program holds the name, or claims the namespace, in
// TestLockOfProcess.
const squatter = "SLUICE_TEST_CLAIM"

// TestLockOfProcess does what other processes do in the tests below.
func TestLockOfProcess(t *testing.T) {
	switch os.Getenv(squatter) {
	case "":
		t.Skip("a part of other tests")
	case "hold":
		l, err := net.Listen("unix", socketName)
		if err != nil {
			t.Fatal(err)
		}
		time.Sleep(10 * time.Minute) // it is killed before; without a timer, the process would end as deadlocked
		_ = l.Close()                // and so it is not collected
	case "claim":
		c, err := Acquire(t.Context(), 300*time.Millisecond, claimLock, slog.New(slog.DiscardHandler))
		if err != nil {
			t.Fatal(err)
		}
		c.Release()
	}
}

// A process of root without capabilities can hold the name, and so can a process that is invisible
// because it runs in another container. Neither stops an agent.
func TestLockOfPowerless(t *testing.T) {
	h := world.NewHost(t, "agent")
	hold := exec.Command("setpriv", "--bounding-set=-all", "--inh-caps=-all", os.Args[0], "-test.run=^TestLockOfProcess$")
	hold.Env = append(os.Environ(), squatter+"=hold")
	h.In(hold.Start)
	t.Cleanup(func() { _ = hold.Process.Kill(); _ = hold.Wait() })
	eventually(t, "somebody has the name", func() (has bool) {
		_ = h.Do(func() (err error) { has, err = Held(); return err })
		return has
	})
	err := h.Do(func() error {
		c, err := Acquire(t.Context(), time.Minute, claimLock, slog.New(slog.DiscardHandler))
		if err != nil {
			return err
		}
		defer c.Release()
		// It is a claim nevertheless.
		if c, err := Acquire(t.Context(), 20*time.Millisecond, claimLock, slog.New(slog.DiscardHandler)); err == nil {
			c.Release()
			t.Error("two have the claim")
		}
		return nil
	})
	if err != nil {
		t.Errorf("beside a process without capabilities: %v", err)
	}
	claim := exec.Command(os.Args[0], "-test.run=^TestLockOfProcess$")
	claim.Env = append(os.Environ(), squatter+"=claim")
	claim.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWPID}
	var out strings.Builder
	claim.Stdout, claim.Stderr = &out, &out
	h.In(claim.Start)
	if err := claim.Wait(); err != nil {
		t.Errorf("beside a process of another container: %v\n%s", err, out.String())
	}
}

// A name at which nothing answers, or that belongs to another type of socket, stops no agent.
func TestLockOfMute(t *testing.T) {
	t.Parallel()
	for name, kind := range map[string]int{"does not listen": unix.SOCK_STREAM, "datagrams": unix.SOCK_DGRAM} {
		t.Run(name, func(t *testing.T) {
			h := world.NewHost(t, "agent")
			for _, lock := range []func() (io.Closer, error){claimLock, noLock} {
				h.In(func() error {
					fd, err := unix.Socket(unix.AF_UNIX, kind|unix.SOCK_CLOEXEC, 0)
					if err != nil {
						return err
					}
					defer func() { _ = unix.Close(fd) }()
					if err := unix.Bind(fd, &unix.SockaddrUnix{Name: socketName}); err != nil {
						return err
					}
					c, err := Acquire(t.Context(), time.Minute, lock, slog.New(slog.DiscardHandler))
					c.Release()
					return err
				})
			}
		})
	}
}

// An agent of an earlier release has the name and no lock; one of this release has both. Each
// excludes the other, and so do two agents on a kernel without locks.
func TestLockOfEarlierRelease(t *testing.T) {
	for name, locks := range map[string][2]func() (io.Closer, error){
		"earlier first": {noLock, claimLock}, "earlier second": {claimLock, noLock}, "no lock": {noLock, noLock},
	} {
		t.Run(name, func(t *testing.T) {
			h := world.NewHost(t, "agent")
			h.In(func() error {
				first, err := Acquire(t.Context(), time.Minute, locks[0], slog.New(slog.DiscardHandler))
				if err != nil {
					return err
				}
				if c, err := Acquire(t.Context(), 20*time.Millisecond, locks[1], slog.New(slog.DiscardHandler)); err == nil {
					c.Release()
					t.Error("two have the claim")
				}
				first.Release()
				second, err := Acquire(t.Context(), time.Minute, locks[1], slog.New(slog.DiscardHandler))
				second.Release()
				return err
			})
		})
	}
}

// eventually waits until something is so.
func eventually(t *testing.T, what string, is func() bool) {
	t.Helper()
	for end := time.Now().Add(time.Minute); !is(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("not within a minute: %s", what)
		}
	}
}
