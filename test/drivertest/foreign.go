package drivertest

import (
	"fmt"
	"net/netip"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/nftables"
	"github.com/google/nftables/binaryutil"
	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"

	"sluice.dev/sluice/test/netns"
)

// foreign is what another program has in nftables on the node: a table in each family that
// translates port 5555 of the node to a pod, and a set. No driver may touch it.
type foreign struct {
	ns     *netns.NS
	before []string
}

func setForeign(t testing.TB, w *topology) *foreign {
	t.Helper()
	f := &foreign{ns: w.node}
	err := w.node.Do(func() error {
		c, err := nftables.New()
		if err != nil {
			return err
		}
		addForeign(c, "foreign4", nftables.TableFamilyIPv4, w.addrs["c"][ipv4])
		addForeign(c, "foreign6", nftables.TableFamilyIPv6, w.addrs["c"][ipv6])
		return c.Flush()
	})
	if err == nil {
		f.before, err = listRuleset(w.node)
	}
	if err != nil {
		t.Fatalf("set up another program's tables: %v", err)
	}
	return f
}

func addForeign(c *nftables.Conn, name string, family nftables.TableFamily, to netip.Addr) {
	table := c.AddTable(&nftables.Table{Name: name, Family: family})
	nat := uint32(unix.NFPROTO_IPV4)
	if to.Is6() {
		nat = unix.NFPROTO_IPV6
	}
	chain := c.AddChain(&nftables.Chain{Name: "prerouting", Table: table, Type: nftables.ChainTypeNAT,
		Hooknum: nftables.ChainHookPrerouting, Priority: nftables.ChainPriorityRef(*nftables.ChainPriorityNATDest + 10)})
	c.AddRule(&nftables.Rule{Table: table, Chain: chain, Exprs: []expr.Any{
		&expr.Meta{Key: expr.MetaKeyL4PROTO, Register: 1},
		&expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: []byte{unix.IPPROTO_TCP}},
		&expr.Payload{DestRegister: 1, Base: expr.PayloadBaseTransportHeader, Offset: 2, Len: 2},
		&expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: binaryutil.BigEndian.PutUint16(5555)},
		&expr.Immediate{Register: 1, Data: to.AsSlice()},
		&expr.Immediate{Register: 2, Data: binaryutil.BigEndian.PutUint16(http.to)},
		&expr.NAT{Type: expr.NATTypeDestNAT, Family: nat, RegAddrMin: 1, RegProtoMin: 2},
	}})
	// The error of AddSet concerns only its arguments.
	_ = c.AddSet(&nftables.Set{Table: table, Name: "ports", KeyType: nftables.TypeInetService},
		[]nftables.SetElement{{Key: binaryutil.BigEndian.PutUint16(5555)}})
}

// check fails the test if the node's tables differ from before the driver came: those of others
// must be unchanged, the driver's own gone.
func (f *foreign) check(t testing.TB) {
	t.Helper()
	after, err := listRuleset(f.ns)
	if err != nil {
		t.Fatalf("list the node's tables: %v", err)
	}
	if diff := cmp.Diff(f.before, after); diff != "" {
		t.Errorf("the node's tables differ from before the driver came (-before +after):\n%s", diff)
	}
}

// listRuleset prints every table, chain, rule and set of a namespace, one a line.
func listRuleset(ns *netns.NS) (lines []string, err error) {
	err = ns.Do(func() error {
		c, err := nftables.New()
		if err != nil {
			return err
		}
		tables, err := c.ListTables()
		if err != nil {
			return err
		}
		for _, table := range tables {
			more, err := listTable(c, table)
			if err != nil {
				return err
			}
			lines = append(lines, more...)
		}
		return nil
	})
	return lines, err
}

func listTable(c *nftables.Conn, table *nftables.Table) ([]string, error) {
	lines := []string{fmt.Sprintf("table %s %d", table.Name, table.Family)}
	chains, err := c.ListChainsOfTableFamily(table.Family)
	if err != nil {
		return nil, err
	}
	for _, chain := range chains {
		if chain.Table.Name != table.Name {
			continue
		}
		lines = append(lines, fmt.Sprintf("table %s chain %s", table.Name, chain.Name))
		rules, err := c.GetRules(table, chain)
		if err != nil {
			return nil, err
		}
		for _, r := range rules {
			lines = append(lines, fmt.Sprintf("table %s chain %s rule %d of %d expressions", table.Name, chain.Name, r.Handle, len(r.Exprs)))
		}
	}
	sets, err := c.GetSets(table)
	if err != nil {
		return nil, err
	}
	for _, s := range sets {
		elements, err := c.GetSetElements(s)
		if err != nil {
			return nil, err
		}
		lines = append(lines, fmt.Sprintf("table %s set %s of %d elements", table.Name, s.Name, len(elements)))
	}
	return lines, nil
}
