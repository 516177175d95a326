package agent

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"sync"

	"sluice.dev/sluice/internal/driver"
	"sluice.dev/sluice/internal/model"
	"sluice.dev/sluice/internal/source"
	"sluice.dev/sluice/internal/state"
	"sluice.dev/sluice/internal/store"
)

var (
	_ driver.Driver  = (*fakeDriver)(nil)
	_ driver.Counter = (*fakeDriver)(nil)

	_ source.Source = (*fakeSource)(nil)
)

// fakeDriver keeps a kernel in memory and checks that callers keep the driver's contract.
type fakeDriver struct {
	mu       sync.Mutex
	kernel   map[state.FrontendKey]*state.Frontend
	adopted  bool                       // an Adopt's plan was applied, and nothing has failed since
	keeping  bool                       // the plan applied last left something in the kernel
	named    map[state.FrontendKey]bool // frontends that this driver has been given
	fail     error                      // error of every Apply
	once     bool                       // error of the next Apply only
	gone     bool                       // another program changed the kernel
	applies  int
	misused  []string
	probeErr error

	aside    []driver.SetAside
	counted  []driver.PolicyCounter
	dropped  uint64
	dropRead int // number of calls of dropped
	countErr error
}

func newFakeDriver() *fakeDriver {
	return &fakeDriver{kernel: map[state.FrontendKey]*state.Frontend{}, named: map[state.FrontendKey]bool{}}
}

// restart begins a new life of the driver on the same kernel.
func (d *fakeDriver) restart() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.adopted = false
	clear(d.named)
}

func (d *fakeDriver) Capabilities() driver.Capabilities {
	return driver.Capabilities{Name: "fake", Can: driver.All &^ driver.Fabric, Counter: d}
}

// unable is a driver that cannot do something.
type unable struct {
	*fakeDriver
	what driver.Capability
}

func (d unable) Capabilities() driver.Capabilities {
	c := d.fakeDriver.Capabilities()
	c.Can &^= d.what
	return c
}

func (d *fakeDriver) Held(func(*state.State)) {}

func (d *fakeDriver) Probe(context.Context) error { return d.probeErr }
func (d *fakeDriver) Close() error                { return nil }

func (d *fakeDriver) Purge(context.Context) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	clear(d.kernel)
	return nil
}

func (d *fakeDriver) Adopt(_ context.Context, want *state.State, keep driver.Keep) (driver.Plan, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.gone = false
	p := &fakePlan{driver: d, adopts: true, set: map[state.FrontendKey]*state.Frontend{}}
	if want.Services == nil {
		return p, nil
	}
	for k, f := range want.Services.Frontends {
		if !f.Equal(d.kernel[k]) {
			p.set[k] = f
		}
		p.names = append(p.names, k)
	}
	for k := range d.kernel {
		switch {
		case want.Services.Frontends[k] != nil:
		case keep.Services && !d.named[k]:
			p.kept++
		default:
			p.set[k] = nil
		}
	}
	return p, nil
}

func (d *fakeDriver) Update(_ context.Context, delta state.Delta) (driver.Plan, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if !d.adopted {
		d.misused = append(d.misused, "Update before an Adopt's plan was applied")
	}
	if d.keeping {
		d.misused = append(d.misused, "Update though something is kept")
		return nil, errors.New("something is kept: adopt again")
	}
	return &fakePlan{driver: d, set: maps.Clone(delta.Services.Frontends), names: slices.Collect(maps.Keys(delta.Services.Frontends))}, nil
}

func (d *fakeDriver) Tampered(context.Context) (bool, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.gone, nil
}

func (d *fakeDriver) PolicyCounters(context.Context) ([]driver.PolicyCounter, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.counted, d.countErr
}

func (d *fakeDriver) DropCounts(context.Context) (map[state.Drop]uint64, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.dropRead++
	if d.countErr != nil {
		return nil, d.countErr
	}
	return map[state.Drop]uint64{state.DropPolicy: d.dropped}, nil
}

// counts sets how many connections the policies have decided.
func (d *fakeDriver) counts(c ...driver.PolicyCounter) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.counted = c
}

// drop drops packets.
func (d *fakeDriver) drop(n uint64) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.dropped += n
}

func (d *fakeDriver) SetAside() []driver.SetAside {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.aside
}

// setsAside replaces the list of what the kernel refuses.
func (d *fakeDriver) setsAside(list ...driver.SetAside) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.aside = list
}

// flush empties the kernel as another program would.
func (d *fakeDriver) flush() {
	d.mu.Lock()
	defer d.mu.Unlock()
	clear(d.kernel)
	d.gone = true
}

// breaks makes every Apply fail with err; nil mends it.
func (d *fakeDriver) breaks(err error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.fail = err
}

func (d *fakeDriver) applied() int {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.applies
}

// backends lists the kernel's frontends, as "TCP 10.0.0.1:80 -> [10.1.0.1:8080]".
func (d *fakeDriver) backends() []string {
	d.mu.Lock()
	defer d.mu.Unlock()
	var lines []string
	for k, f := range d.kernel {
		lines = append(lines, fmt.Sprintf("%s -> %v", k, f.Backends))
	}
	slices.Sort(lines)
	return lines
}

type fakePlan struct {
	driver *fakeDriver
	adopts bool
	kept   int
	names  []state.FrontendKey
	set    map[state.FrontendKey]*state.Frontend
}

func (p *fakePlan) Len() int          { return len(p.set) }
func (p *fakePlan) Kept() driver.Kept { return driver.Kept{Services: p.kept} }

func (p *fakePlan) String() string {
	var text string
	for _, k := range slices.SortedFunc(maps.Keys(p.set), state.FrontendKey.Compare) {
		if f := p.set[k]; f == nil {
			text += "remove " + k.String() + "\n"
		} else {
			text += fmt.Sprintf("set %s -> %v\n", k, f.Backends)
		}
	}
	return text
}

func (p *fakePlan) Apply(context.Context) error {
	d := p.driver
	d.mu.Lock()
	defer d.mu.Unlock()
	d.applies++
	err := d.fail
	if d.gone && !p.adopts {
		err = errors.New("no such table")
	}
	if err != nil {
		d.adopted = false
		if d.once {
			d.fail = nil
		}
		return err
	}
	for k, f := range p.set {
		if f == nil {
			delete(d.kernel, k)
		} else {
			d.kernel[k] = f
		}
	}
	for _, k := range p.names {
		d.named[k] = true
	}
	if p.adopts {
		d.adopted, d.keeping = true, p.kept > 0
	}
	return nil
}

// fakeSource delivers what the test declares.
type fakeSource struct {
	store *store.Store

	mu      sync.Mutex
	pending []store.Event // declared and not yet delivered; Flush delivers it
	synced  bool
	issues  []model.Issue
	broken  error
	lacking []string
	odd     []model.PolicyKey // all that is lacking
	unread  []model.Kind
	dialed  []netip.AddrPort
}

// Dialed implements source.Dialer.
func (s *fakeSource) Dialed() []netip.AddrPort {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.dialed
}

func (s *fakeSource) Run(ctx context.Context) error { <-ctx.Done(); return nil }

func (s *fakeSource) Flush(context.Context) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.broken != nil {
		return s.broken
	}
	s.store.Apply(s.pending)
	s.pending = nil
	return nil
}

func (s *fakeSource) Status() source.Status {
	s.mu.Lock()
	defer s.mu.Unlock()
	var kinds []source.Following
	for _, k := range s.unread {
		kinds = append(kinds, source.Following{Kind: k})
	}
	return source.Status{Name: "manifests", Where: "/manifests", Synced: s.synced, Issues: slices.Clone(s.issues), Lacking: s.lacking, LackingObjects: s.odd, Unread: s.unread, Kinds: kinds,
		Objects: map[string]int{"Service": 1}, Skipped: map[string]int{"ConfigMap": 2}}
}

// declare writes objects into the source, undelivered.
func (s *fakeSource) declare(events ...store.Event) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.pending = append(s.pending, events...)
}

// deliver declares objects and delivers them.
func (s *fakeSource) deliver(events ...store.Event) {
	s.declare(events...)
	_ = s.Flush(context.Background())
}

func (s *fakeSource) sync() {
	s.mu.Lock()
	s.synced = true
	s.mu.Unlock()
	s.store.SetSynced()
}

// lacks sets what could not be read.
func (s *fakeSource) lacks(lacking ...string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.lacking = lacking
}

// neverRead says what kinds could not be read at all.
func (s *fakeSource) neverRead(kinds ...model.Kind) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.unread = kinds
}

func (s *fakeSource) fault(issues ...model.Issue) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.issues = issues
}

var errKernel = errors.New("kernel says no")
