package compile

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"

	"sluice.dev/sluice/internal/model"
	"sluice.dev/sluice/internal/state"
)

// Issues returns what is wrong with services, and with the own node, as of the last Update.
func (c *Compiler) Issues() (list []model.Issue) {
	for _, issues := range c.faults {
		list = append(list, issues...)
	}
	for _, reason := range c.nodeFaults() {
		list = append(list, model.Ref{Kind: model.NodeKind, Name: model.Name{Name: c.env.cfg.Node}}.Issue(reason))
	}
	return append(list, c.clashes()...)
}

// nodeFaults says what is wrong with the own node.
func (c *Compiler) nodeFaults() (reasons []string) {
	e := c.env
	for family, is4 := range [...]bool{true, false} {
		if c.nodePorts[family] > 0 && e.cfg.serves(is4) && len(inFamily(e.node.nodePort, is4)) == 0 {
			reasons = append(reasons, fmt.Sprintf("no %s address of it is known or chosen, so node ports are not served there: "+
				"it needs a Node object with such an address, and --nodeport-addresses, if given, must cover one", model.FamilyName(is4)))
		}
	}
	if e.gone {
		reasons = append(reasons, "its Node object is gone: what it said last counts until the agent ends")
	}
	if len(e.others) > 0 {
		reasons = append(reasons, "there is no Node object of this name, so nothing is taken for this node's: its pods, their policies, its addresses; "+
			"what pods send and get passes unless a policy of a known one forbids it; give --node the name of one of those there are: "+model.FirstFew(e.others, 5))
	}
	return reasons
}

// clashes names the services that have not got what they claim.
func (c *Compiler) clashes() (list []model.Issue) {
	for key, rivals := range c.frontends.contested {
		why := ""
		if rivals.order[0] != rivals.oldest() {
			why = "whose cluster IP that is"
		}
		everywhere := true // node ports are contested at each node's own addresses
		for _, r := range rivals.order {
			everywhere = everywhere && r.wants.Kind != state.NodePort
		}
		list = append(list, rivals.issues(why, key.String(), everywhere)...)
	}
	for port, check := range c.health.now {
		what := fmt.Sprintf("healthCheckNodePort %d", port)
		if rivals := c.health.contested[port]; rivals != nil {
			list = append(list, rivals.issues("", what, true)...)
		}
		answered := map[model.Name][]string{} // where, by each Service with that node port
		for _, addr := range c.env.node.nodePort {
			if f := c.now.Frontends[state.FrontendKey{Addr: addr, Protocol: model.TCP, Port: port}]; f != nil {
				answered[f.Service] = append(answered[f.Service], addr.String())
			}
		}
		for by, addrs := range answered {
			list = append(list, model.Ref{Kind: model.ServiceKind, Name: check.Service}.Issue(fmt.Sprintf("%s is answered at %s by Service %s, which has that port there; give one of them another port", what, model.FirstFew(addrs, 5), by)))
		}
	}
	return list
}

// issues say of each rival but the first that it has not got what it claims. Why is what gives the
// first precedence; empty: its age. Everywhere is that of the issues.
func (x *contest[T]) issues(why, what string, everywhere bool) (list []model.Issue) {
	winner := x.order[0].svc
	for _, r := range x.order[1:] {
		issue := r.svc.Ref().Issue(
			what + " belongs to Service " + winner.Name.String() + ", " + cmp.Or(why, winner.Birth().Precedence(r.svc.Birth())) + "; give one of them another address or port")
		issue.Everywhere = everywhere
		list = append(list, issue)
	}
	return list
}

// families are those that a service has addresses of.
type families struct{ four, six bool }

func (f families) serves(is4 bool) bool  { return is4 && f.four || !is4 && f.six }
func (f families) has(a netip.Addr) bool { return f.serves(a.Is4()) }

// report collects the issues of one service while it is compiled.
type report struct {
	svc      *model.Service
	families families
	issues   []model.Issue
	more     int                    // issues beyond MaxIssues
	faulty   []*model.EndpointSlice // those in which not every endpoint can be used
}

func familiesOf(svc *model.Service) (f families) {
	for _, a := range svc.ClusterIPs {
		if a = a.Unmap(); a.Is4() {
			f.four = true
		} else if a.Is6() {
			f.six = true
		}
	}
	return f
}

// MaxIssues is how many issues of one object are told: a service can have as many as it has ports
// or endpoints, a node as many as it has blocks.
const MaxIssues = 64

// add adds an issue, once.
func (r *report) add(issue model.Issue) {
	switch {
	case slices.Contains(r.issues, issue):
	case len(r.issues) < MaxIssues:
		r.issues = append(r.issues, issue)
	default:
		r.more++
	}
}

// all returns the issues.
func (r *report) all() []model.Issue {
	if r.more == 0 {
		return r.issues
	}
	return append(r.issues, model.Ref{Kind: model.ServiceKind, Name: r.svc.Name}.Issue(fmt.Sprintf("and %d more", r.more)))
}

func (r *report) service(reason string) {
	r.add(model.Ref{Kind: model.ServiceKind, Name: r.svc.Name}.Issue(reason))
}

// refused adds what the service may not have.
func (r *report) refused(what, why string) {
	issue := model.Ref{Kind: model.ServiceKind, Name: r.svc.Name}.Issue(what + " " + why + ", it is left out")
	issue.Refused = true
	r.add(issue)
}

func (r *report) slice(slice *model.EndpointSlice, reason string) {
	r.add(model.Ref{Kind: model.EndpointSliceKind, Name: slice.Name}.Issue(reason))
}

// checkPort reports whether a service port can be served.
func (r *report) checkPort(p *model.ServicePort) bool {
	switch {
	case p.Port == 0:
		r.service(fmt.Sprintf("port %q: 0 is out of range (1 to 65535), the port is left out", p.Name))
	case p.Protocol != model.TCP && p.Protocol != model.UDP && p.Protocol != model.SCTP:
		r.service(fmt.Sprintf("port %d: its protocol is none of TCP, UDP and SCTP, the port is left out", p.Port))
	default:
		return true
	}
	return false
}

// checkSlices reports what is wrong with the addresses of slices, one issue a slice for each sort
// of fault.
func (r *report) checkSlices(list []*model.EndpointSlice) {
	for _, slice := range list {
		is4 := isIPv4(slice)
		var bad map[string][]netip.Addr
		for i := range slice.Endpoints {
			a := slice.Endpoints[i].Addr.Unmap()
			if why := r.fault(a, is4); why != "" {
				if bad == nil {
					bad = map[string][]netip.Addr{}
				}
				bad[why] = append(bad[why], a)
			}
		}
		if bad != nil {
			r.faulty = append(r.faulty, slice)
		}
		for why, addrs := range bad {
			what := "endpoint " + addrs[0].String()
			if n := len(addrs) - 1; n > 0 {
				what += fmt.Sprintf(" and %d more", n)
			}
			r.slice(slice, what+": "+why+", left out")
		}
	}
}

// isIPv4 reports whether a slice is of that family, which is that of its first endpoint.
func isIPv4(slice *model.EndpointSlice) bool {
	of4, of6 := decidesOn(slice)
	return of4 && !of6
}

// fault says why an endpoint can't be used in a slice of the family; empty: it can.
func (r *report) fault(a netip.Addr, is4 bool) string {
	if why := model.Unusable(a); why != "" {
		return why
	}
	if a.Is4() != is4 {
		return model.FamilyName(a.Is4()) + " in a slice of " + model.FamilyName(is4)
	}
	if !r.families.has(a) {
		return "the service has no " + model.FamilyName(a.Is4()) + " address"
	}
	return ""
}

// limit returns as many backends as a frontend can have.
func (r *report) limit(p *model.ServicePort, list []netip.AddrPort) []netip.AddrPort {
	if len(list) <= maxBackends {
		return list
	}
	r.service(fmt.Sprintf("port %d has %d endpoints; connections go to the first %d only", p.Port, len(list), maxBackends))
	return list[:maxBackends:maxBackends]
}
