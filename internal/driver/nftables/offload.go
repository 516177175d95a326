package nftables

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"

	"golang.org/x/sys/unix"

	"sluice.dev/sluice/internal/driver"
	"sluice.dev/sluice/internal/driver/nftables/ruleset"
	"sluice.dev/sluice/internal/kernel/nft"
	"sluice.dev/sluice/internal/kernel/probe"
)

// This file is about established connections that pass by the chains. The flowtable that they are
// in has a hook at each interface, which the kernel removes with the interface.

var _ driver.Offloader = (*Driver)(nil)

// canOffload reports whether connections can pass by the chains. Where the kernel cannot do that,
// they meet them.
func canOffload(sock *nft.Socket, log *slog.Logger) bool {
	p := &ruleset.Ruleset{}
	ruleset.FlowOffload.Fill(p)
	err := FlowOffload.MetBy(func() error { return try(sock, p) })
	if errors.Is(err, probe.ErrNotSupported) {
		log.Warn("there is no flow offload: "+FlowOffload.Without, "error", err)
		return false
	}
	return true // what else is wrong, Probe says
}

// followDevices keeps the flowtable's interfaces in step, until the driver is closed.
func (d *Driver) followDevices(changes <-chan []string) {
	var devices []string
	for {
		select {
		case <-d.life.Done():
			return
		case now, open := <-changes:
			if !open {
				return
			}
			devices = now
		case <-d.offload:
		}
		if err := d.offloadAt(devices); err != nil && d.life.Err() == nil {
			d.log.Warn("connections meet the rules at some interfaces in spite of --flow-offload", "error", err)
		}
	}
}

// offloadAt adds interfaces to the flowtable that it lacks. One that has gone meanwhile is passed
// over.
func (d *Driver) offloadAt(devices []string) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	have, there, err := d.flowtable(d.life)
	if err != nil || !there {
		return err
	}
	missing := slices.DeleteFunc(slices.Clone(devices), func(n string) bool { return slices.Contains(have, n) })
	if len(missing) == 0 || d.addDevices(missing) == nil {
		return nil
	}
	var errs []error
	for _, name := range missing {
		if err := d.addDevices([]string{name}); err != nil && !errors.Is(err, unix.ENOENT) {
			errs = append(errs, fmt.Errorf("%s: %w", name, err))
		}
	}
	return errors.Join(errs...)
}

// flowtable returns the interfaces of the flowtable, if the kernel has it and it is ours.
func (d *Driver) flowtable(ctx context.Context) (devices []string, there bool, err error) {
	if d.state == nil {
		return nil, false, nil
	}
	err = d.Sock.ReadFlowtables(ctx, ruleset.TableName, func(name string, of []string) {
		if name == d.ruleset.Flowtable {
			devices, there = of, true
		}
	})
	if err != nil {
		err = fmt.Errorf("read flowtable: %w", err)
	}
	return devices, there, err
}

func (d *Driver) addDevices(names []string) error {
	b := nft.NewBatch(ruleset.TableName)
	b.AddFlowtable(d.ruleset.Flowtable, names...)
	_, err := d.Commit(b)
	return err
}

// Recall implements driver.Offloader. A flowtable lets go of all connections when it is deleted:
// another one takes its place. A kernel that takes no second hook of the table's at an interface
// before the first is gone (6.1.0 is one) gets two transactions for it.
func (d *Driver) Recall(ctx context.Context) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	devices, there, err := d.flowtable(ctx)
	if err != nil || !there {
		return err
	}
	defer d.offload.Set() // an interface may have gone, and its name come again
	with, without := d.ruleset.OffloadChain()
	remove := func(b *nft.Batch) {
		b.DeleteRules(&b.Before, with.Name)
		b.DeleteFlowtable(&b.Before, d.ruleset.Flowtable)
	}
	add := func(b *nft.Batch, devices []string) {
		b.AddFlowtable(d.ruleset.Flowtable, devices...)
		b.AddRules(with)
	}
	once := nft.NewBatch(ruleset.TableName)
	remove(once)
	add(once, devices)
	_, err = d.Commit(once)
	if errors.Is(err, unix.EEXIST) || errors.Is(err, unix.ENOENT) {
		first, second := nft.NewBatch(ruleset.TableName), nft.NewBatch(ruleset.TableName)
		remove(first)
		first.AddRules(without)
		second.DeleteRules(&second.Before, with.Name)
		add(second, nil)
		if _, err = d.Commit(first); err == nil {
			_, err = d.Commit(second)
		}
	}
	if err != nil {
		return fmt.Errorf("take connections out of the flowtable: %w", err)
	}
	return nil
}
