package health

import (
	"cmp"
	"context"
	"log/slog"
	"net/netip"
	"reflect"
	"slices"
	"sync"

	"sluice.dev/sluice/internal/lib/wake"
)

// Options configure a Checker.
type Options struct {
	Log *slog.Logger // nil: the default one

	// Report, if not nil, is told each target's first result, and then each change of Up and,
	// while it is down, of Why. It is called in the goroutine that Run is called in, and checks
	// wait until it returns. It may call Set.
	Report func([]Result)

	// Ask has the kernel ask by ARP or NDP for the neighbour by which packets go to an address,
	// which it returns, too, and waits for its answer. ARP checks need it.
	Ask func(context.Context, netip.Addr) (netip.Addr, error)

	Requests int // HTTPS, gRPC and ARP checks at a time; 0: 1,000
	Commands int // commands at a time; 0: 32
}

// Checker probes targets. Its methods are safe for concurrent use.
type Checker struct {
	o    Options
	wake wake.Signal // what Set and the tasks have left for Run is to be seen to

	mu      sync.Mutex
	wanted  map[Key]Target
	changed map[Key]struct{} // of wanted, since Run has looked
	failed  map[Key]uint64   // checks of what is wanted, as far as some have
	ended   []ending         // of tasks, since Run has looked

	refused []netip.AddrPort // as Suspect was told since Run has looked
}

// New returns a Checker without targets.
func New(o Options) *Checker {
	o.Log = cmp.Or(o.Log, slog.Default())
	if o.Report == nil {
		o.Report = func([]Result) {}
	}
	o.Requests, o.Commands = cmp.Or(o.Requests, 1000), cmp.Or(o.Commands, 32)
	return &Checker{
		o: o, wake: wake.New(),
		wanted: map[Key]Target{}, changed: map[Key]struct{}{}, failed: map[Key]uint64{},
	}
}

// Set adds and replaces targets; nil means that a key is no longer checked. A target that equals
// the one before is left alone. Any other begins anew, without a result: its first check comes
// soon; a success decides at once, while failures take Fall in a row. Checks under way of what
// was replaced or removed are abandoned. Only a batch of results that is about to be reported
// while Set is called may still have one of them; of a target that was replaced, the new one's
// first result follows.
func (c *Checker) Set(changes map[Key]*Target) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for key, target := range changes {
		old, had := c.wanted[key]
		switch {
		case target == nil && !had, target != nil && had && old.Equal(*target):
			continue
		case target == nil:
			delete(c.wanted, key)
			delete(c.failed, key)
		default:
			c.wanted[key] = *target
		}
		c.changed[key] = struct{}{}
	}
	c.wake.Set()
}

// Equal reports whether two targets are checked in the same way.
func (t Target) Equal(o Target) bool {
	return t.Addr == o.Addr && t.Port == o.Port && (t.Check == o.Check || reflect.DeepEqual(t.Check, o.Check))
}

// Failed returns how many checks of a target have failed since its key was first set, those that
// have not made it dead included.
func (c *Checker) Failed(key Key) uint64 {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.failed[key]
}

// fail counts a check that has failed.
func (c *Checker) fail(key Key) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if _, wanted := c.wanted[key]; wanted {
		c.failed[key]++
	}
}

// Run checks the targets until ctx ends. It is called once. The sockets of TCP, UDP, HTTP and
// ICMP checks are opened in the network namespace of the thread that it is called in.
func (c *Checker) Run(ctx context.Context) {
	l := newLoop(c)
	defer l.close()
	for ctx.Err() == nil {
		l.turn()
		l.sleep(ctx)
	}
}

// take hands over to the loop what Set, the tasks and Suspect have left for it.
func (c *Checker) take(replace func(Key, *Target), end func(ending), suspect func(netip.AddrPort)) {
	c.mu.Lock()
	ended, refused := c.ended, c.refused
	c.ended, c.refused = nil, nil
	for key := range c.changed {
		if target, ok := c.wanted[key]; ok {
			replace(key, &target)
		} else {
			replace(key, nil)
		}
	}
	clear(c.changed)
	c.mu.Unlock()
	for _, e := range ended {
		end(e)
	}
	for _, at := range refused {
		suspect(at)
	}
}

// current are the results but for those of targets that Set has replaced or removed meanwhile.
func (c *Checker) current(results []Result) []Result {
	c.mu.Lock()
	defer c.mu.Unlock()
	return slices.DeleteFunc(results, func(r Result) bool { _, gone := c.changed[r.Key]; return gone })
}

// finish takes the ending of a task.
func (c *Checker) finish(e ending) {
	c.mu.Lock()
	c.ended = append(c.ended, e)
	c.mu.Unlock()
	c.wake.Set()
}

// address returns where a check of the target goes to.
func (t Target) address() netip.AddrPort {
	return netip.AddrPortFrom(t.Addr.Unmap(), cmp.Or(t.Check.Port, t.Port))
}
