package agent

import (
	"context"
	"fmt"
	"maps"
	"net/netip"
	"slices"

	"sluice.dev/sluice/internal/model"
	"sluice.dev/sluice/internal/policy/lint"
	"sluice.dev/sluice/internal/policy/question"
	services "sluice.dev/sluice/internal/services/compile"
	"sluice.dev/sluice/internal/state"
	"sluice.dev/sluice/internal/store"
)

// ServiceReport is one service with its endpoints, as this node has it. Its issues are also those
// of its EndpointSlices.
type ServiceReport struct {
	services.ServiceView
	EndpointList []EndpointReport `json:"endpointList"`
	// NoFlows is why flows are not counted.
	NoFlows string `json:"noFlows,omitempty"`
}

// EndpointReport is an endpoint, with the flows that go there.
type EndpointReport struct {
	services.EndpointView
	// Flows counts what goes from the service's addresses to this endpoint: entries of this node's
	// connection tracking, and sockets that were translated; nil: they could not be read. What
	// another node has translated does not count.
	Flows     *int `json:"flows,omitempty"`
	AtSockets int  `json:"atSockets,omitempty"` // of Flows, the sockets
}

// Flows are numbers of flows from frontends to their backends.
type Flows = map[state.FrontendKey]map[netip.AddrPort]int

// Sockets are those of a node and its pods that are translated when they connect to a frontend, so
// that their packets need not be. It is safe for concurrent use.
type Sockets interface {
	// Serves reports whether a client of this node gets a frontend's backend at the socket.
	Serves(client netip.Addr, k state.FrontendKey) bool
	// Flows counts the sockets that are connected to backends of frontends.
	Flows([]state.FrontendKey) (Flows, error)
}

// Service returns one service with its endpoints; safe for concurrent use. Where there is none, the
// error names those with similar names.
func (a *Agent) Service(ctx context.Context, name model.Name) (ServiceReport, error) {
	if !a.Store.Synced() {
		return ServiceReport{}, errNotSynced
	}
	var r ServiceReport
	var endpoints []services.EndpointView
	var err error
	var issues []model.Issue
	found := a.issues()
	a.compiling.Lock()
	view, known := a.Compiler.Services.View(name)
	ports := a.Compiler.Services.Serves(name)
	a.Store.Read(func(v *store.View) {
		if !known {
			err = unknownService(v, name)
			return
		}
		view.Unserved = unserved(v, &view)
		endpoints = a.Compiler.Services.Endpoints(v, name)
		issues = issuesOf(v, name, found)
	})
	a.compiling.Unlock()
	if err != nil {
		return ServiceReport{}, err
	}
	r.ServiceView, r.Issues = view, notes(issues, "")
	flows, err := a.flows(ctx, ports)
	if err != nil {
		r.NoFlows = err.Error()
	}
	r.EndpointList = make([]EndpointReport, 0, len(endpoints))
	for _, e := range endpoints {
		report := EndpointReport{EndpointView: e}
		if flows != nil {
			n := flows[flowsTo{e.PortName, e.Protocol, e.Address}]
			report.Flows, report.AtSockets = new(n.all), n.atSockets
		}
		r.EndpointList = append(r.EndpointList, report)
	}
	return r, nil
}

// unserved says why ports of a service have no endpoint, where its frontends have none.
func unserved(v *store.View, view *services.ServiceView) (reasons []string) {
	svc := v.Service(model.Name{Namespace: view.Namespace, Name: view.Name})
	if svc == nil || !slices.ContainsFunc(view.Frontends, func(f services.FrontendView) bool { return f.Backends == 0 }) {
		return nil
	}
	for i := range svc.Ports {
		port := &svc.Ports[i]
		for _, a := range svc.ClusterIPs {
			if why := lint.Unserved(v, svc, port, a.Unmap().Is4()); why != "" {
				reasons = append(reasons, fmt.Sprintf("port %d: %s", port.Port, why))
			}
		}
	}
	return slices.Compact(reasons)
}

// unknownService says that there is no service of the name.
func unknownService(v *store.View, name model.Name) error {
	if v.Service(name) != nil {
		return fmt.Errorf("service %s has just come and is not programmed yet: ask again", name)
	}
	var names []string
	for _, n := range v.ServiceNames() {
		names = append(names, n.String())
	}
	return question.Unknown("service", name.String(), name, names, "'sluice services' lists those that there are")
}

// issuesOf are those of a service and of its slices, of which the reason names the slice.
func issuesOf(v *store.View, name model.Name, all []model.Issue) (issues []model.Issue) {
	for _, i := range all {
		if i.Object == (model.Ref{Kind: model.ServiceKind, Name: name}) {
			issues = append(issues, i)
		}
		for _, s := range v.Slices(name) {
			if i.Object == (model.Ref{Kind: model.EndpointSliceKind, Name: s.Name}) {
				i.Reason = i.Object.String() + ": " + i.Reason
				issues = append(issues, i)
			}
		}
	}
	return issues
}

// flowsTo names the flows of a service's port to an endpoint.
type flowsTo struct{ port, protocol, endpoint string }

type flowCount struct{ all, atSockets int }

// flows counts the flows from frontends, of which the names of their ports are given. They are nil
// if they cannot be read.
func (a *Agent) flows(ctx context.Context, ports map[state.FrontendKey]string) (map[flowsTo]flowCount, error) {
	if a.Flows == nil {
		return nil, nil
	}
	keys := slices.Collect(maps.Keys(ports))
	flows := map[flowsTo]flowCount{}
	add := func(found Flows, socket int) {
		for key, backends := range found {
			for backend, n := range backends {
				to := flowsTo{ports[key], key.Protocol.String(), backend.String()}
				sum := flows[to]
				flows[to] = flowCount{sum.all + n, sum.atSockets + n*socket}
			}
		}
	}
	inPackets, err := a.Flows(ctx, keys)
	if err != nil {
		return nil, err
	}
	add(inPackets, 0)
	if a.Sockets != nil {
		atSockets, err := a.Sockets.Flows(keys)
		if err != nil {
			return nil, err
		}
		add(atSockets, 1)
	}
	return flows, nil
}

// Names are those of what can be asked about: pods, services and policies as NAMESPACE/NAME, or
// NAME where there is no namespace.
type Names struct {
	Pods     []string `json:"pods"`
	Services []string `json:"services"`
	Policies []string `json:"policies"`
	Nodes    []string `json:"nodes"`
}

// Names returns all names, sorted; safe for concurrent use.
func (a *Agent) Names() (n Names) {
	a.Store.Read(func(v *store.View) {
		for _, pod := range v.Pods() {
			n.Pods = append(n.Pods, pod.Name.String())
		}
		for _, svc := range v.ServiceNames() {
			n.Services = append(n.Services, svc.String())
		}
		for _, p := range v.Policies() {
			n.Policies = append(n.Policies, p.Key.Name.String())
		}
		n.Nodes = slices.Clone(v.NodeNames())
	})
	for _, list := range []*[]string{&n.Pods, &n.Services, &n.Policies, &n.Nodes} {
		slices.Sort(*list)
		*list = slices.Compact(*list)
	}
	return n
}
