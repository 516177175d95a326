package drivertest

import (
	"net/netip"
	"testing"

	"sluice.dev/sluice/internal/model"
)

// TestMesh shows that all probes pass if no rule judges them, and that a blocked one is recognized.
func TestMesh(t *testing.T) {
	t.Parallel()
	pods := map[string][2]netip.Addr{}
	for _, name := range []string{"1", "2", "3", "4", "5", "6", "7", "8", "9"} {
		pods["p"+name] = [2]netip.Addr(both("10.244.1.1"+name, "fd00:10:244:1::1"+name))
	}
	m := NewMesh(t, [2]netip.Addr(both("192.168.1.1", "fd00:192:168:1::1")), pods)
	var firsts []First
	for _, from := range pods {
		for _, to := range pods {
			for f := range from {
				for _, proto := range []model.Protocol{model.TCP, model.UDP, model.SCTP} {
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

// TestTrace follows packets of every kind, one of them spoofed, if no rule judges them.
func TestTrace(t *testing.T) {
	t.Parallel()
	a, b := [2]netip.Addr(both("10.244.1.11", "fd00:10:244:1::11")), [2]netip.Addr(both("10.244.1.12", "fd00:10:244:1::12"))
	m := NewMesh(t, [2]netip.Addr(both("192.168.1.1", "fd00:192:168:1::1")), map[string][2]netip.Addr{"a": a, "b": b})
	nobody := both("198.51.100.7", "2001:db8::7")
	for f := range a {
		for _, proto := range probed {
			got, err := m.Trace(Packet{Host: "a", From: a[f], To: b[f], Protocol: proto, Port: 80})
			if err != nil || got.At != "b" || got.Seen != a[f] || !got.Answered {
				t.Errorf("%v: %+v, %v", proto, got, err)
			}
			got, err = m.Trace(Packet{Host: "a", From: nobody[f], To: b[f], Protocol: proto, Port: 80})
			if err != nil || got.At != "b" || got.Seen != nobody[f] || got.Answered {
				t.Errorf("%v from a false address: %+v, %v", proto, got, err)
			}
		}
	}
}
