package policytest

import (
	"errors"
	"log/slog"
	"testing"

	"sluice.dev/sluice/internal/driver"
	"sluice.dev/sluice/internal/driver/iptables"
	"sluice.dev/sluice/internal/driver/nftables"
	"sluice.dev/sluice/internal/link"
	"sluice.dev/sluice/internal/probe"
	"sluice.dev/sluice/internal/upkeep"
)

// openDriver opens the driver under test in the network namespace of the calling thread. apart has
// it ask what rules ask for in the way that it has for large rules.
var openDriver = func(o driver.Options, apart bool) (driver.Driver, error) {
	return nftables.Open(nftables.Options{Options: o, Apart: apart})
}

// TestIPTables runs the tests with the other drivers that carry out policy.
func TestIPTables(t *testing.T) {
	before := openDriver
	defer func() { openDriver = before }()
	for _, v := range []iptables.Variant{iptables.Legacy, iptables.NFTables} {
		openDriver = func(o driver.Options, apart bool) (driver.Driver, error) {
			return iptables.Open(iptables.Options{Options: o, Variant: v, Apart: apart})
		}
		t.Run(string(v), func(t *testing.T) {
			for _, test := range []struct {
				name string
				run  func(*testing.T)
			}{
				{"Rows", TestRows}, {"LargePolicies", TestLargePolicies}, {"LargePolicyChanges", TestLargePolicyChanges}, {"MisnamedNodePackets", TestMisnamedNodePackets},
				{"Netpol", TestNetpol}, {"Conformance", TestConformance}, {"RandomPackets", TestRandomPackets},
				{"RandomPacketsApart", TestRandomPacketsApart}, {"MarkOfWhatReachesItself", TestMarkOfWhatReachesItself},
				{"Cut", TestCut}, {"CutBeforeServices", TestCutBeforeServices}, {"CutKeeping", TestCutKeeping}, {"CutFromServices", TestCutFromServices}, {"KeepEstablished", TestKeepEstablished},
				{"Errors", TestErrors}, {"WhoseError", TestWhoseError}, {"PathMTU", TestPathMTU},
				{"Neighbours", TestNeighbours}, {"NeighbourDiscoveryOffTheLink", TestNeighbourDiscoveryOffTheLink},
				{"Tunnels", TestTunnels}, {"UndeclaredPodElsewhere", TestUndeclaredPodElsewhere}, {"Bridge", TestBridge},
				{"ResetUnderAnothersAddress", TestResetUnderAnothersAddress}, {"FragmentUnderAnothersAddress", TestFragmentUnderAnothersAddress},
				{"Reasons", TestReasons}, {"Counters", TestCounters},
				{"Refused", TestRefused}, {"Unsupported", TestUnsupported}, {"BrokenPolicy", TestBrokenPolicy}, {"BrokenPolicyOnAFirstStart", TestBrokenPolicyOnAFirstStart},
				{"NothingPassesWhileProgramsChange", TestNothingPassesWhileProgramsChange},
			} {
				t.Run(test.name, test.run)
			}
		})
	}
}

// options are those of a kernel's driver, and of what befalls its connections.
type options struct {
	driver.Options
	apart  bool
	upkeep upkeep.Options
}

func keepEstablished(o *options) { o.upkeep.KeepEstablished = true }
func apart(o *options)           { o.apart = true }

// offloading has established connections pass by the chains. It skips the test where the kernel
// cannot do that.
func offloading(t testing.TB) func(*options) {
	t.Helper()
	if err := nftables.FlowOffload.Met(t.Context()); errors.Is(err, probe.ErrNotSupported) {
		t.Skip(err)
	}
	return func(o *options) {
		var err error
		if o.Devices, err = link.WatchRouting(t.Context(), o.Log); err != nil {
			t.Fatal(err)
		}
		o.FlowOffload = true
	}
}

func defaults() options {
	quiet := slog.New(slog.DiscardHandler)
	return options{driver.Options{Policy: true, Log: quiet}, false, upkeep.Options{Policy: true, Log: quiet}}
}

// open opens the driver, with the upkeep of connections.
func (o options) open() (driver.Driver, error) {
	d, err := openDriver(o.Options, o.apart)
	if err != nil {
		return nil, err
	}
	return upkeep.Open(d, o.upkeep)
}
