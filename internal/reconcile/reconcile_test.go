package reconcile_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"reflect"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"sluice.dev/sluice/internal/driver"
	"sluice.dev/sluice/internal/model"
	"sluice.dev/sluice/internal/reconcile"
	"sluice.dev/sluice/internal/state"
)

// fake is a driver that writes down what it is told, and fails as a test says.
type fake struct {
	driver.Driver
	can      driver.Capability
	fails    map[reconcile.Part]error
	whole    bool // it has adopted nothing yet, and needs all parts for that
	tampered bool
	kept     driver.Kept
	held     *state.State   // what it says that the kernel holds
	wants    []*state.State // that it was to adopt
	done     []string
}

func newFake() *fake { return &fake{can: driver.All, fails: map[reconcile.Part]error{}, whole: true} }

func (f *fake) Capabilities() driver.Capabilities      { return driver.Capabilities{Can: f.can} }
func (f *fake) Tampered(context.Context) (bool, error) { return f.tampered, nil }
func (f *fake) took() (done string)                    { done, f.done = strings.Join(f.done, "; "), nil; return done }
func (f *fake) plan(name string, of []reconcile.Part) *fakePlan {
	return &fakePlan{fake: f, name: name, of: of}
}

func (f *fake) Held(read func(*state.State)) {
	if f.held != nil {
		read(f.held)
	}
}

func (f *fake) Adopt(_ context.Context, want *state.State, keep driver.Keep) (driver.Plan, error) {
	f.wants = append(f.wants, want)
	of := partsOf(want.Services != nil, want.Policy != nil)
	if f.whole && len(of) < 2 {
		return nil, driver.ErrWhole
	}
	name := "adopt"
	if keep.Any() {
		name = fmt.Sprintf("keep%+v", keep)
	}
	p := f.plan(name, of)
	p.bare = map[reconcile.Part]bool{reconcile.Services: want.Services != whole.Services, reconcile.Policy: want.Policy != whole.Policy}
	return p, nil
}

func (f *fake) Update(_ context.Context, d state.Delta) (driver.Plan, error) {
	return f.plan("update", partsOf(d.Services.Len() > 0, d.Policy.Len() > 0)), nil
}

func partsOf(services, policy bool) (of []reconcile.Part) {
	if services {
		of = append(of, reconcile.Services)
	}
	if policy {
		of = append(of, reconcile.Policy)
	}
	return of
}

type fakePlan struct {
	*fake
	name string
	of   []reconcile.Part
	bare map[reconcile.Part]bool // nothing of them fails
}

func (p *fakePlan) Len() int       { return 1 }
func (p *fakePlan) String() string { return p.name + "\n" }

func (p *fakePlan) Kept() driver.Kept {
	if strings.HasPrefix(p.name, "keep") {
		return p.kept
	}
	return driver.Kept{}
}

func (p *fakePlan) Apply(context.Context) error {
	for _, part := range p.of {
		if err := p.fails[part]; err != nil && !p.bare[part] {
			p.done = append(p.done, fmt.Sprint("failed ", p.name, " ", p.of))
			return err
		}
	}
	p.done = append(p.done, fmt.Sprint(p.name, " ", p.of))
	if p.name != "update" {
		p.whole, p.tampered = false, false
	}
	return nil
}

var (
	whole    = &state.State{Services: state.NewServices(), Policy: state.NewPolicy()}
	services = state.Delta{Services: state.ServicesDelta{ClusterIPs: map[netip.Addr]bool{netip.MustParseAddr("10.0.0.1"): true}}}
	policy   = state.Delta{Policy: state.PolicyDelta{PodDevices: map[int]bool{5: true}}}
	both     = state.Delta{Services: services.Services, Policy: policy.Policy}
	none     state.Delta
)

func wanted() *state.State { return whole }

// start returns a Reconciler that has adopted a kernel and lacks nothing.
func start(t *testing.T, f *fake) *reconcile.Reconciler {
	t.Helper()
	r := reconcile.New(f, wanted, slog.New(slog.DiscardHandler))
	r.Lack(reconcile.Lacking{})
	if _, err := r.Attempt(t.Context(), both, 1); err != nil {
		t.Fatal(err)
	}
	if got := f.took(); got != "adopt [services policy]" {
		t.Fatalf("the first attempt did %q", got)
	}
	return r
}

// attempt is one, and what it is to do.
type attempt struct {
	change state.Delta
	does   string
	fails  string // a part of the error; empty: none
}

func run(t *testing.T, r *reconcile.Reconciler, f *fake, attempts ...attempt) {
	t.Helper()
	for i, a := range attempts {
		_, err := r.Attempt(t.Context(), a.change, 1)
		if got := f.took(); got != a.does {
			t.Errorf("attempt %d did %q, want %q", i+1, got, a.does)
		}
		if (err == nil) != (a.fails == "") || err != nil && !strings.Contains(err.Error(), a.fails) {
			t.Errorf("attempt %d: error %v, want %q", i+1, err, a.fails)
		}
	}
}

func TestPartsAreUpdatedTogether(t *testing.T) {
	f := newFake()
	r := start(t, f)
	run(t, r, f,
		attempt{none, "", ""},
		attempt{services, "update [services]", ""},
		attempt{policy, "update [policy]", ""},
		attempt{both, "update [services policy]", ""})
}

// A part that fails holds up no other, and is tried again: later and later, sooner where it has
// changed.
func TestPartThatFails(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFake()
		r := start(t, f)
		f.fails[reconcile.Policy] = errors.New("no room")
		run(t, r, f,
			attempt{both, "failed update [services policy]; failed adopt [services policy]; adopt [services]; failed adopt [policy]", "no room"},
			attempt{services, "update [services]", "no room"})
		if failed := r.Failed(); len(failed) != 1 || failed[0].Part != "policy" || failed[0].Attempts != 1 {
			t.Errorf("failed: %+v", failed)
		}
		var last time.Duration
		for range 12 {
			at, is := r.Due()
			if !is || time.Until(at) < last {
				t.Fatalf("due after %v, %v, the last time after %v", time.Until(at), is, last)
			}
			last = time.Until(at)
			run(t, r, f, attempt{services, "update [services]", "no room"})
			time.Sleep(last)
			run(t, r, f, attempt{none, "failed adopt [policy]", "no room"})
		}
		if last != 10*time.Second {
			t.Errorf("tried every %v in the end", last)
		}
		time.Sleep(300 * time.Millisecond)
		run(t, r, f, attempt{services, "update [services]", "no room"}, attempt{policy, "failed adopt [policy]", "no room"})
		delete(f.fails, reconcile.Policy)
		r.Hurry()
		run(t, r, f, attempt{services, "update [services]; adopt [policy]", ""}, attempt{both, "update [services policy]", ""})
		if _, is := r.Due(); is || len(r.Failed()) > 0 {
			t.Error("something is said to fail still")
		}
	})
}

// Parts are not tried apart while another program holds a lock: each would wait for it again.
func TestLock(t *testing.T) {
	f := newFake()
	r := start(t, f)
	f.fails[reconcile.Services] = fmt.Errorf("change iptables: %w", driver.ErrLocked)
	run(t, r, f, attempt{both, "failed update [services policy]; failed adopt [services policy]", "holds the lock"})
	clear(f.fails)
	r.Hurry()
	run(t, r, f, attempt{none, "adopt [services policy]", ""})
}

// A driver that needs the whole gets it. Of a part that fails it gets what nobody declares, and
// keeps what the kernel has.
func TestWholeIsNeeded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFake()
		r := reconcile.New(f, wanted, slog.New(slog.DiscardHandler))
		r.Lack(reconcile.Lacking{})
		f.fails[reconcile.Policy] = errors.New("no room")
		run(t, r, f, attempt{both, "failed adopt [services policy]; keep{Services:false Policy:true Policies:[] Fabric:false} [services policy]; failed adopt [policy]", "no room"})
		run(t, r, f, attempt{services, "update [services]", "no room"})
		time.Sleep(time.Second)
		delete(f.fails, reconcile.Policy)
		run(t, r, f, attempt{none, "adopt [policy]", ""})

		// Later it is one part that fails, and its driver finds that a new beginning is needed.
		f.fails[reconcile.Policy] = errors.New("no room")
		run(t, r, f, attempt{policy, "failed update [policy]; failed adopt [policy]", "no room"})
		delete(f.fails, reconcile.Policy)
		f.whole = true
		time.Sleep(time.Second)
		run(t, r, f, attempt{services, "update [services]; adopt [services policy]", ""})

		// In the tables of another version, the driver keeps the other part by changing nothing.
		f.fails[reconcile.Policy] = errors.New("no room")
		f.whole, f.kept = true, driver.Kept{Services: 1, Policy: 1}
		r.Doubt("")
		run(t, r, f, attempt{none, "failed adopt [services policy]; keep{Services:false Policy:true Policies:[] Fabric:false} [services policy]; failed adopt [policy]", "services cannot be changed alone"})
		if !slices.ContainsFunc(r.Failed(), func(f reconcile.Failure) bool { return f.Part == "services" }) {
			t.Error("services are said to be in step")
		}

		// A driver that cannot keep anything waits for all parts.
		f.can, f.whole = driver.All&^driver.Keeps, true
		r.Hurry()
		run(t, r, f, attempt{none, "failed adopt [services policy]", "no room"})
	})
}

// A part that fails stays as the driver has it where another one can only be adopted with it.
func TestFailingPartStaysAsItIs(t *testing.T) {
	f := newFake()
	r := reconcile.New(f, wanted, slog.New(slog.DiscardHandler))
	r.Lack(reconcile.Lacking{})
	f.held = &state.State{Services: state.NewServices(), Policy: state.NewPolicy()}
	f.held.Policy.PodDevices[7] = struct{}{}
	f.fails[reconcile.Policy] = errors.New("no room")
	run(t, r, f, attempt{none, "failed adopt [services policy]; keep{Services:false Policy:true Policies:[] Fabric:false} [services policy]; failed adopt [policy]", "no room"})
	if alone := f.wants[2]; alone.Services != whole.Services || !reflect.DeepEqual(alone.Policy, f.held.Policy) {
		t.Errorf("services are adopted beside the policy %+v, want what is held", alone.Policy)
	}
}

// What may be lacking is kept, part by part, and goes once all is read.
func TestKeeping(t *testing.T) {
	f := newFake()
	r := reconcile.New(f, wanted, slog.New(slog.DiscardHandler))
	f.kept = driver.Kept{Policy: 3}
	const all = "keep{Services:true Policy:true Policies:[] Fabric:true}"
	run(t, r, f, attempt{both, all + " [services policy]", ""})
	if r.Kept() != 3 {
		t.Errorf("kept %d", r.Kept())
	}
	run(t, r, f,
		attempt{services, "update [services]", ""},
		attempt{policy, all + " [policy]", ""},
		attempt{both, "update [services]; " + all + " [policy]", ""})
	lacks := func(any bool, names ...string) {
		l := reconcile.Lacking{Any: any}
		for _, name := range names {
			l.Policies = append(l.Policies, model.PolicyKey{Kind: model.NetworkPolicy, Name: model.Name{Namespace: "a", Name: name}})
		}
		r.Lack(l)
	}
	f.kept = driver.Kept{}
	lacks(true, "b", "c")
	run(t, r, f, attempt{policy, "keep{Services:false Policy:false Policies:[NetworkPolicy a/b NetworkPolicy a/c] Fabric:false} [services policy]", ""}, attempt{policy, "update [policy]", ""})
	lacks(false, "b", "c") // they wait, and hold nothing up
	run(t, r, f, attempt{policy, "update [policy]", ""})
	if !r.InSlices() {
		t.Error("nothing goes in slices while a policy waits")
	}
	lacks(false, "b") // one is deleted
	run(t, r, f, attempt{none, "keep{Services:false Policy:false Policies:[NetworkPolicy a/b] Fabric:false} [services policy]", ""})
	r.Lack(reconcile.Lacking{})
	run(t, r, f, attempt{none, "adopt [services policy]", ""})
	if r.Kept() != 0 {
		t.Errorf("kept %d of all that is read", r.Kept())
	}
}

// Others' changes are undone and said, and no change of one's own is taken for them.
func TestHealing(t *testing.T) {
	f := newFake()
	r := start(t, f)
	for _, tc := range []struct {
		reason string
		change state.Delta
		healed string
	}{{"audit", none, "audit"}, {"audit", services, ""}, {reconcile.Tampering, services, reconcile.Tampering}, {"", none, ""}} {
		r.Doubt(tc.reason)
		done, err := r.Attempt(t.Context(), tc.change, 1)
		if err != nil || done.Healed != tc.healed || done.Path != reconcile.PathAdopt {
			t.Errorf("%q: %+v, %v", tc.reason, done, err)
		}
		f.took()
	}
	f.tampered = true
	f.fails[reconcile.Services] = errors.New("no such table")
	if !r.Tampered(t.Context()) {
		t.Error("not tampered")
	}
	if _, err := r.Attempt(t.Context(), services, 1); err == nil {
		t.Error("no error")
	}
	if !r.Tampered(t.Context()) {
		t.Error("while a part fails, nobody sees that another one was changed by someone else")
	}
	r.Doubt("")
	if r.Tampered(t.Context()) {
		t.Error("what is to be adopted anyway is looked at for tampering")
	}
}

// A driver of services alone is asked for nothing else.
func TestOnePart(t *testing.T) {
	f := newFake()
	f.can, f.whole = driver.Services, false
	r := reconcile.New(f, wanted, slog.New(slog.DiscardHandler))
	run(t, r, f, attempt{both, "adopt [services]", ""}, attempt{both, "update [services]", ""}, attempt{policy, "", ""})
}

// A generation is in the kernel once all parts in question have it; if one of them fails, it is
// said why.
func TestHas(t *testing.T) {
	f := newFake()
	r := start(t, f)
	noRoom := errors.New("no room")
	attempt := func(generation uint64, change state.Delta, all, ofServices, ofPolicy uint64) {
		t.Helper()
		r.Hurry()
		_, _ = r.Attempt(t.Context(), change, generation)
		for _, c := range []struct {
			of   []reconcile.Part
			want uint64
		}{{nil, all}, {[]reconcile.Part{reconcile.Services, reconcile.Policy}, all}, {[]reconcile.Part{reconcile.Services}, ofServices}, {[]reconcile.Part{reconcile.Policy}, ofPolicy}} {
			has, err := r.Has(c.want, c.of...)
			more, _ := r.Has(c.want+1, c.of...)
			if !has || more || (err != nil) != (c.want < ofServices) || err != nil && !errors.Is(err, noRoom) {
				t.Errorf("after attempt %d: of %v it has %d: %v, more: %v, %v", generation, c.of, c.want, has, more, err)
			}
		}
	}
	attempt(2, none, 2, 2, 2)
	f.fails[reconcile.Policy] = noRoom
	attempt(3, services, 3, 3, 3)
	attempt(4, both, 3, 4, 3)
	attempt(5, services, 3, 5, 3)
	delete(f.fails, reconcile.Policy)
	attempt(5, none, 5, 5, 5)
}

// A driver of services alone has all once it has services.
func TestHasOnePart(t *testing.T) {
	f := newFake()
	f.can, f.whole = driver.Services, false
	r := reconcile.New(f, wanted, slog.New(slog.DiscardHandler))
	if has, err := r.Has(1, reconcile.Policy); has || err != nil {
		t.Errorf("before the first attempt: %v, %v", has, err)
	}
	if _, err := r.Attempt(t.Context(), both, 1); err != nil {
		t.Fatal(err)
	}
	if has, err := r.Has(1, reconcile.Policy); !has || err != nil {
		t.Errorf("of policy: %v, %v", has, err)
	}
}
