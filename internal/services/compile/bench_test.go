package compile_test

import (
	"fmt"
	"net/netip"
	"runtime"
	"testing"

	"sluice.dev/sluice/internal/compile"
	"sluice.dev/sluice/internal/model"
	services "sluice.dev/sluice/internal/services/compile"
	"sluice.dev/sluice/internal/store"
)

// benchScale is a number of services and of endpoints in each.
type benchScale struct{ services, endpoints int }

func (sc benchScale) String() string { return fmt.Sprintf("%dx%d", sc.services, sc.endpoints) }

var benchScales = []benchScale{{10, 10}, {1_000, 10}, {10_000, 10}, {100_000, 10}, {1, 10_000}}

func benchName(i int) model.Name {
	return model.Name{Namespace: fmt.Sprintf("ns-%d", i/1000), Name: fmt.Sprintf("svc-%d", i)}
}

func benchAddr(first byte, i int) netip.Addr {
	return netip.AddrFrom4([4]byte{first, byte(i >> 16), byte(i >> 8), byte(i)})
}

func benchService(i int) *model.Service {
	return &model.Service{
		Name:       benchName(i),
		ClusterIPs: []netip.Addr{benchAddr(172, i)},
		Ports:      []model.ServicePort{{Name: "http", Protocol: model.TCP, Port: 80, TargetPort: 8080}},
	}
}

// benchSlice spreads endpoints over a hundred nodes.
func benchSlice(i, n int) *model.EndpointSlice {
	name := benchName(i)
	slice := &model.EndpointSlice{
		Name:    model.Name{Namespace: name.Namespace, Name: name.Name + "-x"},
		Service: name.Name,
		Ports:   []model.EndpointPort{{Name: "http", Protocol: model.TCP, Port: 8080}},
	}
	for j := range n {
		slice.Endpoints = append(slice.Endpoints, model.Endpoint{
			Addr: benchAddr(10, i*n+j), Ready: true, Serving: true, Node: fmt.Sprintf("node-%d", (i+j)%100),
		})
	}
	return slice
}

func benchStore(sc benchScale) *store.Store {
	s := store.New()
	s.Apply([]store.Event{event(&model.Node{Name: "node-0", IPs: []netip.Addr{netip.MustParseAddr("192.168.0.1")}})})
	for i := range sc.services {
		svc, slice := benchService(i), benchSlice(i, sc.endpoints)
		s.Apply(events(svc, slice))
	}
	return s
}

// BenchmarkStart compiles everything.
func BenchmarkStart(b *testing.B) {
	for _, sc := range benchScales {
		b.Run(sc.String(), func(b *testing.B) {
			s := benchStore(sc)
			var c *compile.Compiler
			for b.Loop() {
				c = compile.New(compile.Config{Config: services.Config{Node: "node-0"}})
				if d := c.Update(s, store.Dirty{}); len(d.Services.Frontends) != sc.services {
					b.Fatalf("%d frontends", len(d.Services.Frontends))
				}
			}
			b.StopTimer()
			b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N*sc.services*sc.endpoints), "ns/endpoint")
			before := heap()
			runtime.KeepAlive(c)
			c = nil // so that the difference is what it held
			b.ReportMetric(float64(before-heap())/float64(sc.services*sc.endpoints), "B/endpoint")
			runtime.KeepAlive(s)
		})
	}
}

func heap() int64 {
	runtime.GC()
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc)
}

// BenchmarkChange takes one endpoint out of a slice, and puts it back.
func BenchmarkChange(b *testing.B) {
	for _, sc := range benchScales {
		b.Run(sc.String(), func(b *testing.B) {
			s := benchStore(sc)
			c := compile.New(compile.Config{Config: services.Config{Node: "node-0"}})
			c.Update(s, s.Take())
			full, less := benchSlice(0, sc.endpoints), benchSlice(0, sc.endpoints)
			less.Endpoints = less.Endpoints[1:]
			next := less
			b.ReportAllocs()
			for b.Loop() {
				s.Apply([]store.Event{event(next)})
				if d := c.Update(s, s.Take()); len(d.Services.Frontends) != 1 {
					b.Fatal(d)
				}
				if next == less {
					next = full
				} else {
					next = less
				}
			}
		})
	}
}
