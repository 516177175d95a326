package link

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"reflect"
	"runtime"
	"time"

	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"

	"sluice.dev/sluice/internal/lib/wake"
	"sluice.dev/sluice/internal/model"
)

const (
	// settle is how long further changes are waited for after the first: a pod's interface, its
	// addresses and its routes come as several.
	settle = 5 * time.Millisecond
	// share is what part of the time reading may take, as a divisor: a node whose routes keep
	// changing spends no more than a tenth of a core on it.
	share = 10
	// retry is the pause after an error.
	retry = time.Second
)

// WatchLinks sends the Links of the calling thread's network namespace: at once, and again when
// they have changed. A receiver that is slow misses what was in between. The channel is closed when
// ctx ends.
func WatchLinks(ctx context.Context, log *slog.Logger) (<-chan model.Links, error) {
	return start(ctx, log, (*Reader).Links, unix.RTNLGRP_LINK,
		unix.RTNLGRP_IPV4_IFADDR, unix.RTNLGRP_IPV6_IFADDR, unix.RTNLGRP_IPV4_ROUTE, unix.RTNLGRP_IPV6_ROUTE)
}

// WatchAddresses sends the HostAddresses of the calling thread's network namespace as WatchLinks
// does Links.
func WatchAddresses(ctx context.Context, log *slog.Logger) (<-chan []netip.Prefix, error) {
	return start(ctx, log, (*Reader).HostAddresses, unix.RTNLGRP_IPV4_IFADDR, unix.RTNLGRP_IPV6_IFADDR)
}

// WatchUnderlay sends the Underlay of the calling thread's network namespace as WatchLinks does
// Links.
func WatchUnderlay(ctx context.Context, log *slog.Logger) (<-chan []model.HostAddress, error) {
	return start(ctx, log, (*Reader).Underlay, unix.RTNLGRP_LINK, unix.RTNLGRP_IPV4_IFADDR, unix.RTNLGRP_IPV6_IFADDR)
}

// WatchSegments sends the Segments of the calling thread's network namespace as WatchLinks does
// Links.
func WatchSegments(ctx context.Context, log *slog.Logger) (<-chan []Segment, error) {
	return start(ctx, log, (*Reader).Segments, unix.RTNLGRP_LINK, unix.RTNLGRP_IPV4_IFADDR, unix.RTNLGRP_IPV6_IFADDR)
}

// WatchRouting sends what Routing returns of the calling thread's network namespace as WatchLinks
// does Links.
func WatchRouting(ctx context.Context, log *slog.Logger) (<-chan []string, error) {
	return start(ctx, log, (*Reader).Routing, unix.RTNLGRP_LINK)
}

// watcher sends what read returns, after each change that the kernel tells of.
type watcher[T any] struct {
	log    *slog.Logger
	events *netlink.Conn
	reader *Reader
	read   func(*Reader) (T, error)
	out    chan T
}

func start[T any](ctx context.Context, log *slog.Logger, read func(*Reader) (T, error), groups ...uint32) (<-chan T, error) {
	w, err := newWatcher(log, read, groups)
	if err != nil {
		return nil, fmt.Errorf("watch network: %w", err)
	}
	first, err := read(w.reader)
	if err != nil {
		w.close()
		return nil, fmt.Errorf("watch network: %w", err)
	}
	w.start(ctx, first)
	return w.out, nil
}

// newWatcher subscribes to the groups of notifications, before anything is read, so that no change
// is missed. Both sockets are of the calling thread's namespace, and stay there.
func newWatcher[T any](log *slog.Logger, read func(*Reader) (T, error), groups []uint32) (*watcher[T], error) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	events, err := netlink.Dial(unix.NETLINK_ROUTE, nil)
	if err != nil {
		return nil, err
	}
	for _, g := range groups {
		if err := events.JoinGroup(g); err != nil {
			return nil, errors.Join(err, events.Close())
		}
	}
	reader, err := Open()
	if err != nil {
		return nil, errors.Join(err, events.Close())
	}
	return &watcher[T]{log, events, reader, read, make(chan T)}, nil
}

func (w *watcher[T]) close() {
	_ = w.events.Close()
	w.reader.Close()
}

// start takes over the watcher, which ends with ctx.
func (w *watcher[T]) start(ctx context.Context, first T) {
	changed := wake.New()
	go listen(ctx, w.log, func() error { _, err := w.events.Receive(); return err }, changed)
	go w.run(ctx, first, changed)
}

// listen sets changed each time that notifications came or may have been lost, until ctx ends. The
// kernel drops notifications that do not fit and says so (ENOBUFS); the socket goes on after it,
// and as everything is read again, nothing is missed.
func listen(ctx context.Context, log *slog.Logger, receive func() error, changed wake.Signal) {
	for failing := false; ; {
		err := receive()
		lost := err != nil && !errors.Is(err, unix.ENOBUFS)
		if lost {
			if !failing && ctx.Err() == nil {
				log.Warn("could not hear of changes of the network; reading it every second meanwhile", "error", err)
			}
			wake.Sleep(ctx, retry)
		}
		failing = lost
		if ctx.Err() != nil {
			return
		}
		changed.Set()
	}
}

// run sends what was read first, and what is read after each change if that differs.
func (w *watcher[T]) run(ctx context.Context, last T, changed wake.Signal) {
	defer close(w.out)
	defer w.close()
	out := w.out // nil once the receiver has the last
	var next time.Time
	for {
		select {
		case <-ctx.Done():
			return
		case out <- last:
			out = nil
		case <-changed:
			wake.Sleep(ctx, max(settle, time.Until(next)))
			begin := time.Now()
			now, err := w.read(w.reader)
			switch {
			case ctx.Err() != nil:
				return
			case err != nil:
				w.log.Warn("could not read the network; what is known of interfaces and addresses may be old", "error", err)
				wake.Sleep(ctx, retry)
				changed.Set()
			case !reflect.DeepEqual(now, last):
				last, out = now, w.out
			}
			next = begin.Add(time.Since(begin) * share)
		}
	}
}
