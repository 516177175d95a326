package config

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/netip"
	"os"
	"slices"
	"strings"
	"sync"
	"time"

	"sluice.dev/sluice/internal/balancer/health"
	"sluice.dev/sluice/internal/lib/wake"
	"sluice.dev/sluice/internal/model"
	"sluice.dev/sluice/internal/source"
	"sluice.dev/sluice/internal/store"
)

// Kernel is what the API needs of whoever programs the kernel. Its methods are safe for concurrent
// use.
type Kernel interface {
	// Sync returns once the kernel has all that the store was told before, or why it has not some
	// of the objects; what is wrong with others is no matter. It is a *FaultsError if the kernel
	// has all but what these objects are at fault in.
	Sync(ctx context.Context, objects []model.Ref) error
	// Sessions are the clients that the farm remembers at present, with the time that is left.
	Sessions(ctx context.Context, farm string) ([]model.LiveSession, error)
	// Forget forgets some of them.
	Forget(ctx context.Context, farm string, clients []model.FlowValues) error
}

// FaultsError says what objects are at fault in.
type FaultsError struct{ Issues []model.Issue }

func (e *FaultsError) Error() string {
	var texts []string
	for _, i := range e.Issues {
		texts = append(texts, i.Object.String()+": "+i.Reason)
	}
	return strings.Join(texts, "; ")
}

// Options say how a source is run. The zero value is a source without an API key, which nobody may
// use by HTTP.
type Options struct {
	// Key is what the header Key of a request holds. ReadKeys may be used for GET alone.
	Key      string
	ReadKeys []string
	// Lenient has unknown words be replaced with a warning, as nftlb does it; otherwise they are
	// errors.
	Lenient bool
	// State is a file that the document is kept in; empty: it is not kept.
	State string
	// Check says what the machine can't do of a farm; nil: everything can be done. It must not
	// keep the farm.
	Check func(*model.Farm) error
	// LoadAll has what Check refuses be loaded at the start all the same: who programs the kernel
	// says of each farm what it cannot do. Otherwise nothing is loaded.
	LoadAll bool
	// DSRTracks says that the kernel remembers connections and clients in mode dsr, too. Otherwise
	// each packet chooses its backend by a hash there.
	DSRTracks bool
	// Own are where this program itself is served by TCP; an unspecified address stands for all of
	// its family. A farm that would take one is refused: nobody could mend it by the API any more.
	// One of the state file, where an older version may have put it, is kept and not served.
	Own []netip.AddrPort
	// Prepare makes the machine ready for a farm that is about to be programmed; nil: there is
	// nothing to do. It must not keep the farm.
	Prepare func(*model.Farm)
	// HasDevice reports whether the machine has an interface that a request names; nil: it is not
	// asked. What is loaded at the start is not checked so, as interfaces may come later.
	HasDevice func(name string) bool
	// ReadList reads the text of a feed; nil: there are no feeds.
	ReadList func(io.Reader) ([]netip.Prefix, error)
	// Listed returns the networks that the kernel has on lists, by name; nil: it has none. They
	// stay there until the lists' feeds have been read.
	Listed func(ctx context.Context, lists []string) (map[string][]netip.Prefix, error)
	Log    *slog.Logger // nil: none
	// Now is the time, for tests; nil: time.Now.
	Now func() time.Time
}

// Source is the source of a balancer. Its methods are safe for concurrent use, except that Use,
// UseChecker and Load come before Run.
type Source struct {
	sink    source.Sink
	options Options
	kernel  Kernel  // nil: nobody programs one
	checker Checker // nil: nothing is checked
	log     *slog.Logger
	now     func() time.Time

	mu       sync.RWMutex // guards all below
	doc      *document
	found    findings
	rising   map[string]time.Time // when weights of a farm rise next
	begun    bool                 // the document has been delivered
	from     string               // what was loaded
	loaded   []*request           // that, until it has been delivered
	faults   map[string]model.Issue
	wakeRise wake.Signal
	feeds    map[*feed]context.CancelFunc // those that are followed

	following sync.WaitGroup // feeds
	requests  chan *request  // taken by Run
	stopped   chan struct{}  // closed once Run takes none any more
}

var _ source.Source = (*Source)(nil)

// New returns a source without objects, which delivers to sink.
func New(sink source.Sink, o Options) *Source {
	s := &Source{
		sink: sink, options: o, log: o.Log, now: o.Now,
		doc: &document{}, found: findings{}, rising: map[string]time.Time{}, faults: map[string]model.Issue{},
		wakeRise: wake.New(), feeds: map[*feed]context.CancelFunc{}, requests: make(chan *request), stopped: make(chan struct{}),
	}
	if s.log == nil {
		s.log = slog.New(slog.DiscardHandler)
	}
	if s.options.Prepare == nil {
		s.options.Prepare = func(*model.Farm) {}
	}
	if s.now == nil {
		s.now = time.Now
	}
	return s
}

// Use says who programs the kernel.
func (s *Source) Use(kernel Kernel) { s.kernel = kernel }

// UseChecker says who checks backends.
func (s *Source) UseChecker(c Checker) { s.checker = c }

// Load reads the document: from the state file if there is one, else from a file, empty: there is
// none. On an error nothing has been taken over.
func (s *Source) Load(ctx context.Context, file string) error {
	if s.options.State != "" {
		s.removeLeft()
		switch err := s.load(ctx, s.options.State, false); {
		case err == nil:
			return nil
		case !errors.Is(err, os.ErrNotExist):
			return fmt.Errorf("state file: %w; put it right, or move it away to begin with the configuration", err)
		}
	}
	if file == "" {
		return nil
	}
	return s.load(ctx, file, s.options.Lenient)
}

// Run implements source.Source.
func (s *Source) Run(ctx context.Context) error {
	s.begin()
	var helpers sync.WaitGroup
	helpers.Go(func() { s.rise(ctx) })
	defer helpers.Wait()
	defer s.stopFeeds()
	for {
		select {
		case <-ctx.Done():
			close(s.stopped)
			return nil
		case r := <-s.requests:
			s.serve(ctx, s.waiting(r))
		}
	}
}

// begin delivers what was loaded.
func (s *Source) begin() {
	s.mu.Lock()
	s.begun = true
	s.mu.Unlock()
	s.replace(&document{}, s.doc, s.loaded)
	s.loaded = nil
	s.sink.SetSynced()
}

func (s *Source) setChecks(changes map[health.Key]*health.Target) {
	if s.checker != nil && len(changes) > 0 {
		s.checker.Set(changes)
	}
}

// event is a farm, nil: it is not served.
func event(name string, f *model.Farm) store.Event {
	e := store.Event{Kind: model.FarmKind, Name: model.Name{Name: name}}
	if f != nil {
		e.Object = f
	}
	return e
}

func listEvent(name string, p *policy) store.Event {
	e := store.Event{Kind: model.FarmListKind, Name: model.Name{Name: name}}
	if p != nil {
		e.Object = p.base
	}
	return e
}

// Flush implements source.Source: it waits for the changes that came before.
func (s *Source) Flush(ctx context.Context) error {
	_, err := s.submit(ctx, func(*revision) error { return nil })
	return err
}

// Status implements source.Source.
func (s *Source) Status() source.Status {
	s.mu.RLock()
	defer s.mu.RUnlock()
	st := source.Status{
		Name: "balancer", Where: s.from, Synced: s.begun,
		Objects: map[string]int{string(model.FarmKind): s.doc.farms.Len(), string(model.FarmListKind): s.doc.policies.Len()},
		Skipped: map[string]int{}, Issues: []model.Issue{},
	}
	for _, i := range s.faults {
		st.Issues = append(st.Issues, i)
	}
	st.Issues = append(st.Issues, s.doc.asides()...)
	for name, found := range s.found {
		st.Issues = append(st.Issues, s.failing(name, found)...)
	}
	slices.SortFunc(st.Issues, model.Issue.Compare)
	return st
}

// asides says which farms are not served.
func (d *document) asides() (list []model.Issue) {
	for _, f := range d.farms.All() {
		if f.aside != "" {
			list = append(list, model.Issue{Object: f.base.Ref(), Reason: f.aside, InForce: model.InForceNothing})
		}
	}
	return list
}

// failing says which farms have no backend left that its check finds up.
func (s *Source) failing(name string, found map[string]*finding) []model.Issue {
	f := s.doc.farms.Get(name)
	if f == nil {
		return nil
	}
	targets := f.targets()
	why := ""
	for backend := range targets {
		is := found[backend]
		if is == nil || !is.down {
			return nil
		}
		why = max(why, backend+": "+is.why)
	}
	if why == "" {
		return nil
	}
	i := model.Issue{Object: f.base.Ref(), Reason: "the checks of all its backends fail, as of " + why, InForce: "no backend: connections are refused"}
	unchecked := slices.ContainsFunc(f.backends, func(b *backend) bool { return b.unchecked && b.State == up })
	if unchecked {
		i.Reason, i.InForce = "all checks of its backends fail, as of "+why, "the backends that are not checked"
	}
	if f.keepDown {
		i.InForce = "all backends, as all-down says"
	}
	return []model.Issue{i}
}
