package nftables

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"

	"sluice.dev/sluice/internal/driver"
	"sluice.dev/sluice/internal/driver/nftables/ruleset"
	"sluice.dev/sluice/internal/kernel/nft"
	"sluice.dev/sluice/internal/model"
	"sluice.dev/sluice/internal/state"
)

var _ driver.Counter = (*Driver)(nil)

// reader is a socket for those who only read, so that they do not wait for long transactions.
type reader struct {
	mu   sync.Mutex
	sock *nft.Socket
}

// PolicyCounters implements driver.Counter.
func (d *Driver) PolicyCounters(ctx context.Context) ([]driver.PolicyCounter, error) {
	keys := d.policyKeys()
	found := map[model.PolicyKey]*driver.PolicyCounter{}
	for _, key := range keys {
		found[key] = &driver.PolicyCounter{Policy: key}
	}
	err := d.readCounters(ctx, func(name string, packets uint64) {
		key, ok := keys[name]
		switch {
		case !ok:
		case name == ruleset.CounterName(ruleset.Allowed, key):
			found[key].Allowed = packets
		default:
			found[key].Denied = packets
		}
	})
	if err != nil {
		return nil, fmt.Errorf("read counters of policies: %w", err)
	}
	list := make([]driver.PolicyCounter, 0, len(found))
	for _, c := range found {
		list = append(list, *c)
	}
	slices.SortFunc(list, func(a, b driver.PolicyCounter) int { return a.Policy.Compare(b.Policy) })
	return list, nil
}

// DropCounts implements driver.Counter.
func (d *Driver) DropCounts(ctx context.Context) (map[state.Drop]uint64, error) {
	counts := map[state.Drop]uint64{}
	err := d.readCounters(ctx, func(name string, packets uint64) {
		if reason, ok := strings.CutPrefix(name, ruleset.DropPrefix); ok {
			counts[state.Drop(reason)] = packets
		}
	})
	if err != nil {
		return nil, fmt.Errorf("read counters of drops: %w", err)
	}
	return counts, nil
}

// readCounters yields the named counters of the table; none if there is no table. Where the table
// changes meanwhile, it begins again, and yields a counter once more.
func (d *Driver) readCounters(ctx context.Context, yield func(name string, packets uint64)) error {
	d.reader.mu.Lock()
	defer d.reader.mu.Unlock()
	return nft.Uninterrupted(func() error {
		if err := ctx.Err(); err != nil {
			return err
		}
		// A dump that is given up would make the kernel refuse the next one.
		return d.reader.sock.ReadCounters(context.WithoutCancel(ctx), ruleset.TableName, yield)
	})
}

// policyKeys are the policies that are programmed, by the names of their counters.
func (d *Driver) policyKeys() map[string]model.PolicyKey {
	d.mu.Lock()
	defer d.mu.Unlock()
	names := map[string]model.PolicyKey{}
	if d.state == nil || d.state.Policy == nil {
		return names
	}
	for _, rules := range d.state.Policy.Rules {
		for _, t := range rules.Tiers {
			for _, own := range t.Policies {
				k := own.Policy
				names[ruleset.CounterName(ruleset.Allowed, k)], names[ruleset.CounterName(ruleset.Denied, k)] = k, k
			}
		}
	}
	return names
}
