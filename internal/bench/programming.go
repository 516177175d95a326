package bench

import (
	"context"
	"errors"
	"fmt"
	"time"

	"sluice.dev/sluice/internal/bench/chart"
	"sluice.dev/sluice/internal/bench/peer"
)

var programming = Experiment{
	Name:  "programming",
	Title: "Time to program an empty kernel",
	How: "Sluice: from a store that holds the cluster to the kernel's acknowledgement (compile, compare with the kernel, apply), in this process. " +
		"kube-proxy's two shapes: how long `nft -f` and `iptables-restore` take for their rule sets, which kube-proxy's own work comes on top of. " +
		"nftlb: until its API has answered the request that holds all farms. Each in a new network namespace.",
	run:   runProgramming,
	paint: paintProgramming,
}

const loading = "time to program"

func runProgramming(ctx context.Context, r *run) error {
	r.Options.Rounds = min(r.Options.Rounds, 3) // the slow ones take half a minute each
	r.Result.Rounds = r.Options.Rounds
	peers, own, farms := []int{1_000}, []int{1_000, 10_000}, []int{10, 100}
	if r.full() {
		peers, own, farms = []int{1_000, 10_000}, []int{1_000, 10_000, 100_000}, []int{10, 250}
	}
	specs := append(cases(10, 0, own, peer.Sluice{}), cases(10, 0, peers, peer.KubeNftables{}, peer.KubeIptables{})...)
	specs = append(specs, cases(10, 0, farms, peer.Nftlb{})...)
	for _, p := range []peer.Dataplane{peer.KubeNftables{}, peer.KubeIptables{}, peer.Nftlb{}} {
		most, why := p.Limit()
		r.skip("%s beyond %s services: %s", p.Name(), chart.Number(float64(most)), why)
	}
	notes := map[string]string{}
	for range r.Options.Rounds {
		for _, s := range specs {
			if err := r.program(ctx, s, notes); err != nil {
				return err
			}
		}
	}
	for _, s := range specs {
		if n := notes[s.String()]; n != "" && s.dataplane == (peer.Sluice{}) {
			r.note("%s, in the last round: %s.", s, n)
		}
	}
	r.judgeProgramming()
	return nil
}

// program loads one case into a namespace that it makes and removes.
func (r *run) program(ctx context.Context, s spec, notes map[string]string) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	settle()
	st, err := build(ctx, r, s)
	if err != nil || st == nil {
		return err
	}
	r.record(s, "", loading, "s", st.loaded.Took.Seconds())
	notes[s.String()] = st.loaded.Note
	return st.Close()
}

// settle waits until the machine has been nearly idle for a moment, for the
// kernel takes removed namespaces apart in the background; three seconds at most.
func settle() {
	for end := time.Now().Add(3 * time.Second); time.Now().Before(end); {
		a, err1 := idle(0)
		began := time.Now()
		time.Sleep(200 * time.Millisecond)
		b, err2 := idle(0)
		if errors.Join(err1, err2) != nil || (b-a).Seconds() > 0.9*time.Since(began).Seconds() {
			return
		}
	}
}

func (r *run) judgeProgramming() {
	for _, g := range []struct {
		services int
		most     float64
	}{{10_000, 0.4}, {100_000, 4}} {
		m := r.find(peer.Sluice{}.Name(), g.services, "", loading)
		if m == nil {
			continue
		}
		what := fmt.Sprintf("full store to programmed kernel, %s services × 10 endpoints", chart.Number(float64(g.services)))
		r.goal(what, fmt.Sprintf("≤ %g s", g.most), spread(m.Samples).String()+" s", m.Median <= g.most)
		for _, p := range []peer.Dataplane{peer.KubeNftables{}, peer.KubeIptables{}} {
			if o := r.find(p.Name(), g.services, "", loading); o != nil {
				r.note("%s, %s services, over Sluice: %s.", p.Name(), chart.Number(float64(g.services)), ratios(o, m))
			}
		}
	}
}

func paintProgramming(r *Result) []painting {
	return []painting{draw(r, "time", chart.Chart{
		Kind: chart.Bars, Title: "Time to program an empty kernel",
		Subtitle: "10 endpoints a service; lower is better (peers: loading alone)",
		XLabel:   "services", YLabel: "seconds (logarithmic)", LogY: true,
	}, byServices, loading, "")}
}
