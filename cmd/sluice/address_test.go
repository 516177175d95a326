package main

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"net/netip"
	"os"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"sluice.dev/sluice/internal/netns"
)

// Each change of a namespace's addresses is told, with all that are there then.
func TestFollowAddresses(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root, to make network namespaces")
	}
	ns, err := netns.New(fmt.Sprintf("cmd-address-%d", os.Getpid()))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = ns.Delete() })
	var told <-chan []netip.Prefix
	err = ns.Do(func() (err error) {
		told, err = followAddresses(t.Context(), slog.New(slog.DiscardHandler))
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	lo, err := ns.LinkByName("lo")
	if err != nil {
		t.Fatal(err)
	}
	extra, err := netlink.ParseAddr("198.51.100.7/32")
	if err != nil {
		t.Fatal(err)
	}
	wait := func(what string, wanted bool) {
		t.Helper()
		for late := time.After(10 * time.Second); ; {
			select {
			case addrs := <-told:
				if slices.Contains(addrs, netip.MustParsePrefix("198.51.100.7/32")) == wanted {
					return
				}
			case <-late:
				t.Fatalf("not told: %s", what)
			}
		}
	}
	if err := ns.AddrAdd(lo, extra); err != nil {
		t.Fatal(err)
	}
	wait("an address has come", true)
	if err := ns.AddrDel(lo, extra); err != nil {
		t.Fatal(err)
	}
	wait("it has gone", false)
}

// Whatever befalls the socket, the addresses are listed after it; its end with the agent is no failure.
func TestNoticesGoOn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var log bytes.Buffer
		ctx, cancel := context.WithCancel(t.Context())
		outcomes := make(chan error)
		changed := make(chan struct{}, 1)
		ended := make(chan struct{})
		go func() {
			defer close(ended)
			noticeChanges(ctx, slog.New(slog.NewTextHandler(&log, nil)), func() error { return <-outcomes }, changed)
		}()
		for _, step := range []struct {
			outcome error
			after   time.Duration
			logged  int
		}{
			{nil, 0, 0},
			{fmt.Errorf("receive: %w", unix.ENOBUFS), 0, 0},
			{unix.ENOBUFS, 0, 0},
			{unix.EIO, noticePause, 1},
			{unix.EIO, noticePause, 1}, // said already
			{nil, 0, 1},
			{unix.EIO, noticePause, 2},
		} {
			outcomes <- step.outcome
			sent := time.Now()
			<-changed
			if waited := time.Since(sent); waited != step.after {
				t.Errorf("after %v: listed after %s, want %s", step.outcome, waited, step.after)
			}
			if n := bytes.Count(log.Bytes(), []byte("\n")); n != step.logged {
				t.Errorf("after %v: %d lines logged, want %d: %s", step.outcome, n, step.logged, &log)
			}
		}
		synctest.Wait() // it reads again
		log.Reset()
		cancel()
		outcomes <- os.ErrClosed
		<-ended
		if log.Len() > 0 {
			t.Errorf("the end is logged: %s", &log)
		}
	})
}
