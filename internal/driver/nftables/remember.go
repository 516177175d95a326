package nftables

import (
	"context"
	"net/netip"

	"sluice.dev/sluice/internal/driver/nftables/ruleset"
	"sluice.dev/sluice/internal/kernel/nft"
	"sluice.dev/sluice/internal/model"
	"sluice.dev/sluice/internal/state"
)

// rememberOthers has a table that is new begin with what another program remembers of clients, so
// that those stay where they are. It is part of the transaction that creates the table: no
// connection finds it without.
func (a *adoption) rememberOthers(ctx context.Context) {
	if a.d.remembered == nil {
		return
	}
	list, err := a.d.remembered(ctx)
	if err != nil {
		a.d.log.Warn("clients with session affinity may be balanced anew: what another program remembers of them cannot be read", "error", err)
	}
	byBackend := a.affineFrontends()
	seen := map[nft.ElementKey]bool{} // the kernel refuses a key that comes twice with other data
	for _, r := range list {
		for _, k := range byBackend[protocolBackend{r.Protocol, r.Backend}] {
			f := a.want.Services.Frontends[k]
			if r.Service != (model.Name{}) && (r.Service != f.Service || r.Port != f.Port) || r.Client.Is4() != k.Addr.Is4() {
				continue
			}
			fp := a.d.ruleset.Family(k.Addr.Is4())
			e := fp.AffinityElement(fp.IP.Addr(r.Client), k)
			e.SetAddrPort(fp.IP, r.Backend)
			if seen[e.ElementKey] || !remembersRight(a.want, fp, &e) {
				continue
			}
			seen[e.ElementKey] = true
			e.Life = &nft.Life{Timeout: ruleset.AffinityTimeout(f), Expires: ruleset.AffinityTimeout(f)}
			if r.Left > 0 {
				e.Life.Expires = min(r.Left, e.Life.Timeout)
			}
			a.Batch.Add(&e)
		}
	}
}

type protocolBackend struct {
	protocol model.Protocol
	backend  netip.AddrPort
}

// affineFrontends are the frontends with session affinity, by their backends.
func (a *adoption) affineFrontends() map[protocolBackend][]state.FrontendKey {
	by := map[protocolBackend][]state.FrontendKey{}
	for k, f := range a.want.Services.Frontends {
		if ruleset.AffinityTimeout(f) == 0 {
			continue
		}
		for _, b := range f.Backends {
			by[protocolBackend{k.Protocol, b}] = append(by[protocolBackend{k.Protocol, b}], k)
		}
	}
	return by
}
