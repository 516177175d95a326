package takeover

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"maps"
	"net"
	"net/netip"
	"slices"
	"strings"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"
	"github.com/google/nftables/userdata"
	"github.com/google/nftables/xt"
	"github.com/mdlayher/netlink"

	"sluice.dev/sluice/internal/foreign"
	wire "sluice.dev/sluice/internal/kernel/nft"
	"sluice.dev/sluice/internal/model"
	"sluice.dev/sluice/internal/state"
)

// proxyTable is the table of nftables mode, one of family ip and one of ip6.
const proxyTable = "kube-proxy"

// nft is what kube-proxy has in nf_tables: its own tables (nftables mode), and its chains in
// the tables of iptables-nft (iptables and IPVS mode).
type nft struct {
	footprint
	tables  []*nftables.Table
	jumps   []*nftables.Rule // in chains of others, into those of kube-proxy
	chains  []*nftables.Chain
	emptied []*nftables.Chain // they stay, since others use them
}

func (n *nft) String() string {
	var what []string
	for _, t := range n.tables {
		what = append(what, "table "+foreign.FamilyNames[t.Family]+" "+t.Name)
	}
	counts := map[string]int{}
	for _, c := range slices.Concat(n.chains, n.emptied) {
		counts["table "+foreign.FamilyNames[c.Table.Family]+" "+c.Table.Name]++
	}
	for _, table := range slices.Sorted(maps.Keys(counts)) {
		what = append(what, model.Count(counts[table], "chain")+" of iptables-nft in "+table)
	}
	if len(n.chains)+len(n.emptied) == 0 && len(n.jumps) > 0 {
		what = append(what, model.Count(len(n.jumps), "rule")+" of iptables-nft")
	}
	return "nftables: " + strings.Join(what, ", ")
}

// connect opens a socket whose buffers hold a large transaction and its acknowledgements.
func connect() (*nftables.Conn, error) {
	const size = 32 << 20
	conn, err := nftables.New(nftables.AsLasting(), nftables.WithSockOptions(func(c *netlink.Conn) error {
		return errors.Join(c.SetReadBuffer(size), c.SetWriteBuffer(size))
	}))
	if err != nil {
		return nil, fmt.Errorf("open nftables: %w", err)
	}
	return conn, nil
}

func findNftables(context.Context) ([]footprint, error) {
	conn, err := connect()
	if err != nil {
		return nil, err
	}
	defer func() { _ = conn.CloseLasting() }()
	n := &nft{}
	for _, family := range []nftables.TableFamily{nftables.TableFamilyIPv4, nftables.TableFamilyIPv6} {
		if err := n.readFamily(conn, family); err != nil {
			return nil, fmt.Errorf("read nftables of family %s: %w", foreign.FamilyNames[family], err)
		}
	}
	if len(n.tables)+len(n.jumps)+len(n.chains)+len(n.emptied) == 0 {
		return nil, nil
	}
	n.what, n.remove = n.String(), n.removeAll
	return []footprint{n.footprint}, nil
}

func (n *nft) readFamily(conn *nftables.Conn, family nftables.TableFamily) error {
	tables, err := conn.ListTablesOfFamily(family)
	if err != nil {
		return fmt.Errorf("list tables: %w", err)
	}
	chains, err := conn.ListChainsOfTableFamily(family)
	if err != nil {
		return fmt.Errorf("list chains: %w", err)
	}
	for _, t := range tables {
		if t.Name == proxyTable {
			n.tables = append(n.tables, t)
			if err := n.readMaps(conn, t); err != nil {
				return err
			}
			continue
		}
		var own []*nftables.Chain
		for _, c := range chains {
			if c.Table.Name == t.Name {
				c.Table = t
				own = append(own, c)
			}
		}
		if err := n.readChains(conn, t.Name, own); err != nil {
			return err
		}
	}
	return nil
}

// readMaps reads from nftables mode's table what it serves. Where kube-proxy was told on which
// addresses, or takes the node's first, a set holds those for node ports.
func (n *nft) readMaps(conn *nftables.Conn, table *nftables.Table) error {
	sets, err := conn.GetSets(table)
	if err != nil {
		return fmt.Errorf("list sets of table %s: %w", table.Name, err)
	}
	var frontends []Frontend
	var at []netip.Addr // where node ports are served
	chosen := false
	for _, s := range sets {
		served := s.Name == "service-ips" || s.Name == "service-nodeports"
		refused := s.Name == "no-endpoint-services" || s.Name == "no-endpoint-nodeports"
		addresses := s.Name == "nodeport-ips"
		if !served && !refused && !addresses {
			continue
		}
		elements, err := conn.GetSetElements(s)
		if err != nil {
			return fmt.Errorf("list elements of %s: %w", s.Name, err)
		}
		chosen = chosen || addresses
		for _, e := range elements {
			if addr, ok := netip.AddrFromSlice(e.Key); ok && addresses {
				at = append(at, addr)
			} else if key, ok := mapKey(e.Key, table.Family == nftables.TableFamilyIPv4); ok {
				frontends = append(frontends, Frontend{Key: key, Service: e.Comment, Served: served})
			}
		}
	}
	n.frontends = append(n.frontends, placed(frontends, chosen, at)...)
	return nil
}

// mapKey reads a key "address . protocol . port", or "protocol . port" of a node port; each field
// fills whole registers of four bytes.
func mapKey(b []byte, is4 bool) (state.FrontendKey, bool) {
	addr := unspecified(is4)
	if size := addr.BitLen() / 8; len(b) == size+8 {
		addr, _ = netip.AddrFromSlice(b[:size])
		b = b[size:]
	}
	if len(b) != 8 {
		return state.FrontendKey{}, false
	}
	return state.FrontendKey{Addr: addr, Protocol: model.Protocol(b[0]), Port: binary.BigEndian.Uint16(b[4:])}, true
}

// readChains reads a table of iptables-nft, whose chains are given.
func (n *nft) readChains(conn *nftables.Conn, table string, chains []*nftables.Chain) error {
	if !slices.ContainsFunc(chains, func(c *nftables.Chain) bool { return isProxyChain(table, c.Name) }) {
		return nil
	}
	var jumps []jump
	var rules []*nftables.Rule
	var frontends []Frontend
	var at []netip.Addr // chosen for node ports
	for _, c := range chains {
		proxys := isProxyChain(table, c.Name)
		if proxys && !namesFrontends(table, c.Name) {
			continue
		}
		found, err := wire.ForeignRules(c.Table, c.Name)
		if err != nil {
			return fmt.Errorf("list rules of chain %s %s: %w", table, c.Name, err)
		}
		for _, r := range found {
			seen := readRule(r)
			switch {
			case proxys:
				seen.readComment(r)
				if f, ok := seen.frontend(table, c.Name); ok {
					frontends = append(frontends, f)
				} else if seen.choosesAddress() {
					at = append(at, seen.daddr)
				}
			case isProxyChain(table, seen.target):
				jumps = append(jumps, jump{c.Name, seen.target, c.Hooknum != nil})
				rules = append(rules, r)
			}
		}
		drops := c.Policy != nil && *c.Policy == nftables.ChainPolicyDrop
		if c.Name != "FORWARD" || !accepts(jumps) {
			continue
		}
		ends, err := foreign.Ends(drops, found)
		if err != nil {
			return fmt.Errorf("read chain %s %s: %w", table, c.Name, err)
		}
		if ends {
			n.losses = append(n.losses, dropsForwarded("iptables-nft", foreign.FamilyNames[c.Table.Family]))
		}
	}
	n.frontends = append(n.frontends, placed(frontends, len(at) > 0, at)...)
	stay, emptied, notes := kept(jumps)
	n.notes = append(n.notes, notes...)
	for i, j := range jumps {
		if j.builtin && !stay[j.to] {
			n.jumps = append(n.jumps, rules[i])
		}
	}
	for _, c := range chains {
		switch {
		case emptied[c.Name]:
			left, err := wire.ForeignRules(c.Table, c.Name)
			if err != nil {
				return fmt.Errorf("list rules of chain %s %s: %w", table, c.Name, err)
			}
			if len(left) > 0 {
				n.emptied = append(n.emptied, c)
			}
		case isProxyChain(table, c.Name) && !stay[c.Name]:
			n.chains = append(n.chains, c)
		}
	}
	return nil
}

// readRule reads what matters of a rule that iptables-nft has written, in the form of this or of
// its earlier releases.
func readRule(r *nftables.Rule) xrule {
	seen := xrule{is4: r.Table.Family == nftables.TableFamilyIPv4}
	var loaded expr.Any
	for _, e := range r.Exprs {
		switch e := e.(type) {
		case *expr.Payload, *expr.Meta:
			loaded = e
		case *expr.Cmp:
			if e.Op == expr.CmpOpEq {
				seen.compare(loaded, e.Data)
			}
		case *expr.Match:
			seen.match(e)
		case *expr.Target:
			seen.translate(e)
		case *expr.Verdict:
			if e.Kind == expr.VerdictJump || e.Kind == expr.VerdictGoto {
				seen.target = e.Chain
			}
		}
	}
	return seen
}

// compare takes in that a loaded field has a value.
func (x *xrule) compare(loaded expr.Any, value []byte) {
	switch l := loaded.(type) {
	case *expr.Meta:
		if l.Key == expr.MetaKeyL4PROTO && len(value) == 1 {
			x.protocol = model.Protocol(value[0])
		}
	case *expr.Payload:
		daddr, size := uint32(16), 4 // RFC 791
		if !x.is4 {
			daddr, size = 24, 16 // RFC 8200
		}
		switch {
		case l.Base == expr.PayloadBaseNetworkHeader && l.Offset == daddr && len(value) == size:
			x.daddr, _ = netip.AddrFromSlice(value)
		case l.Base == expr.PayloadBaseNetworkHeader && x.is4 && l.Offset == 9 && len(value) == 1:
			x.protocol = model.Protocol(value[0])
		case l.Base == expr.PayloadBaseTransportHeader && l.Offset == 2 && len(value) == 2:
			x.dport = binary.BigEndian.Uint16(value)
		}
	}
}

// removeAll removes what leads to the rules in one transaction; the rest, which no packet reaches
// any more, in pieces.
func (n *nft) removeAll(ctx context.Context, _ drain) error {
	conn, err := connect()
	if err != nil {
		return err
	}
	defer func() { _ = conn.CloseLasting() }()
	for _, t := range n.tables {
		conn.DelTable(t)
	}
	for _, r := range n.jumps {
		if err := conn.DelRule(r); err != nil {
			return fmt.Errorf("delete rule: %w", err)
		}
	}
	if err := commit(conn); err != nil {
		return fmt.Errorf("delete kube-proxy's nftables rules: %w", err)
	}
	for _, step := range []struct {
		do     func(*nftables.Chain)
		chains []*nftables.Chain
	}{{conn.FlushChain, slices.Concat(n.emptied, n.chains)}, {conn.DelChain, n.chains}} {
		for piece := range slices.Chunk(step.chains, 500) {
			for _, c := range piece {
				step.do(c)
			}
			if err := commit(conn); err != nil {
				return fmt.Errorf("delete kube-proxy's chains of iptables-nft: %w", err)
			}
			if err := ctx.Err(); err != nil {
				return err
			}
		}
	}
	return nil
}

// commit carries a transaction out. Where it fails the library joins an error of each message: the
// first says why.
func commit(conn *nftables.Conn) error {
	err := conn.Flush()
	for {
		all, ok := errors.AsType[interface {
			error
			Unwrap() []error
		}](err)
		if !ok || len(all.Unwrap()) == 0 {
			return err
		}
		err = all.Unwrap()[0]
	}
}

// match takes in an extension of iptables.
func (x *xrule) match(m *expr.Match) {
	switch info := m.Info.(type) {
	case *xt.Comment:
		x.comment = string(*info)
	case *xt.Tcp:
		x.dport = info.DstPorts[0]
	case *xt.Udp:
		x.dport = info.DstPorts[0]
	case *xt.Unknown:
		if m.Name == "sctp" && len(*info) >= 2 { // struct xt_sctp_info begins with the destination ports
			x.dport = binary.NativeEndian.Uint16(*info)
		}
	}
}

// translate takes in a target of iptables that may be DNAT.
func (x *xrule) translate(t *expr.Target) {
	if t.Name != "DNAT" {
		return
	}
	to := func(ip net.IP, port uint16) {
		if addr, ok := netip.AddrFromSlice(ip); ok {
			x.dnat = netip.AddrPortFrom(addr.Unmap(), port)
		}
	}
	switch info := t.Info.(type) {
	case *xt.NatRange:
		to(info.MinIP, info.MinPort)
	case *xt.NatRange2:
		to(info.MinIP, info.MinPort)
	case *xt.NatIPv4MultiRangeCompat:
		for _, r := range *info {
			to(r.MinIP, r.MinPort)
		}
	}
}

// readComment reads the comment of a rule of kube-proxy's; iptables-nft keeps it with the rule, or
// as a match.
func (x *xrule) readComment(r *nftables.Rule) {
	if comment, ok := userdata.GetString(r.UserData, userdata.TypeComment); ok {
		x.comment = comment
	}
}
