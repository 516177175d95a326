package compile

import (
	"cmp"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"time"

	"sluice.dev/sluice/internal/model"
)

// takesToWrite is how long a status may differ from the wanted one before that is reported.
const takesToWrite = time.Second

// Issues returns what is wrong with the objects as of the last Update, sorted. The caller only
// reads it.
func (c *Compiler) Issues() []model.Issue {
	if !c.listed {
		c.listed = true
		c.issues = c.list()
	}
	return c.issues
}

func (c *Compiler) list() (list []model.Issue) {
	list = append(list, c.poolIssues...)
	add := func(of model.Ref, format string, args ...any) {
		issue := of.Issue(fmt.Sprintf(format, args...))
		issue.Everywhere = true
		list = append(list, issue)
	}
	for _, s := range c.waiting {
		if s.fault != "" {
			add(s.Ref(), "%s", s.fault)
		}
	}
	for name, since := range c.contested {
		s := c.services[name]
		if c.cfg.Now().Sub(since) < takesToWrite {
			c.listed = false // it may be soon
			continue
		}
		has := cmp.Or(model.Join(s.LoadBalancer.Ingress, ", "), "no address")
		add(s.Ref(), "another controller gives it addresses, too: field manager %q writes %s into its status in place of %s, which is written again at ever longer intervals; end one of the two, or have each look after a loadBalancerClass of its own (--load-balancer-class)",
			s.LoadBalancer.Writer, has, model.Join(s.ips, ", "))
	}
	for _, ref := range c.notCarriedOut() {
		add(ref, "addresses of Services are not announced by BGP without --bgp; an L2Advertisement has them announced by ARP and NDP")
	}
	names := func(of model.Ref, ad *model.Advertised) {
		var missing []string
		for _, name := range ad.Pools {
			if c.named[model.Name{Namespace: of.Name.Namespace, Name: name}] == nil {
				missing = append(missing, name)
			}
		}
		if len(missing) > 0 {
			add(of, "spec.ipAddressPools: there is no IPAddressPool %s in its namespace", model.FirstFew(missing, maxNamed))
		}
	}
	for _, ad := range c.adverts {
		names(ad.Ref(), &ad.Advertised)
	}
	for _, ad := range c.bgp {
		names(ad.Ref(), &ad.Advertised)
	}
	for _, p := range c.pools {
		switch {
		case p.used == 0, len(p.adverts) > 0, len(p.bgp) > 0, slices.ContainsFunc(p.Ranges, c.inRanges):
		case c.cfg.BGP:
			add(p.Ref(), "nobody announces its addresses: no L2Advertisement and no BGPAdvertisement that is in force selects it")
		case len(c.notCarriedOut()) == 0:
			add(p.Ref(), "nobody announces its addresses: no L2Advertisement selects it")
		}
		if p.excess != "" {
			add(p.Ref(), "more than %d L2Advertisements select it: %s, and those newer than it, announce none of its addresses", model.MaxAdverts, p.excess)
		}
	}
	ofNodes := map[*pool][]string{}
	for a, node := range c.reserved {
		if p := c.poolOf(a); p != nil && c.held[a] == nil { // or else the compiler of Services names the node
			ofNodes[p] = append(ofNodes[p], fmt.Sprintf("%s, an address of Node %s", a, node.Name))
		}
	}
	for p, texts := range ofNodes {
		slices.Sort(texts)
		add(p.Ref(), "it has %s, which no Service gets; take it out", model.FirstFew(texts, maxNamed))
	}
	list = slices.AppendSeq(list, maps.Values(c.unannounced))
	list = append(list, c.innerIssues()...)
	list = append(list, c.silentNodes()...)
	slices.SortFunc(list, model.Issue.Compare)
	return list
}

// Unanswered returns what is wrong with Services where this node is to announce an address and has
// no interface for it.
func (c *Compiler) Unanswered(addrs []netip.Addr) (list []model.Issue) {
	for _, a := range addrs {
		is := c.addresses[a]
		if is == nil || is.node != c.cfg.Node || is.byBGP {
			continue // no longer, or others do
		}
		lacks := map[bool]string{true: "interface with a subnet of IPv4", false: "interface with a subnet of IPv6"}[a.Is4()]
		if names := interfaces(is.own); len(names) > 0 {
			lacks = "such interface as the L2Advertisements name, " + strings.Join(names, " or ")
		}
		list = append(list, is.unheard(a, "Node %s, which is to, has no %s; have spec.nodeSelectors leave it out, or name another interface", is.node, lacks))
	}
	return list
}

// notCarriedOut are the objects that are about BGP where that is off.
func (c *Compiler) notCarriedOut() (refs []model.Ref) {
	if c.cfg.BGP {
		return nil
	}
	for _, a := range c.bgp {
		refs = append(refs, a.Ref())
	}
	for _, p := range c.bgpPeers {
		refs = append(refs, p.Ref())
	}
	return refs
}

// silentNodes names the nodes that announce nothing as they are not heard from, though the API
// takes them for ready.
func (c *Compiler) silentNodes() (list []model.Issue) {
	for i, n := range c.nodes {
		if !c.silent[n.Name] || n.NotReady || !c.may.Has(i) {
			continue
		}
		reason := "it is not heard from, so other nodes announce its addresses; see that its agent runs with --service-addresses and that nothing between drops UDP port 8383, or have the nodeSelectors of L2Advertisements leave it out"
		if n.Name == c.cfg.Node {
			reason = "no other node hears it, so it announces no addresses; see that nothing drops what it sends to UDP port 8383"
		}
		list = append(list, n.Ref().Issue(reason))
	}
	return list
}

// Address is an address of a pool, for people.
type Address struct {
	Address    netip.Addr   `json:"address"`
	Pool       model.Name   `json:"pool,omitzero"` // none: it is in none any more
	Services   []model.Name `json:"services"`
	Node       string       `json:"node,omitempty"`       // that announces it
	How        string       `json:"how,omitempty"`        // "ARP" or "NDP"
	Here       bool         `json:"here,omitempty"`       // Node is this agent's
	Interfaces []string     `json:"interfaces,omitempty"` // of this node's, if it is Here; none: all with a subnet, or Unanswered
	Unanswered bool         `json:"unanswered,omitempty"` // it is Here, which has no interface for it
	Since      time.Time    `json:"since,omitzero"`       // when this agent found that Node does
	BGP        netip.Prefix `json:"bgp,omitzero"`         // the route by which this node announces it to BGP peers
}

// AnsweredOn takes over on which interfaces the address is answered for, of those that it may be.
func (a *Address) AnsweredOn(names []string) {
	if a.Unanswered = len(names) == 0; len(a.Interfaces) > 0 {
		a.Interfaces = names
	}
}

// names are those of Services.
func names(services []*service) []model.Name {
	list := make([]model.Name, len(services))
	for i, s := range services {
		list[i] = s.Name
	}
	return list
}

// List returns the addresses of pools that Services have, or keep without one, sorted.
func (c *Compiler) List() []Address {
	list := make([]Address, 0, len(c.addresses))
	for a, is := range c.addresses {
		of := Address{Address: a, Node: is.node, Here: is.node != "" && is.node == c.cfg.Node, Interfaces: interfaces(is.own), Since: is.since, Services: names(is.services)}
		if p := c.poolOf(a); p != nil {
			of.Pool = p.Name
		}
		if is.node != "" {
			of.How = map[bool]string{true: "ARP", false: "NDP"}[a.Is4()]
		}
		list = append(list, of)
	}
	slices.SortFunc(list, func(a, b Address) int { return a.Address.Compare(b.Address) })
	return list
}
