package nftables

import "context"

// Tampered implements driver.Driver.
func (d *Driver) Tampered(ctx context.Context) (bool, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.state == nil {
		return false, nil
	}
	return d.Table.Tampered(ctx, d.rules)
}

// rules is the number of rules that the table should have.
func (d *Driver) rules() int {
	n := d.Refs.RuleCount()
	for _, c := range d.ruleset.ChainsFor(d.state) {
		n += len(c.Rules)
	}
	return n
}

// Purge implements driver.Driver.
func (d *Driver) Purge(ctx context.Context) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.state, d.adopted = nil, 0
	return d.Table.Purge(ctx)
}
