// Package nodes has the experiments with nodes that run the real kubelet and containerd.
package nodes

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"time"

	"sluice.dev/sluice/test/bench/chart"
	"sluice.dev/sluice/test/bench/harness"
	"sluice.dev/sluice/test/bench/report"
	"sluice.dev/sluice/test/lab"
	"sluice.dev/sluice/test/lab/control"
	"sluice.dev/sluice/test/lab/image"
	"sluice.dev/sluice/test/lab/node"
	"sluice.dev/sluice/test/lab/plan"
	"sluice.dev/sluice/test/lab/sluiceagent"
)

// Pods is the experiment nodes-pods.
var Pods = harness.Experiment{
	Name:  "nodes-pods",
	Title: "A further pod, from kubectl apply to Ready",
	How: "A node with the real kubelet and containerd, Sluice on it as a DaemonSet, and a real control plane. One pod after the other, of an image that the node has and " +
		"without probes: from the start of kubectl apply to the end of kubectl wait for its readiness. Every other pod is on the node's network, for which no CNI plugin is called: what the pod network costs is the difference.",
	Run:    runPods,
	Charts: podCharts,
}

const (
	ownNetwork  = "pod with a network of its own"
	hostNetwork = "pod on the node's network"
	p50         = "apply to Ready, p50"
	p90         = "apply to Ready, p90"
)

func runPods(ctx context.Context, r *harness.Run) (err error) {
	l, err := startLab(ctx, r)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, l.Down()) }()
	dir, err := os.MkdirTemp(harness.WorkDir(), "pods-*")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	pods := 20
	if !r.Full() {
		pods = 6
	}
	return l.Plane(func(p *control.Plane) error {
		for round := range r.Options.Rounds {
			r.Logf("round %d of %d: %d pods of each kind", round+1, r.Options.Rounds, pods)
			took := map[string][]time.Duration{}
			for i := range 2 * pods {
				kind := []string{ownNetwork, hostNetwork}[i%2]
				d, err := startPod(p, dir, fmt.Sprintf("pod-%d-%d", round, i), kind == hostNetwork)
				if err != nil {
					return err
				}
				took[kind] = append(took[kind], d)
			}
			for kind, all := range took {
				slices.Sort(all)
				for metric, d := range map[string]time.Duration{p50: all[len(all)/2], p90: all[len(all)*9/10]} {
					r.Add(report.Measurement{Dataplane: kind, Metric: metric, Unit: "s"}, d.Seconds())
				}
			}
			if out, err := p.Kubectl("delete", "pods", "--all", "--now"); err != nil {
				return fmt.Errorf("%w: %s", err, out)
			}
		}
		goals(r)
		return nil
	})
}

func goals(r *harness.Run) {
	own, host := r.Find(ownNetwork, 0, "", p50), r.Find(hostNetwork, 0, "", p50)
	if own == nil || host == nil {
		return
	}
	got, ratio := report.SpreadOf(own.Samples), report.Ratios(own, host)
	r.Goal("a further pod, from kubectl apply to Ready, p50", "≤ 1.3 s", got.String()+" s", got.Median <= 1.3)
	r.Goal("the same over a pod without a network of its own", "≤ 1.5", ratio.String(), ratio.Median <= 1.5)
}

// startLab brings up a cluster of one node.
func startLab(ctx context.Context, r *harness.Run) (*lab.Lab, error) {
	exe, err := harness.LabProgram()
	if err != nil {
		return nil, err
	}
	if err := lab.CheckNodes(""); err != nil {
		return nil, err
	}
	say := func(step string) { r.Logf("%s", step) }
	k := &lab.Kubernetes{AgentImage: lab.AgentImage}
	if k.Bin, err = control.Build(ctx, say); err != nil {
		return nil, err
	}
	if k.Images, err = image.Build(ctx, say); err != nil {
		return nil, err
	}
	r.Testbeds++
	return lab.Up(ctx, lab.Config{
		Name: fmt.Sprintf("bench%dx%d", os.Getpid(), r.Testbeds), Nodes: 1, Objects: &plan.Objects{}, Kubernetes: k,
		Executable: exe, Sluice: r.Binary, Agent: sluiceagent.New(), Progress: say, Transient: true,
	})
}

// startPod returns the time until a new pod is ready, as whoever makes it sees it.
func startPod(p *control.Plane, dir, name string, onHost bool) (time.Duration, error) {
	file := filepath.Join(dir, name+".json")
	pod := fmt.Sprintf(`{"apiVersion": "v1", "kind": "Pod", "metadata": {"name": %q}, "spec": {"hostNetwork": %t, "containers": [{"name": "c", "image": %q}]}}`, name, onHost, node.Pause)
	if err := os.WriteFile(file, []byte(pod), 0o644); err != nil {
		return 0, err
	}
	began := time.Now()
	for _, args := range [][]string{{"apply", "-f", file}, {"wait", "--for=condition=Ready", "--timeout=1m", "pod/" + name}} {
		if out, err := p.Kubectl(args...); err != nil {
			return 0, fmt.Errorf("%w: %s", err, out)
		}
	}
	return time.Since(began), nil
}

func podCharts(r *report.Result) []report.Figure {
	c := chart.Chart{Kind: chart.Bars, Title: "A further pod, from kubectl apply to Ready", Subtitle: "lower is better", YLabel: "seconds", Categories: []string{p50, p90}}
	for _, kind := range []string{ownNetwork, hostNetwork} {
		series := chart.Series{Name: kind}
		for _, metric := range c.Categories {
			series.Values = append(series.Values, report.ValueOf(r.Find(kind, 0, "", metric)))
		}
		c.Series = append(c.Series, series)
	}
	return []report.Figure{{Name: "ready", Chart: c}}
}
