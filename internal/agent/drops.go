package agent

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"sync"
	"sync/atomic"
	"time"

	"sluice.dev/sluice/internal/policy/verdict"
	"sluice.dev/sluice/internal/state"
)

// Packet is the header of a packet that the driver's chains dropped.
type Packet struct {
	Time    time.Time
	Reason  state.Drop
	Flow    verdict.Flow
	In, Out int // indexes of interfaces; 0: none
	Lost    int // packets between the previous one and this one that could not be read
}

// errNoDrops says why drops cannot be watched.
var errNoDrops = errors.New("this agent's mode drops nothing that could be shown")

// dropBacklog is how many drops may wait for one watcher.
const dropBacklog = 1024

// dropLog shares the kernel's log of drops between watchers. It is open only while there are some:
// without watchers, logging costs nothing.
type dropLog struct {
	open func(ctx context.Context) (iter.Seq[Packet], error) // Config.Drops; nil if there is no log

	turn sync.Mutex // held while the log is opened or closed
	stop func()     // closes the log, and returns once that is done; nil while it is closed

	mu       sync.Mutex // of the following fields
	watchers map[*dropWatcher]struct{}
}

// dropWatcher is a client that watches drops.
type dropWatcher struct {
	packets        chan Packet   // closed when the log has ended
	received, lost atomic.Uint64 // packets that this watcher took; those that were unreadable or found no room
}

// watch returns a watcher of drops from now on. The first watcher opens the log.
func (d *dropLog) watch() (*dropWatcher, error) {
	d.turn.Lock()
	defer d.turn.Unlock()
	if d.open == nil {
		return nil, errNoDrops
	}
	w := &dropWatcher{packets: make(chan Packet, dropBacklog)}
	d.mu.Lock()
	first := len(d.watchers) == 0
	if first {
		d.watchers = map[*dropWatcher]struct{}{}
	}
	d.watchers[w] = struct{}{}
	d.mu.Unlock()
	if !first {
		return w, nil
	}
	if err := d.start(); err != nil {
		d.mu.Lock()
		clear(d.watchers)
		d.mu.Unlock()
		return nil, fmt.Errorf("open the log of dropped packets: %w", err)
	}
	return w, nil
}

func (d *dropLog) start() error {
	if d.stop != nil {
		d.stop() // it has ended by itself
	}
	ctx, cancel := context.WithCancel(context.Background())
	packets, err := d.open(ctx)
	if err != nil {
		cancel()
		d.stop = nil
		return err
	}
	closed := make(chan struct{})
	go func() {
		defer close(closed)
		d.share(packets)
	}()
	d.stop = func() { cancel(); <-closed }
	return nil
}

// leave removes a watcher. The last one closes the log.
func (d *dropLog) leave(w *dropWatcher) {
	d.turn.Lock()
	defer d.turn.Unlock()
	d.mu.Lock()
	delete(d.watchers, w)
	last := len(d.watchers) == 0
	d.mu.Unlock()
	if last && d.stop != nil {
		d.stop()
		d.stop = nil
	}
}

// share gives each packet to every watcher, until the log ends.
func (d *dropLog) share(packets iter.Seq[Packet]) {
	for p := range packets {
		d.mu.Lock()
		for w := range d.watchers {
			w.take(p)
		}
		d.mu.Unlock()
	}
	d.mu.Lock()
	for w := range d.watchers {
		close(w.packets)
	}
	clear(d.watchers)
	d.mu.Unlock()
}

// take never waits: a slow reader must not delay the others.
func (w *dropWatcher) take(p Packet) {
	w.lost.Add(uint64(p.Lost))
	select {
	case w.packets <- p:
		w.received.Add(1)
	default:
		w.lost.Add(1)
	}
}
