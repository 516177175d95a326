package agent

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"os"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"sluice.dev/sluice/internal/netns"
)

// One agent at a time has a network namespace; who comes later waits, and has it as soon as the other one lets go.
func TestClaim(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root, to make a network namespace")
	}
	ns, err := netns.New(fmt.Sprintf("agent-claim-%d", os.Getpid()))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := ns.Delete(); err != nil {
			t.Error(err)
		}
	})
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
	if os.Geteuid() != 0 {
		t.Skip("needs root, to be another user")
	}
	ns, err := netns.New(fmt.Sprintf("agent-claims-%d", os.Getpid()))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := ns.Delete(); err != nil {
			t.Error(err)
		}
	})
	err = ns.Do(func() error {
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
