package harness

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"

	"sluice.dev/sluice/test/netns"
)

// CommitWatch reports when the kernel commits nftables transactions in a namespace. It listens to
// the kernel's notifications, so it need not know what is programmed. These cost the writer a
// little for each element: nothing worth mentioning for small changes, much for a large load.
type CommitWatch struct {
	conn *netlink.Conn
	seen chan Commit
	done chan struct{}
}

// Commit is one transaction or several; the time is that of the last one.
type Commit struct {
	At           time.Time
	Transactions int
	Elements     int // of sets, added and deleted
	err          error
}

const subsystem = netlink.HeaderType(unix.NFNL_SUBSYS_NFTABLES << 8)

// WatchCommits starts to listen in a namespace. Close it.
func WatchCommits(ns *netns.NS) (*CommitWatch, error) {
	conn, err := netlink.Dial(unix.NETLINK_NETFILTER, &netlink.Config{
		NetNS: ns.Fd(), Groups: 1 << (unix.NFNLGRP_NFTABLES - 1),
	})
	if err != nil {
		return nil, fmt.Errorf("listen to nftables in %s: %w", ns.Name, err)
	}
	if err := conn.SetReadBuffer(32 << 20); err != nil {
		return nil, errors.Join(fmt.Errorf("enlarge netlink buffer: %w", err), conn.Close())
	}
	w := &CommitWatch{conn: conn, seen: make(chan Commit, 1024), done: make(chan struct{})}
	go w.read()
	return w, nil
}

func (w *CommitWatch) read() {
	defer close(w.done)
	elements := 0
	for {
		msgs, err := w.conn.Receive()
		now := time.Now()
		if err != nil {
			select {
			case w.seen <- Commit{err: err}:
			default: // no reader waits
			}
			return
		}
		for _, m := range msgs {
			switch m.Header.Type {
			case subsystem | unix.NFT_MSG_NEWSETELEM, subsystem | unix.NFT_MSG_DELSETELEM:
				elements++
			case subsystem | unix.NFT_MSG_NEWGEN: // ends each transaction
				w.seen <- Commit{At: now, Transactions: 1, Elements: elements}
				elements = 0
			}
		}
	}
}

// Discard drops the transactions seen so far.
func (w *CommitWatch) Discard() {
	for {
		select {
		case <-w.seen:
		default:
			return
		}
	}
}

// Last waits for a transaction and then until no other has come for the time quiet. It returns the
// time of the last one and the elements of all.
func (w *CommitWatch) Last(ctx context.Context, quiet time.Duration) (Commit, error) {
	var all Commit
	limit := 10 * time.Second
	for {
		select {
		case c := <-w.seen:
			if c.err != nil {
				return all, fmt.Errorf("listen to nftables: %w", c.err)
			}
			all.At = c.At
			all.Transactions += c.Transactions
			all.Elements += c.Elements
			limit = quiet
		case <-time.After(limit):
			if all.At.IsZero() {
				return all, fmt.Errorf("nothing was programmed within %s", limit)
			}
			return all, nil
		case <-ctx.Done():
			return all, ctx.Err()
		}
	}
}

// Close stops listening.
func (w *CommitWatch) Close() error {
	err := w.conn.Close()
	for {
		select {
		case <-w.seen:
		case <-w.done:
			return err
		}
	}
}
