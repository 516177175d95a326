package policytest

import (
	"context"
	"errors"
	"log/slog"
	"math"
	"os"
	"slices"
	"testing"

	"github.com/cilium/ebpf"
	"github.com/vishvananda/netlink"

	"sluice.dev/sluice/internal/accelerate/sockets"
	"sluice.dev/sluice/internal/accelerate/xdp"
	"sluice.dev/sluice/internal/driver"
	"sluice.dev/sluice/internal/driver/iptables"
	"sluice.dev/sluice/internal/driver/ipvs"
	"sluice.dev/sluice/internal/driver/nftables"
	"sluice.dev/sluice/internal/kernel/link"
	"sluice.dev/sluice/internal/kernel/netns"
	"sluice.dev/sluice/internal/kernel/probe"
	"sluice.dev/sluice/internal/kernel/xtables"
	"sluice.dev/sluice/internal/state"
	"sluice.dev/sluice/internal/upkeep"
	"sluice.dev/sluice/test/drivertest"
	"sluice.dev/sluice/test/world"
)

func TestMain(m *testing.M) { os.Exit(drivertest.OwnLock(m)) }

// A plane is a driver under test.
type plane struct {
	// open opens the driver in the network namespace of the calling thread.
	open func(testing.TB, options) (driver.Driver, error)
	// These are its parts of the tests, their rows and the cases of others' suites, and of the
	// random clusters: the variants of iptables load the same rules, so that each has a half.
	cases, clusters share
	names           int // of ports, in a policy that has very many
}

// share is a part of a whole, of which there are several.
type share struct{ part, of int }

func (s share) has(i int) bool { return i%s.of == s.part }

// Names of ports: each is a set of its own to iptables, and the kernel compares the name of a new
// set with those of all there are.
const (
	manyNames = 10_000
	manySets  = 1_000
)

var (
	whole      = share{0, 1}
	byNFTables = plane{openNFTables, whole, whole, manyNames}
)

func openNFTables(_ testing.TB, o options) (driver.Driver, error) {
	return nftables.Open(nftables.Options{Options: o.Options, Apart: o.apart, MayMiss: o.apart})
}

func TestNFTables(t *testing.T) { byNFTables.run(t, slices.Concat(fates, translations)) }

// TestIPTables runs the tests with the variants of iptables.
func TestIPTables(t *testing.T) {
	t.Parallel()
	for i, v := range []xtables.Variant{xtables.Legacy, xtables.NFTables} {
		t.Run(string(v), func(t *testing.T) {
			plane{func(_ testing.TB, o options) (driver.Driver, error) {
				return iptables.Open(iptables.Options{Options: o.Options, Variant: v, Apart: o.apart, LockWait: drivertest.LockWait})
			}, share{i, 2}, share{i, 2}, manySets}.run(t, slices.Concat(fates, translations))
		})
	}
}

// TestIPVS runs the tests where IPVS carries out services.
func TestIPVS(t *testing.T) {
	if err := probe.Missing(t.Context(), ipvs.Requirements); errors.Is(err, probe.ErrNotSupported) {
		t.Skip(err)
	}
	plane{func(_ testing.TB, o options) (driver.Driver, error) {
		return ipvs.Open(ipvs.Options{Options: o.Options})
	}, whole, share{0, 4}, manyNames}.run(t, fates)
}

// TestFlowOffload runs the tests with connections that pass by the chains as soon as they can.
func TestFlowOffload(t *testing.T) {
	needsOffload(t)
	plane{func(t testing.TB, o options) (driver.Driver, error) {
		offload(t, &o)
		return openNFTables(t, o)
	}, whole, share{0, 4}, manyNames}.run(t, fates)
}

// TestAtSockets runs some of the tests with sockets that get the endpoints of services themselves.
func TestAtSockets(t *testing.T) {
	world.MountBPF(t)
	plane{func(t testing.TB, o options) (driver.Driver, error) {
		d, err := openNFTables(t, o)
		if err != nil {
			return nil, err
		}
		at := sockets.Open(d, slog.New(slog.DiscardHandler))
		if s := at.Status(); s.Off != "" {
			t.Error(s.Off)
		}
		return at, nil
	}, share{0, 4}, share{0, 4}, manyNames}.run(t, fates)
}

// TestEarlyDrop runs some of the tests with packets that are dropped as they arrive.
func TestEarlyDrop(t *testing.T) {
	world.MountBPF(t)
	plane{func(t testing.TB, o options) (driver.Driver, error) {
		here, err := netns.OpenPath("/proc/thread-self/ns/net")
		if err != nil {
			return nil, err
		}
		t.Cleanup(func() { _ = here.Close() })
		d, err := openNFTables(t, o)
		if err != nil {
			return nil, err
		}
		early, err := xdp.Open(d, xdp.Options{Log: o.Log, Stages: xdp.Stages{Drop: true}})
		return silent{early, here}, err
	}, whole, share{1, 4}, manyNames}.run(t, []test{{"Rows", testRows, inAll}, {"RandomPackets", testRandomPackets, inAll}})
}

// silent has the program leave none of what it drops to nftables. One packet in each tick of the
// clock, which it would leave, may be all that a test sends in one.
type silent struct {
	driver.Driver
	here *netns.NS
}

func (d silent) Adopt(ctx context.Context, want *state.State, keep driver.Keep) (driver.Plan, error) {
	p, err := d.Driver.Adopt(ctx, want, keep)
	return silentPlan{p, d.here}, err
}

func (d silent) Update(ctx context.Context, delta state.Delta) (driver.Plan, error) {
	p, err := d.Driver.Update(ctx, delta)
	return silentPlan{p, d.here}, err
}

type silentPlan struct {
	driver.Plan
	here *netns.NS
}

func (p silentPlan) Apply(ctx context.Context) error {
	return errors.Join(p.Plan.Apply(ctx), p.here.Do(silence))
}

// silence has the programs at the interfaces of the calling thread's network namespace have left
// packets to nftables in the far future.
func silence() error {
	links, err := link.Dump(netlink.LinkList)
	if err != nil {
		return err
	}
	for _, l := range links {
		if at := l.Attrs().Xdp; at != nil && at.Attached {
			err = errors.Join(err, silenceProgram(ebpf.ProgramID(at.ProgId)))
		}
	}
	return err
}

func silenceProgram(id ebpf.ProgramID) error {
	p, err := ebpf.NewProgramFromID(id)
	if err != nil {
		return err
	}
	defer func() { _ = p.Close() }()
	about, err := p.Info()
	if err != nil {
		return err
	}
	future := make([]uint64, ebpf.MustPossibleCPU())
	for cpu := range future {
		future[cpu] = math.MaxUint64
	}
	maps, _ := about.MapIDs()
	for _, id := range maps {
		m, err := ebpf.NewMapFromID(id)
		if err != nil {
			return err
		}
		info, err := m.Info()
		is := err == nil && info.Name == "shown"
		if is {
			err = m.Put(uint32(0), future)
		}
		if err = errors.Join(err, m.Close()); is || err != nil {
			return err
		}
	}
	return errors.New("the program has no map of when it has left packets to nftables")
}

// test is one of this package that any driver passes which carries out policy, except for what it
// says that it lacks.
type test struct {
	name string
	run  func(*testing.T, plane)
	all  bool // every variant of a driver runs it
}

// Which variants of a driver run a test: all, as each takes its part of the cases or it is about
// how rules are loaded, or one of them.
const (
	inAll = true
	inOne = false
)

// fates are the tests of what becomes of packets on the ways that a data plane has for them.
var fates = []test{
	{"Rows", testRows, inAll}, {"MisnamedNodePackets", testMisnamedNodePackets, inOne},
	{"Netpol", testNetpol, inAll}, {"Conformance", testConformance, inAll}, {"RandomPackets", testRandomPackets, inAll},
	{"Cut", testCut, inAll}, {"CutBeforeServices", testCutBeforeServices, inOne}, {"CutKeeping", testCutKeeping, inOne}, {"CutFromServices", testCutFromServices, inOne}, {"KeepEstablished", testKeepEstablished, inOne},
	{"Errors", testErrors, inOne}, {"WhoseError", testWhoseError, inOne}, {"InvalidThroughServices", testInvalidThroughServices, inOne}, {"PathMTU", testPathMTU, inOne},
	{"Neighbours", testNeighbours, inOne}, {"NeighbourDiscoveryOffTheLink", testNeighbourDiscoveryOffTheLink, inOne},
	{"Tunnels", testTunnels, inOne}, {"UndeclaredPodElsewhere", testUndeclaredPodElsewhere, inOne}, {"NewPod", testNewPod, inOne}, {"Bridge", testBridge, inOne},
	{"ResetUnderAnothersAddress", testResetUnderAnothersAddress, inOne}, {"FragmentUnderAnothersAddress", testFragmentUnderAnothersAddress, inOne},
	{"OverlappingNets", testOverlappingNets, inOne}, {"Reasons", testReasons, inOne}, {"Counters", testCounters, inAll},
	{"Refused", testRefused, inOne}, {"Unsupported", testUnsupported, inOne}, {"BrokenPolicy", testBrokenPolicy, inOne}, {"BrokenPolicyOnAFirstStart", testBrokenPolicyOnAFirstStart, inOne},
	{"NothingPassesWhileProgramsChange", testNothingPassesWhileProgramsChange, inAll},
}

// translations are those of what policies become, for drivers that write it unlike nftables.
var translations = []test{
	{"LargePolicies", testLargePolicies, inAll}, {"LargePolicyChanges", testLargePolicyChanges, inOne},
	{"JudgedAgain", testJudgedAgain, inAll}, {"Answering", testAnswering, inAll}, {"RandomPacketsApart", testRandomPacketsApart, inAll}, {"MarkOfWhatReachesItself", testMarkOfWhatReachesItself, inOne},
}

// run runs the tests side by side, each with kernels of its own.
func (p plane) run(t *testing.T, tests []test) {
	t.Parallel()
	for i, test := range tests {
		if !test.all && !p.cases.has(i) {
			continue
		}
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			test.run(t, p)
		})
	}
}

// options are those of a kernel's driver.
type options struct {
	driver.Options
	// apart has the driver ask what rules ask for in the way that it has for large rules.
	apart bool
}

func keepEstablished(o *options) { o.KeepEstablished = true }
func apart(o *options)           { o.apart = true }

// offloading has established connections pass by the chains. It skips the test where the kernel
// cannot do that.
func offloading(t testing.TB) func(*options) {
	t.Helper()
	needsOffload(t)
	return func(o *options) { offload(t, o) }
}

func needsOffload(t testing.TB) {
	t.Helper()
	if err := nftables.FlowOffload.Met(t.Context()); errors.Is(err, probe.ErrNotSupported) {
		t.Skip(err)
	}
}

// offload has connections of the calling thread's network namespace pass by the chains.
func offload(t testing.TB, o *options) {
	var err error
	if o.Devices, err = link.WatchRouting(t.Context(), o.Log); err != nil {
		t.Fatal(err)
	}
	o.FlowOffload = true
}

func defaults() options {
	quiet := slog.New(slog.DiscardHandler)
	return options{driver.Options{Policy: true, Log: quiet}, false}
}

// openWith opens the driver, with the upkeep of connections.
func (p plane) openWith(t testing.TB, o options) (*upkeep.Driver, error) {
	d, err := p.open(t, o)
	if err != nil {
		return nil, err
	}
	return upkeep.Open(d, o.Options)
}
