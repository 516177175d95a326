package policytest

import (
	"errors"
	"log/slog"
	"slices"
	"testing"

	"sluice.dev/sluice/internal/driver"
	"sluice.dev/sluice/internal/driver/iptables"
	"sluice.dev/sluice/internal/driver/ipvs"
	"sluice.dev/sluice/internal/driver/nftables"
	"sluice.dev/sluice/internal/link"
	"sluice.dev/sluice/internal/probe"
	"sluice.dev/sluice/internal/upkeep"
)

// openDriver opens the driver under test in the network namespace of the calling thread.
var openDriver = openNFTables

func openNFTables(_ testing.TB, o options) (driver.Driver, error) {
	return nftables.Open(nftables.Options{Options: o.Options, Apart: o.apart})
}

// TestIPTables runs the tests with both variants of iptables.
func TestIPTables(t *testing.T) {
	for _, v := range []iptables.Variant{iptables.Legacy, iptables.NFTables} {
		t.Run(string(v), func(t *testing.T) {
			runWith(t, slices.Concat(fates, translations), *kernels, func(_ testing.TB, o options) (driver.Driver, error) {
				return iptables.Open(iptables.Options{Options: o.Options, Variant: v, Apart: o.apart})
			})
		})
	}
}

// TestIPVS runs the tests where IPVS carries out services.
func TestIPVS(t *testing.T) {
	if err := probe.Missing(t.Context(), ipvs.Requirements); errors.Is(err, probe.ErrNotSupported) {
		t.Skip(err)
	}
	runWith(t, fates, *kernels/4, func(_ testing.TB, o options) (driver.Driver, error) {
		return ipvs.Open(ipvs.Options{Options: o.Options})
	})
}

// TestFlowOffload runs the tests with connections that pass by the chains as soon as they can.
func TestFlowOffload(t *testing.T) {
	needsOffload(t)
	runWith(t, fates, *kernels/4, func(t testing.TB, o options) (driver.Driver, error) {
		offload(t, &o)
		return openNFTables(t, o)
	})
}

// test is one of this package that any driver passes which carries out policy, but for what it says
// that it lacks.
type test struct {
	name string
	run  func(*testing.T)
}

// fates are the tests of what becomes of packets on the ways that a data plane has for them.
var fates = []test{
	{"Rows", TestRows}, {"MisnamedNodePackets", TestMisnamedNodePackets},
	{"Netpol", TestNetpol}, {"Conformance", TestConformance}, {"RandomPackets", TestRandomPackets},
	{"Cut", TestCut}, {"CutBeforeServices", TestCutBeforeServices}, {"CutKeeping", TestCutKeeping}, {"CutFromServices", TestCutFromServices}, {"KeepEstablished", TestKeepEstablished},
	{"Errors", TestErrors}, {"WhoseError", TestWhoseError}, {"InvalidThroughServices", TestInvalidThroughServices}, {"PathMTU", TestPathMTU},
	{"Neighbours", TestNeighbours}, {"NeighbourDiscoveryOffTheLink", TestNeighbourDiscoveryOffTheLink},
	{"Tunnels", TestTunnels}, {"UndeclaredPodElsewhere", TestUndeclaredPodElsewhere}, {"Bridge", TestBridge},
	{"ResetUnderAnothersAddress", TestResetUnderAnothersAddress}, {"FragmentUnderAnothersAddress", TestFragmentUnderAnothersAddress},
	{"Reasons", TestReasons}, {"Counters", TestCounters},
	{"Refused", TestRefused}, {"Unsupported", TestUnsupported}, {"BrokenPolicy", TestBrokenPolicy}, {"BrokenPolicyOnAFirstStart", TestBrokenPolicyOnAFirstStart},
	{"NothingPassesWhileProgramsChange", TestNothingPassesWhileProgramsChange},
}

// translations are those of what policies become, for drivers that write it unlike nftables.
var translations = []test{
	{"LargePolicies", TestLargePolicies}, {"LargePolicyChanges", TestLargePolicyChanges},
	{"RandomPacketsApart", TestRandomPacketsApart}, {"MarkOfWhatReachesItself", TestMarkOfWhatReachesItself},
}

// runWith runs the tests with another driver, and so many random clusters.
func runWith(t *testing.T, tests []test, clusters int, open func(testing.TB, options) (driver.Driver, error)) {
	driverBefore, kernelsBefore := openDriver, *kernels
	defer func() { openDriver, *kernels = driverBefore, kernelsBefore }()
	openDriver, *kernels = open, clusters
	for _, test := range tests {
		t.Run(test.name, test.run)
	}
}

// options are those of a kernel's driver, and of what befalls its connections.
type options struct {
	driver.Options
	// apart has the driver ask what rules ask for in the way that it has for large rules.
	apart  bool
	upkeep upkeep.Options
}

func keepEstablished(o *options) { o.upkeep.KeepEstablished = true }
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
	return options{driver.Options{Policy: true, Log: quiet}, false, upkeep.Options{Policy: true, Log: quiet}}
}

// open opens the driver, with the upkeep of connections.
func (o options) open(t testing.TB) (driver.Driver, error) {
	d, err := openDriver(t, o)
	if err != nil {
		return nil, err
	}
	return upkeep.Open(d, o.upkeep)
}
