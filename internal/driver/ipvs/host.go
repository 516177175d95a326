package ipvs

import (
	"errors"
	"fmt"
	"io"
	"iter"
	"net/netip"
	"strings"
	"sync"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"sluice.dev/sluice/internal/driver"
	"sluice.dev/sluice/internal/kernel/netns"
	"sluice.dev/sluice/internal/state"
)

// host is what both drivers have in their network namespace: virtual servers, the routes that lead
// packets to them, and kernel parameters.
type host struct {
	driver.Published
	tuning tuning
	close  func() error // once

	mu   sync.Mutex // held by every method that reads or writes what follows
	conn *conn
	routing
}

// open opens the sockets in the calling thread's network namespace, where they stay. What is opened
// beside is closed with them, also where this fails.
func (h *host) open(owner uint32, routeProtocol int, record string, parameters map[string]string, beside ...io.Closer) error {
	h.router = router{&netlink.Handle{}, routeProtocol}
	h.close = sync.OnceValue(func() (err error) {
		h.router.h.Close()
		for _, c := range beside {
			err = errors.Join(err, c.Close())
		}
		return err
	})
	ns, err := netns.OpenPath("/proc/thread-self/ns/net")
	if err == nil {
		beside = append(beside, ns)
		h.tuning = tuning{ns, record, parameters}
		h.conn, err = dial(owner)
	}
	if err == nil {
		beside = append(beside, h.conn.nl)
		err = h.router.open()
	}
	if err != nil {
		return errors.Join(err, h.close())
	}
	return nil
}

// Close implements driver.Driver.
func (h *host) Close() error { return h.close() }

// change is what a plan makes of a host.
type change struct {
	parameters    map[string]string
	routes        routeChange
	before, after []op // what takes connections, and what ends taking them
}

func (c *change) len() int {
	return len(c.parameters) + c.routes.len() + len(c.before) + len(c.after)
}

// text prints the operations, with what comes between them.
func (c *change) text(between string) string {
	var b strings.Builder
	ops := func(all []op) {
		for _, o := range all {
			fmt.Fprintln(&b, o)
		}
	}
	b.WriteString(parameterText(c.parameters) + c.routes.add.text("add"))
	ops(c.before)
	b.WriteString(between)
	ops(c.after)
	b.WriteString(c.routes.remove.text("delete"))
	return b.String()
}

// prepare does what new connections need. It returns what IPVS refused, and why.
func (h *host) prepare(c *change) (map[state.FrontendKey]string, error) {
	if err := h.tuning.set(c.parameters); err != nil {
		return nil, err
	}
	if err := h.router.add(c.routes.add); err != nil {
		return nil, err
	}
	return h.conn.begin(c.before)
}

// finish takes away what none needs any more.
func (h *host) finish(c *change, refused map[state.FrontendKey]string) error {
	return errors.Join(h.conn.settle(c.after, refused), h.router.remove(c.routes.remove))
}

// read returns our virtual servers, where others have some, and our routes.
func (h *host) read() (have map[state.FrontendKey]*server, others map[state.FrontendKey]bool, found routes, err error) {
	if have, others, err = h.conn.read(); err == nil {
		found, err = h.router.read()
	}
	return have, others, found, err
}

// adopt plans what makes of the routes that were found those of addresses that are used so often,
// and of parameters what they should be. Done is to be called once the change is carried out.
func (h *host) adopt(c *change, found routes, uses map[netip.Addr]int) (done func(), err error) {
	if c.routes, done, err = h.adoptRoutes(found, uses); err == nil {
		c.parameters, err = h.tuning.missing()
	}
	return done, err
}

// tampered reports whether one of the virtual servers is gone, or packets leave another way than
// the routes say.
func (h *host) tampered(servers iter.Seq[state.FrontendKey]) (bool, error) {
	lacks, err := h.conn.lacks(servers)
	if lacks || err != nil {
		return lacks, err
	}
	return h.router.moved(h.routes)
}

// purge removes our virtual servers and routes. has: the kernel has IPVS.
func (h *host) purge() (has bool, err error) {
	h.uses, h.routes = nil, nil
	switch err := h.conn.ready(); {
	case errors.Is(err, unix.ENOENT):
		return false, h.router.purge()
	case err != nil:
		return false, err
	}
	return true, errors.Join(h.conn.removeAll(), h.router.purge())
}
