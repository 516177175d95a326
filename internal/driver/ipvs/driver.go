// Package ipvs carries out services with the kernel's IPVS: a virtual server for each frontend
// chooses among its backends, by one of the kernel's schedulers.
//
// All else is done by the table of package nftables, with a ruleset that leaves the choice to IPVS:
// it refuses what has no backends, masquerades, asks for source ranges, remembers clients with
// session affinity, chooses among the node's own backends for clients from outside
// (externalTrafficPolicy: Local), as IPVS has one set of backends for an address, and judges by
// policy what may pass.
//
// What was programmed goes on working while no process of ours runs. Virtual servers that are ours
// carry a tag in their flags, and routes a protocol number; nothing else is changed or removed.
package ipvs

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"golang.org/x/sys/unix"

	"sluice.dev/sluice/internal/driver"
	"sluice.dev/sluice/internal/driver/nftables"
	"sluice.dev/sluice/internal/kernel/conntrack"
	"sluice.dev/sluice/internal/kernel/probe"
	"sluice.dev/sluice/internal/model"
	"sluice.dev/sluice/internal/state"
)

// Options are those of any driver, and what IPVS has beside.
type Options struct {
	driver.Options
	// Scheduler is how backends are chosen, one of model.IPVSSchedulers; "": rr.
	Scheduler string
	// Record is the file where former values of kernel parameters are noted, for Purge to restore;
	// "": they are not restored.
	Record string
}

// Driver programs the network namespace of the thread that opened it.
type Driver struct {
	*nftables.Driver
	host
	scheduler string
	tracked   *conntrack.Conn

	// Under the host's mutex.
	have  map[state.FrontendKey]*state.Frontend // what the virtual servers were made of; nil before the first adoption
	aside map[state.FrontendKey]setAside
}

var _ driver.Driver = (*Driver)(nil)

// Requirements are what IPVS needs of the kernel, beside those of package nftables for services.
var Requirements = []*probe.Requirement{requirement("rr")}

// requirement is that of IPVS with a scheduler.
func requirement(scheduler string) *probe.Requirement {
	return &probe.Requirement{
		Name: "IPVS with the scheduler " + scheduler, Since: "5.9", Modules: []string{"ip_vs", "ip_vs_" + scheduler},
		Check: func(context.Context) error {
			c, err := dial(ownerServices)
			if err != nil {
				return err
			}
			return errors.Join(tryScheduler(c, scheduler), c.close())
		},
	}
}

// tryScheduler says how to load what the kernel lacks.
func tryScheduler(c *conn, scheduler string) error {
	err := c.tryScheduler(scheduler)
	if errors.Is(err, unix.ENOENT) {
		return fmt.Errorf("%w: 'modprobe -a ip_vs ip_vs_%s' loads it where the kernel has it as a module", err, scheduler)
	}
	return err
}

// Open opens the driver's sockets in the calling thread's network namespace, where they stay. It
// changes nothing.
func Open(o Options) (*Driver, error) {
	scheduler := cmp.Or(o.Scheduler, "rr")
	if !slices.Contains(model.IPVSSchedulers, scheduler) {
		return nil, fmt.Errorf("IPVS has no scheduler %q: choose one of %v", scheduler, model.IPVSSchedulers)
	}
	base, err := nftables.Open(nftables.Options{Options: o.Options, IPVS: true})
	if err != nil {
		return nil, err
	}
	tracked, err := conntrack.Open()
	if err != nil {
		return nil, errors.Join(err, base.Close())
	}
	d := &Driver{Driver: base, scheduler: scheduler, tracked: tracked, aside: map[state.FrontendKey]setAside{}}
	if err := d.open(ownerServices, RouteProtocol, o.Record, serviceParameters, tracked, base); err != nil {
		return nil, err
	}
	return d, nil
}

// Close implements driver.Driver.
func (d *Driver) Close() error { return d.host.Close() }

// Capabilities implements driver.Driver.
func (d *Driver) Capabilities() driver.Capabilities {
	c := d.Driver.Capabilities()
	c.Name, c.Lister, c.AtInput = "ipvs", d, true
	// Connections end with their virtual server, and IPVS knows unreachable destinations, source
	// quench and exceeded times alone of IPv4's errors. Datagrams of the node itself reach it
	// before they are cut into fragments, and over IPv6 it refuses those larger than the MTU. It
	// knows a packet by its addresses and ports alone, and takes the answers of an endpoint to a
	// client for those of the service that leads the same client there from the same port.
	c.Can &^= driver.Outlasts | driver.Errors | driver.LargeDatagrams | driver.SharedPorts
	return c
}

// Frontends implements driver.Lister.
func (d *Driver) Frontends(ctx context.Context) (map[state.FrontendKey]bool, error) {
	found, err := d.Driver.Frontends(ctx)
	if err != nil {
		return nil, err
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if err := d.conn.ready(); errors.Is(err, unix.ENOENT) {
		return found, nil
	}
	have, _, err := d.conn.read()
	for k, s := range have {
		if served, is := found[k]; is {
			found[k] = served || s.serves()
		}
	}
	return found, err
}

// Probe implements driver.Driver.
func (d *Driver) Probe(ctx context.Context) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	err := requirement(d.scheduler).MetBy(func() error { return tryScheduler(d.conn, d.scheduler) })
	return errors.Join(err, d.Driver.Probe(ctx))
}

// SetAside implements driver.Driver.
func (d *Driver) SetAside() []driver.SetAside {
	all := slices.Concat(d.Driver.SetAside(), d.host.SetAside())
	slices.SortFunc(all, driver.SetAside.Compare)
	return slices.Compact(all)
}

// setAside is a frontend that IPVS does not take, and why.
type setAside struct {
	frontend *state.Frontend
	why      string
}

func (d *Driver) publish() {
	all := make([]driver.SetAside, 0, len(d.aside))
	for k, a := range d.aside {
		all = append(all, driver.SetAside{Kind: string(model.ServiceKind), Name: a.frontend.Service, InForce: model.InForceRest,
			Reason: fmt.Sprintf("%s is not served: %s", k, a.why)})
	}
	d.host.Publish(all)
}

// Tampered implements driver.Driver.
func (d *Driver) Tampered(ctx context.Context) (bool, error) {
	if tampered, err := d.Driver.Tampered(ctx); tampered || err != nil {
		return tampered, err
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.tampered(func(yield func(state.FrontendKey) bool) {
		for k, f := range d.have {
			if d.serverOf(k, f) != nil && !yield(k) {
				return
			}
		}
	})
}

func (d *Driver) serverOf(k state.FrontendKey, f *state.Frontend) *server {
	return serverOf(k, f, d.scheduler)
}

// Purge implements driver.Driver.
func (d *Driver) Purge(ctx context.Context) error {
	if err := d.Driver.Purge(ctx); err != nil {
		return err
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	d.have = nil
	clear(d.aside)
	d.publish()
	has, err := d.purge()
	if has {
		err = errors.Join(err, d.tuning.restore())
	}
	return err
}

// withdrawPause is the time between two looks at connections that are to end.
const withdrawPause = time.Second

// Withdraw removes all that Purge does but the table of nftables: each virtual server once its
// connections have ended, and the rest at the deadline of ctx. Where ctx is cancelled, it leaves
// what is left then. The driver must not be used for anything else.
func (d *Driver) Withdraw(ctx context.Context) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if err := d.conn.ready(); errors.Is(err, unix.ENOENT) {
		return d.router.purge()
	} else if err != nil {
		return err
	}
	ended := func(f *found) (bool, error) {
		err := d.conn.destinations(f)
		return f.active() == 0 || errors.Is(ctx.Err(), context.DeadlineExceeded), err
	}
	for {
		left, err := d.conn.remove(ended)
		if left == 0 || err != nil {
			return errors.Join(err, d.router.purge(), d.tuning.restore())
		}
		select {
		case <-ctx.Done():
			if !errors.Is(ctx.Err(), context.DeadlineExceeded) {
				return ctx.Err()
			}
		case <-time.After(withdrawPause):
		}
	}
}
