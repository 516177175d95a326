package driver

import (
	"context"
	"log/slog"
	"net/netip"
	"slices"
	"time"

	"sluice.dev/sluice/internal/model"
	"sluice.dev/sluice/internal/state"
)

// Recall yields where another program has sent clients of services with session affinity, with each
// frontend for which that backend is one. It asks Options.Remembered; nil: there is no such
// program.
func Recall(ctx context.Context, log *slog.Logger, remembered func(context.Context) ([]state.Remembered, error), s *state.Services,
	yield func(state.FrontendKey, *state.Frontend, state.Remembered)) {
	if remembered == nil {
		return
	}
	list, err := remembered(ctx)
	if err != nil {
		log.Warn("clients with session affinity may be balanced anew: what another program remembers of them cannot be read", "error", err)
	}
	type backend struct {
		protocol model.Protocol
		at       netip.AddrPort
	}
	frontends := map[backend][]state.FrontendKey{}
	for k, f := range s.Frontends {
		if f.Affinity < time.Second {
			continue
		}
		for _, b := range slices.Concat(f.Backends, f.Local) {
			of := backend{k.Protocol, b}
			if !slices.Contains(frontends[of], k) {
				frontends[of] = append(frontends[of], k)
			}
		}
	}
	for _, r := range list {
		for _, k := range frontends[backend{r.Protocol, r.Backend}] {
			f := s.Frontends[k]
			if own := r.Service == (model.Name{}) || r.Service == f.Service && r.Port == f.Port; own && r.Client.Is4() == k.Addr.Is4() {
				yield(k, f, r)
			}
		}
	}
}
