// Package userspace carries out services by a proxy in the agent's own process: it takes
// connections and datagrams to frontends and makes connections to backends of its own.
//
// With CAP_NET_ADMIN, one flat nftables table leads what is sent to a frontend to the proxy: what
// comes from outside, from pods and from the node itself. Packets stay as they are (TPROXY, and
// sockets that are bound to addresses of others), so that a connection's own address says which
// frontend was asked for. What nobody serves is refused or dropped by the table. Without that
// capability the driver listens at the frontends' own addresses, and sets aside those where it
// cannot: what would be dropped is reset then.
//
// It all works only while the process runs. When that ends, the kernel removes the table, all
// connections through the proxy are cut, and new ones are treated as without any driver, until the
// next agent has adopted. A connection is also cut when its backend leaves Alive (a UDP flow: when
// it leaves Serving), or when its frontend goes. Session affinity is forgotten with the process.
//
// A connection is accepted before its backend is reached: one whose backends do not answer is
// reset, not refused. Backends see the node's address, unless Options.ClientAddress says otherwise.
package userspace

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"

	"golang.org/x/sys/unix"

	"sluice.dev/sluice/internal/driver"
	"sluice.dev/sluice/internal/kernel/probe"
	"sluice.dev/sluice/internal/state"
)

// How a backend learns of the client's address: Options.ClientAddress.
const (
	ProxyProtocol = "proxy-protocol" // by a header before what a TCP client sends (PROXY protocol, version 2)
	Transparent   = "transparent"    // it sees the address, as from a driver in the kernel; needs CAP_NET_ADMIN
)

// Options configure the driver. Of the embedded ones, Policy and Fabric cannot be carried out.
type Options struct {
	driver.Options
	// Bind has the driver listen at the frontends' own addresses, as it does without CAP_NET_ADMIN.
	Bind          bool
	ClientAddress string // "": backends see the node's address
	// Connections are how many may go through the proxy at once, flows of UDP among them; more are
	// reset, and their datagrams dropped. 0: as many as the process may have files for.
	Connections int
}

// Driver serves the network namespace of the thread that opened it.
type Driver struct {
	options   Options
	log       *slog.Logger
	sockets   sockets
	redirect  *redirect          // nil: it binds
	listeners []*net.TCPListener // of the redirect
	most      int64              // connections at once
	now       atomic.Int64       // how many there are
	close     func() error       // once
	pipes     *pipes
	running   sync.WaitGroup

	settings atomic.Pointer[state.Settings]

	mu        sync.RWMutex
	want      *state.Services // as last applied; nil before the first adoption
	held      *state.Services // the same without what is set aside
	aside     map[state.FrontendKey]driver.SetAside
	frontends map[state.FrontendKey]*frontend
}

var _ driver.Driver = (*Driver)(nil)

// Requirements are what the driver needs of the kernel, where it has CAP_NET_ADMIN; none otherwise.
var Requirements = []*probe.Requirement{rulesetRequirement}

// Open opens the driver's sockets in the calling thread's network namespace, where it stays. It
// changes nothing.
func Open(o Options) (*Driver, error) {
	switch {
	case o.Policy || o.Fabric:
		return nil, errors.New("the userspace driver carries out neither policy nor what the pod network needs")
	case !slices.Contains([]string{"", ProxyProtocol, Transparent}, o.ClientAddress):
		return nil, fmt.Errorf("client address %q: want nothing, %s or %s", o.ClientAddress, ProxyProtocol, Transparent)
	}
	d := &Driver{options: o, log: o.Log, aside: map[state.FrontendKey]driver.SetAside{}, frontends: map[state.FrontendKey]*frontend{}}
	if d.log == nil {
		d.log = slog.Default()
	}
	d.pipes = newPipes()
	d.settings.Store(&state.Settings{})
	var err error
	if d.most, err = connections(o.Connections); err != nil {
		return nil, err
	}
	if d.sockets, err = openSockets(); err != nil {
		return nil, err
	}
	if !o.Bind {
		if d.redirect, err = openRedirect(o.ClientAddress == Transparent); err != nil {
			return nil, errors.Join(err, d.sockets.close())
		}
	}
	if d.redirect == nil && o.ClientAddress == Transparent {
		return nil, errors.Join(errors.New("backends can see the client's address only where CAP_NET_ADMIN is there; without it, take "+ProxyProtocol), d.sockets.close())
	}
	d.close = sync.OnceValue(d.closeAll)
	if d.redirect != nil {
		if err := d.listen(); err != nil {
			return nil, errors.Join(fmt.Errorf("listen for what is led to the proxy: %w", err), d.Close())
		}
	}
	return d, nil
}

// listen opens the proxy's own ports, at the loopback addresses.
func (d *Driver) listen() error {
	for i, f := range d.redirect.families {
		l, err := d.sockets.listen(netip.AddrPortFrom(loopback(f.Family), 0), true)
		if errors.Is(err, unix.EAFNOSUPPORT) {
			continue // a kernel without IPv6
		}
		if err != nil {
			return err
		}
		d.listeners = append(d.listeners, l)
		d.redirect.ports[i] = addrPort(l.Addr()).Port()
		d.start(func() { d.accept(l) })
	}
	return nil
}

const (
	filesEach  = 2   // files of a connection: one of TCP has two sockets
	spareFiles = 512 // that the process needs beside, pipes among them
)

// connections is how many there may be at once.
func connections(want int) (int64, error) {
	var files unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &files); err != nil {
		return 0, fmt.Errorf("read the limit of open files: %w", err)
	}
	if most := max(1, (int(min(files.Cur, 1<<30))-spareFiles)/filesEach); want == 0 {
		return int64(most), nil
	} else if want > most {
		return 0, fmt.Errorf("%d connections at once need %d open files, and the limit (ulimit -n) is %d", want, filesEach*want+spareFiles, files.Cur)
	}
	return int64(want), nil
}

// Capabilities implements driver.Driver.
func (d *Driver) Capabilities() driver.Capabilities {
	c := driver.Capabilities{Name: "userspace", Can: driver.Services | driver.Affinity | driver.SourceRanges | driver.LocalTraffic | driver.LargeDatagrams | driver.SharedPorts | driver.Keeps}
	if d.options.ClientAddress == Transparent {
		c.Can |= driver.ClientAddress
	}
	return c
}

// Probe implements driver.Driver.
func (d *Driver) Probe(ctx context.Context) error {
	if d.redirect == nil {
		return ctx.Err()
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	return rulesetRequirement.MetBy(d.redirect.try)
}

// Tampered implements driver.Driver. The kernel lets nobody else change the table.
func (d *Driver) Tampered(context.Context) (bool, error) { return false, nil }

// Held implements driver.Driver.
func (d *Driver) Held(f func(*state.State)) {
	d.mu.RLock()
	defer d.mu.RUnlock()
	if d.held != nil {
		f(&state.State{Services: d.held})
	}
}

// SetAside implements driver.Driver.
func (d *Driver) SetAside() []driver.SetAside {
	d.mu.RLock()
	defer d.mu.RUnlock()
	return slices.SortedFunc(maps.Values(d.aside), driver.SetAside.Compare)
}

// Adopt implements driver.Driver.
func (d *Driver) Adopt(ctx context.Context, want *state.State, keep driver.Keep) (driver.Plan, error) {
	p := &plan{d: d}
	if want.Services == nil {
		return p, ctx.Err()
	}
	p.whole = true
	have := d.want
	if have == nil {
		have = state.NewServices()
	}
	p.delta, p.kept.Services = difference(have, want.Services, keep.Services)
	if d.redirect != nil {
		missing, err := d.redirect.missing()
		if err != nil {
			return nil, err
		}
		p.missing = missing
	}
	return p, ctx.Err()
}

// Update implements driver.Driver.
func (d *Driver) Update(ctx context.Context, delta state.Delta) (driver.Plan, error) {
	if d.want == nil {
		return nil, errors.New("update services that were never adopted")
	}
	p := &plan{d: d, delta: changes(d.want, delta.Services), named: delta.Services.Frontends}
	return p, ctx.Err()
}

// Purge implements driver.Driver.
func (d *Driver) Purge(context.Context) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	var err error
	if d.redirect != nil {
		err = d.redirect.purge()
	}
	for _, f := range d.frontends {
		f.settle(nil)
	}
	clear(d.frontends)
	clear(d.aside)
	d.want, d.held = nil, nil
	return err
}

// Close implements driver.Driver. All connections through the proxy are cut.
func (d *Driver) Close() error { return d.close() }

func (d *Driver) closeAll() error {
	var err error
	if d.redirect != nil {
		err = d.redirect.close()
	}
	for _, l := range d.listeners {
		err = errors.Join(err, l.Close())
	}
	d.mu.Lock()
	for _, f := range d.frontends {
		f.settle(nil)
	}
	d.mu.Unlock()
	d.running.Wait()
	d.pipes.close()
	return errors.Join(err, d.sockets.close())
}

// start runs f, for which Close waits.
func (d *Driver) start(f func()) { d.running.Go(f) }

// frontend returns the one that has the address; nil: none.
func (d *Driver) frontend(k state.FrontendKey) *frontend {
	d.mu.RLock()
	defer d.mu.RUnlock()
	return d.frontends[k]
}
