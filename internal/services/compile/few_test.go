package compile_test

import (
	"fmt"
	"net/netip"
	"testing"

	"sluice.dev/sluice/internal/compile"
	"sluice.dev/sluice/internal/model"
	services "sluice.dev/sluice/internal/services/compile"
)

// Of an object with many faults the first are told, and how many more there are; of many objects
// each is.
func TestFaultsOfOneObject(t *testing.T) {
	n := &model.Node{Name: "there", IPs: []netip.Addr{netip.MustParseAddr("192.0.2.2")}}
	objects := []any{v4.node(), n}
	for i := range 100 {
		p := netip.PrefixFrom(netip.AddrFrom4([4]byte{10, 9, byte(i)}), 24)
		objects = append(objects, &model.BlockAffinity{Name: fmt.Sprint("b", i), CIDR: p, Node: "there"})
		objects = append(objects, &model.IPPool{Name: fmt.Sprint("p", i), CIDR: netip.MustParsePrefix("10.8.0.0/16")})
	}
	count := map[model.Kind]int{}
	more := 0
	for _, i := range compiled(compile.Config{Config: services.Config{Fabric: true}}, objects...).Issues() {
		count[i.Object.Kind]++
		var n int
		if _, err := fmt.Sscanf(i.Reason, "and %d more", &n); err == nil {
			more += n
		}
	}
	if count[model.NodeKind] < 65 || count[model.NodeKind] > 66 || more != 36 || count[model.IPPoolKind] != 99 {
		t.Errorf("%v, and %d more", count, more)
	}
}
