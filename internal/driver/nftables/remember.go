package nftables

import (
	"context"

	"sluice.dev/sluice/internal/driver"
	"sluice.dev/sluice/internal/driver/nftables/ruleset"
	"sluice.dev/sluice/internal/kernel/nft"
	"sluice.dev/sluice/internal/state"
)

// rememberOthers has a table that is new begin with what another program remembers of clients, so
// that those stay where they are. It is part of the transaction that creates the table: no
// connection finds it without.
func (a *adoption) rememberOthers(ctx context.Context) {
	seen := map[nft.ElementKey]bool{} // the kernel refuses a key that comes twice with other data
	driver.Recall(ctx, a.d.log, a.d.remembered, a.want.Services, func(k state.FrontendKey, f *state.Frontend, r state.Remembered) {
		fp := a.d.ruleset.Family(k.Addr.Is4())
		e := fp.AffinityElement(fp.IP.Addr(r.Client), k)
		e.SetAddrPort(fp.IP, r.Backend)
		if seen[e.ElementKey] || !state.Has(f.Backends, r.Backend) || !remembersRight(a.want, fp, &e) {
			return
		}
		seen[e.ElementKey] = true
		e.Life = &nft.Life{Timeout: ruleset.AffinityTimeout(f), Expires: ruleset.AffinityTimeout(f)}
		if r.Left > 0 {
			e.Life.Expires = min(r.Left, e.Life.Timeout)
		}
		a.Batch.Add(&e)
	})
}
