package compile

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	address "sluice.dev/sluice/internal/addresses/compile"
	speaker "sluice.dev/sluice/internal/bgp"
	"sluice.dev/sluice/internal/model"
	"sluice.dev/sluice/internal/store"
)

func addr(text string) netip.Addr     { return netip.MustParseAddr(text) }
func prefix(text string) netip.Prefix { return netip.MustParsePrefix(text) }

func prefixes(texts ...string) (list []netip.Prefix) {
	for _, text := range texts {
		list = append(list, prefix(text))
	}
	return list
}

// nodeOf makes a Node of a name, addresses, pod CIDRs, labels, "as=64500" and "rr=192.0.2.9".
func nodeOf(line string) *model.Node {
	words := strings.Fields(line)
	n := &model.Node{Name: words[0], Labels: map[string]string{"name": words[0]}}
	said := func() *model.NodeFabric {
		if n.Fabric == nil {
			n.Fabric = &model.NodeFabric{}
		}
		return n.Fabric
	}
	for _, w := range words[1:] {
		key, value, pair := strings.Cut(w, "=")
		switch {
		case key == "as":
			said().AS, _ = model.ParseAS(value)
		case key == "created":
			n.Created = time.Unix(int64(len(value)), 0)
		case key == "rr":
			said().Cluster = addr(value)
		case key == "leaving":
			n.Leaving = true
		case pair:
			n.Labels[key] = value
		case strings.Contains(w, "/"):
			n.PodCIDRs = append(n.PodCIDRs, prefix(w))
		default:
			n.IPs = append(n.IPs, addr(w))
		}
	}
	return n
}

// world is a store with a compiler that follows it, and what a speaker was told.
type world struct {
	t testing.TB
	*Compiler
	store    *store.Store
	services *address.Compiler
	settings *speaker.Settings
	peers    map[string]*speaker.Peer
	routes   map[netip.Prefix]*speaker.Route
}

var secrets = map[model.SecretRef]string{{Name: "s", Key: "k"}: "hidden", {Namespace: "lb", Name: "s", Key: "password"}: "deep"}

func newWorld(t testing.TB) *world { return newWorldOf(t, "own") }

// newWorldOf is as a node sees it.
func newWorldOf(t testing.TB, node string) *world {
	w := &world{t: t, store: store.New(), services: address.New(address.Config{Node: node, BGP: true}), peers: map[string]*speaker.Peer{}, routes: map[netip.Prefix]*speaker.Route{}}
	w.Compiler = New(Config{Node: node, Services: w.services, Secret: func(ref model.SecretRef) (string, bool) {
		text, ok := secrets[ref]
		return text, ok
	}})
	return w
}

func (w *world) set(objects ...model.Object) { w.apply(events(objects...)) }

func events(objects ...model.Object) (list []store.Event) {
	for _, o := range objects {
		list = append(list, store.Event{Kind: o.Ref().Kind, Name: o.Ref().Name, Object: o})
	}
	return list
}

func (w *world) remove(refs ...model.Ref) {
	events := make([]store.Event, len(refs))
	for i, r := range refs {
		events[i] = store.Event{Kind: r.Kind, Name: r.Name}
	}
	w.apply(events)
}

func (w *world) apply(events []store.Event) {
	w.store.Apply(events)
	w.update()
}

// update has a speaker told what has changed.
func (w *world) update() speaker.Order {
	d := w.store.Take()
	w.store.Read(func(v *store.View) {
		w.services.Update(v, d)
		w.FollowAdverts(v, d)
		w.Update(v, d)
	})
	o := w.Changes()
	if o.Settings != nil {
		w.settings = o.Settings
	}
	for name, p := range o.Peers {
		if w.peers[name] = p; p == nil {
			delete(w.peers, name)
		}
	}
	for to, r := range o.Routes {
		if w.routes[to] = r; r == nil {
			delete(w.routes, to)
		}
	}
	return o
}

// told shows what a speaker was told, sorted.
func (w *world) told() (lines []string) {
	for name, p := range w.peers {
		lines = append(lines, name+": "+showPeer(p))
	}
	for to, r := range w.routes {
		line := to.String()
		for _, a := range r.Announcements {
			line += fmt.Sprintf(" {%s}", showAnnouncement(a))
		}
		lines = append(lines, strings.ReplaceAll(line, " {}", ""))
	}
	slices.Sort(lines)
	return lines
}

func showAnnouncement(a speaker.Announcement) string {
	var parts []string
	if a.Peers != nil {
		parts = append(parts, "to "+strings.Join(a.Peers, ", "))
	}
	if len(a.Communities) > 0 {
		parts = append(parts, "with "+strings.Join(a.Communities, ", "))
	}
	if a.LocalPref > 0 {
		parts = append(parts, fmt.Sprint("pref ", a.LocalPref))
	}
	return strings.Join(parts, " ")
}

// showPeer shows what is not as with all others.
func showPeer(p *speaker.Peer) string {
	text := fmt.Sprintf("%s AS %d", netip.AddrPortFrom(p.Address, p.Port), p.AS)
	for _, is := range []struct {
		is   bool
		text string
	}{
		{p.LocalAS > 0, fmt.Sprint(" local AS ", p.LocalAS)}, {p.Source.IsValid(), fmt.Sprint(" from ", p.Source)}, {p.Passive, " passive"}, {p.Password != "", " password " + p.Password},
		{p.Hold > 0, fmt.Sprint(" hold ", p.Hold)}, {p.Keepalive > 0, fmt.Sprint(" keepalive ", p.Keepalive)}, {p.Retry > 0, fmt.Sprint(" retry ", p.Retry)},
		{p.Hops > 0, fmt.Sprint(" hops ", p.Hops)}, {p.MaxRoutes > 0, fmt.Sprint(" most ", p.MaxRoutes)}, {p.Security > 0, fmt.Sprint(" security ", p.Security)}, {p.IPv4, " IPv4"}, {p.IPv6, " IPv6"},
		{p.Cluster.IsValid(), fmt.Sprint(" client of ", p.Cluster)}, {p.KeepNextHop, " keeps next hop"}, {p.AllowOwnAS > 0, fmt.Sprint(" own AS ", p.AllowOwnAS)}, {!p.Restart, " no restart"},
		{len(p.Import) > 0, " import " + showRules(p.Import)}, {len(p.Export) > 0, " export " + showRules(p.Export)},
	} {
		if is.is {
			text += is.text
		}
	}
	return text
}

func showRules(rules []speaker.Rule) string {
	var list []string
	for _, r := range rules {
		text := map[bool]string{true: "+", false: "-"}[r.Accept]
		if r.Prefix.IsValid() {
			text += fmt.Sprintf("%s%s", [...]string{"", "!", "=", "!="}[r.Match], r.Prefix)
		}
		if r.Min > 0 || r.Max > 0 {
			text += fmt.Sprintf("{%d,%d}", r.Min, r.Max)
		}
		if r.Learned {
			text += " learned"
		}
		if r.Family > 0 {
			text += fmt.Sprintf(" v%d", r.Family)
		}
		list = append(list, text)
	}
	return "(" + strings.Join(list, "; ") + ")"
}

func (w *world) faults() (list []string) {
	for _, i := range w.Issues() {
		list = append(list, i.String())
	}
	return list
}

func pool(name, cidr string) *model.IPPool { return &model.IPPool{Name: name, CIDR: prefix(cidr)} }
