// Package nftables carries out the desired state with one nftables table of a
// constant number of chains, rules and sets: what grows with the cluster are
// elements of maps. See docs/architecture.md for the path of a packet.
//
// What was programmed outlives the driver in the kernel alone. The table says what
// it holds in a set of notes, a digest of each set's content; a driver that starts
// compares those with what it wants before it reads anything else.
package nftables

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"time"

	"sluice.dev/sluice/internal/driver"
	"sluice.dev/sluice/internal/driver/nftables/ruleset"
	"sluice.dev/sluice/internal/driver/table"
	"sluice.dev/sluice/internal/kernel/nft"
	"sluice.dev/sluice/internal/kernel/passes"
	"sluice.dev/sluice/internal/lib/wake"
	"sluice.dev/sluice/internal/state"
)

// Options are those of any driver, and what tests change beside.
type Options struct {
	driver.Options
	// Shared leaves the table without an owner even where the kernel could
	// protect it from others, as on kernels before 6.9.
	Shared bool
	// Apart has rules asked in chains of their own, as large ones are, however small they are.
	Apart bool
	// IPVS leaves the choice of a backend to IPVS, as ruleset.Options say: for package ipvs.
	IPVS bool
	// MayMiss has the ruleset be as for kernels that need it.
	MayMiss bool
}

// Driver programs the network namespace of the thread that opened it.
type Driver struct {
	ruleset         *ruleset.Ruleset
	keepEstablished bool // what policy has come to forbid goes on
	log             *slog.Logger

	background sync.WaitGroup
	life       context.Context // of what works in the background
	end        context.CancelFunc
	forget     forgetter
	offload    wake.Signal // the flowtable may be another one
	reader     reader
	remembered func(context.Context) ([]state.Remembered, error)
	close      func() error // once

	driver.Published

	mu sync.Mutex // held by every method, and by what works in the background for moments
	*table.Table
	state    *state.State // what the kernel holds, as far as we know; nil before the first adoption
	again    int          // so many elements that have packets judged again may be in the kernel
	aside    *aside       // what the kernel refused
	failures failures     // adoptions that failed one after the other
	adopted  parts        // those of which state is what the kernel holds
}

var _ driver.Driver = (*Driver)(nil)

// Capabilities implements driver.Driver.
func (d *Driver) Capabilities() driver.Capabilities {
	c := driver.Capabilities{Name: "nftables", Can: driver.All &^ (driver.Fabric | driver.Farms), Counter: d, Rememberer: d, Lister: d, Settler: d}
	if d.ruleset.Flowtable != "" {
		c.Offloader = d
	}
	if d.ruleset.HasPolicy() && !d.keepEstablished {
		c.Rejudger, c.Answerer = d, d
	}
	if !d.ruleset.HasPolicy() {
		c.Can &^= driver.Policy | driver.HostPolicy | driver.UntrackedPolicy
	}
	return c
}

// Held implements driver.Driver.
func (d *Driver) Held(f func(*state.State)) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.state != nil {
		f(d.state)
	}
}

// Open opens the driver's sockets in the calling thread's network namespace,
// where they stay. It changes nothing.
func Open(o Options) (*Driver, error) {
	log := o.Log
	if log == nil {
		log = slog.Default()
	}
	sock, err := nft.Dial()
	if err != nil {
		return nil, err
	}
	forget, err := nft.Dial()
	if err != nil {
		return nil, errors.Join(err, sock.Close())
	}
	read, err := nft.Dial()
	if err != nil {
		return nil, errors.Join(err, forget.Close(), sock.Close())
	}
	d := &Driver{
		aside: newAside(), keepEstablished: o.KeepEstablished, log: log,
		forget: forgetter{reader: forget}, offload: wake.New(),
		reader: reader{sock: read}, remembered: o.Remembered,
		again: driver.MostAgain, // an earlier agent may have left so many
	}
	d.ruleset = ruleset.New(ruleset.Options{
		Policy: o.Policy, Fabric: o.Fabric, IPVS: o.IPVS, FlowOffload: o.FlowOffload && canOffload(sock, log), MayMiss: o.MayMiss || nft.MayMiss(),
	})
	d.Table = table.New(&d.ruleset.Layout, ruleset.TableName, ruleset.TableComment, sock)
	d.Shared = o.Shared
	if o.Apart {
		d.ruleset.AskApart()
	}
	d.life, d.end = context.WithCancel(context.Background())
	d.close = sync.OnceValue(d.closeAll)
	d.forget.Passes = passes.Start(passes.Work[struct{}]{
		Merge: func(*struct{}, struct{}) {},
		Pass:  func(struct{}) error { return d.forgetAffinity() },
		Pause: func(struct{}) time.Duration { return max(forgetPause, readShare*d.forget.took) },
	})
	d.background.Go(d.lookAfterAffinity)
	if d.ruleset.Flowtable != "" && o.Devices != nil {
		d.background.Go(func() { d.followDevices(o.Devices) })
	}
	return d, nil
}

// Close implements driver.Driver.
func (d *Driver) Close() error { return d.close() }

func (d *Driver) closeAll() error {
	d.end()
	d.background.Wait()
	d.forget.Close()
	return errors.Join(d.forget.reader.Close(), d.reader.sock.Close(), d.Sock.Close())
}
