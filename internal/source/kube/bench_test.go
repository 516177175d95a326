package kube

import (
	"context"
	"fmt"
	"log/slog"
	"runtime"
	"strings"
	"testing"

	"sluice.dev/sluice/internal/model"
	"sluice.dev/sluice/internal/source/kinds"
	"sluice.dev/sluice/internal/store"
)

// benchAPI has services of ten endpoints each.
func benchAPI(b *testing.B, count int) *fakeAPI {
	api := newFakeAPI(b)
	api.binary = true
	api.kinds[nodes]["/n1"] = `{"metadata":{"name":"n1","resourceVersion":"1"}}`
	for i := range count {
		name := fmt.Sprintf("svc-%06d", i)
		api.kinds[services]["bench/"+name] = fmt.Sprintf(`{"metadata":{"name":%q,"namespace":"bench","uid":"6f1a0d3e-0000-4000-8000-%012d","resourceVersion":"1","creationTimestamp":"2026-01-01T00:00:00Z","labels":{"app":%[1]q},"managedFields":[{"manager":"kubectl","operation":"Update","apiVersion":"v1","time":"2026-01-01T00:00:00Z","fieldsType":"FieldsV1","fieldsV1":{"f:spec":{"f:internalTrafficPolicy":{},"f:ports":{".":{},"k:{\"port\":80,\"protocol\":\"TCP\"}":{".":{},"f:name":{},"f:port":{},"f:protocol":{},"f:targetPort":{}}},"f:selector":{},"f:sessionAffinity":{},"f:type":{}}}}]},"spec":{"ports":[{"name":"http","protocol":"TCP","port":80,"targetPort":8080}],"selector":{"app":%[1]q},"clusterIP":"10.%[3]d.%[4]d.%[5]d","clusterIPs":["10.%[3]d.%[4]d.%[5]d"],"type":"ClusterIP","sessionAffinity":"None","ipFamilies":["IPv4"],"ipFamilyPolicy":"SingleStack","internalTrafficPolicy":"Cluster"}}`,
			name, i, 64+i>>16, i>>8&255, i&255)
		var list []string
		for e := range 10 {
			n := i*10 + e
			list = append(list, fmt.Sprintf(`{"addresses":["10.%d.%d.%d"],"conditions":{"ready":true,"serving":true,"terminating":false},"nodeName":"node-%d","targetRef":{"kind":"Pod","namespace":"bench","name":"%s-%d","uid":"6f1a0d3e-0000-4000-8000-%012d"},"zone":"zone-%c"}`,
				128+n>>16&127, n>>8&255, n&255, n%100, name, e, n, 'a'+n%3))
		}
		api.kinds[endpoints]["bench/"+name] = fmt.Sprintf(`{"metadata":{"name":"%s-abcde","generateName":"%[1]s-","namespace":"bench","uid":"6f1a0d3e-0000-4000-8000-%012d","resourceVersion":"1","creationTimestamp":"2026-01-01T00:00:00Z","labels":{"endpointslice.kubernetes.io/managed-by":"endpointslice-controller.k8s.io","kubernetes.io/service-name":%[1]q},"ownerReferences":[{"apiVersion":"v1","kind":"Service","name":%[1]q,"uid":"x"}]},"addressType":"IPv4","ports":[{"name":"http","protocol":"TCP","port":8080}],"endpoints":[%[3]s]}`,
			name, i, strings.Join(list, ","))
	}
	return api
}

// storeSink is a store that reports when it is synced.
type storeSink struct {
	*store.Store
	synced chan struct{}
}

func (s storeSink) SetSynced() { s.Store.SetSynced(); close(s.synced) }

// BenchmarkStart reads all services and their endpoints into a store, from a server whose answers
// are prepared. It reports the memory that stays in use, the store included, and what was allocated
// on the way.
func BenchmarkStart(b *testing.B) {
	for _, n := range []int{1000, 10000} {
		b.Run(fmt.Sprintf("%dx10", n), func(b *testing.B) {
			api := benchAPI(b, n)
			api.pages = map[string]page{} // the fake itself is not to be measured
			config := Config{Kubeconfig: api.kubeconfig("")}
			_, end := run(b, config) // makes the server's answers
			end()
			var stays, allocated uint64
			for b.Loop() {
				b.StopTimer()
				before := heap()
				b.StartTimer()
				s, end := run(b, config)
				b.StopTimer()
				var m runtime.MemStats
				runtime.ReadMemStats(&m)
				allocated = m.TotalAlloc - before.TotalAlloc
				end()
				stays = heap().HeapAlloc - before.HeapAlloc
				runtime.KeepAlive(s)
				b.StartTimer()
			}
			b.ReportMetric(float64(stays)/(1<<20), "MiB-kept")
			b.ReportMetric(float64(allocated)/(1<<20), "MiB-allocated")
		})
	}
}

func heap() (m runtime.MemStats) {
	runtime.GC()
	runtime.GC()
	runtime.ReadMemStats(&m)
	return m
}

// run follows the API until everything is in a store.
func run(b *testing.B, config Config) (held any, end func()) {
	sink := storeSink{store.New(), make(chan struct{})}
	s := New(config, sink, slog.New(slog.DiscardHandler))
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- s.Run(ctx) }()
	<-sink.synced
	return []any{sink, s}, func() { cancel(); <-done }
}

// BenchmarkChange takes one change of an endpoint from the server's connection to the sink.
func BenchmarkChange(b *testing.B) {
	api := benchAPI(b, 1)
	f := newFollower(kinds.Find(model.EndpointSliceKind), &idle, sinkFunc(func([]store.Event) {}), slog.New(slog.DiscardHandler))
	f.notify = func() {}
	at := *f.place
	versions := [2]raw{}
	for i := range versions {
		object := strings.Replace(api.kinds[endpoints]["bench/svc-000000"], `"ready":true`, fmt.Sprintf(`"ready":%v`, i == 0), 1)
		versions[i] = raw{api.marshal(endpoints, object), true}
	}
	b.ReportAllocs()
	for i := 0; b.Loop(); i++ {
		if err := f.event(at, "MODIFIED", versions[i%2]); err != nil {
			b.Fatal(err)
		}
	}
}

var idle = api{timing: usualTiming()}

// sinkFunc is a sink of events.
type sinkFunc func([]store.Event)

func (f sinkFunc) Apply(e []store.Event) { f(e) }
func (sinkFunc) SetSynced()              {}
