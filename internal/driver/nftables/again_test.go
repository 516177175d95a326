package nftables

import (
	"net/netip"
	"strings"
	"testing"

	"sluice.dev/sluice/internal/driver"
	"sluice.dev/sluice/internal/driver/nftables/ruleset"
	"sluice.dev/sluice/internal/state"
)

// However many addresses changes of policy are about, together or one after the other, and however
// often the agent is another: few are named in the kernel, or all packets are judged again.
func TestAgainIsBounded(t *testing.T) {
	t.Parallel()
	joins := func(n, first int) state.Delta {
		group := map[netip.Addr]bool{}
		for i := first; i < first+n; i++ {
			group[netip.AddrFrom4([4]byte{10, byte(i >> 16), byte(i >> 8), byte(i)})] = true
		}
		return state.Delta{Policy: state.PolicyDelta{Groups: map[state.SetID]map[netip.Addr]bool{7: group}}}
	}
	ns := testNS(t)
	named := func() (addresses int, all bool) {
		count := func(set string) int {
			out, err := ns.Run("nft", "list", "set", "inet", ruleset.TableName, set)
			if err != nil {
				t.Fatal(err)
			}
			return strings.Count(string(out), "expires")
		}
		return count("ip-again"), count("again-all") > 0
	}
	open := func() *Driver {
		d := openIn(t, ns, Options{Options: driver.Options{Policy: true}})
		adopt(t, d, isolated())
		return d
	}
	d := open()
	if err := d.Calm(t.Context()); err != nil {
		t.Fatal(err)
	}
	update(t, d, joins(100_000, 0))
	if n, all := named(); n > 0 || !all {
		t.Errorf("at once: %d addresses, all %v", n, all)
	}
	if err := d.Calm(t.Context()); err != nil {
		t.Fatal(err)
	}
	for i := range 5 {
		update(t, d, joins(1000, 200_000+1000*i))
	}
	if n, all := named(); n != 4000 || !all {
		t.Errorf("in turn: %d addresses, all %v", n, all)
	}
	for i := range 5 {
		if err := d.Close(); err != nil {
			t.Fatal(err)
		}
		d = open()
		update(t, d, joins(driver.MostAgain, 300_000+i*driver.MostAgain))
	}
	if n, all := named(); n > driver.MostAgain || !all {
		t.Errorf("one agent after the other: %d addresses, all %v", n, all)
	}
	if err := d.Calm(t.Context()); err != nil {
		t.Fatal(err)
	}
	update(t, d, joins(1, 0))
	if n, all := named(); n != 1 || all {
		t.Errorf("after it is calm: %d addresses, all %v", n, all)
	}
}
