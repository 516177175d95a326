package iptables

import (
	"net/netip"
	"strings"
	"testing"

	"sluice.dev/sluice/internal/driver"
	"sluice.dev/sluice/internal/kernel/xtables"
	"sluice.dev/sluice/internal/state"
)

// However many addresses changes of policy are about, together or one after the other: few are in
// the kernel, or all packets are judged again. A change is carried out where they have no room.
func TestAgainIsBounded(t *testing.T) {
	t.Parallel()
	d := inside(t, Options{Variant: xtables.Legacy, Options: driver.Options{Policy: true}})
	joins := func(n, first int) {
		t.Helper()
		group := map[netip.Addr]bool{}
		for i := first; i < first+n; i++ {
			group[netip.AddrFrom4([4]byte{172, 16, byte(i >> 8), byte(i)})] = true
		}
		p, err := d.Update(t.Context(), state.Delta{Policy: state.PolicyDelta{Groups: map[state.SetID]map[netip.Addr]bool{1: group}}})
		apply(t, p, err)
	}
	named := func() (addresses int, all bool) {
		list := run(t, d, "ipset", "list", "SLUICE-4-P-AGAIN")
		all = strings.Contains(list, "0.0.0.0/1 timeout") && strings.Contains(list, "128.0.0.0/1 timeout")
		return strings.Count(list, "\n172.16."), all
	}
	calm := func() {
		t.Helper()
		if err := d.Calm(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	adopt(t, d, policed(2, addr))
	joins(1, 0)
	if n, all := named(); n > 0 || !all {
		t.Errorf("after an earlier agent: %d addresses, all %v", n, all)
	}
	calm()
	joins(driver.MostAgain+1, 1000)
	if n, all := named(); n > 0 || !all {
		t.Errorf("at once: %d addresses, all %v", n, all)
	}
	calm()
	for i := range 5 {
		joins(1000, 10_000+1000*i)
	}
	if n, all := named(); n != 4000 || !all {
		t.Errorf("in turn: %d addresses, all %v", n, all)
	}
	calm()
	joins(1, 20_000)
	if n, all := named(); n != 1 || all {
		t.Errorf("after it is calm: %d addresses, all %v", n, all)
	}
	run(t, d, "ipset", "create", "small", "hash:net", "maxelem", "1", "timeout", "0")
	run(t, d, "ipset", "add", "small", "192.0.2.0/24", "timeout", "0")
	run(t, d, "ipset", "swap", "small", "SLUICE-4-P-AGAIN")
	joins(1, 20_001)
	if list := run(t, d, "ipset", "list", "SLUICE-4-P-G-000001"); !strings.Contains(list, "172.16.78.33") {
		t.Errorf("the change was not carried out:\n%s", list)
	}
}
