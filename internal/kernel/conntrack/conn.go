// Package conntrack reads the kernel's connection tracking table. It deletes the entries of flows
// whose backend or frontend is gone, so that their next packet is translated anew (or refused)
// instead of going on to where nobody listens. And it labels those of flows that policy has come to
// forbid, which deleting would not end: the other end's next packet makes a new entry the other way
// round.
//
// It speaks ctnetlink through one socket of one network namespace. Selecting is done in
// the kernel where there is little to select (CTA_FILTER, Linux 5.8). Deleting always
// names single entries, by their complete tuple and their id: the filtered delete that
// exists since Linux 6.8 is a flush of everything to a kernel that does not know it, and
// does not say how many entries went.
package conntrack

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"runtime"
	"slices"
	"sync"
	"time"

	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"

	"sluice.dev/sluice/internal/kernel/netns"
	"sluice.dev/sluice/internal/kernel/probe"
	"sluice.dev/sluice/internal/model"
)

const (
	// A dump is a walk of the kernel's hash table, which all namespaces share: 5 to 12 ms at
	// 262,144 buckets, and half a microsecond for each entry. A whole dump also copies every entry
	// to user space (some 4 µs each), a filtered dump those that it selects. So where entries are
	// few, one whole dump takes less time than several that are filtered: each that it saves is
	// worth copying so many entries.
	copiesPerWalk = 3000
	// fewFilters is the number of filters up to which each is a filtered dump of its own, however
	// many entries there are.
	fewFilters = 4
	// deleteBatch entries are deleted per message to the kernel. If all are gone already,
	// as many error replies have to fit into the socket's buffer.
	deleteBatch = 256
	// readBuffer holds a batch's replies with room to spare; each is charged at under 1 KiB.
	readBuffer = 1 << 20
	// messageSize is what the kernel fills at once: it puts that many bytes of a dump into a
	// message.
	messageSize = 32 << 10
	// replyTime bounds the wait for an answer, which the kernel gives at once unless it was lost.
	replyTime = 30 * time.Second
)

// Conn is a ctnetlink socket. It is safe for concurrent use; calls wait for each other.
type Conn struct {
	mu sync.Mutex
	ns *os.File      // the namespace it was opened in
	nl *netlink.Conn // nil after a failure, until the next call dials anew
	// count is countFile; nil where there is none.
	count *os.File
	// copies is copiesPerWalk; 0 has dumps filtered, however few entries there are.
	copies int
}

// Requirement is what the package needs of the kernel.
var Requirement = &probe.Requirement{
	Name: "connection tracking over netlink", Since: "2.6.14", Modules: []string{"nf_conntrack_netlink"},
	Check: func(context.Context) error {
		c, err := open()
		if err != nil {
			return err
		}
		return c.Close()
	},
}

// Open opens a socket in the calling thread's network namespace, where it
// stays. It needs CAP_NET_ADMIN there, and says so if that is missing.
func Open() (*Conn, error) {
	c, err := open()
	if errors.Is(err, unix.EPERM) {
		err = fmt.Errorf("%w (it needs CAP_NET_ADMIN)", err)
	}
	if err != nil {
		return nil, fmt.Errorf("open connection tracking: %w", Requirement.Missing(err))
	}
	return c, nil
}

func open() (*Conn, error) {
	ns, err := os.Open("/proc/thread-self/ns/net")
	if err != nil {
		return nil, err
	}
	c := &Conn{ns: ns, copies: copiesPerWalk}
	if err := c.probe(); err != nil {
		_ = c.Close()
		return nil, err
	}
	if c.count, err = os.Open(countFile); err != nil { // which the probe may have brought about
		c.count = nil // it only saves time
	}
	return c, nil
}

// Close closes the socket. Calls after it fail.
func (c *Conn) Close() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.hangUp()
	if c.count != nil {
		_ = c.count.Close()
	}
	return c.ns.Close()
}

// Delete deletes the flows that any of the filters matches and spare does not, and returns their
// number. Flows that end meanwhile are not counted; invalid filters match nothing. spare may be
// nil, and must not call the Conn. After an error some may be deleted and others not; calling again
// is safe.
func (c *Conn) Delete(ctx context.Context, filters []Filter, spare func(*Flow) bool) (int, error) {
	x := newIndex(filters)
	if len(x.filters) == 0 {
		return 0, nil
	}
	return c.sweep(ctx, x.requests(), func(f *Flow) bool { return x.match(f) && (spare == nil || !spare(f)) })
}

// Sweep reads the whole table once and deletes the flows for which drop returns
// true; it returns their number. drop must not call the Conn.
func (c *Conn) Sweep(ctx context.Context, drop func(Flow) bool) (int, error) {
	return c.sweep(ctx, []netlink.Message{dumpAll(0)}, func(f *Flow) bool { return drop(*f) })
}

// All calls f with each flow. f must not call the Conn.
func (c *Conn) All(ctx context.Context, f func(*Flow)) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.dump(ctx, []netlink.Message{dumpAll(0)}, f)
}

// Each calls f once with each flow that any of the filters matches. f must not call the Conn.
func (c *Conn) Each(ctx context.Context, filters []Filter, f func(*Flow)) error {
	x := newIndex(filters)
	type entry struct {
		protocol model.Protocol
		orig     Tuple
	}
	seen := map[entry]bool{} // where the kernel selects less, a flow is in several dumps
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.dump(ctx, x.requests(), func(flow *Flow) {
		if e := (entry{flow.Protocol, flow.Orig}); x.match(flow) && !seen[e] {
			seen[e] = true
			f(flow)
		}
	})
}

// dump calls f with what dumps hold, or with more: all there is.
func (c *Conn) dump(ctx context.Context, requests []netlink.Message, f func(*Flow)) error {
	for _, r := range c.fewest(requests) {
		if err := ctx.Err(); err != nil {
			return err
		}
		err := c.exchange(r, func(data []byte) error {
			flow, ok, err := decodeFlow(data)
			if err == nil && ok {
				f(&flow)
			}
			return err
		})
		if err != nil {
			return fmt.Errorf("read connection tracking table: %w", err)
		}
	}
	return nil
}

// fewest puts one dump of all in the place of several where that takes less time, and none where
// there are no entries.
func (c *Conn) fewest(requests []netlink.Message) []netlink.Message {
	switch n, err := c.Count(); {
	case err != nil: // it only saves time
		return requests
	case n == 0:
		return nil
	case n > (len(requests)-1)*c.copies:
		return requests
	}
	return []netlink.Message{dumpAll(0)}
}

// requests are the dumps that together hold every flow the index matches.
func (x *index) requests() (requests []netlink.Message) {
	if len(x.filters) > fewFilters {
		status := StatusDNAT
		for f := range x.filters {
			if !f.Backend.IsValid() || f.Backend == f.Frontend {
				status = 0 // flows that were never translated are wanted too
				break
			}
		}
		return []netlink.Message{dumpAll(status)}
	}
	for f := range x.filters {
		for _, family := range f.families() {
			requests = append(requests, dumpFiltered(f, family))
		}
	}
	return requests
}

// sweep deletes what dumps hold and match agrees to, and returns their number. What the kernel has
// selected is judged once more here, so that a kernel which ignores a filter costs time and no
// flows.
func (c *Conn) sweep(ctx context.Context, dumps []netlink.Message, match func(*Flow) bool) (int, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	var doomed []Flow
	err := c.dump(ctx, dumps, func(flow *Flow) {
		if match(flow) {
			doomed = append(doomed, *flow)
		}
	})
	if err != nil {
		return 0, err
	}
	n := 0
	for batch := range slices.Chunk(doomed, deleteBatch) {
		if err := ctx.Err(); err != nil {
			return n, err
		}
		deleted, err := c.deleteFlows(batch)
		n += deleted
		if err != nil {
			return n, fmt.Errorf("delete connection tracking entries: %w", err)
		}
	}
	return n, nil
}

// deleteFlows deletes a batch.
func (c *Conn) deleteFlows(flows []Flow) (int, error) {
	batch := make([]netlink.Message, 0, len(flows)+1)
	for i := range flows {
		batch = append(batch, deleteFlow(&flows[i]))
	}
	n, _, err := c.send(batch)
	return n, err
}

// send sends messages of which only failures are answered, and the no-op at the end, which is how
// the end of the failures is known. done are those that succeeded; what failed for having no room
// for labels is counted, and what is gone passed over.
func (c *Conn) send(batch []netlink.Message) (done, noRoom int, err error) {
	nl, err := c.dial()
	if err != nil {
		return 0, 0, err
	}
	end := netlink.Message{Header: netlink.Header{Type: netlink.Noop, Flags: netlink.Request | netlink.Acknowledge}}
	if _, err := nl.SendMessages(append(batch, end)); err != nil {
		c.hangUp()
		return 0, 0, err
	}
	done = len(batch)
	for {
		_, err := nl.Receive()
		switch {
		case err == nil:
			return done, noRoom, nil
		case errors.Is(err, unix.ENOENT):
			done-- // it ended by itself
		case errors.Is(err, unix.ENOSPC):
			done--
			noRoom++
		default:
			c.hangUp()
			return 0, 0, err
		}
	}
}

// probe asks for an entry that does not exist.
func (c *Conn) probe() error {
	nowhere := netip.AddrPortFrom(netip.IPv4Unspecified(), 0)
	err := c.exchange(getFlow(familyV4, Tuple{Src: nowhere, Dst: nowhere}, model.UDP), func([]byte) error { return nil })
	if errors.Is(err, unix.ENOENT) {
		return nil
	}
	return err
}

// exchange sends a request and hands the body of each reply to f.
func (c *Conn) exchange(r netlink.Message, f func([]byte) error) error {
	nl, err := c.dial()
	if err != nil {
		return err
	}
	if _, err = nl.Send(r); err == nil {
		err = receive(nl, f)
	}
	if err != nil {
		c.hangUp() // replies may still be on their way: the next call must not take them for its own
	}
	return err
}

// receive hands the bodies of replies to f, up to their end or the first that is an error.
func receive(nl *netlink.Conn, f func([]byte) error) error {
	for m, err := range nl.ReceiveIter() {
		if err == nil {
			err = f(m.Data)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// get returns one entry by one of its two tuples; nil if there is none. The kernel marks
// its answer as one of several, and never says that it was the last: the end of an empty dump does.
func (c *Conn) get(t Tuple, p model.Protocol) (found *Flow, err error) {
	family := familyV6
	if t.Src.Addr().Is4() {
		family = familyV4
	}
	nl, err := c.dial()
	if err != nil {
		return nil, err
	}
	read := func(data []byte) error {
		flow, ok, err := decodeFlow(data)
		if err == nil && ok && (flow.Orig == t || flow.Reply == t) {
			found = &flow
		}
		return err
	}
	if _, err = nl.SendMessages([]netlink.Message{getFlow(family, t, p), dumpUnconfirmed(family)}); err == nil {
		err = receive(nl, read)
	}
	if errors.Is(err, unix.ENOENT) {
		err = receive(nl, read)
	}
	if err != nil {
		c.hangUp()
	}
	return found, err
}

// dialInNamespace opens a socket in the Conn's namespace. It enters it only if the thread is
// elsewhere, since that takes CAP_SYS_ADMIN, which an agent need not have.
func (c *Conn) dialInNamespace() (*netlink.Conn, error) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	config := &netlink.Config{MessageBufferSize: messageSize}
	if fd := int(c.ns.Fd()); !netns.Here(fd) {
		config.NetNS = fd
	}
	return netlink.Dial(unix.NETLINK_NETFILTER, config)
}

// dial returns the socket, ready to wait for an answer.
func (c *Conn) dial() (*netlink.Conn, error) {
	if c.nl == nil {
		nl, err := c.dialInNamespace()
		if err != nil {
			return nil, err
		}
		if err := nl.SetReadBuffer(readBuffer); err != nil {
			_ = nl.Close()
			return nil, err
		}
		c.nl = nl
	}
	return c.nl, c.nl.SetReadDeadline(time.Now().Add(replyTime))
}

func (c *Conn) hangUp() {
	if c.nl != nil {
		_ = c.nl.Close()
		c.nl = nil
	}
}
