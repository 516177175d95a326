package store_test

import (
	"fmt"
	"net/netip"
	"strconv"
	"testing"

	"sluice.dev/sluice/internal/model"
	"sluice.dev/sluice/internal/store"
)

// benchStore holds services in one namespace that each select ten pods; all
// pods have one label in common.
func benchStore(services int) *store.Store {
	s := store.New()
	for i := range services {
		s.Apply([]store.Event{event(service(strconv.Itoa(i), "app", strconv.Itoa(i), "env", "prod"))})
		for j := range 10 {
			s.Apply([]store.Event{event(benchPod(i*10+j, true))})
		}
	}
	return s
}

func benchPod(i int, ready bool) *model.Pod {
	p := pod(fmt.Sprintf("pod-%d", i), "app", strconv.Itoa(i/10), "env", "prod")
	p.Ready = ready
	p.IPs = []netip.Addr{netip.AddrFrom4([4]byte{10, byte(i >> 16), byte(i >> 8), byte(i)})}
	return p
}

var benchServices = []int{10, 1_000, 10_000}

// BenchmarkPodChange makes a pod ready and unready, and asks what its service selects.
func BenchmarkPodChange(b *testing.B) {
	for _, n := range benchServices {
		b.Run(fmt.Sprintf("%dx10", n), func(b *testing.B) {
			s := benchStore(n)
			svc := view(s).Service(name("0"))
			s.Take()
			ready := false
			for b.Loop() {
				s.Apply([]store.Event{event(benchPod(0, ready))})
				if d := s.Take(); len(d.Services) != 1 {
					b.Fatal(d)
				}
				if got := len(view(s).Selected(svc)); got != 10 {
					b.Fatal(got)
				}
				ready = !ready
			}
		})
	}
}

// BenchmarkFill brings services and pods one by one.
func BenchmarkFill(b *testing.B) {
	for _, n := range benchServices {
		b.Run(fmt.Sprintf("%dx10", n), func(b *testing.B) {
			for b.Loop() {
				benchStore(n)
			}
			b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N*n*10), "ns/pod")
		})
	}
}
