package nftables

import (
	"context"
	"errors"
	"fmt"

	"golang.org/x/sys/unix"

	"sluice.dev/sluice/internal/driver"
	"sluice.dev/sluice/internal/driver/nftables/ruleset"
	"sluice.dev/sluice/internal/kernel/nft"
	"sluice.dev/sluice/internal/state"
)

var _ driver.Lister = (*Driver)(nil)

// Frontends implements driver.Lister. It reads the table of any release that calls its maps
// of frontends as this one does.
func (d *Driver) Frontends(ctx context.Context) (found map[state.FrontendKey]bool, err error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	err = nft.Uninterrupted(func() error {
		found, err = d.listFrontends(ctx)
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("list frontends of table inet %s: %w", ruleset.TableName, err)
	}
	return found, nil
}

func (d *Driver) listFrontends(ctx context.Context) (map[state.FrontendKey]bool, error) {
	found := map[state.FrontendKey]bool{}
	for _, fp := range d.ruleset.Families {
		err := d.Sock.ReadSet(ctx, ruleset.TableName, fp.Frontends, func(e nft.Element) {
			if key, ok := d.ruleset.Frontend(&e); ok {
				found[key] = fp.Served(&e)
			}
		})
		if err != nil && !errors.Is(err, unix.ENOENT) {
			return nil, err
		}
	}
	return found, nil
}
