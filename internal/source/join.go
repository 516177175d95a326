package source

import (
	"context"
	"errors"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"sync/atomic"

	"golang.org/x/sync/errgroup"

	"sluice.dev/sluice/internal/model"
)

// Join makes one source of several that deliver to the same sink. Each of open
// makes one, on the sink it is given. The sink's SetSynced is called once all
// of them have called theirs. No two of them may deliver objects of one kind.
//
// Run ends, with its error, as soon as one of them can never work. Status has
// the names and places of all, and what each says of its objects.
func Join(sink Sink, open ...func(Sink) Source) Source {
	g := &gate{Sink: sink}
	g.missing.Store(int32(len(open)))
	j := &joined{}
	for _, o := range open {
		j.sources = append(j.sources, o(g))
	}
	return j
}

// gate passes on the last of the SetSynced calls that it waits for.
type gate struct {
	Sink
	missing atomic.Int32
}

func (g *gate) SetSynced() {
	if g.missing.Add(-1) == 0 {
		g.Sink.SetSynced()
	}
}

type joined struct{ sources []Source }

func (j *joined) Run(ctx context.Context) error {
	running, ctx := errgroup.WithContext(ctx)
	for _, s := range j.sources {
		running.Go(func() error { return s.Run(ctx) })
	}
	return running.Wait()
}

// Each does something with each of a list at the same time, and joins the errors.
func Each[T any](list []T, do func(T) error) error {
	errs := make([]error, len(list))
	var running sync.WaitGroup
	for i, v := range list {
		running.Go(func() { errs[i] = do(v) })
	}
	running.Wait()
	return errors.Join(errs...)
}

func (j *joined) Flush(ctx context.Context) error {
	return Each(j.sources, func(s Source) error { return s.Flush(ctx) })
}

// Dialed implements Dialer: for those of the sources that do.
func (j *joined) Dialed() []netip.AddrPort {
	var all []netip.AddrPort
	for _, s := range j.sources {
		if d, ok := s.(Dialer); ok {
			all = append(all, d.Dialed()...)
		}
	}
	slices.SortFunc(all, netip.AddrPort.Compare)
	return slices.Compact(all)
}

func (j *joined) Status() Status {
	all := Status{Synced: true, Objects: map[string]int{}, Skipped: map[string]int{}, Issues: []model.Issue{}}
	var names, places []string
	onlyObjects := true
	for _, s := range j.sources {
		st := s.Status()
		names, places = append(names, st.Name), append(places, st.Where)
		all.Synced = all.Synced && st.Synced
		maps.Copy(all.Objects, st.Objects)
		for kind, n := range st.Skipped {
			all.Skipped[kind] += n
		}
		all.Issues = append(all.Issues, st.Issues...)
		all.Reconnects += st.Reconnects
		all.Kinds = append(all.Kinds, st.Kinds...)
		all.Lacking = append(all.Lacking, st.Lacking...)
		all.LackingObjects = append(all.LackingObjects, st.LackingObjects...)
		onlyObjects = onlyObjects && (len(st.Lacking) == 0 || len(st.LackingObjects) > 0)
		all.Unread = append(all.Unread, st.Unread...)
	}
	if !onlyObjects {
		all.LackingObjects = nil
	}
	all.Name, all.Where = strings.Join(names, ", "), strings.Join(places, ", ")
	return all
}
