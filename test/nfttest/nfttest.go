// Package nfttest looks at what a driver's transactions do to packets that are on their way.
package nfttest

import (
	"slices"
	"testing"

	"github.com/google/nftables"
	"golang.org/x/sys/unix"

	"sluice.dev/sluice/internal/kernel/attr"
	"sluice.dev/sluice/internal/kernel/nft"
	"sluice.dev/sluice/test/netns"
)

// Watch fails the test if a transaction by the socket could lose packets: if packets enter no table
// of the socket's family before it, or if it takes anything but base chains from a table that they
// enter. They enter those of which a base chain is one that serves.
func Watch(t *testing.T, ns *netns.NS, s *nft.Socket, serves func(*nftables.Chain) bool) {
	s.Refuse = func(messages [][]byte, labels []string) error {
		entries := entriesOf(t, ns, s.Family, serves)
		if len(entries) == 0 {
			t.Errorf("before %q packets enter no table", labels[1:])
		}
		nft.EachMessage(slices.Concat(messages...), func(typ uint16, seq uint32, body []byte) {
			if table, chain := takenFrom(typ, body); entries[table] != nil && !slices.Contains(entries[table], chain) {
				t.Errorf("%q while packets are in table %s", labels[seq], table)
			}
		})
		return nil
	}
	t.Cleanup(func() { s.Refuse = nil })
}

// entriesOf are the base chains of the tables that packets enter.
func entriesOf(t *testing.T, ns *netns.NS, family uint8, serves func(*nftables.Chain) bool) map[string][]string {
	t.Helper()
	c, err := nftables.New(nftables.WithNetNSFd(ns.Fd()))
	if err != nil {
		t.Fatal(err)
	}
	chains, err := c.ListChainsOfTableFamily(nftables.TableFamily(family))
	if err != nil {
		t.Fatal(err)
	}
	all, entered := map[string][]string{}, map[string][]string{}
	for _, c := range chains {
		if c.Hooknum != nil {
			all[c.Table.Name] = append(all[c.Table.Name], c.Name)
		}
	}
	for _, c := range chains {
		if c.Hooknum != nil && serves(c) {
			entered[c.Table.Name] = all[c.Table.Name]
		}
	}
	return entered
}

// takenFrom is the table that a message takes something from, and the chain if that goes or its
// rules do.
func takenFrom(typ uint16, body []byte) (table, chain string) {
	const ofTable = unix.NFTA_TABLE_NAME // and of all others
	switch typ {
	case unix.NFT_MSG_DELTABLE, unix.NFT_MSG_DELSET, unix.NFT_MSG_DELSETELEM, unix.NFT_MSG_DELOBJ:
	case unix.NFT_MSG_DELRULE:
		chain = attr.Text(attr.Find(body, unix.NFTA_RULE_CHAIN))
	case unix.NFT_MSG_DELCHAIN:
		chain = attr.Text(attr.Find(body, unix.NFTA_CHAIN_NAME))
	default:
		return "", ""
	}
	return attr.Text(attr.Find(body, ofTable)), chain
}
