package importer

import (
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"sluice.dev/sluice/internal/balancer/keys"
)

// service is a virtual service of IPVS, as ipvsadm and keepalived describe it.
type service struct {
	line      int
	what      string // how it is called where it was read
	name      string // of the farm; "": made from the first address
	addrs     []virtualAddr
	protocol  string
	scheduler string
	flags     []string // of the scheduler
	persist   int      // seconds; 0: no persistence
	netmask   string   // clients are remembered by network; "": by address
	servers   []server
	sorry     *server     // serves once all others are down
	check     keys.Object // nil: none
}

// markedBy says why a service that is found by a mark is left out.
const markedBy = "a rule of the firewall decides what has the mark; give the farm addresses and ports"

// virtualAddr is where clients find a service. Port 0 is every port.
type virtualAddr struct {
	line int
	netip.AddrPort
}

// server is a real server. Port 0 is the port that the client asked for.
type server struct {
	line int
	netip.AddrPort
	method       method
	weight       int // 0: no new connections
	upper, lower int // thresholds of connections; 0: none
}

// method is how packets get to a server: one of these, or the type of another tunnel.
type method string

const (
	masquerade method = "masquerading"
	direct     method = "direct routing"
	tunnel     method = "ipip"
)

// The modes of farms.
const (
	dnat = "dnat"
	dsr  = "dsr"
)

// mode is that of a farm whose servers are reached so.
func (m method) mode() string {
	if m == masquerade {
		return dnat
	}
	return dsr
}

// builder makes farms of services, in a document without double names and addresses.
type builder struct {
	doc   keys.Object
	notes notes
	names map[string]bool // of farms
	taken map[string]bool // names of addresses
	Options
}

// Options say what a document is for, and where what is read comes from.
type Options struct {
	IPVS bool // 'sluice balance --mode ipvs'

	// Of keepalived.conf alone: the file's name, beside which those are that it includes; empty:
	// they are left out. ConfigID is the machine whose lines are read (@NAME); empty: none are.
	File, ConfigID string
}

func newBuilder(o Options) *builder {
	return &builder{doc: keys.Object{}, names: map[string]bool{}, taken: map[string]bool{}, Options: o}
}

// result is what an importer returns. A file that has nothing to import is most likely of another
// format; the notes that come with the error say what was left out of it.
func (b *builder) result(format string) (keys.Object, []Note, error) {
	if len(b.doc) == 0 {
		if len(b.notes.list) == 0 {
			return nil, nil, fmt.Errorf("find virtual services: there are none in this file; give %s", format)
		}
		return nil, b.notes.sorted(), fmt.Errorf("nothing of this file could be taken over; give %s", format)
	}
	return b.doc, b.notes.sorted(), nil
}

// add makes a farm of a service, unless nothing of it can be served.
func (b *builder) add(s *service) {
	servers := b.reachable(s)
	if len(servers) == 0 && len(s.servers) > 0 {
		b.notes.lost(s.line, s.what, "left out: it has no servers that can be reached")
		return
	}
	addrs := b.free(s, servers)
	switch {
	case len(addrs) == 0:
		b.notes.lost(s.line, s.what, "left out: it has no address")
	case b.IPVS && s.persist != 0: // IPVS remembers clients at each address
		for _, p := range addrs {
			b.farm(s, servers, []virtualAddr{p})
		}
	default:
		if s.persist != 0 && len(addrs) > 1 {
			b.notes.add(s.line, fmt.Sprintf("persistence for %d s", s.persist), "holds for all addresses and ports together: a client that has a server at one has it at the others, too")
		}
		b.farm(s, servers, addrs)
	}
}

// farm makes a farm that serves at these addresses.
func (b *builder) farm(s *service, servers []server, addrs []virtualAddr) {
	first := addrs[0]
	f := keys.Object{
		"name": b.name(s.name, addrName(first, s.protocol)), "family": family(first.Addr()), "mode": dnat, "protocol": s.protocol,
		"virtual-addr": first.Addr().String(), "virtual-ports": ports(first.Port()), "all-down": "refuse",
	}
	if len(servers) > 0 {
		f["mode"] = servers[0].method.mode()
	}
	for _, p := range addrs[1:] {
		f.Add("addresses", keys.Object{"name": addrName(p, s.protocol), "family": f["family"],
			"ip-addr": p.Addr().String(), "ports": ports(p.Port()), "protocol": s.protocol})
	}
	how := b.schedule(s, f)
	b.persist(s, f)
	b.backends(f, servers, how, addrs)
	b.sorry(s, f, servers, addrs)
	if s.check != nil {
		f["health-check"] = s.check
	}
	b.doc.Add("farms", f)
}

// reachable returns the servers that can be in one farm: a farm has one mode and one family.
func (b *builder) reachable(s *service) []server {
	var kept []server
	seen := map[netip.AddrPort]bool{}
	for _, r := range s.servers {
		at := r.AddrPort
		if r.keepsPort(s.addrs) {
			at = netip.AddrPortFrom(r.Addr(), 0)
		}
		if why := unreachable(r, s, kept); why != "" {
			b.notes.lost(r.line, r.AddrPort.String(), "left out: %s", why)
		} else if seen[at] {
			b.notes.lost(r.line, r.AddrPort.String(), "left out: this service has it already")
		} else {
			seen[at] = true
			kept = append(kept, r)
		}
	}
	for _, r := range kept {
		switch r.method {
		case masquerade:
			why := "becomes mode dnat: as with IPVS, servers see the client's address, and their answers must come back through this machine"
			if !b.IPVS {
				why += " (mode snat does without that)"
			}
			b.notes.once(Nothing, r.line, "NAT", why)
		case tunnel:
			b.notes.once(Nothing, r.line, "TUN", "becomes mode dsr: servers behind a router get packets in IPIP, those on a network of this machine get them as they are")
		}
	}
	return kept
}

func unreachable(r server, s *service, kept []server) string {
	switch {
	case r.Addr().IsLoopback():
		return "packets of clients do not get to a loopback address; have the program listen on an address of this machine, and give it that in a farm of mode dnat"
	case !slices.Contains([]method{masquerade, direct, tunnel}, r.method):
		return fmt.Sprintf("a tunnel of type %s is not made, only ipip: have the server unpack IPIP", r.method)
	case r.method == tunnel && r.Addr().Is6():
		return "IPv6 is not sent in IPIP: use DR on the same network, or NAT"
	case len(kept) > 0 && kept[0].method.mode() != r.method.mode():
		return fmt.Sprintf("a farm has one mode, and that of its first server is %s", kept[0].method.mode())
	case !slices.ContainsFunc(s.addrs, func(p virtualAddr) bool { return p.Addr().Is4() == r.Addr().Is4() }),
		len(kept) > 0 && kept[0].Addr().Is4() != r.Addr().Is4():
		return "it is of another family than the service"
	}
	return ""
}

// mostIPVSAddrs is the most virtual servers that a farm comes to with --mode ipvs.
const mostIPVSAddrs = 1024

// free returns the addresses of a service that are of its servers' family and that no farm has.
func (b *builder) free(s *service, servers []server) []virtualAddr {
	var kept []virtualAddr
	for _, p := range s.addrs {
		is4 := s.addrs[0].Addr().Is4()
		if len(servers) > 0 {
			is4 = servers[0].Addr().Is4()
		}
		name := addrName(p, s.protocol)
		switch {
		case p.Addr().Is4() != is4:
			b.notes.lost(p.line, p.AddrPort.String(), "left out: it is of another family than the servers")
		case b.IPVS && p.Port() == 0:
			b.notes.lost(p.line, p.AddrPort.String(), "left out: in --mode ipvs a farm has %d ports at most, and this is every port", mostIPVSAddrs)
		case b.IPVS && s.persist == 0 && len(kept) == mostIPVSAddrs:
			b.notes.lost(p.line, p.AddrPort.String(), "left out: in --mode ipvs a farm has %d addresses and ports at most", mostIPVSAddrs)
		case b.taken[name]:
			b.notes.lost(p.line, p.AddrPort.String(), "left out: another service has this address, port and protocol")
		default:
			b.taken[name] = true
			kept = append(kept, p)
		}
	}
	return kept
}

// name returns a farm's name that is not in use: the one that is wanted, or else made of its
// address.
func (b *builder) name(wanted, made string) string {
	if wanted == "" {
		wanted = made
	}
	name := wanted
	for i := 2; b.names[name]; i++ {
		name = fmt.Sprintf("%s-%d", wanted, i)
	}
	b.names[name] = true
	return name
}

// persist has the farm remember its clients.
func (b *builder) persist(s *service, f keys.Object) {
	if s.persist == 0 {
		return
	}
	if s.netmask != "" {
		b.notes.add(s.line, "netmask "+s.netmask, "left out: clients are remembered by address, not by network")
	}
	if f.Text("mode") == dsr && !b.IPVS {
		b.notes.add(s.line, fmt.Sprintf("persistence for %d s", s.persist), "becomes a hash of the client's address, which has no end: with direct server return clients are remembered in --mode ipvs alone")
	}
	f["persistence"], f["persist-ttl"] = "srcip", strconv.Itoa(s.persist)
}

// backends fills in the farm's backends.
func (b *builder) backends(f keys.Object, servers []server, how scheduling, addrs []virtualAddr) {
	rank := how.ranks(servers)
	for i, r := range servers {
		k := keys.Object{"name": backendName(r), "ip-addr": r.Addr().String(), "priority": rank[i]}
		switch {
		case r.weight == 0:
			k["state"] = "draining"
		case how.weights:
			k["weight"] = strconv.Itoa(r.weight)
		case r.weight > 1 && rank[i] == "":
			b.notes.once(Nothing, r.line, fmt.Sprintf("weight %d", r.weight), "left out: this scheduler of IPVS does not look at weights")
		}
		b.port(k, r, addrs)
		b.thresholds(f, k, r, addrs)
		f.Add("backends", k)
	}
}

// port gives a backend its port, which it can have of its own only where that is translated.
func (b *builder) port(k keys.Object, r server, addrs []virtualAddr) {
	switch {
	case r.Port() == 0:
	case r.keepsPort(addrs):
		if r.portDiffers(addrs) {
			b.notes.note(Nothing, r.line, r.AddrPort.String(), "port left out: with direct server return, or for every port, packets keep the port that the client asked for, also with IPVS")
		}
	default:
		k["port"] = strconv.Itoa(int(r.Port()))
	}
}

// keepsPort reports whether packets get to a server with the port that the client asked for.
func (r server) keepsPort(addrs []virtualAddr) bool {
	return r.method.mode() == dsr || !slices.ContainsFunc(addrs, func(p virtualAddr) bool { return p.Port() != 0 })
}

func (r server) portDiffers(addrs []virtualAddr) bool {
	return slices.ContainsFunc(addrs, func(p virtualAddr) bool { return p.Port() != r.Port() })
}

func (b *builder) thresholds(f keys.Object, k keys.Object, r server, addrs []virtualAddr) {
	what := fmt.Sprintf("upper threshold %d", r.upper)
	switch everyPort := slices.ContainsFunc(addrs, func(p virtualAddr) bool { return p.Port() == 0 }); {
	case r.upper == 0:
	case b.IPVS:
		b.notes.add(r.line, what, "left out: a backend has no limit of connections in --mode ipvs")
	case f.Text("mode") == dsr:
		b.notes.add(r.line, what, "left out: with direct server return, connections are not counted")
	case everyPort:
		b.notes.add(r.line, what, "left out: connections to every port of a server are not counted together")
	default:
		k["est-connlimit"] = strconv.Itoa(r.upper)
		b.notes.add(r.line, what, "becomes est-connlimit: connections beyond it are dropped; IPVS would choose another server")
	}
	if r.lower > 0 {
		b.notes.add(r.line, fmt.Sprintf("lower threshold %d", r.lower), "left out: a server is used again as soon as it is below its upper threshold")
	}
}

// sorry adds the server of last resort: a backup that serves once all others are out of service,
// and is not checked. Each one that is out of service lets the next priority serve, hence its
// priority.
func (b *builder) sorry(s *service, f keys.Object, servers []server, addrs []virtualAddr) {
	r := s.sorry
	if r == nil {
		return
	}
	k := keys.Object{"name": backendName(*r), "ip-addr": r.Addr().String(), "priority": strconv.Itoa(len(f.Objects("backends")) + 1), "unchecked": "on"}
	why := unreachable(*r, s, servers)
	if why == "" {
		b.port(k, *r, addrs)
		if slices.ContainsFunc(f.Objects("backends"), func(o keys.Object) bool { return o["ip-addr"] == k["ip-addr"] && o["port"] == k["port"] }) {
			why = "it is one of the servers"
		}
	}
	if why != "" {
		b.notes.lost(r.line, "sorry_server "+r.AddrPort.String(), "left out: %s", why)
		return
	}
	f.Add("backends", k)
}

func family(a netip.Addr) string {
	if a.Is4() {
		return "ipv4"
	}
	return "ipv6"
}

// ports is a port as a farm has it. Without ports it would be of all protocols.
func ports(p uint16) string {
	if p == 0 {
		return "1-65535"
	}
	return strconv.Itoa(int(p))
}

func addrName(p virtualAddr, protocol string) string {
	return joinPort(p.AddrPort) + "-" + protocol
}

func backendName(r server) string { return joinPort(r.AddrPort) }

func joinPort(a netip.AddrPort) string {
	if a.Port() == 0 {
		return a.Addr().String()
	}
	return a.Addr().String() + "-" + strconv.Itoa(int(a.Port()))
}

// wholeAddress returns a netmask, "" for one that leaves of an address all.
func wholeAddress(mask string) string {
	if mask == "255.255.255.255" || mask == "32" || mask == "128" {
		return ""
	}
	return mask
}

// address reads an address that a packet can have as its destination; host names are none.
func address(s string) (netip.Addr, bool) {
	a, err := netip.ParseAddr(strings.Trim(s, "[]"))
	a = a.Unmap()
	return a, err == nil && a.Zone() == "" && !a.IsUnspecified() && !a.IsMulticast()
}

// number reads a whole number in decimal from 0 up to a limit.
func number(s string, most int) (int, bool) {
	n, err := strconv.ParseUint(s, 10, 31)
	return int(n), err == nil && int(n) <= most
}
