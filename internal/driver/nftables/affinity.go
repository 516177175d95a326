package nftables

import (
	"encoding/binary"
	"errors"
	"net/netip"
	"slices"
	"time"

	"golang.org/x/sys/unix"

	"sluice.dev/sluice/internal/state"
)

// forgetter removes what is remembered of clients whose backend is no longer one
// for them. The program does so itself when the client's next connection has
// been routed; but one to a backend without a route never gets that far, and
// whether a backend serves clients from outside is not looked at there.
type forgetter struct {
	reader *socket       // reads the maps while the driver works
	wake   chan struct{} // capacity 1: something changed
}

// forgetPause is the time between two readings of the maps, so that busy services do
// not keep the agent at it.
const forgetPause = time.Second

func (f *forgetter) poke() {
	select {
	case f.wake <- struct{}{}:
	default:
	}
}

// losesAffinity reports whether a client may be remembered on a backend that the
// change takes from it.
func losesAffinity(before, after *state.Frontend) bool {
	if before == nil || affinity(before) == 0 {
		return false
	}
	if after == nil || affinity(after) == 0 || after.LocalOnly && !before.LocalOnly {
		return true
	}
	lost := func(old, now []netip.AddrPort) bool {
		return slices.ContainsFunc(old, func(b netip.AddrPort) bool { return !containsSorted(now, b) })
	}
	return lost(before.Backends, after.Backends) || lost(before.Local, after.Local)
}

// forgetAffinity works in the background until the driver is closed.
func (d *Driver) forgetAffinity() {
	for {
		select {
		case <-d.life.Done():
			return
		case <-d.forget.wake:
		}
		for _, fp := range d.prog.fam {
			if err := d.forgetFamily(fp); err != nil && d.life.Err() == nil {
				d.log.Warn("forget affinity to backends that are gone", "error", err)
			}
		}
		select {
		case <-d.life.Done():
			return
		case <-time.After(forgetPause):
		}
	}
}

// forgetFamily reads the family's map and deletes what is no longer right.
func (d *Driver) forgetFamily(fp *familyProgram) error {
	var wrong []element
	err := readSet(d.life, d.forget.reader, fp.affinity, func(e element) {
		d.mu.Lock()
		defer d.mu.Unlock()
		if d.state != nil && !fp.remembersRight(d.state, &e) {
			wrong = append(wrong, e)
		}
	})
	// No table, no affinity. What an interrupted reading left out, the program forgets.
	if err != nil && !errors.Is(err, errInterrupted) && !errors.Is(err, unix.ENOENT) {
		return err
	}
	for chunk := range slices.Chunk(wrong, 100) {
		if err := d.deleteRemembered(chunk); err != nil {
			return err
		}
	}
	return nil
}

// deleteRemembered deletes elements, one by one if some are gone meanwhile: the
// kernel refuses a whole transaction for one.
func (d *Driver) deleteRemembered(elements []element) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	err := d.deleteElements(elements)
	if !errors.Is(err, unix.ENOENT) {
		return err
	}
	for i := range elements {
		if err := d.deleteElements(elements[i : i+1]); err != nil && !errors.Is(err, unix.ENOENT) {
			return err
		}
	}
	return nil
}

// deleteElements deletes elements of one set in a transaction of its own.
func (d *Driver) deleteElements(elements []element) error {
	b := newBatch(TableName)
	for i := range elements {
		b.delete(&elements[i])
	}
	sent, err := b.send(d.sock)
	if err == nil {
		d.gen += sent
	}
	return err
}

// remembersRight reports whether the state may send the client where the element of the map
// of affinity says.
func (fp *familyProgram) remembersRight(s *state.State, e *element) bool {
	addr := func(b []byte) netip.Addr { a, _ := netip.AddrFromSlice(b); return a }
	n := fp.ip.bits / 8
	client, f := addr(e.key[:n]), s.Frontends[readFrontend(e.key[n:], n)]
	if f == nil || affinity(f) == 0 {
		return false
	}
	backend := netip.AddrPortFrom(addr(e.data[:n]), binary.BigEndian.Uint16(e.data[n:]))
	pod := slices.ContainsFunc(s.Settings.ClusterCIDRs, func(c netip.Prefix) bool { return c.Contains(client) })
	if f.LocalOnly && !pod {
		// Outside, or the node itself, which then chooses again among all: that is no harm.
		return containsSorted(f.Local, backend)
	}
	return containsSorted(f.Backends, backend) || containsSorted(f.Local, backend)
}
