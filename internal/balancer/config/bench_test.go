package config

import (
	"fmt"
	"testing"
	"time"

	"sluice.dev/sluice/internal/balancer/health"
	"sluice.dev/sluice/internal/store"
)

// nowhere is a sink that keeps nothing.
type nowhere struct{}

func (nowhere) Apply([]store.Event) {}
func (nowhere) SetSynced()          {}

func BenchmarkLoad(b *testing.B) {
	for _, n := range []int{2000, 100000} {
		text := many(n)
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			for b.Loop() {
				s := New(nowhere{}, Options{})
				if err := accept(s, text); err != nil {
					b.Fatal(err)
				}
				s.begin()
			}
		})
	}
}

func loaded(b *testing.B, n int, o Options) *Source {
	s := New(nowhere{}, o)
	if err := accept(s, many(n)); err != nil {
		b.Fatal(err)
	}
	s.begin()
	return s
}

func BenchmarkReport(b *testing.B) {
	s := loaded(b, 100000, Options{})
	up := false
	for b.Loop() {
		s.Report([]health.Result{{Key: health.Key{Farm: "farm777", Backend: "bck1"}, Up: up, Why: "refused", Since: time.Time{}}})
		up = !up
	}
}

func BenchmarkChange(b *testing.B) {
	s := loaded(b, 100000, Options{})
	state := "down"
	for b.Loop() {
		body := fmt.Appendf(nil, `{"farms":[{"name":"farm777","backends":[{"name":"bck1","state":"%s"}]}]}`, state)
		s.serve(b.Context(), []*request{{edit: merge(body, nil), done: make(chan struct{})}})
		if state = "up"; b.N%2 == 0 {
			state = "down"
		}
	}
}

func BenchmarkSave(b *testing.B) {
	for _, n := range []int{2000, 100000} {
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			s := loaded(b, n, Options{State: b.TempDir() + "/state"})
			for b.Loop() {
				if err := s.save(); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

// BenchmarkRequest makes requests of a balancer with 10,000 farms: of one backend, of a farm that
// comes and goes, and of all farms.
func BenchmarkRequest(b *testing.B) {
	s := loaded(b, 10000, Options{})
	all := many(10000)
	ask := func(b *testing.B, edit func(*revision) error) {
		r := &request{edit: edit, done: make(chan struct{})}
		if s.serve(b.Context(), []*request{r}); r.err != nil {
			b.Fatal(r.err)
		}
	}
	b.Run("backend", func(b *testing.B) {
		b.ReportAllocs()
		for i := 0; b.Loop(); i++ {
			state := []string{"down", "up"}[i%2]
			ask(b, merge(fmt.Appendf(nil, `{"farms":[{"name":"farm777","backends":[{"name":"bck1","state":"%s"}]}]}`, state), nil))
		}
	})
	b.Run("farm", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			ask(b, merge([]byte(`{"farms":[{"name":"new","virtual-addr":"192.0.2.1","virtual-ports":"80","backends":[{"name":"b","ip-addr":"172.16.0.1","port":"80"}]}]}`), nil))
			ask(b, merge([]byte(`{"farms":[{"name":"new","action":"delete"}]}`), nil))
		}
	})
	b.Run("all", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			ask(b, merge(all, nil))
		}
	})
}
