package bench

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"

	"sluice.dev/sluice/internal/netns"
)

// commits tells when the kernel commits a transaction in a namespace. It
// listens to the kernel's own notifications, so it needs to know nothing of
// what is programmed. They cost the writer a little for each element: nothing
// to speak of for a change of some, much for a large load.
type commits struct {
	conn *netlink.Conn
	seen chan commit
	done chan struct{}
}

// commit is one transaction, or several up to the last.
type commit struct {
	at           time.Time
	transactions int
	elements     int // of sets, added and deleted
	err          error
}

const subsystem = netlink.HeaderType(unix.NFNL_SUBSYS_NFTABLES << 8)

func watchCommits(ns *netns.NS) (*commits, error) {
	conn, err := netlink.Dial(unix.NETLINK_NETFILTER, &netlink.Config{
		NetNS: ns.Fd(), Groups: 1 << (unix.NFNLGRP_NFTABLES - 1),
	})
	if err != nil {
		return nil, fmt.Errorf("listen to nftables in %s: %w", ns.Name, err)
	}
	if err := conn.SetReadBuffer(32 << 20); err != nil {
		return nil, errors.Join(fmt.Errorf("enlarge netlink buffer: %w", err), conn.Close())
	}
	w := &commits{conn: conn, seen: make(chan commit, 1024), done: make(chan struct{})}
	go w.read()
	return w, nil
}

func (w *commits) read() {
	defer close(w.done)
	elements := 0
	for {
		msgs, err := w.conn.Receive()
		now := time.Now()
		if err != nil {
			select {
			case w.seen <- commit{err: err}:
			default: // nobody waits any more
			}
			return
		}
		for _, m := range msgs {
			switch m.Header.Type {
			case subsystem | unix.NFT_MSG_NEWSETELEM, subsystem | unix.NFT_MSG_DELSETELEM:
				elements++
			case subsystem | unix.NFT_MSG_NEWGEN: // ends each transaction
				w.seen <- commit{at: now, transactions: 1, elements: elements}
				elements = 0
			}
		}
	}
}

// drop forgets what was seen so far.
func (w *commits) drop() {
	for {
		select {
		case <-w.seen:
		default:
			return
		}
	}
}

// last waits for a transaction, and then until there has been none for as long as quiet.
// It returns the last one, with the elements of all.
func (w *commits) last(ctx context.Context, quiet time.Duration) (commit, error) {
	var all commit
	limit := 10 * time.Second
	for {
		select {
		case c := <-w.seen:
			if c.err != nil {
				return all, fmt.Errorf("listen to nftables: %w", c.err)
			}
			all.at = c.at
			all.transactions += c.transactions
			all.elements += c.elements
			limit = quiet
		case <-time.After(limit):
			if all.at.IsZero() {
				return all, fmt.Errorf("nothing was programmed within %s", limit)
			}
			return all, nil
		case <-ctx.Done():
			return all, ctx.Err()
		}
	}
}

// Close stops listening.
func (w *commits) Close() error {
	err := w.conn.Close()
	for {
		select {
		case <-w.seen:
		case <-w.done:
			return err
		}
	}
}
