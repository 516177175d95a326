package compile

import (
	"sluice.dev/sluice/internal/model"
	"sluice.dev/sluice/internal/store"
)

// EndpointView is an endpoint of one port of a service as people see it on this node.
type EndpointView struct {
	PortName string     `json:"portName,omitempty"` // of the service's port
	Protocol string     `json:"protocol"`
	Address  string     `json:"address"` // with the port
	Pod      *model.Ref `json:"pod,omitempty"`
	Node     string     `json:"node,omitempty"`
	Zone     string     `json:"zone,omitempty"`

	Ready       bool `json:"ready"`
	Serving     bool `json:"serving"`
	Terminating bool `json:"terminating"`

	// Inside is whether this node sends connections to the service's cluster IPs there (of a
	// headless service, whether DNS gives it to clients), and Outside
	// whether it sends those there that come from outside to its other addresses; nil: it has none.
	Inside  Choice  `json:"inside"`
	Outside *Choice `json:"outside,omitempty"`
}

// Choice is whether an endpoint is chosen.
type Choice struct {
	Chosen bool   `json:"chosen"`
	WhyNot string `json:"whyNot,omitempty"`
}

// Endpoints returns the endpoints of a service as of the last Update, in any condition, by port and
// address. They come from what the store holds now. There are none of a service that is not
// programmed, unless it is headless.
func (c *Compiler) Endpoints(v *store.View, name model.Name) (views []EndpointView) {
	s := c.all[name]
	if s == nil || s.gone || s.why != "" && s.why != model.Headless {
		return nil
	}
	b := &builder{environment: c.env, report: report{svc: s.svc, families: familiesOf(s.svc)}, next: s}
	if s.why == model.Headless {
		b.families = families{four: true, six: true}
	}
	b.from = newObjects(s.svc, v.Slices(name), v.Selected(s.svc))
	b.checkSlices(b.from.slices)
	for i := range s.svc.Ports {
		port := &s.svc.Ports[i]
		if !b.checkPort(port) {
			continue
		}
		four, six := byFamily(b.gather(i))
		views = append(views, b.endpointViews(v, port, four, true)...)
		views = append(views, b.endpointViews(v, port, six, false)...)
	}
	return views
}

// endpointViews are those of one port and family.
func (b *builder) endpointViews(v *store.View, port *model.ServicePort, eps []endpoint, is4 bool) (views []EndpointView) {
	cluster, local := b.judges(eps)
	addrs := b.addresses(port, is4)
	inside, outside := counted(cluster), counted(cluster)
	if b.svc.InternalLocal {
		inside = counted(local)
	}
	if b.svc.ExternalLocal {
		outside = counted(local)
	}
	for i := range eps {
		e := &eps[i]
		view := EndpointView{
			PortName: port.Name, Protocol: port.Protocol.String(), Address: e.at.String(),
			Ready: e.ready, Serving: e.serving, Terminating: e.terminating, Inside: inside(e),
		}
		if addrs.external() {
			view.Outside = new(outside(e))
		}
		pod := e.pod
		if pod == nil {
			pod = v.PodByAddr(e.at.Addr())
		}
		if pod != nil {
			view.Pod, view.Node = &model.Ref{Kind: model.PodKind, Name: pod.Name}, pod.Node
		}
		if e.from != nil {
			view.Node, view.Zone = e.from.Node, e.from.Zone
		}
		if node := v.Node(view.Node); node != nil && view.Zone == "" {
			view.Zone = node.Zone()
		}
		views = append(views, view)
	}
	return views
}

// counted is a judge for people, who knows how many a frontend can have.
func counted(by judge) func(*endpoint) Choice {
	n := 0
	return func(e *endpoint) Choice {
		r := by(e)
		if r == chosen {
			if n++; n > maxBackends {
				r = beyond
			}
		}
		return Choice{r == chosen, r.String()}
	}
}
