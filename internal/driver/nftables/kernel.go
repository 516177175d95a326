package nftables

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"sluice.dev/sluice/internal/driver/nftables/program"
	"sluice.dev/sluice/internal/kernel/nft"
)

// found is what the kernel holds of ours.
type found struct {
	*nft.Table
	notes map[uint32]string // by key
}

// note is what the table says of a set; false: nothing. Another program may number its sets
// otherwise.
func (f *found) note(s *nft.Set) (text string, ok bool) {
	is := func(text string) bool { return strings.HasPrefix(text, s.Name+":") }
	if text := f.notes[s.ID]; is(text) {
		return text, true
	}
	for _, text := range f.notes {
		if is(text) {
			return text, true
		}
	}
	return "", false
}

// read returns what the kernel holds of ours but for the elements, or nil if there is no table.
func (d *Driver) read(ctx context.Context) (*found, error) {
	t, err := d.sock.ReadTable(ctx, program.TableName)
	if t == nil || err != nil {
		return nil, err
	}
	have := &found{t, map[uint32]string{}}
	if _, ok := have.Sets[d.prog.Notes.Name]; ok {
		err = d.sock.ReadSet(ctx, program.TableName, d.prog.Notes, func(e nft.Element) {
			have.notes[nft.NativeUint32(e.Key[:4])] = e.Comment
		})
	}
	if err != nil {
		return nil, fmt.Errorf("read notes: %w", err)
	}
	return have, nil
}

// content is all that the kernel holds in the set.
func (d *Driver) content(ctx context.Context, s *nft.Set) (map[nft.ElementKey]nft.Element, error) {
	elements := map[nft.ElementKey]nft.Element{}
	err := d.sock.ReadSet(ctx, program.TableName, s, func(e nft.Element) { elements[e.ElementKey] = e })
	return elements, err
}

// doubtInterval is how long after the last adoption a doubt is reason for another.
const doubtInterval = time.Minute

// Tampered implements driver.Driver. A table with an owner cannot be touched by others. Otherwise
// the generation tells of a transaction of any program; then the rules are counted. What changed
// within the sets cannot be told so cheaply: it may be reason for an adoption once a minute.
func (d *Driver) Tampered(ctx context.Context) (bool, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.owned || d.state == nil {
		return false, nil
	}
	gen, err := d.sock.Generation(ctx)
	if err != nil {
		return false, err
	}
	if gen != d.gen {
		counts := map[string]int{}
		err = d.sock.CountRules(ctx, program.TableName, counts)
		if errors.Is(err, nft.ErrInterrupted) {
			return false, nil // asked again soon
		}
		if err != nil && !errors.Is(err, unix.ENOENT) {
			return false, fmt.Errorf("count rules: %w", err)
		}
		found := 0
		for _, n := range counts {
			found += n
		}
		if found != d.rules() {
			return true, nil
		}
		d.gen, d.doubt = gen, true
	}
	return d.doubt && time.Since(d.compared) >= doubtInterval, nil
}

// rules is the number of rules that the table should have.
func (d *Driver) rules() int {
	n := d.chainRefs.RuleCount()
	for _, c := range d.prog.ChainsFor(d.state) {
		n += len(c.Rules)
	}
	return n
}

// Purge implements driver.Driver.
func (d *Driver) Purge(ctx context.Context) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, table := range []string{program.TableName, nextTable} {
		have, err := d.sock.ReadFlags(ctx, table)
		switch {
		case err != nil:
			return fmt.Errorf("read table inet %s: %w", table, err)
		case have == nil:
			continue
		}
		if err := d.claim(ctx, table, have); err != nil {
			return fmt.Errorf("delete table inet %s: %w", table, err)
		}
		d.state, d.adopted = nil, 0
		if err := d.drop(ctx, table); err != nil {
			return err
		}
	}
	return nil
}
