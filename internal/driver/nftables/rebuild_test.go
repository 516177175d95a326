package nftables

import (
	"slices"
	"testing"

	lib "github.com/google/nftables"

	"sluice.dev/sluice/internal/driver/nftables/ruleset"
	"sluice.dev/sluice/internal/state"
	"sluice.dev/sluice/test/nfttest"
)

// While a table is replaced by a fresh one, there is a table that packets enter at each moment.
// From one that they enter nothing is taken but the chains by which they do: a packet that is on
// its way finds what its rules look up.
func TestPacketsFindAllWhileTablesAreReplaced(t *testing.T) {
	t.Parallel()
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
			nfttest.Watch(t, ns, d.Sock, isPrerouting)
			if n, _ := adopt(t, d, testState()); n == 0 {
				t.Error("another ruleset, and nothing to do")
			}
			d.Sock.Refuse, d.Doubt = nil, true
			if n, text := adopt(t, d, testState()); n != 0 {
				t.Errorf("the table lacks\n%s", text)
			}
		})
	}
}

// isPrerouting has packets enter tables that are open: they have a base chain of type nat.
func isPrerouting(c *lib.Chain) bool { return c.Name == "prerouting" }

// A rebuilding that ended when packets entered the second table already goes on from that table,
// and counters go on.
func TestRebuildingGoesOnFromTheSecondTable(t *testing.T) {
	t.Parallel()
	modes(t, func(t *testing.T, o Options) {
		o.Policy = true
		ns, want := testNS(t), testState()
		want.Policy = state.NewPolicy()
		d := openIn(t, ns, o)
		adopt(t, d, want)
		counted := map[string]uint64{ruleset.DropPrefix + string(state.DropPolicy): 7}
		next, err := d.build(t.Context(), d.Next(), want, counted)
		if err != nil {
			t.Fatal(err)
		}
		if err := next.open(); err != nil {
			t.Fatal(err)
		}
		if err := d.Sock.Shut(t.Context(), ruleset.TableName); err != nil {
			t.Fatal(err)
		}
		if err := d.Close(); err != nil {
			t.Fatal(err)
		}
		d = openIn(t, ns, o)
		nfttest.Watch(t, ns, d.Sock, isPrerouting)
		adopt(t, d, want)
		if counts, err := d.DropCounts(t.Context()); err != nil || counts[state.DropPolicy] != 7 {
			t.Errorf("counted %v, %v", counts, err)
		}
		if tables := tableNames(t, ns); !slices.Equal(tables, []string{ruleset.TableName}) {
			t.Errorf("tables: %v", tables)
		}
	})
}
