package link

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"reflect"
	"runtime"
	"time"

	"github.com/mdlayher/netlink"
	rtnl "github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"sluice.dev/sluice/internal/model"
	"sluice.dev/sluice/internal/wake"
)

const (
	// settle is how long further changes are waited for after the first: a pod's interface, its
	// addresses and its routes come as several.
	settle = 5 * time.Millisecond
	// share is what part of the time reading may take, as a divisor: a node whose
	// routes keep changing spends no more than a tenth of a core on it.
	share = 10
	// retry is the pause after an error.
	retry = time.Second
)

// groups are the notifications that lead to reading again.
var groups = []uint32{
	unix.RTNLGRP_LINK, unix.RTNLGRP_IPV4_IFADDR, unix.RTNLGRP_IPV6_IFADDR, unix.RTNLGRP_IPV4_ROUTE, unix.RTNLGRP_IPV6_ROUTE,
}

// Watch sends the links of the calling thread's network namespace: at once, and again
// when they changed. A receiver that is slow misses what was in between. The channel is closed when ctx ends.
func Watch(ctx context.Context) (<-chan model.Links, error) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	w := newWatcher()
	if err := w.open(); err != nil {
		return nil, fmt.Errorf("watch links: %w", err)
	}
	links, err := read(w.handle)
	if err != nil {
		w.close()
		return nil, fmt.Errorf("watch links: %w", err)
	}
	w.start(ctx, links)
	return w.out, nil
}

type watcher struct {
	events  *netlink.Conn
	handle  *rtnl.Handle
	changed wake.Signal
	out     chan model.Links
}

func newWatcher() *watcher {
	return &watcher{changed: wake.New(), out: make(chan model.Links)}
}

// open subscribes before anything is read, so that no change is missed.
func (w *watcher) open() (err error) {
	if w.events, err = netlink.Dial(unix.NETLINK_ROUTE, nil); err != nil {
		return err
	}
	for _, g := range groups {
		if err := w.events.JoinGroup(g); err != nil {
			return errors.Join(err, w.events.Close())
		}
	}
	if w.handle, err = rtnl.NewHandle(unix.NETLINK_ROUTE); err != nil {
		return errors.Join(err, w.events.Close())
	}
	return nil
}

func (w *watcher) close() {
	_ = w.events.Close()
	w.handle.Close()
}

// start takes over the watcher, which ends with ctx.
func (w *watcher) start(ctx context.Context, links model.Links) {
	go w.listen(ctx)
	go w.run(ctx, links)
}

// listen turns notifications into one mark that something changed. Lost ones (ENOBUFS) are
// changes too; the socket goes on after them.
func (w *watcher) listen(ctx context.Context) {
	for ctx.Err() == nil {
		_, err := w.events.Receive()
		w.changed.Set()
		if err != nil && !errors.Is(err, unix.ENOBUFS) {
			pause(ctx, retry)
		}
	}
}

// run sends the links, and reads them again when something changed.
func (w *watcher) run(ctx context.Context, links model.Links) {
	defer close(w.out)
	defer w.close()
	out := w.out // nil once the receiver knows the links
	var next time.Time
	for {
		select {
		case <-ctx.Done():
			return
		case out <- links:
			out = nil
		case <-w.changed:
			pause(ctx, max(settle, time.Until(next)))
			begin := time.Now()
			now, err := read(w.handle)
			switch {
			case ctx.Err() != nil:
				return
			case err != nil:
				slog.Warn("could not read the links; what is known of pods' interfaces may be old", "error", err)
				pause(ctx, retry)
				w.changed.Set()
			case !reflect.DeepEqual(now, links):
				links, out = now, w.out
			}
			next = begin.Add(time.Since(begin) * share)
		}
	}
}

// poke has run read again.
func pause(ctx context.Context, d time.Duration) {
	select {
	case <-ctx.Done():
	case <-time.After(d):
	}
}
