package compile

import (
	"net/netip"
	"slices"

	"github.com/gaissmai/bart"

	"sluice.dev/sluice/internal/lib/diff"
	"sluice.dev/sluice/internal/model"
	"sluice.dev/sluice/internal/state"
	"sluice.dev/sluice/internal/store"
)

// environment is what services depend on beside their own objects: what the user sets, this node,
// and who has which address.
type environment struct {
	cfg     Config
	moved   bool // the host's addresses, or those of API servers, changed since the last Update
	started bool
	own     *model.Node // this node's object as it is, or was last; nil: there has been none
	gone    bool        // own is not there any more
	others  []string    // the nodes that there are, where the own one has never been among them
	node    node
	guard   guard
	nodes   map[string]*model.Node // that the guard and the peers were made of
	peers   diff.Set[netip.Addr]   // of the state

	outgoing, pools []netip.Prefix // those of the settings
	underlay        []model.HostAddress
	snat            []state.SNAT // those of the settings; nil: the underlay is another one since
	tunnels         []state.TunnelEnd
	untracked       bool
}

// follow brings the environment up to date. It reports whether that matters to all services, and
// returns the addresses of which it matters to those that want them.
func (e *environment) follow(v *store.View, d store.Dirty) (all bool, addrs map[netip.Addr]bool) {
	anew := !e.started || e.moved
	if !e.started || len(d.Objects[model.NodeKind]) > 0 {
		e.findNode(v)
	}
	if _, api := d.Services[apiService]; e.readdressed(v, d) || anew || api {
		old := e.guard
		e.guard = newGuard(e.cfg, e.own, v)
		addrs = e.guard.differs(&old)
	}
	if _, mine := d.Objects[model.NodeKind][model.Name{Name: e.cfg.Node}]; anew || mine {
		n := newNode(e.cfg, e.own)
		all = e.started && !n.equal(e.node)
		e.node = n
	}
	if len(d.Objects[model.IPPoolKind]) > 0 || !e.started {
		e.outgoing, e.pools = outgoing(e.cfg, v.IPPools())
	}
	e.started, e.moved = true, false
	return all, addrs
}

// readdressed reports whether nodes that changed own other addresses than before.
func (e *environment) readdressed(v *store.View, d store.Dirty) (is bool) {
	for name := range d.Objects[model.NodeKind] {
		before, now := e.nodes[name.Name], v.Node(name.Name)
		is = is || !now.SameAddresses(before)
		if e.cfg.Fabric && name.Name != e.cfg.Node {
			e.followPeers(before, now)
		}
		if e.nodes[name.Name] = now; now == nil {
			delete(e.nodes, name.Name)
		}
	}
	return is
}

// findNode follows the own Node object. When it is deleted, node ports and all else go on as it
// said last, as with kube-proxy: the node has not gone for that.
func (e *environment) findNode(v *store.View) {
	if obj := v.Node(e.cfg.Node); obj != nil {
		e.own, e.gone, e.others = obj, false, nil
		return
	}
	if e.gone = e.own != nil; !e.gone {
		e.others = v.NodeNames()
	}
}

// node is what services and settings depend on of the own node.
type node struct {
	known    bool
	zone     string
	addrs    []netip.Addr // all that its object names
	nodePort []netip.Addr // the addresses that serve node ports, sorted
	settings state.Settings
	podCIDRs []netip.Prefix // masked; no service depends on them but through settings
}

// newNode draws the node from its object, nil where there is none (yet).
func newNode(cfg Config, obj *model.Node) node {
	n := node{known: obj != nil}
	if obj != nil {
		n.zone, n.podCIDRs = obj.Zone(), masked(obj.PodCIDRs)
		for _, a := range obj.IPs {
			n.addrs = append(n.addrs, a.Unmap())
		}
	}
	n.nodePort = nodePortAddresses(cfg, n.addrs)
	n.settings = settings(cfg, n.podCIDRs)
	return n
}

// equal reports whether services and settings can't tell two versions apart.
func (n node) equal(o node) bool {
	return n.known == o.known && n.zone == o.zone && slices.Equal(n.addrs, o.addrs) &&
		slices.Equal(n.nodePort, o.nodePort) && n.settings.Equal(o.settings)
}

// serves reports whether node ports are to be served in the family: no CIDR of it among others is a
// choice, too.
func (cfg *Config) serves(is4 bool) bool {
	return cfg.NodePortPrimary || len(cfg.NodePortAddresses) == 0 || len(ofFamily(cfg.NodePortAddresses, is4)) > 0
}

// nodePortAddresses are the node's addresses that the configuration chooses. Loopback is never
// among them: the kernel does not route what comes from 127.0.0.1 to another host, and kube-proxy's
// nftables mode leaves it out too.
func nodePortAddresses(cfg Config, node []netip.Addr) []netip.Addr {
	var chosen []netip.Addr
	if cfg.NodePortPrimary || len(cfg.NodePortAddresses) == 0 {
		chosen = primary(cfg, node)
	}
	for _, p := range cfg.HostAddresses {
		node = append(node, p.Addr())
	}
	for _, a := range node {
		if a = a.Unmap(); model.Unusable(a) == "" && model.Within(a, cfg.NodePortAddresses) {
			chosen = append(chosen, a)
		}
	}
	slices.SortFunc(chosen, netip.Addr.Compare)
	return slices.Compact(chosen)
}

// primary is the node's first address of each family.
func primary(cfg Config, node []netip.Addr) []netip.Addr {
	var first []netip.Addr
	node = append([]netip.Addr{cfg.PrimaryAddr}, node...)
	for _, is4 := range []bool{true, false} {
		i := slices.IndexFunc(node, func(a netip.Addr) bool { return a.Is4() == is4 && model.Unusable(a) == "" })
		if i >= 0 {
			first = append(first, node[i])
		}
	}
	return first
}

// covered reports whether each of inner lies within one of outer.
func covered(inner, outer []netip.Prefix) bool {
	within := new(bart.Lite)
	for _, p := range outer {
		within.Insert(p)
	}
	return !slices.ContainsFunc(inner, func(p netip.Prefix) bool { return !within.LookupPrefix(p) })
}

// masked returns the valid ones of the prefixes, masked and sorted, without those that lie in
// another: what they cover, said once.
func masked(prefixes []netip.Prefix) []netip.Prefix {
	var list []netip.Prefix
	for _, p := range prefixes {
		if p.IsValid() {
			list = append(list, p.Masked())
		}
	}
	slices.SortFunc(list, netip.Prefix.Compare) // a prefix comes before those in it
	kept := list[:0]
	for _, p := range list {
		if len(kept) == 0 || !kept[len(kept)-1].Overlaps(p) {
			kept = append(kept, p)
		}
	}
	return kept
}

func ofFamily(prefixes []netip.Prefix, is4 bool) []netip.Prefix {
	var list []netip.Prefix
	for _, p := range prefixes {
		if p.Addr().Is4() == is4 {
			list = append(list, p)
		}
	}
	return list
}
