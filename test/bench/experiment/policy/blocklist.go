package policy

import (
	"context"
	"fmt"
	"net/netip"

	"sluice.dev/sluice/test/bench/chart"
	"sluice.dev/sluice/test/bench/cluster"
	"sluice.dev/sluice/test/bench/harness"
	"sluice.dev/sluice/test/bench/peer"
	"sluice.dev/sluice/test/bench/report"
	"sluice.dev/sluice/test/bench/testbed"
)

// The kinds of lists, and what is measured.
const (
	ofAddresses = "addresses"
	ofNetworks  = "networks of 20 lengths"
	tracked     = "time per packet, tracked"
	untracked   = "time per packet, untracked"
)

// listCase is the case of a program that blocks the addresses of a list.
type listCase struct {
	peer.Blocker
	kind string
	size int
}

func (b listCase) String() string {
	if b.size == 0 {
		return b.Name() + ", no list"
	}
	return fmt.Sprintf("%s, %s %s", b.Name(), chart.Number(float64(b.size)), b.kind)
}

// SkipReason implements harness.Case.
func (b listCase) SkipReason() string {
	if most, why := b.Limit(); most > 0 && b.size > most {
		return why
	}
	return ""
}

// NewTestbed implements harness.Case.
func (listCase) NewTestbed(prefix string) (*testbed.Testbed, error) { return testbed.New(prefix) }

func (b listCase) list() []netip.Prefix {
	switch {
	case b.size == 0:
		return nil
	case b.kind == ofNetworks:
		return cluster.Networks(b.size)
	}
	return cluster.Addresses(b.size)
}

// Load implements harness.Case.
func (b listCase) Load(ctx context.Context, l *testbed.Testbed) (*peer.Loaded, error) {
	blocked, err := b.Block(ctx, l.Node, testbed.NodeIn, b.list())
	if err != nil {
		return nil, err
	}
	return &blocked.Loaded, nil
}

// listCases pairs a program with each size of a kind of list.
func listCases(b peer.Blocker, kind string, sizes ...int) (all []listCase) {
	for _, n := range sizes {
		all = append(all, listCase{b, kind, n})
	}
	return all
}

// recordList adds a sample of a case to the result.
func recordList(r *harness.Run, b listCase, metric, unit string, sample float64) {
	r.Add(b.measurement(metric, unit), sample)
}

func (b listCase) measurement(metric, unit string) report.Measurement {
	return report.Measurement{Dataplane: b.Name(), Addresses: b.size, Variant: b.kind, Metric: metric, Unit: unit}
}

// listSizes returns the sizes of lists that experiments compare with an empty one.
func listSizes(r *harness.Run) (usual, large int) {
	if r.Full() {
		return 100_000, 1_000_000
	}
	return 1_000, 10_000
}

// withoutList returns the measurement of a program without a list.
func withoutList(r *harness.Run, b peer.Blocker, metric string) *report.Measurement {
	if b == (peer.Rules{}) { // the same tables and hooks
		b = peer.Ipset{}
	}
	return r.Same(listCase{b, ofAddresses, 0}.measurement(metric, ""))
}

// ratioToNoList compares a list with no list in the same data plane.
func ratioToNoList(r *harness.Run, b listCase, metric string) (report.Spread, bool) {
	m, base := r.Same(b.measurement(metric, "")), withoutList(r, b.Blocker, metric)
	if m == nil || base == nil {
		return report.Spread{}, false
	}
	return report.Ratios(m, base), true
}
