package compile

import (
	"cmp"
	"maps"
	"net/netip"
	"strings"

	"sluice.dev/sluice/internal/model"
	"sluice.dev/sluice/internal/state"
	"sluice.dev/sluice/internal/store"
)

// Elsewhere is the desired state of another node, as far as it can be known here.
type Elsewhere struct {
	State *state.State
	// Uplinks are interfaces of which one leads to other nodes and to the outside: a plain one, and
	// one for each host endpoint that names an interface or an address.
	Uplinks []int
	// DenyLists: it has lists of what it drops where it arrives, which are not in State.
	DenyLists bool
	// Lists: policies that are in State ask for address lists, which each node has from files of
	// its own. State has those of this node.
	Lists bool
}

// Elsewhere returns a function that compiles the state of another node, whose agent runs with the
// same flags, for the objects in a store. It is called once, and asks c nothing any more. It
// assumes that each pod of the node has an interface of its own, as nothing here says otherwise.
// Limits on all policies of a cluster together do not apply, as the store does not hold all pods.
func (c *Compiler) Elsewhere(node string) func(*store.Store) Elsewhere {
	cfg := c.cfg
	cfg.Config, cfg.elsewhere = c.Services.Config(), true
	e := Elsewhere{DenyLists: cfg.Policy && len(cfg.DenyLists) > 0}
	cfg.Node, cfg.HostAddresses, cfg.PrimaryAddr, cfg.DenyLists, cfg.DenyDevices = node, nil, netip.Addr{}, nil, nil
	cfg.Addresses = false
	other, refused := New(cfg), maps.Clone(c.Services.Denied()) // services that exceed a limit together with all others
	other.SetPodsUnread(c.unread)
	return func(s *store.Store) Elsewhere {
		var links model.Links
		s.Read(func(v *store.View) { links, e.Uplinks = assumedLinks(v, node) })
		other.SetLinks(links)
		other.Update(s, store.Dirty{})
		e.State = other.State()
		maps.DeleteFunc(e.State.Services.Frontends, func(_ state.FrontendKey, f *state.Frontend) bool { return refused[f.Service] })
		if e.State.Policy != nil {
			for _, list := range e.State.Policy.Lists {
				e.Lists = e.Lists || strings.HasPrefix(list.Name, string(model.AddressList)+" ")
			}
		}
		return e
	}
}

// assumedLinks gives each pod of a node an interface, and the node its uplinks.
func assumedLinks(v *store.View, node string) (l model.Links, uplinks []int) {
	add := func(link model.Link) int {
		link.Index = len(l.Links) + 1
		l.Links = append(l.Links, link)
		return link.Index
	}
	uplinks = append(uplinks, add(model.Link{Name: "*", Host: true})) // no interface has that name
	for _, h := range v.HostEndpoints() {
		if h.Node == node && h.Interface != "*" {
			uplinks = append(uplinks, add(model.Link{Name: cmp.Or(h.Interface, "of its address"), Host: true, Addresses: h.Addresses}))
		}
	}
	for _, pod := range v.Pods() {
		if pod.Node != node || pod.HostNetwork || pod.Finished {
			continue
		}
		device := add(model.Link{Name: pod.Name.String(), Pod: true})
		for _, a := range pod.IPs {
			a = a.Unmap()
			l.Routes = append(l.Routes, model.LinkRoute{Prefix: netip.PrefixFrom(a, a.BitLen()), Link: device})
		}
	}
	return l, uplinks
}
