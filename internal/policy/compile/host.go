package compile

import (
	"fmt"
	"net/netip"
	"slices"

	"sluice.dev/sluice/internal/lib/diff"
	"sluice.dev/sluice/internal/model"
	"sluice.dev/sluice/internal/policy/compile/objects"
	"sluice.dev/sluice/internal/state"
)

// hosts are the host endpoints of this node, with the interfaces that they cover.
type hosts struct {
	links    *links
	all      map[model.Ref]*endpoint // see endpoints.all
	assigned map[int]*endpoint       // by the index of the interface
	stale    bool                    // host endpoints, their rules or interfaces changed
	marked   map[*endpoint]struct{}  // see endpoints.marked
	now      map[int]*state.Host
	table    diff.Map[int, state.Host]
}

// list returns the host endpoints, the oldest first.
func (h *hosts) list() (list []*endpoint) {
	for _, e := range h.all {
		if e.item.Host != nil {
			list = append(list, e)
		}
	}
	slices.SortFunc(list, func(a, b *endpoint) int { return model.ByBirth(a.item.Host, b.item.Host) })
	return list
}

// How well a host endpoint fits an interface.
const (
	fitsNode = 1 + iota
	fitsAddress
	fitsName
)

// assign gives each interface the host endpoint that covers it: one that names it, then one that
// has an address of it, then one for all of the node's own; the oldest among equals. It marks the
// host endpoints that came to have an interface, or lost their last one.
func (h *hosts) assign() {
	if !h.stale {
		return
	}
	named, addressed, own := map[string]*model.Link{}, map[netip.Addr][]*model.Link{}, []*model.Link{}
	for i := range h.links.Links.Links {
		l := &h.links.Links.Links[i]
		if l.Pod {
			continue
		}
		named[l.Name] = l
		for _, a := range l.Addresses {
			addressed[a] = append(addressed[a], l)
		}
		if l.Host && l.Name != "lo" {
			own = append(own, l)
		}
	}
	h.assigned = map[int]*endpoint{}
	ranks := map[int]int{}
	var everywhere *endpoint // the first for all of the node's own
	list := h.list()
	for _, e := range list {
		e.fits = nil
		fit := func(l *model.Link, rank int) {
			e.fits = l
			if rank > ranks[l.Index] {
				h.assigned[l.Index], ranks[l.Index] = e, rank
			}
		}
		switch host := e.item.Host; {
		case named[host.Interface] != nil:
			fit(named[host.Interface], fitsName)
		case host.Interface == "":
			for _, a := range host.Addresses {
				for _, l := range addressed[objects.Plain(a)] {
					fit(l, fitsAddress)
				}
			}
		case host.Interface != "*" || len(own) == 0:
		case everywhere == nil:
			everywhere = e
			for _, l := range own {
				fit(l, fitsNode)
			}
		default:
			e.fits = own[0]
		}
	}
	linked := map[*endpoint]bool{}
	for _, e := range h.assigned {
		linked[e] = true
	}
	for _, e := range list {
		if e.linked != linked[e] {
			e.linked = linked[e]
			h.marked[e] = struct{}{}
		}
	}
}

// publish writes which host endpoint is at which interface, with its rules.
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
			Name: e.item.Host.Name, Device: h.links.byIndex[index].Name,
			Input: e.rules(hostInput), Output: e.rules(hostOutput),
			ForwardIn: e.rules(hostForwardIn), ForwardOut: e.rules(hostForwardOut),
			PreDNAT:     e.rules(hostPreDNAT),
			UntrackedIn: e.rules(hostUntrackedIn), UntrackedOut: e.rules(hostUntrackedOut),
		})
	}
}

// issues names host endpoints that cover no interface.
func (h *hosts) issues() (all []model.Issue) {
	if !h.links.known {
		return nil
	}
	for _, e := range h.list() {
		if e.linked {
			continue
		}
		reason := "no interface of this node has an address of it"
		if iface := e.item.Host.Interface; iface != "" {
			reason = fmt.Sprintf("interface %q is not one of the node's own", iface)
		}
		if l := e.fits; l != nil {
			reason = fmt.Sprintf("interface %q belongs to HostEndpoint %s", l.Name, h.assigned[l.Index].item.Host.Name)
		}
		all = append(all, e.item.Host.Ref().Issue(reason+", so nothing is programmed for it"))
	}
	return all
}
