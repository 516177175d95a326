package bench

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"time"

	"sluice.dev/sluice/internal/bench/chart"
	"sluice.dev/sluice/internal/bench/cluster"
	"sluice.dev/sluice/internal/bench/inject"
	"sluice.dev/sluice/internal/bench/peer"
	"sluice.dev/sluice/internal/bench/testbed"
)

var blocking = Experiment{
	Name:  "policy-lists",
	Title: "What a block list costs the packets that it does not hold",
	How: "Datagrams from ever new random addresses, none of them listed, enter a node as XDP live frames, are forwarded, and are counted and dropped as they " +
		"leave; all on one core. The time from the first to the last, by their number, of three runs the fastest: once with connection tracking (each is a new flow then), once without, which is the least that forwarding can cost. " +
		"Listed addresses are random too, and lie between those that send. " +
		"A list of networks has twenty prefix lengths, as public ones have. Sluice looks in its list at the ingress hook, its host endpoint and the others where packets are forwarded.",
	run:   runBlocking,
	paint: paintBlocking,
}

// The kinds of lists, and what is measured.
const (
	ofAddresses = "addresses"
	ofNetworks  = "networks of 20 lengths"
	tracked     = "time per packet, tracked"
	untracked   = "time per packet, untracked"
)

// block is a contender: a way to block that holds a list.
type block struct {
	peer.Blocker
	kind string
	size int
}

func (b block) String() string {
	if b.size == 0 {
		return b.Name() + ", no list"
	}
	return fmt.Sprintf("%s, %s %s", b.Name(), chart.Number(float64(b.size)), b.kind)
}

func (b block) refusal() string {
	if most, why := b.Limit(); most > 0 && b.size > most {
		return why
	}
	return ""
}

func (block) testbed(prefix string) (*testbed.Testbed, error) { return testbed.New(prefix) }

func (b block) list() []netip.Prefix {
	switch {
	case b.size == 0:
		return nil
	case b.kind == ofNetworks:
		return cluster.Networks(b.size)
	}
	return cluster.Addresses(b.size)
}

func (b block) load(ctx context.Context, l *testbed.Testbed) (*peer.Loaded, error) {
	blocked, err := b.Block(ctx, l.Node, testbed.NodeIn, b.list())
	if err != nil {
		return nil, err
	}
	return &blocked.Loaded, nil
}

// blocks pairs a way to block with each size of a kind of list.
func blocks(b peer.Blocker, kind string, sizes ...int) (all []block) {
	for _, n := range sizes {
		all = append(all, block{b, kind, n})
	}
	return all
}

// recordBlock files a sample of a contender.
func (r *run) recordBlock(b block, metric, unit string, sample float64) {
	r.add(b.measurement(metric, unit), sample)
}

func (b block) measurement(metric, unit string) Measurement {
	return Measurement{Dataplane: b.Name(), Addresses: b.size, Variant: b.kind, Metric: metric, Unit: unit}
}

// blockSizes are the sizes of lists that experiments compare with none.
func (r *run) blockSizes() (usual, large int) {
	if r.full() {
		return 100_000, 1_000_000
	}
	return 1_000, 10_000
}

func runBlocking(ctx context.Context, r *run) error {
	usual, large := r.blockSizes()
	specs := slices.Concat(
		blocks(peer.DenyList{}, ofAddresses, 0, usual, large), blocks(peer.DenyList{}, ofNetworks, usual),
		blocks(peer.HostPolicy{}, ofAddresses, 0, usual),
		blocks(peer.Ipset{}, ofAddresses, 0, usual, large), blocks(peer.Ipset{}, ofNetworks, usual),
		blocks(peer.Rules{}, ofAddresses, usual), blocks(peer.Forwarding{}, ofAddresses, 0))
	if err := alternate(ctx, r, specs, measureBlock); err != nil {
		return err
	}
	r.judgeBlocking(usual, large)
	return nil
}

// trackedPace and untrackedPace begin with few packets, for who walks a hundred thousand rules with each.
var (
	trackedPace   = pace{warmUp: 200, most: maxFlows, lasting: 150 * time.Millisecond, runs: 3}
	untrackedPace = pace{warmUp: 200, most: 2_000_000, lasting: 150 * time.Millisecond, runs: 3}
)

func measureBlock(ctx context.Context, r *run, s *stage[block]) (err error) {
	g, c, end, err := injector(s.Testbed)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, end()) }()
	err = errors.Join(g.From(cluster.Unlisted), g.Aim(inject.Target{Base: cluster.Endpoints.Addr(), First: 1, Count: 1, Port: cluster.TargetPort}))
	if err != nil {
		return err
	}
	for _, v := range []struct {
		metric string
		track  bool
		pace   pace
	}{{tracked, true, trackedPace}, {untracked, false, untrackedPace}} {
		if !v.track && s.spec.Blocker == (peer.HostPolicy{}) {
			continue // such packets are not its business: they count as let pass by a doNotTrack policy
		}
		if err := s.Track(v.track); err != nil {
			return err
		}
		ns, err := v.pace.cost(ctx, s.Testbed, g, c)
		if errors.Is(err, errLost) {
			r.note("%s: a sample does not count, as %s.", s.spec, err)
			continue
		}
		if err != nil {
			return err
		}
		r.recordBlock(s.spec, v.metric, "µs", ns/1000)
	}
	return nil
}

// none is what a way to block costs without a list.
func (r *run) none(b peer.Blocker, metric string) *Measurement {
	if b == (peer.Rules{}) { // the same tables and hooks
		b = peer.Ipset{}
	}
	return r.same(block{b, ofAddresses, 0}.measurement(metric, ""))
}

func (r *run) judgeBlocking(usual, large int) {
	for _, metric := range []string{tracked, untracked} {
		for _, g := range []struct {
			size int
			most float64
		}{{usual, 1.05}, {large, 1.10}} {
			if ratio, ok := r.overNone(block{peer.DenyList{}, ofAddresses, g.size}, metric); ok {
				r.goal(fmt.Sprintf("forwarding with %s unmatched addresses over none, %s", chart.Number(float64(g.size)), metric),
					fmt.Sprintf("≤ %.2f", g.most), ratio.String(), ratio.Median <= g.most)
			}
		}
		for _, b := range slices.Concat(
			blocks(peer.DenyList{}, ofNetworks, usual), blocks(peer.HostPolicy{}, ofAddresses, usual),
			blocks(peer.Ipset{}, ofAddresses, usual, large), blocks(peer.Ipset{}, ofNetworks, usual), blocks(peer.Rules{}, ofAddresses, usual),
		) {
			if ratio, ok := r.overNone(b, metric); ok {
				r.note("%s, %s, over none: %s.", b, metric, ratio)
			}
		}
		if own, floor := r.none(peer.DenyList{}, metric), r.none(peer.Forwarding{}, metric); own != nil && floor != nil {
			r.note("Sluice without a list over plain forwarding, %s: %s.", metric, ratios(own, floor))
		}
	}
}

// overNone compares a list with none of the same data plane.
func (r *run) overNone(b block, metric string) (Spread, bool) {
	m, base := r.same(b.measurement(metric, "")), r.none(b.Blocker, metric)
	if m == nil || base == nil {
		return Spread{}, false
	}
	return ratios(m, base), true
}

func paintBlocking(r *Result) []painting {
	var ps []painting
	for _, v := range []struct{ name, metric, how string }{{"tracked", tracked, "each a new tracked flow"}, {"untracked", untracked, "without connection tracking"}} {
		ps = append(ps, draw(r, v.name, chart.Chart{
			Kind: chart.Bars, LogY: true, Title: "What a block list costs the packets that it does not hold",
			Subtitle: "datagrams from random addresses, " + v.how + ", one core; lower is better",
			XLabel:   "addresses in the list", YLabel: "µs a packet (logarithmic)",
		}, byAddresses, v.metric, ofAddresses))
	}
	return ps
}
