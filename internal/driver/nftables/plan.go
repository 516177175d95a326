package nftables

import (
	"context"
	"errors"
	"fmt"

	"sluice.dev/sluice/internal/driver"
	"sluice.dev/sluice/internal/driver/nftables/ruleset"
	"sluice.dev/sluice/internal/kernel/nft"
	"sluice.dev/sluice/internal/state"
)

// plan is a transaction and what it makes of the driver.
type plan struct {
	d     *Driver
	of    parts // that it is about
	batch *nft.Batch
	done  func()

	// refused does what can be done where the kernel refused the transaction; nil: nothing.
	refused func(ctx context.Context, sent uint32, refusal error) error
	// then, if set, follows what was carried out.
	then func(ctx context.Context) error
	// aside is what is set aside as soon as the plan is carried out; nil: what was.
	aside  *aside
	adopts bool
	kept   driver.Kept
	// waits: all of the other ruleset stays as it is until want is whole.
	waits bool
	// succeeds: it has this ruleset take the place of another one.
	succeeds bool

	// rebuilds is why it puts a fresh table with all of want in the place of ours; "": it does not.
	rebuilds string
	want     *state.State

	spent bool
}

// Len implements driver.Plan.
func (p *plan) Len() int {
	if p.rebuilds != "" {
		return 1
	}
	return p.batch.Changes
}

// Kept implements driver.Plan.
func (p *plan) Kept() driver.Kept { return p.kept }

// String implements driver.Plan.
func (p *plan) String() string {
	if p.rebuilds != "" {
		return fmt.Sprintf("replace table inet %s by a fresh one, as %s\n", ruleset.TableName, p.rebuilds)
	}
	if p.succeeds {
		return fmt.Sprintf("write all rules of table inet %s anew, as it holds another ruleset\n%s", ruleset.TableName, p.batch)
	}
	return p.batch.String()
}

var errSpent = errors.New("apply a plan a second time")

// Apply implements driver.Plan. The whole plan is one transaction of the kernel, unless that
// refuses a part of it.
func (p *plan) Apply(ctx context.Context) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	p.d.mu.Lock()
	defer p.d.mu.Unlock()
	if p.spent {
		return errSpent
	}
	p.spent = true
	if p.adopts {
		if err := p.d.Claim(ctx, p.d.Name); err != nil {
			return fmt.Errorf("change nftables: %w", err)
		}
	}
	if p.aside != nil {
		p.d.aside = p.aside
	}
	err := p.d.carryOut(ctx, p)
	switch {
	case err == nil:
		p.d.publishSetAside()
	case p.adopts && p.rebuilds == "":
		p.d.failures.add(p.of, err)
	}
	return err
}

func (d *Driver) carryOut(ctx context.Context, p *plan) error {
	if p.rebuilds != "" {
		return d.renew(ctx, p.want)
	}
	sent, err := d.commit(p.batch, p.of)
	switch {
	case err == nil:
		p.done()
	case p.refused == nil || !d.refused(err):
		return err
	default:
		if err := p.refused(ctx, sent, err); err != nil {
			return err
		}
	}
	if p.then != nil {
		return p.then(ctx)
	}
	return nil
}

// commit sends a batch. The parts that it is about are no longer adopted, until the caller says so.
func (d *Driver) commit(b *nft.Batch, of parts) (sent uint32, err error) {
	d.adopted &^= of
	return d.Commit(b)
}
