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
				c := newChange(s.doc, false, nil)
				if err := merge(text, nil)(c); err != nil {
					b.Fatal(err)
				}
				if err := c.finish(); err != nil {
					b.Fatal(err)
				}
				if err := c.commit(); err != nil {
					b.Fatal(err)
				}
				s.begin()
			}
		})
	}
}

func loaded(b *testing.B, n int, o Options) *Source {
	s := New(nowhere{}, o)
	c := newChange(s.doc, false, nil)
	if err := merge(many(n), nil)(c); err != nil {
		b.Fatal(err)
	}
	if err := c.finish(); err != nil {
		b.Fatal(err)
	}
	if err := c.commit(); err != nil {
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
