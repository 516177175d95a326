package importer

import (
	"slices"
	"strconv"

	"sluice.dev/sluice/internal/balancer/keys"
)

// scheduling is what becomes of a scheduler of IPVS.
type scheduling struct {
	to      string // our scheduler
	by      string // what it hashes
	weights bool   // it looks at weights
	ranked  bool   // weights are an order: the highest serves alone
	why     string // what changes; "": nothing
}

const (
	leastConnections = "becomes scheduler weight (random, in proportion to weights): connections are not counted in mode nftables; least is for --mode ipvs"
	noOverflow       = "becomes scheduler hash by dstip: connections are not counted, so that none goes elsewhere when a server is busy"
	leastForAddress  = "becomes least: it chose by the address that clients ask for, so that each address had one server until that was busy"
)

// schedulers are those of Linux 6.18 (net/netfilter/ipvs). Round robin there is without weights;
// here weights count in every scheduler.
var schedulers = map[string]scheduling{
	"rr":    {to: "rr"},
	"wrr":   {to: "rr", weights: true},
	"lc":    {to: "weight", why: leastConnections},
	"wlc":   {to: "weight", weights: true, why: leastConnections},
	"sed":   {to: "weight", weights: true, why: leastConnections},
	"nq":    {to: "weight", weights: true, why: leastConnections},
	"twos":  {to: "weight", weights: true, why: leastConnections},
	"ovf":   {to: "weight", weights: true, why: "becomes scheduler weight: connections are not counted, so that none overflows to the next server"},
	"fo":    {to: "rr", ranked: true, why: becomesPriorities},
	"sh":    {to: "hash", by: "srcip", weights: true},
	"mh":    {to: "maglev", by: "srcip", weights: true},
	"dh":    {to: "hash", by: "dstip"},
	"lblc":  {to: "hash", by: "dstip", weights: true, why: noOverflow},
	"lblcr": {to: "hash", by: "dstip", weights: true, why: noOverflow},
}

const becomesPriorities = "becomes priorities: the server of the highest weight has priority 1, the next 2, and so on"

// ipvsSchedulers are those that become others with --mode ipvs, which counts connections.
var ipvsSchedulers = map[string]scheduling{
	"lc":    {to: "least"},
	"wlc":   {to: "least", weights: true},
	"sed":   {to: "least", weights: true, why: "becomes least: a connection that is about to come is not counted with those that are there"},
	"nq":    {to: "least", weights: true, why: "becomes least: a server without connections is not preferred to one of more weight"},
	"twos":  {to: "least", weights: true, why: "becomes least: the best of all servers is taken, and not of two"},
	"ovf":   {to: "least", weights: true, why: "becomes least: no server is filled before the next"},
	"dh":    {to: "hash", by: "srcip", why: "becomes scheduler hash by srcip: it chose by the address that clients ask for, so that each address had one server"},
	"lblc":  {to: "least", weights: true, why: leastForAddress},
	"lblcr": {to: "least", weights: true, why: leastForAddress},
}

// schedule sets the farm's scheduler.
func (b *builder) schedule(s *service, f keys.Object) scheduling {
	how, known := schedulers[s.scheduler]
	if other, has := ipvsSchedulers[s.scheduler]; has && b.IPVS {
		how = other
	}
	if !known {
		how = scheduling{to: "weight", weights: true, why: "becomes scheduler weight: there is no such scheduler here"}
	}
	for _, flag := range s.flags {
		b.flag(s, flag, &how)
	}
	stateless := f.Text("mode") == dsr && !b.IPVS && how.by == ""
	switch {
	case how.ranked:
		b.notes.note(Nothing, s.line, "scheduler "+s.scheduler, "%s", how.why)
	case how.why != "" && !stateless:
		b.notes.add(s.line, "scheduler "+s.scheduler, "%s", how.why)
	}
	if stateless {
		how.to, how.by = "maglev", "srcip srcport"
		if s.persist != 0 {
			how.by = "srcip"
		}
		b.notes.add(s.line, "scheduler "+s.scheduler, "becomes maglev by %s: with direct server return there is no table of connections that would keep each at its server", how.by)
	}
	f["scheduler"], f["sched-param"] = how.to, how.by
	return how
}

// flag heeds a flag of the hashing schedulers. The numbered ones are IPVS's own names for them.
func (b *builder) flag(s *service, flag string, how *scheduling) {
	hashes := s.scheduler == "sh" || s.scheduler == "mh"
	switch {
	case hashes && (flag == s.scheduler+"-port" || flag == "flag-2"):
		how.by = "srcip srcport"
	case hashes && (flag == s.scheduler+"-fallback" || flag == "flag-1"): // always so here
	default:
		b.notes.add(s.line, "flag "+flag, "left out: it means nothing to this scheduler")
	}
}

// ranks returns the priority of each server, "" for the usual one.
func (h scheduling) ranks(servers []server) []string {
	ranks := make([]string, len(servers))
	if !h.ranked {
		return ranks
	}
	order := make([]int, len(servers))
	for i := range order {
		order[i] = i
	}
	slices.SortStableFunc(order, func(i, j int) int { return servers[j].weight - servers[i].weight })
	for rank, i := range order {
		ranks[i] = strconv.Itoa(rank + 1)
	}
	return ranks
}
