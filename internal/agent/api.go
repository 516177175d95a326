package agent

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strconv"

	"sluice.dev/sluice/internal/model"
	"sluice.dev/sluice/internal/policy/question"
	"sluice.dev/sluice/internal/reconcile"
	services "sluice.dev/sluice/internal/services/compile"
	"sluice.dev/sluice/internal/source"
	"sluice.dev/sluice/internal/store"
)

// Plan is what the agent would do to the kernel.
type Plan struct {
	Operations int    `json:"operations"`
	Text       string `json:"text"` // one operation a line
}

// failure is the body of every answer that is not 200.
type failure struct {
	Error  string        `json:"error"`
	Issues []model.Issue `json:"issues,omitempty"`
}

// errNotSynced tells why nothing is planned or programmed yet.
var errNotSynced = errors.New("the source, or the node's interfaces, have not been read in full yet")

// errBalancer is the answer of a balancer to what is asked of a cluster's agent.
var errBalancer = errors.New("this is a balancer (sluice balance), which has farms, and neither services nor policies: 'sluice farms' lists their backends, and says why one gets no connections")

// handler serves the API of the Unix socket. Whoever can open the socket may use all of it.
func (a *Agent) handler() http.Handler {
	mux := http.NewServeMux()
	cluster := func(pattern string, serve http.HandlerFunc) {
		if a.FarmCounter != nil {
			serve = answer(func(*http.Request) (any, error) { return nil, errBalancer })
		}
		mux.HandleFunc(pattern, serve)
	}
	mux.HandleFunc("GET /v1/status", answer(func(r *http.Request) (any, error) { return a.fullStatus(r.Context()), nil }))
	mux.HandleFunc("GET /v1/names", answer(func(*http.Request) (any, error) { return a.Names(), nil }))
	mux.HandleFunc("GET /v1/farms", answer(func(r *http.Request) (any, error) { return a.Farms(r.Context()) }))
	mux.HandleFunc("GET /v1/plan", answer(func(r *http.Request) (any, error) { return a.Plan(r.Context()) }))
	cluster("GET /v1/services", answer(func(*http.Request) (any, error) { return a.Services(), nil }))
	cluster("GET /v1/services/{namespace}/{name}", answer(func(r *http.Request) (any, error) {
		return a.Service(r.Context(), model.Name{Namespace: r.PathValue("namespace"), Name: r.PathValue("name")})
	}))
	cluster("GET /v1/addresses", answer(func(*http.Request) (any, error) { return a.addresses() }))
	cluster("GET /v1/fabric", answer(func(*http.Request) (any, error) { return a.fabricReport() }))
	cluster("GET /v1/bgp", answer(func(*http.Request) (any, error) { return a.bgpReport() }))
	cluster("GET /v1/policies", answer(func(r *http.Request) (any, error) { return a.Policies(r.Context()) }))
	cluster("GET /v1/why", answer(func(r *http.Request) (any, error) {
		q := r.URL.Query()
		family, _ := strconv.Atoi(q.Get("family"))
		return a.Explain(r.Context(), question.Question{
			From: question.ParseEnd(q.Get("from")), To: question.ParseEnd(q.Get("to")),
			Port: q.Get("port"), Protocol: q.Get("protocol"), Family: family, Via: q.Get("via"), Suggest: q.Has("suggest"),
		})
	}))
	cluster("GET /v1/drops", a.serveDrops)
	mux.HandleFunc("POST /v1/sync", answer(func(r *http.Request) (any, error) {
		ctx, cancel := limited(r)
		defer cancel()
		return struct{}{}, a.Sync(ctx)
	}))
	a.handleAttachments(mux)
	return mux
}

// answer serves what a function returns.
func answer(f func(*http.Request) (any, error)) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		v, err := f(r)
		reply(w, v, err)
	}
}

func reply(w http.ResponseWriter, v any, err error) {
	if err == nil {
		writeJSON(w, http.StatusOK, v)
		return
	}
	f := failure{Error: err.Error()}
	if fault, ok := errors.AsType[*FaultError](err); ok {
		f.Issues = fault.Issues
	}
	writeJSON(w, http.StatusConflict, f)
}

// Services returns the services that are wanted on this node, with all their issues, and then the
// faulty services of which nothing is in force; safe for concurrent use.
func (a *Agent) Services() []services.ServiceView {
	faults := byObject(a.issues())
	a.compiling.Lock()
	views := a.Compiler.Services.Views()
	a.compiling.Unlock()
	for i, v := range views {
		service := model.Ref{Kind: model.ServiceKind, Name: model.Name{Namespace: v.Namespace, Name: v.Name}}
		views[i].Issues = notes(faults[service], "")
		delete(faults, service)
	}
	known := len(views)
	for _, ref := range slices.SortedFunc(maps.Keys(faults), model.Ref.Compare) {
		if ref.Kind == model.ServiceKind && ref.Name.Name != "" {
			views = append(views, services.ServiceView{Namespace: ref.Name.Namespace, Name: ref.Name.Name, Frontends: []services.FrontendView{}, Issues: notes(faults[ref], "")})
		}
	}
	a.Store.Read(func(v *store.View) {
		for i := range views[:known] {
			views[i].Unserved = unserved(v, &views[i])
		}
	})
	return views
}

// Plan compares the whole wanted state with the kernel and returns what would be done to it; safe
// for concurrent use. (The agent does it soon after, if it can.)
func (a *Agent) Plan(ctx context.Context) (Plan, error) {
	var p Plan
	var failed error
	done := make(chan struct{})
	err := a.ask(ctx, func(l *loop) {
		defer close(done)
		p, failed = l.plan(ctx)
	})
	if err != nil {
		return Plan{}, err
	}
	<-done // the loop has taken the question, and answers before it does anything else
	return p, failed
}

// Sync returns once the kernel has everything that the source holds at the time of the call, and
// the connections that may not go on have ended. An error says why it has not; it is a *FaultError
// if only objects are at fault and all others are programmed: each kind could be read, and the
// kernel keeps nothing for objects that could not. Safe for concurrent use.
func (a *Agent) Sync(ctx context.Context) error {
	if err := a.Source.Flush(ctx); err != nil {
		return fmt.Errorf("read source: %w", err)
	}
	if err := a.learned(ctx); err != nil {
		return err
	}
	err := a.Wait(ctx, a.Store.Generation())
	fault, objectsAlone := errors.AsType[*FaultError](err)
	if err != nil && !objectsAlone {
		return err
	}
	s := a.Status()
	var missing string
	if s.Kept > 0 {
		missing = Keeping(s.Kept, s.Source.Lacking)
	} else if kinds := neverRead(s.Source); len(kinds) > 0 {
		missing = Unread(kinds)
	}
	switch {
	case missing == "":
		return err
	case objectsAlone:
		return fmt.Errorf("%s\n%s", missing, fault) // no FaultError: there is more
	}
	return errors.New(missing)
}

// neverRead lists the kinds of which nothing was read. Those that the API need not serve, and does
// not, are none of them.
func neverRead(s source.Status) (kinds []model.Kind) {
	for _, k := range s.Kinds {
		if !k.Synced {
			kinds = append(kinds, k.Kind)
		}
	}
	return kinds
}

// Wait returns once the kernel has everything that the store was told up to a generation, and the
// connections that may not go on have ended. If objects are named, it waits only for the parts of
// the state that they belong to. An error says why it has not; it is a *FaultError if only objects
// are at fault: some of the named ones, or any if none is named. Safe for concurrent use.
func (a *Agent) Wait(ctx context.Context, generation uint64, objects ...model.Ref) error {
	done := make(chan error, 1)
	err := a.ask(ctx, func(l *loop) {
		l.waiting = append(slices.DeleteFunc(l.waiting, waiter.abandoned), waiter{ctx, done, generation, partsOf(objects)})
		l.kernel.Hurry()
		l.attempt(ctx)
	})
	if err != nil {
		return err
	}
	select {
	case err = <-done:
	case <-ctx.Done():
		if !a.Store.Synced() {
			return fmt.Errorf("wait for the first read: %w: %w", errNotSynced, ctx.Err())
		}
		return fmt.Errorf("wait for the kernel to have all: %w", ctx.Err())
	}
	if err == nil && len(objects) == 0 && a.fabric != nil {
		if err = a.fabric.Wait(ctx); err != nil {
			err = fmt.Errorf("tunnels and routes to other nodes: %w", err)
		}
	}
	if err == nil && a.AwaitCuts != nil {
		if err = a.AwaitCuts(ctx); err != nil {
			err = fmt.Errorf("wait until connections have ended that may not go on: %w", err)
		}
	}
	if err != nil {
		return err
	}
	issues := a.issues()
	if len(objects) > 0 {
		issues = slices.DeleteFunc(issues, func(i model.Issue) bool { return !slices.Contains(objects, i.Object) })
	}
	if len(issues) > 0 {
		return &FaultError{issues}
	}
	return nil
}

// partsOf returns the parts of the state that objects belong to; none: all.
func partsOf(objects []model.Ref) (parts []reconcile.Part) {
	for _, o := range objects {
		switch o.Kind {
		case model.ServiceKind, model.EndpointSliceKind:
			parts = append(parts, reconcile.Services)
		case model.NetworkPolicy, model.ClusterPolicy, model.CalicoPolicy, model.GlobalNetworkPolicy,
			model.GlobalNetworkSet, model.NamespacedNetworkSet, model.AddressList, model.TierKind, model.HostEndpointKind:
			parts = append(parts, reconcile.Policy)
		default:
			return nil
		}
	}
	return parts
}

// ask has the loop run f between two of its own steps.
func (a *Agent) ask(ctx context.Context, f func(*loop)) error {
	select {
	case a.asks <- f:
		return nil
	case <-ctx.Done():
		return fmt.Errorf("wait for the agent's loop: %w", ctx.Err())
	}
}

// plan compares the wanted state with the kernel. What it finds is programmed with the next
// attempt, which follows at once unless attempts fail at the moment.
func (l *loop) plan(ctx context.Context) (Plan, error) {
	if !l.ready() {
		return Plan{}, errNotSynced
	}
	l.checkSource()
	delta, checks := l.compile()
	l.followUp(delta, checks)
	p, err := l.kernel.Plan(ctx, delta)
	if _, failing := l.kernel.Due(); !failing {
		l.retry.Reset(0)
	}
	if err != nil {
		return Plan{}, err
	}
	return Plan{Operations: p.Len(), Text: p.String()}, nil
}
