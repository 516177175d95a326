package compile

import (
	"cmp"
	"maps"
	"slices"

	"sluice.dev/sluice/internal/model"
	"sluice.dev/sluice/internal/state"
)

// Counts are numbers of endpoints. Of a service with several ports or both families they are the
// largest of any one port and family.
type Counts struct {
	Ready       int `json:"ready"`
	Serving     int `json:"serving"`
	Terminating int `json:"terminating"`
	Local       int `json:"local"` // on this node, ready or serving
}

// widen takes in the counts of one port and family.
func (n *Counts) widen(eps []endpoint) {
	var o Counts
	for i := range eps {
		e := &eps[i]
		o.Ready += one(e.ready)
		o.Serving += one(e.serving)
		o.Terminating += one(e.terminating)
		o.Local += one(e.local && (e.ready || e.serving))
	}
	n.Ready, n.Serving = max(n.Ready, o.Ready), max(n.Serving, o.Serving)
	n.Terminating, n.Local = max(n.Terminating, o.Terminating), max(n.Local, o.Local)
}

func one(b bool) int {
	if b {
		return 1
	}
	return 0
}

// ServiceView is a service as people see it on this node.
type ServiceView struct {
	Namespace string         `json:"namespace"`
	Name      string         `json:"name"`
	Type      string         `json:"type"` // the widest of "ClusterIP", "NodePort", "LoadBalancer", judged by what it has
	Unproxied string         `json:"unproxied,omitempty"`
	Frontends []FrontendView `json:"frontends"`
	Endpoints Counts         `json:"endpoints"`
	Unserved  []string       `json:"unserved,omitempty"` // why ports have no endpoint, as lint.Unserved has it
	Issues    []string       `json:"issues,omitempty"`
}

// FrontendView is one address and port of a service.
type FrontendView struct {
	Kind     string `json:"via"` // "ClusterIP", "NodePort", …
	Address  string `json:"address"`
	Port     uint16 `json:"port"`
	Protocol string `json:"protocol"`
	PortName string `json:"portName,omitempty"`
	// Backends that a connection from inside may go to, and those on this node that one from
	// outside may under externalTrafficPolicy Local.
	Backends int  `json:"backends"`
	Local    *int `json:"local,omitempty"`
	// HeldBy is the service that has this address and port instead; empty: this one has it.
	HeldBy string `json:"heldBy,omitempty"`
}

// Views returns all services as of the last Update, without their issues, sorted by name.
func (c *Compiler) Views() []ServiceView {
	views := make([]ServiceView, 0, len(c.all))
	for _, name := range slices.SortedFunc(maps.Keys(c.all), model.Name.Compare) {
		if v, ok := c.View(name); ok {
			views = append(views, v)
		}
	}
	return views
}

// View returns one service as of the last Update, without its issues; not ok: there is none.
func (c *Compiler) View(name model.Name) (v ServiceView, ok bool) {
	s := c.all[name]
	if s == nil || s.gone {
		return v, false
	}
	return ServiceView{
		Namespace: name.Namespace, Name: name.Name,
		Type:      s.kind(),
		Unproxied: s.why,
		Frontends: c.frontendViews(s),
		Endpoints: s.counts,
	}, true
}

func (c *Compiler) frontendViews(s *service) []FrontendView {
	views := make([]FrontendView, 0, len(s.claims))
	for _, cl := range s.claims {
		f := cl.frontend
		v := FrontendView{
			Kind: f.Kind.String(), Address: cl.key.Addr.String(), Port: cl.key.Port,
			Protocol: cl.key.Protocol.String(), PortName: f.Port, Backends: len(f.Backends),
		}
		if f.LocalOnly {
			n := len(f.Local)
			v.Local = &n
		}
		if holder := c.now.Frontends[cl.key]; holder != nil && holder.Service != s.svc.Name {
			v.HeldBy = holder.Service.String()
		}
		views = append(views, v)
	}
	return views
}

// Serves returns the frontends that lead to the service as of the last Update, with the names of
// its ports.
func (c *Compiler) Serves(name model.Name) map[state.FrontendKey]string {
	ports := map[state.FrontendKey]string{}
	for _, cl := range cmp.Or(c.all[name], none).claims {
		if f := c.now.Frontends[cl.key]; f != nil && f.Service == name {
			ports[cl.key] = f.Port
		}
	}
	return ports
}

// kind is the service's type as far as one can tell.
func (s *service) kind() string {
	switch {
	case len(s.svc.LoadBalancerIPs) > 0 || s.svc.HealthCheckNodePort != 0:
		return state.LoadBalancer.String()
	case slices.ContainsFunc(s.svc.Ports, func(p model.ServicePort) bool { return p.NodePort != 0 }):
		return state.NodePort.String()
	}
	return state.ClusterIP.String()
}
