// Package established has packets of established connections that the node passes on go from the
// interface where they arrive right to the one where they leave: a program of ours at each asks the
// kernel's own entry of the connection and its routes, translates the packet as that says, and
// sends it on. All rules are passed by, as nothing of theirs is asked of such packets.
//
// It works beside a driver, which has all other packets: those that begin or end a connection, of
// connections that a policy has come to forbid, and all while a change of policy is carried out.
// What needs more than routing an IP packet is left to the driver and the kernel, too.
package established

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"maps"
	"math"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/btf"
	"github.com/cilium/ebpf/link"
	"golang.org/x/sys/unix"

	"sluice.dev/sluice/internal/driver"
	"sluice.dev/sluice/internal/kernel/bpf"
	devices "sluice.dev/sluice/internal/kernel/link"
	"sluice.dev/sluice/internal/kernel/netns"
	"sluice.dev/sluice/internal/kernel/sysctl"
	"sluice.dev/sluice/internal/state"
)

// Name is what this accelerator is called.
const Name = bpf.TCX

// Sysctls are the kernel parameters that it needs: connection tracking does not see all segments of
// a connection of TCP, and may make nothing of their numbers. Where they have other values it is
// off.
var Sysctls = map[string]string{sysctl.AnyWindow: "1", sysctl.AnyReset: "1"}

// Driver adds this accelerator to a driver. It implements driver.Driver, and owns the driver that
// it wraps.
type Driver struct {
	driver.Driver
	log    *slog.Logger
	folder bpf.Folder
	here   *netns.NS
	stop   context.CancelFunc
	ended  chan struct{}

	looking sync.Mutex // held while interfaces are looked at; before mu

	mu      sync.Mutex // of what follows
	program *bpfObjects
	links   map[int]link.Link // by interface
	left    map[int]string    // interfaces that are left to the driver, and why
	why     string            // it is off
	judging time.Time         // until then, connections may be forbidden that are not labelled yet
}

// Open gives a driver this accelerator, in the calling thread's network namespace, where the driver
// has to be. It is off until the driver has adopted something, and where the kernel or the rights
// do not suffice; Status says why. log receives what happens in the background.
func Open(of driver.Driver, log *slog.Logger) *Driver {
	d := &Driver{Driver: of, log: log.With("accelerator", Name), stop: func() {}, links: map[int]link.Link{}, left: map[int]string{}}
	if err := d.open(); err != nil {
		d.why = bpf.Missing(err)
	}
	return d
}

func (d *Driver) open() (err error) {
	if name := d.Driver.Capabilities().Name; name != "nftables" {
		return errors.New("packets of other modes than nftables meet what it does not know") // IPVS' time-outs, for one
	}
	if d.here, err = netns.OpenPath("/proc/thread-self/ns/net"); err != nil {
		return err
	}
	if d.folder, err = bpf.Own(Name); err != nil {
		return err
	}
	// What an agent before this one left goes by what that one knew.
	if err := d.folder.Remove(); err != nil {
		return err
	}
	ctx, stop := context.WithCancel(context.Background())
	links, err := devices.WatchLinks(ctx, d.log)
	if err != nil {
		stop()
		return err
	}
	d.stop, d.ended = stop, make(chan struct{})
	go func() {
		defer close(d.ended)
		tick := time.NewTicker(lookEvery)
		defer tick.Stop()
		for ctx.Err() == nil {
			select {
			case <-ctx.Done():
			case <-links:
			case <-tick.C:

			}
			d.look()
		}
	}()
	return nil
}

// lookEvery is how often interfaces are looked at without a sign of a change: nothing tells of
// others' programs and parameters.
const lookEvery = 5 * time.Second

// Probe reports whether this kernel and these privileges suffice, and changes nothing. Its error
// wraps ebpf.ErrNotSupported where the kernel lacks something.
func Probe() error {
	program, err := load()
	if err != nil {
		return err
	}
	return program.Close()
}

// load loads the program, which takes no packet yet.
func load() (*bpfObjects, error) {
	spec, err := loadBpf()
	if err != nil {
		return nil, err
	}
	var options ebpf.ProgramOptions
	switch tracking, err := btf.LoadKernelModuleSpec("nf_conntrack"); {
	case err == nil:
		options.ExtraRelocationTargets = []*btf.Spec{tracking}
	case !errors.Is(err, fs.ErrNotExist): // the kernel has it built in
		return nil, err
	}
	program := new(bpfObjects)
	err = spec.LoadAndAssign(program, &ebpf.CollectionOptions{Programs: options})
	if errors.Is(err, ebpf.ErrNotSupported) {
		return nil, fmt.Errorf("it needs Linux 6.6: %w", ebpf.ErrNotSupported)
	}
	if err != nil {
		return nil, err
	}
	if err := program.PausedUntil.Set(uint64(math.MaxUint64)); err != nil {
		return nil, errors.Join(err, program.Close())
	}
	return program, nil
}

// Close releases what is open, and closes the driver. The kernel goes on.
func (d *Driver) Close() error {
	d.stop()
	if d.ended != nil {
		<-d.ended
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	err := d.release()
	if d.here != nil {
		err = errors.Join(err, d.here.Close())
	}
	return errors.Join(err, d.Driver.Close())
}

// release closes what is open of the program; pins stay.
func (d *Driver) release() (err error) {
	for _, l := range d.links {
		err = errors.Join(err, l.Close())
	}
	clear(d.links)
	clear(d.left)
	if d.program != nil {
		err = errors.Join(err, d.program.Close())
	}
	d.program = nil
	return err
}

// Purge implements driver.Driver.
func (d *Driver) Purge(ctx context.Context) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	return errors.Join(d.off("nothing is programmed"), d.Driver.Purge(ctx))
}

// off leaves everything to the driver.
func (d *Driver) off(why string) error {
	d.why = why
	return errors.Join(d.release(), d.folder.Remove())
}

// Withdraw turns off what an agent has left in the calling thread's network namespace.
func Withdraw() error {
	f, err := bpf.Own(Name)
	if err != nil {
		return err
	}
	return f.Remove()
}

// Status says how it fares. Safe for concurrent use.
func (d *Driver) Status() driver.Accelerator {
	d.mu.Lock()
	defer d.mu.Unlock()
	s := driver.Accelerator{Name: Name, Off: d.why}
	if d.program == nil {
		return s
	}
	notes := []string{fmt.Sprintf("%d packets", d.taken())}
	for _, index := range slices.Sorted(maps.Keys(d.left)) {
		notes = append(notes, d.left[index])
	}
	s.Note = strings.Join(notes, "; ")
	return s
}

// Taken is how many packets have gone the short way since the agent began. Safe for concurrent use.
func (d *Driver) Taken() uint64 {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.program == nil {
		return 0
	}
	return d.taken()
}

func (d *Driver) taken() (sum uint64) {
	var each []uint64
	if err := d.program.Taken.Lookup(uint32(0), &each); err != nil {
		d.log.Warn("cannot read how many packets went the short way", "error", err)
	}
	for _, n := range each {
		sum += n
	}
	return sum
}

// Capabilities implements driver.Driver.
func (d *Driver) Capabilities() driver.Capabilities {
	can := d.Driver.Capabilities()
	if can.Rejudger != nil {
		can.Rejudger = rejudger{can.Rejudger, d}
	}
	return can
}

// rejudger has packets judged again, which the program must not take meanwhile.
type rejudger struct {
	driver.Rejudger
	d *Driver
}

// Calm implements driver.Rejudger.
func (r rejudger) Calm(ctx context.Context) error {
	err := r.Rejudger.Calm(ctx)
	r.d.mu.Lock()
	defer r.d.mu.Unlock()
	r.d.judging = time.Time{}
	r.d.pause(r.d.judging)
	return err
}

// pause has the program take no packets until then.
func (d *Driver) pause(end time.Time) {
	if d.program == nil {
		return
	}
	var until uint64
	if left := time.Until(end); left > 0 {
		var now unix.Timespec
		_ = unix.ClockGettime(unix.CLOCK_MONOTONIC, &now)
		until = uint64(now.Nano() + left.Nanoseconds())
	}
	if err := d.program.PausedUntil.Set(until); err != nil {
		d.fail(err)
	}
}

// Adopt implements driver.Driver.
func (d *Driver) Adopt(ctx context.Context, want *state.State, keep driver.Keep) (driver.Plan, error) {
	p, err := d.Driver.Adopt(ctx, want, keep)
	if err != nil {
		return nil, err
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	return &plan{Plan: p, d: d, adopts: true, looks: true, judges: want.Policy != nil && (p.Len() > 0 || d.program == nil)}, nil
}

// Update implements driver.Driver.
func (d *Driver) Update(ctx context.Context, delta state.Delta) (driver.Plan, error) {
	p, err := d.Driver.Update(ctx, delta)
	if err != nil || delta.Policy.Len() == 0 {
		return p, err
	}
	follows := &plan{Plan: p, d: d, looks: delta.Policy.Denied != nil || len(delta.Policy.Hosts) > 0}
	d.Held(func(s *state.State) { follows.judges = s.Policy != nil && !delta.Policy.MayForbid(s.Policy).Empty() })
	return follows, nil
}

// plan is a plan of the driver's during which the program takes no packets.
type plan struct {
	driver.Plan
	d      *Driver
	adopts bool
	looks  bool // at which interfaces packets are judged one by one may be different
	judges bool // it may forbid connections, which somebody looks for when it was carried out
}

// Apply implements driver.Plan. The accelerator's own failures are no errors.
func (p *plan) Apply(ctx context.Context) error {
	d := p.d
	d.mu.Lock()
	if p.judges && d.Driver.Capabilities().Rejudger != nil {
		d.judging = time.Now().Add(driver.JudgeAgain)
	}
	d.pause(time.Now().Add(driver.JudgeAgain))
	d.mu.Unlock()
	if err := p.Plan.Apply(ctx); err != nil {
		return err
	}
	if p.adopts {
		d.begin()
	}
	if p.looks {
		d.look()
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	d.pause(d.judging)
	return nil
}

// begin loads the program, unless that is done or cannot be.
func (d *Driver) begin() {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.program != nil || d.ended == nil {
		return
	}
	d.why = ""
	err := d.folder.Make()
	if err == nil {
		d.program, err = load()
	}
	if err != nil {
		d.fail(err)
	}
}

// fail leaves everything to the driver, after an error.
func (d *Driver) fail(err error) {
	d.log.Warn("established connections are not accelerated", "error", err)
	if err := d.off(bpf.Missing(err)); err != nil {
		d.log.Warn("what accelerates established connections could not be removed", "error", err)
	}
}
