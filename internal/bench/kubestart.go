package bench

import (
	"context"
	"errors"
	"fmt"
	"time"

	"sluice.dev/sluice/internal/bench/chart"
	"sluice.dev/sluice/internal/bench/dataplane"
	"sluice.dev/sluice/internal/bench/probe"
)

var kubeStart = Experiment{
	Name:  "kube-proxy-start",
	Title: "Start beside kube-proxy, on a real Kubernetes API",
	How: "Real processes (`sluice run --kubeconfig`, and kube-proxy in its nftables and its iptables mode, iptables-legacy) start one after the other, each on a node of its own with an empty kernel, " +
		"and read one real kube-apiserver. Programmed is when connections through 50 services drawn at random, the last service, and ten more have come to a backend, tried every fifth of a millisecond. " +
		"Synced is when the program's own log says that its sources are read (kube-proxy looks ten times a second whether they are, so that it may be up to a tenth of a second earlier).",
	run:   runKubeStart,
	paint: paintKubeStart,
}

const (
	allProgrammed    = "start to programmed"
	syncedProgrammed = "sources synced to programmed"
)

func runKubeStart(ctx context.Context, r *run) error {
	r.Options.Rounds = min(r.Options.Rounds, 3)
	r.Result.Rounds = r.Options.Rounds
	for _, n := range r.kubeSizes() {
		st, err := r.stand(ctx, n)
		if err != nil {
			return err
		}
		for round := range r.Options.Rounds {
			for _, p := range r.programs(st) {
				r.progress("round %d of %d: %s, %s", round+1, r.Options.Rounds, p.Name, st.Cluster)
				if err := r.startProcess(ctx, st, p); err != nil {
					return err
				}
			}
		}
		r.judgeKubeStart(n)
	}
	return nil
}

func (r *run) startProcess(ctx context.Context, st *stand, p dataplane.Program) (err error) {
	settle()
	s, err := r.newProcess(st, p)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, s.Close()) }()
	if err := s.Start(); err != nil {
		return err
	}
	at, err := r.programmed(ctx, st, s)
	if err != nil {
		return err
	}
	synced, ok := s.Synced()
	if !ok {
		return fmt.Errorf("%s does not say when it has read its sources", s.Name)
	}
	all, rest := at.Sub(s.Started()), max(at.Sub(synced), probe.Interval)
	r.progress("programmed after %s, %s after its sources", all.Round(time.Millisecond), rest.Round(time.Millisecond))
	r.recordProcess(st, s, "", allProgrammed, "s", all.Seconds())
	r.recordProcess(st, s, "", syncedProgrammed, "s", rest.Seconds())
	return nil
}

func (r *run) judgeKubeStart(services int) {
	goal, most := "≤ 1/3", 1./3
	if services >= 10_000 {
		goal, most = "≤ 1/10", 1./10
	}
	r.judgeRatio(services, allProgrammed, "", allProgrammed, goal, most)
	r.judgeRatio(services, syncedProgrammed, "", syncedProgrammed, "≤ 1/20", 1./20)
}

func paintKubeStart(r *Result) []painting {
	return []painting{
		draw(r, "all", chart.Chart{
			Kind: chart.Bars, LogY: true, Title: "From the start of the program to all services programmed",
			Subtitle: "10 endpoints a service, one real API server; lower is better", XLabel: "services", YLabel: "seconds (logarithmic)",
		}, byServices, allProgrammed, ""),
		draw(r, "synced", chart.Chart{
			Kind: chart.Bars, LogY: true, Title: "From sources synced to all services programmed",
			Subtitle: "10 endpoints a service; lower is better", XLabel: "services", YLabel: "seconds (logarithmic)",
		}, byServices, syncedProgrammed, ""),
	}
}
