package kubeproxy

import (
	"context"

	"sluice.dev/sluice/test/bench/chart"
	"sluice.dev/sluice/test/bench/harness"
	"sluice.dev/sluice/test/bench/peer"
	"sluice.dev/sluice/test/bench/report"
)

// Memory is the experiment kube-proxy-memory.
var Memory = harness.Experiment{
	Name:  "kube-proxy-memory",
	Title: "Memory beside kube-proxy",
	How: "Resident memory (VmRSS) of each program once it has programmed everything that a real API server has, and the most that one of its children (iptables-restore, nft) had meanwhile (VmHWM, read every five milliseconds). " +
		"Together they are what the node needs for it. The kernel's memory for the rules is not included.",
	Run:    runMemory,
	Charts: memoryCharts,
}

const (
	largestChild = "largest child"
	withChild    = "resident memory and largest child"
)

func runMemory(ctx context.Context, r *harness.Run) error {
	r.Options.Rounds, r.Result.Rounds = 1, 1
	for _, n := range kubeSizes(r) {
		st, err := kubeProxy.Running(ctx, r, n)
		if err != nil {
			return err
		}
		for i, s := range st.Processes {
			if err := st.PauseOthers(ctx, s); err != nil { // so that it is done with its start
				return err
			}
			rss, err := s.Resident()
			if err != nil {
				return err
			}
			RecordProcess(r, st, s, "", harness.Resident, "MB", float64(rss)/1e6)
			RecordProcess(r, st, s, "", largestChild, "MB", float64(st.child[i])/1e6)
			RecordProcess(r, st, s, "", withChild, "MB", float64(rss+st.child[i])/1e6)
		}
		ratioGoal(r, n, withChild, "", withChild, "≤ 1/2", 0.5)
		if a, b := r.Find(peer.Sluice{}.Name(), n, "", harness.Resident), betterKubeProxy(r, n, "", harness.Resident); a != nil && b != nil {
			r.Note("Resident memory, %s services, without children, over the better mode of kube-proxy: %s.", chart.Number(float64(n)), report.Ratios(a, b))
		}
	}
	return nil
}

func memoryCharts(r *report.Result) []report.Figure {
	return []report.Figure{report.Draw(r, "all", chart.Chart{
		Kind: chart.Bars, Title: "Resident memory and that of the largest child",
		Subtitle: "10 endpoints a service, a real API server; lower is better", XLabel: "services", YLabel: "MB",
	}, report.ByServices, withChild, "")}
}
