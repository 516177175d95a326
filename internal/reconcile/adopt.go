package reconcile

import (
	"context"
	"log/slog"
	"maps"
	"strings"

	"sluice.dev/sluice/internal/driver"
	"sluice.dev/sluice/internal/model"
	"sluice.dev/sluice/internal/state"
)

// Adopt plans to bring the kernel in step with want. Nothing that may be lacking in want is removed
// from the kernel. The frontends in hadEndpoint have had endpoints since the agent started: those
// without any now have lost them.
func Adopt(ctx context.Context, d driver.Driver, want *state.State, lacking Lacking, hadEndpoint map[state.FrontendKey]bool) (driver.Plan, error) {
	return adopt(ctx, d, want, lacking.keep(), hadEndpoint)
}

func adopt(ctx context.Context, d driver.Driver, want *state.State, keep driver.Keep, hadEndpoint map[state.FrontendKey]bool) (driver.Plan, error) {
	if d.Capabilities().Can&driver.Keeps == 0 {
		keep = driver.Keep{}
	}
	if !keep.Services || want.Services == nil {
		return d.Adopt(ctx, want, keep)
	}
	had := *want
	had.Services = withBackends(want.Services, hadEndpoint)
	p, err := d.Adopt(ctx, &had, keep)
	if err == nil && p.Kept().Services == 0 {
		// The kernel has nothing that may be lacking, so those without endpoints are new to it, or
		// were put there by us: they are programmed as they stand, as Update does it.
		return d.Adopt(ctx, want, keep)
	}
	return p, err
}

// standIn is the state of the parts that fail, for a driver that has to write all parts: what the
// driver holds of them, or else a state without any objects. No pod is known in that, so no packet
// of a pod passes.
func standIn(d driver.Driver, want *state.State) *state.State {
	s := &state.State{Services: state.NewServices(), Policy: state.NewPolicy()}
	s.Services.Settings = want.Services.Settings
	s.Policy.PodDevices, s.Policy.HostDevices, s.Policy.PodCIDRs = want.Policy.PodDevices, want.Policy.HostDevices, want.Policy.PodCIDRs
	s.Policy.PodTunnels, s.Policy.Denied = want.Policy.PodTunnels, want.Policy.Denied
	d.Held(func(held *state.State) { s = held.Clone() })
	return s
}

// withBackends returns the services without the frontends that never had an endpoint: their
// endpoints may be lacking, and then the kernel's frontends are better.
func withBackends(want *state.Services, hadEndpoint map[state.FrontendKey]bool) *state.Services {
	s := *want
	s.Frontends = maps.Clone(s.Frontends)
	maps.DeleteFunc(s.Frontends, func(k state.FrontendKey, f *state.Frontend) bool {
		return !hasEndpoints(f) && !hadEndpoint[k]
	})
	return &s
}

func hasEndpoints(f *state.Frontend) bool { return len(f.Backends) > 0 || len(f.Local) > 0 }

// noteEndpoints records which frontends have had endpoints: once a frontend's endpoints were read,
// the kernel's are no better.
func (r *Reconciler) noteEndpoints(d state.Delta) {
	for k, f := range d.Services.Frontends {
		if f != nil && hasEndpoints(f) {
			r.hadEndpoint[k] = true
		}
	}
}

// MaxLogged is how many operations of one plan are logged.
const MaxLogged = 200

// logPlan logs what is about to be done, one operation a line.
func logPlan(log *slog.Logger, p driver.Plan) {
	logged := 0
	for operation := range strings.Lines(p.String()) {
		if logged == MaxLogged {
			log.Debug("plan is longer", "operations", p.Len())
			return
		}
		log.Debug("plan", "operation", strings.TrimSpace(operation))
		logged++
	}
}

// names returns the services that a change concerns, five at the most.
func names(d state.Delta) []string {
	seen := map[model.Name]bool{}
	var list []string
	for _, f := range d.Services.Frontends {
		if f == nil || seen[f.Service] {
			continue
		}
		if len(list) == 5 {
			return append(list, "…")
		}
		seen[f.Service] = true
		list = append(list, f.Service.String())
	}
	return list
}
