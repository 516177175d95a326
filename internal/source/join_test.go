package source_test

import (
	"context"
	"errors"
	"reflect"
	"strings"
	"testing"

	"sluice.dev/sluice/internal/model"
	"sluice.dev/sluice/internal/source"
	"sluice.dev/sluice/internal/store"
)

// fake is a source that does as it is told.
type fake struct {
	sink    source.Sink
	synced  chan struct{} // SetSynced is called once it is closed
	failure error         // what Run and Flush return; nil: Run goes on
	status  source.Status
}

func (f *fake) Run(ctx context.Context) error {
	if f.failure != nil {
		return f.failure
	}
	select {
	case <-f.synced:
		f.sink.SetSynced()
	case <-ctx.Done():
		return nil
	}
	<-ctx.Done()
	return nil
}

func (f *fake) Flush(context.Context) error { return f.failure }
func (f *fake) Status() source.Status       { return f.status }

// join makes a joined source of fakes.
func join(sink source.Sink, fakes ...*fake) source.Source {
	var open []func(source.Sink) source.Source
	for _, f := range fakes {
		open = append(open, func(s source.Sink) source.Source { f.sink = s; return f })
	}
	return source.Join(sink, open...)
}

func TestJoinIsSyncedWithTheLast(t *testing.T) {
	s := store.New()
	first, last := &fake{synced: make(chan struct{})}, &fake{synced: make(chan struct{})}
	j := join(s, first, last)
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- j.Run(ctx) }()
	first.sink.SetSynced()
	if s.Synced() {
		t.Error("synced with the first of two")
	}
	close(last.synced)
	<-s.Changed()
	if !s.Synced() {
		t.Error("not synced with the last")
	}
	stop()
	if err := <-ended; err != nil {
		t.Errorf("Run: %v", err)
	}
}

func TestJoinEndsWithTheFirstFailure(t *testing.T) {
	broken := errors.New("no more watchers")
	j := join(store.New(), &fake{}, &fake{failure: broken})
	if err := j.Run(t.Context()); !errors.Is(err, broken) {
		t.Errorf("Run: %v", err)
	}
	if err := j.Flush(t.Context()); !errors.Is(err, broken) {
		t.Errorf("Flush: %v", err)
	}
}

func TestJoinStatus(t *testing.T) {
	issue := func(name string) []model.Issue {
		return []model.Issue{{Object: model.Ref{Kind: model.ServiceKind, Name: model.Name{Name: name}}, Reason: "is broken"}}
	}
	one := &fake{status: source.Status{Name: "manifests", Where: "/m", Synced: true, Objects: map[string]int{"Pod": 1},
		Skipped: map[string]int{"Secret": 2}, Issues: issue("a"), Lacking: []string{"x"}}}
	two := &fake{status: source.Status{Name: "lists", Where: "/l", Synced: true, Objects: map[string]int{"AddressList": 3},
		Issues: issue("b"), Lacking: []string{"y"}}}
	want := source.Status{Name: "manifests, lists", Where: "/m, /l", Synced: true, Objects: map[string]int{"Pod": 1, "AddressList": 3},
		Skipped: map[string]int{"Secret": 2}, Issues: append(issue("a"), issue("b")...), Lacking: []string{"x", "y"}}
	j := join(store.New(), one, two)
	if got := j.Status(); !reflect.DeepEqual(got, want) {
		t.Errorf("got %+v\nwant %+v", got, want)
	}
	key := []model.PolicyKey{{Kind: model.GlobalNetworkPolicy, Name: model.Name{Name: "x"}}}
	one.status.LackingObjects = key
	if got := j.Status().LackingObjects; got != nil {
		t.Errorf("objects %v are all that is lacking, and so is y", got)
	}
	two.status.Lacking = nil
	if got := j.Status().LackingObjects; !reflect.DeepEqual(got, key) {
		t.Errorf("objects %v are all that is lacking, want %v", got, key)
	}
	two.status.Synced = false
	if j.Status().Synced {
		t.Error("synced, though one is not")
	}
	if got := join(store.New()).Status(); got.Issues == nil || strings.TrimSpace(got.Name) != "" {
		t.Errorf("of none: %+v", got)
	}
}
