package policy

import (
	"fmt"
	"maps"
	"net/netip"
	"slices"

	"sluice.dev/sluice/internal/compile/diff"
	"sluice.dev/sluice/internal/model"
	"sluice.dev/sluice/internal/state"
)

// hosts are the host endpoints of this node, with the interfaces that they cover.
type hosts struct {
	node     string
	links    *links
	all      map[string]*endpoint
	assigned map[int]*endpoint      // by the index of the interface
	stale    bool                   // host endpoints, their programs or interfaces changed
	marked   map[*endpoint]struct{} // see endpoints.marked
	now      map[int]*state.Host
	table    diff.Map[int, state.Host]
}

// set follows a host endpoint that may be, or have been, of this node.
func (h *hosts) set(name string, next *item) {
	e := h.all[name]
	if next != nil && next.host.Node != h.node {
		next = nil
	}
	switch {
	case e == nil && next == nil:
		return
	case e == nil:
		e = &endpoint{}
		h.all[name] = e
	case next == nil:
		delete(h.all, name)
	}
	e.item, h.stale, h.marked[e] = next, true, struct{}{}
}

// assign gives each interface the host endpoint that covers it: one that names it, then one that
// has an address of it, then one for all of the node's own; the first by name among equals. It
// marks the host endpoints that came to have an interface, or lost their last one.
func (h *hosts) assign() {
	if !h.stale {
		return
	}
	h.assigned = map[int]*endpoint{}
	linked := map[*endpoint]bool{}
	for i := range h.links.Links.Links {
		l := &h.links.Links.Links[i]
		if e := h.covering(l); e != nil {
			h.assigned[l.Index] = e
			linked[e] = true
		}
	}
	for _, e := range h.all {
		if e.linked != linked[e] {
			e.linked = linked[e]
			h.marked[e] = struct{}{}
		}
	}
}

func (h *hosts) covering(l *model.Link) *endpoint {
	var best *endpoint
	rank := 0
	for _, name := range slices.Sorted(maps.Keys(h.all)) {
		if r := coverage(h.all[name].item.host, l); r > rank {
			best, rank = h.all[name], r
		}
	}
	return best
}

// coverage says how well a host endpoint fits an interface; 0: not at all.
func coverage(h *model.HostEndpoint, l *model.Link) int {
	switch {
	case l.Pod:
		return 0
	case h.Interface == l.Name:
		return 3
	case h.Interface == "" && slices.ContainsFunc(h.Addresses, func(a netip.Addr) bool { return slices.Contains(l.Addresses, plain(a)) }):
		return 2
	case h.Interface == "*" && l.Host && l.Name != "lo":
		return 1
	}
	return 0
}

// publish writes which host endpoint is at which interface, with its programs.
func (h *hosts) publish() {
	if !h.stale {
		return
	}
	h.stale = false
	for index := range h.now {
		if h.assigned[index] == nil {
			h.table.Set(index, nil)
		}
	}
	for index, e := range h.assigned {
		h.table.Set(index, &state.Host{
			Name: e.item.host.Name, Device: h.links.byIndex[index].Name,
			Input: e.program(hostInput), Output: e.program(hostOutput),
			ForwardIn: e.program(hostForwardIn), ForwardOut: e.program(hostForwardOut),
			PreDNAT:     e.program(hostPreDNAT),
			UntrackedIn: e.program(hostUntrackedIn), UntrackedOut: e.program(hostUntrackedOut),
		})
	}
}

// issues names host endpoints that cover no interface.
func (h *hosts) issues() (all []model.Issue) {
	if !h.links.known {
		return nil
	}
	for name, e := range h.all {
		if e.linked {
			continue
		}
		reason := "no interface of this node has an address of it"
		if iface := e.item.host.Interface; iface != "" {
			reason = fmt.Sprintf("interface %q is not one of the node's own", iface)
		}
		for i := range h.links.Links.Links {
			if l := &h.links.Links.Links[i]; coverage(e.item.host, l) > 0 {
				reason = fmt.Sprintf("interface %q belongs to HostEndpoint %s", l.Name, h.assigned[l.Index].item.host.Name)
				break
			}
		}
		all = append(all, model.Ref{Kind: model.HostEndpointKind, Name: model.Name{Name: name}}.Issue(reason+", so nothing is programmed for it"))
	}
	return all
}
