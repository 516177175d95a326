package link

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

	"golang.org/x/sys/unix"

	"sluice.dev/sluice/internal/model"
	"sluice.dev/sluice/test/world"
)

// Each change of a namespace's addresses is told, with all that are there then.
func TestWatchAddresses(t *testing.T) {
	h := world.NewHost(t, "node")
	var told <-chan []netip.Prefix
	h.In(func() (err error) {
		told, err = WatchAddresses(t.Context(), slog.New(slog.DiscardHandler))
		return err
	})
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
	h.Address("lo", "198.51.100.7/32")
	wait("an address has come", true)
	h.IP("addr del 198.51.100.7/32 dev lo")
	wait("it has gone", false)
}

// Whatever befalls the socket, the addresses are read after it; its end with the agent is no
// failure.
func TestNoticesGoOn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var log bytes.Buffer
		ctx, cancel := context.WithCancel(t.Context())
		outcomes := make(chan error)
		changed := make(chan struct{}, 1)
		ended := make(chan struct{})
		go func() {
			defer close(ended)
			listen(ctx, slog.New(slog.NewTextHandler(&log, nil)), func() error { return <-outcomes }, changed)
		}()
		for _, step := range []struct {
			outcome error
			after   time.Duration
			logged  int
		}{
			{nil, 0, 0},
			{fmt.Errorf("receive: %w", unix.ENOBUFS), 0, 0},
			{unix.ENOBUFS, 0, 0},
			{unix.EIO, retry, 1},
			{unix.EIO, retry, 1}, // said already
			{nil, 0, 1},
			{unix.EIO, retry, 2},
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

func TestWatchLinks(t *testing.T) {
	h := world.NewHost(t, "node")
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	var c <-chan model.Links
	h.In(func() (err error) {
		c, err = WatchLinks(ctx, slog.New(slog.DiscardHandler))
		return err
	})
	await(t, c, "")
	ip(h, `link add p0 type veth peer p0p
		link set p0 up`)
	await(t, c, "p0p p0")
	h.IP("route add 10.1.0.5/32 dev p0 scope link")
	await(t, c, "p0p p0:pod 10.1.0.5/32>p0")
	h.IP("-6 route add fd00::5/128 dev p0")
	await(t, c, "p0p p0:pod 10.1.0.5/32>p0 fd00::5/128>p0")
	h.IP("addr add 10.0.0.1/24 dev p0")
	await(t, c, "p0p p0:host 10.0.0.0/24>p0 10.1.0.5/32>p0 fd00::5/128>p0")
	h.IP("link del p0")
	await(t, c, "")
	cancel()
	select {
	case _, open := <-c:
		if open {
			t.Error("links after the end")
		}
	case <-time.After(5 * time.Second):
		t.Error("the channel stays open after the end")
	}
}

// TestWatchOverflow has more happen than the socket holds, before anybody reads.
func TestWatchOverflow(t *testing.T) {
	h := world.NewHost(t, "node")
	ip(h, `link add p0 type veth peer p0p
		link set p0 up`)
	var w *watcher[model.Links]
	h.In(func() (err error) {
		w, err = newWatcher(slog.New(slog.DiscardHandler), (*Reader).Links, []uint32{unix.RTNLGRP_LINK, unix.RTNLGRP_IPV4_ROUTE})
		return err
	})
	if err := w.events.SetReadBuffer(4096); err != nil {
		t.Fatal(err)
	}
	for i := range 50 {
		h.IP(fmt.Sprintf("route add 10.1.0.%d/32 dev p0 scope link", i))
	}
	h.IP("link del p0")
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	w.start(ctx, model.Links{Local: []netip.Addr{netip.MustParseAddr("10.0.0.1")}}) // what was there before
	await(t, w.out, "")
	h.IP("link add e0 type veth peer e0p")
	await(t, w.out, "e0p e0")
}
