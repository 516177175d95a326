package agent

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"sluice.dev/sluice/internal/netns"
)

// claimNS makes a network namespace for a test, which is skipped without root.
func claimNS(t *testing.T, prefix string) *netns.NS {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("needs root, to make a network namespace")
	}
	ns, err := netns.New(fmt.Sprint(prefix, os.Getpid()))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := ns.Delete(); err != nil {
			t.Error(err)
		}
	})
	return ns
}

// One agent at a time has a network namespace; who comes later waits, and has it as soon as the other one lets go.
func TestClaim(t *testing.T) {
	ns := claimNS(t, "agent-claim-")
	claim := func(patience time.Duration) (c *Claim, err error) {
		_ = ns.Do(func() error {
			c, err = ClaimNamespace(t.Context(), patience, slog.New(slog.DiscardHandler))
			return nil
		})
		return c, err
	}
	first, err := claim(time.Minute)
	if err != nil {
		t.Fatal(err)
	}
	defer first.Release()
	if _, err := claim(20 * time.Millisecond); err == nil || !strings.Contains(err.Error(), fmt.Sprintf("process %d", os.Getpid())) {
		t.Errorf("a second claim: %v", err)
	}
	type outcome struct {
		*Claim
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

// Agents of different network namespaces know nothing of each other; and a claim ends with its context.
func TestClaimEnds(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root, to make network namespaces")
	}
	var claims []*Claim
	for i := range 2 {
		ns, err := netns.New(fmt.Sprintf("agent-claim%d-%d", i, os.Getpid()))
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			if err := ns.Delete(); err != nil {
				t.Error(err)
			}
		})
		err = ns.Do(func() error {
			c, err := ClaimNamespace(t.Context(), time.Minute, slog.New(slog.DiscardHandler))
			claims = append(claims, c)
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(claims[i].Release)
		ended, cancel := context.WithCancel(t.Context())
		cancel()
		err = ns.Do(func() error {
			_, err := ClaimNamespace(ended, time.Minute, slog.New(slog.DiscardHandler))
			return err
		})
		if err == nil {
			t.Error("a second claim without time to wait")
		}
	}
}

// A name that somebody else holds keeps no agent from work.
func TestClaimOfStranger(t *testing.T) {
	ns := claimNS(t, "agent-claims-")
	err := ns.Do(func() error {
		const nobody, same = 65534, ^uintptr(0)
		unix.RawSyscall(unix.SYS_SETRESUID, same, nobody, same) // this thread alone
		l, err := net.Listen("unix", claimName)
		unix.RawSyscall(unix.SYS_SETRESUID, same, 0, same)
		if err != nil {
			return err
		}
		defer l.Close()
		c, err := ClaimNamespace(t.Context(), time.Minute, slog.New(slog.DiscardHandler))
		c.Release()
		return err
	})
	if err != nil {
		t.Error(err)
	}
}

// Another user's processes are no rivals, and fill neither the agent's file descriptors nor its log.
func TestClaimHoldsNoStrangers(t *testing.T) {
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

// However many connections a process makes, few are kept, and it is told of once.
func TestClaimHoldsFewRivals(t *testing.T) {
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

// claimed is a claim of a network namespace, what its holder logs, and what connects to it as a user.
func claimed(t *testing.T) (c *Claim, log *logBuffer, dial func(user uintptr) net.Conn) {
	t.Helper()
	ns := claimNS(t, "agent-held-")
	log = new(logBuffer)
	err := ns.Do(func() (err error) {
		c, err = ClaimNamespace(t.Context(), time.Minute, slog.New(slog.NewTextHandler(log, nil)))
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Release)
	return c, log, func(user uintptr) (conn net.Conn) {
		t.Helper()
		err := ns.Do(func() (err error) {
			const same = ^uintptr(0)
			unix.RawSyscall(unix.SYS_SETRESUID, same, user, same) // this thread alone
			conn, err = net.Dial("unix", claimName)
			unix.RawSyscall(unix.SYS_SETRESUID, same, 0, same)
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = conn.Close() })
		return conn
	}
}
