package bench

import (
	"context"

	"sluice.dev/sluice/internal/bench/chart"
	"sluice.dev/sluice/internal/bench/peer"
)

var kubeMemory = Experiment{
	Name:  "kube-proxy-memory",
	Title: "Memory beside kube-proxy",
	How: "Resident memory (VmRSS) of each program once it has programmed all that a real API server has, and the most that any of its children (iptables-restore, nft) had while it did (VmHWM, looked at every five milliseconds). " +
		"Together they are what the node must have for it. What the kernel holds for the rules is not part of it.",
	run:   runKubeMemory,
	paint: paintKubeMemory,
}

const (
	largestChild = "largest child"
	withChild    = "resident memory and largest child"
)

func runKubeMemory(ctx context.Context, r *run) error {
	r.Options.Rounds, r.Result.Rounds = 1, 1
	for _, n := range r.kubeSizes() {
		st, err := r.stand(ctx, n)
		if err != nil {
			return err
		}
		processes, err := r.started(ctx, st)
		if err != nil {
			return err
		}
		for i, s := range processes {
			if err := st.only(ctx, s); err != nil { // it has done with the start
				return err
			}
			rss, err := s.Resident()
			if err != nil {
				return err
			}
			r.recordProcess(st, s, "", resident, "MB", float64(rss)/1e6)
			r.recordProcess(st, s, "", largestChild, "MB", float64(st.child[i])/1e6)
			r.recordProcess(st, s, "", withChild, "MB", float64(rss+st.child[i])/1e6)
		}
		r.judgeRatio(n, withChild, "", withChild, "≤ 1/2", 0.5)
		if a, b := r.find(peer.Sluice{}.Name(), n, "", resident), r.better(n, "", resident); a != nil && b != nil {
			r.note("Resident memory, %s services, without children, over the better mode of kube-proxy: %s.", chart.Number(float64(n)), ratios(a, b))
		}
	}
	return nil
}

func paintKubeMemory(r *Result) []painting {
	return []painting{draw(r, "all", chart.Chart{
		Kind: chart.Bars, Title: "Resident memory and that of the largest child",
		Subtitle: "10 endpoints a service, a real API server; lower is better", XLabel: "services", YLabel: "MB",
	}, byServices, withChild, "")}
}
