package drivertest

import (
	"net/netip"
	"testing"
)

// TestMesh shows that all probes pass where nothing judges them, and that one whose way is
// barred is told apart.
func TestMesh(t *testing.T) {
	pods := map[string][2]netip.Addr{}
	for _, name := range []string{"1", "2", "3", "4", "5", "6", "7", "8", "9"} {
		pods["p"+name] = [2]netip.Addr(both("10.244.1.1"+name, "fd00:10:244:1::1"+name))
	}
	m := NewMesh(t, "mesh", [2]netip.Addr(both("192.168.1.1", "fd00:192:168:1::1")), pods)
	var firsts []First
	for _, from := range pods {
		for _, to := range pods {
			for f := range from {
				for _, proto := range probed {
					for _, port := range []uint16{80, 81} {
						firsts = append(firsts, First{from[f], to[f], proto, port})
					}
				}
			}
		}
	}
	for range 3 {
		fates, err := m.Probe(firsts)
		if err != nil {
			t.Fatal(err)
		}
		for f, fate := range fates {
			if !fate.Arrived || !fate.Answered {
				t.Errorf("%v: %+v", f, fate)
			}
		}
	}
}
