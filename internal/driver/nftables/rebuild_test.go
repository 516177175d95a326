package nftables

import (
	"slices"
	"testing"

	"golang.org/x/sys/unix"

	"sluice.dev/sluice/internal/driver/nftables/nft"
	"sluice.dev/sluice/internal/driver/nftables/program"
	"sluice.dev/sluice/internal/netns"
	"sluice.dev/sluice/internal/state"
)

// While another program's table is replaced, there is a table that packets enter at each moment.
// From one that they enter nothing is taken but the chains by which they do: a packet that is on
// its way finds what its rules look up.
func TestPacketsFindAllWhileProgramsChange(t *testing.T) {
	besideIPVS := func(o Options) (*Driver, error) {
		o.IPVS = true
		return Open(o)
	}
	for name, open := range map[string][2]func(Options) (*Driver, error){
		"nftables to ipvs": {Open, besideIPVS}, "ipvs to nftables": {besideIPVS, Open}, "another layout": {OpenOther, Open},
	} {
		t.Run(name, func(t *testing.T) {
			ns := testNS(t)
			d := openWith(t, ns, open[0])
			adopt(t, d, testState())
			if err := d.Close(); err != nil {
				t.Fatal(err)
			}
			d = openWith(t, ns, open[1])
			d.Refuse(func(m Message) error {
				entries := entriesOf(t, ns)
				if len(entries) == 0 {
					t.Errorf("before %q packets enter no table", m.Label)
				}
				if table, chain := takenFrom(m); entries[table] != nil && !slices.Contains(entries[table], chain) {
					t.Errorf("%q while packets are in table %s", m.Label, table)
				}
				return nil
			})
			if n, _ := adopt(t, d, testState()); n == 0 {
				t.Error("another program, and nothing to do")
			}
			d.sock.Refuse, d.doubt = nil, true
			if n, text := adopt(t, d, testState()); n != 0 {
				t.Errorf("the table lacks\n%s", text)
			}
		})
	}
}

// entriesOf are the base chains of the tables that packets enter: they have some of type nat.
func entriesOf(t *testing.T, ns *netns.NS) map[string][]string {
	t.Helper()
	chains, err := libConn(t, ns).ListChains()
	if err != nil {
		t.Fatal(err)
	}
	entries := map[string][]string{}
	for _, c := range chains {
		if c.Hooknum != nil {
			entries[c.Table.Name] = append(entries[c.Table.Name], c.Name)
		}
	}
	for table, names := range entries {
		if !slices.Contains(names, "prerouting") {
			delete(entries, table)
		}
	}
	return entries
}

// takenFrom is the table that a message takes something from, and the chain if that goes or its
// rules do.
func takenFrom(m Message) (table, chain string) {
	const ofTable = unix.NFTA_TABLE_NAME // and of all others
	switch m.Type {
	case unix.NFT_MSG_DELTABLE, unix.NFT_MSG_DELSET, unix.NFT_MSG_DELSETELEM, unix.NFT_MSG_DELOBJ:
	case unix.NFT_MSG_DELRULE:
		chain = nft.CString(nft.FindAttr(m.Body, unix.NFTA_RULE_CHAIN))
	case unix.NFT_MSG_DELCHAIN:
		chain = nft.CString(nft.FindAttr(m.Body, unix.NFTA_CHAIN_NAME))
	default:
		return "", ""
	}
	return nft.CString(nft.FindAttr(m.Body, ofTable)), chain
}

// A rebuilding that ended when packets entered the second table already goes on from that table,
// and counters go on.
func TestRebuildingGoesOnFromTheSecondTable(t *testing.T) {
	modes(t, func(t *testing.T, o Options) {
		o.Policy = true
		ns, want := testNS(t), testState()
		want.Policy = state.NewPolicy()
		d := openIn(t, ns, o)
		adopt(t, d, want)
		counted := map[string]uint64{program.DropPrefix + string(state.DropPolicy): 7}
		next, err := d.build(t.Context(), nextTable, want, counted)
		if err != nil {
			t.Fatal(err)
		}
		if err := next.open(t.Context()); err != nil {
			t.Fatal(err)
		}
		if err := d.shut(t.Context(), program.TableName); err != nil {
			t.Fatal(err)
		}
		if err := d.Close(); err != nil {
			t.Fatal(err)
		}
		d = openIn(t, ns, o)
		d.Refuse(func(m Message) error {
			if len(entriesOf(t, ns)) == 0 {
				t.Errorf("before %q packets enter no table", m.Label)
			}
			return nil
		})
		adopt(t, d, want)
		if counts, err := d.DropCounts(t.Context()); err != nil || counts[state.DropPolicy] != 7 {
			t.Errorf("counted %v, %v", counts, err)
		}
		if tables := tableNames(t, ns); !slices.Equal(tables, []string{program.TableName}) {
			t.Errorf("tables: %v", tables)
		}
	})
}
