// Package kubeproxy has the experiments whose names begin with kube-proxy: Sluice and kube-proxy as
// real processes that read one real Kubernetes API.
package kubeproxy

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"math/rand/v2"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"time"

	"sluice.dev/sluice/test/bench/api"
	"sluice.dev/sluice/test/bench/chart"
	"sluice.dev/sluice/test/bench/cluster"
	"sluice.dev/sluice/test/bench/dataplane"
	"sluice.dev/sluice/test/bench/harness"
	"sluice.dev/sluice/test/bench/peer"
	"sluice.dev/sluice/test/bench/probe"
	"sluice.dev/sluice/test/bench/report"
	"sluice.dev/sluice/test/lab/control"
)

// clusterKey is the key of a shared APICluster.
type clusterKey struct {
	compared string // Comparison.Name
	services int
}

// Comparison is what experiments compare on one API. Those of the same name share the API servers
// and the running programs.
type Comparison struct {
	Name     string
	Programs func(r *harness.Run, st *APICluster) []dataplane.Program
}

// kubeProxy compares Sluice with kube-proxy.
var kubeProxy = Comparison{"kube-proxy", func(r *harness.Run, st *APICluster) []dataplane.Program {
	return []dataplane.Program{dataplane.Sluice(r.Binary), dataplane.KubeNftables(st.Bin), dataplane.KubeIptables(st.Bin)}
}}

// APICluster is an API server with a cluster's objects, and the programs that carry them out, each
// on a node of its own.
type APICluster struct {
	*api.Server
	cluster.Cluster // the singles and the busy service come after it

	dir       string
	Processes []*dataplane.Process // the running programs, which all experiments but that of the start share; nil until one needs them
	child     []int                // for each process, the most memory in bytes that one of its children had until all was programmed

	next    [singles]int // for each single, which of its two endpoints it has
	churned int          // how many changes churn has made
	rolled  bool         // the busy service has its second endpoints
}

// singles is the number of additional services with one endpoint each, so that one connection shows
// whether a change is in force. The first one shows whether a program has caught up; the others are
// for measuring.
const singles = 10

// NodePort is that of the last service before the singles.
const NodePort = 30080

// busy is the number of the service for rolling updates, the last one, with as many endpoints as
// the cluster's.
func (st *APICluster) busy() int { return st.Services + singles }

// kubeSizes returns the numbers of services at which Sluice and kube-proxy are compared.
func kubeSizes(r *harness.Run) []int { return r.Sizes([]int{1_000, 10_000}, []int{100, 1_000}) }

// Cluster returns the shared APICluster with so many services of ten endpoints each.
func (c Comparison) Cluster(ctx context.Context, r *harness.Run, services int) (*APICluster, error) {
	key := clusterKey{c.Name, services}
	if st, ok := r.Shared[key].(*APICluster); ok {
		r.Machine.Tools["kubernetes"] = kubernetesVersion(st.Bin)
		return st, nil
	}
	st, err := NewCluster(ctx, r, services)
	if err == nil {
		r.Shared[key] = st
	}
	return st, err
}

// NewCluster starts an API server and writes so many services to it. Close it.
func NewCluster(ctx context.Context, r *harness.Run, services int) (_ *APICluster, err error) {
	bin, err := control.Build(ctx, func(s string) { r.Logf("%s", s) })
	if err != nil {
		return nil, err
	}
	dir, err := os.MkdirTemp(harness.WorkDir(), r.Prefix+"-*")
	if err != nil {
		return nil, fmt.Errorf("make folder for an API server: %w", err)
	}
	st := &APICluster{Cluster: cluster.Cluster{Services: services, Endpoints: 10, NodePort: NodePort}, dir: dir}
	defer func() {
		if err != nil {
			err = errors.Join(err, st.Close())
		}
	}()
	st.Server, err = api.Start(ctx, fmt.Sprintf("%s-api%d", r.Prefix, services), bin, filepath.Join(dir, "control"))
	if err != nil {
		return nil, err
	}
	r.Machine.Tools["kubernetes"] = kubernetesVersion(bin)
	began := time.Now()
	for _, objects := range []iter.Seq[cluster.File]{st.prerequisites(), st.objects()} {
		if err := st.Fill(ctx, objects); err != nil {
			return nil, fmt.Errorf("fill API server: %w", err)
		}
	}
	r.Logf("wrote %s to an API server in %s", st.Cluster, time.Since(began).Round(time.Millisecond))
	return st, nil
}

// kubernetesVersion returns "Kubernetes v1.37.1", or "" if the program does not say.
func kubernetesVersion(bin string) string {
	out, err := exec.Command(filepath.Join(bin, "kube-proxy"), "--version").Output()
	if err != nil {
		return ""
	}
	return harness.FirstLine(out)
}

// Close ends all programs and removes their files.
func (st *APICluster) Close() error {
	var errs []error
	for _, s := range st.Processes {
		errs = append(errs, s.Close())
	}
	if st.Server != nil {
		errs = append(errs, st.Server.Close())
	}
	return errors.Join(append(errs, os.RemoveAll(st.dir))...)
}

// prerequisites are the objects that the others need.
func (st *APICluster) prerequisites() iter.Seq[cluster.File] {
	return func(yield func(cluster.File) bool) {
		_ = yield(cluster.NamespaceFile()) && yield(cluster.NodeFile())
	}
}

func (st *APICluster) objects() iter.Seq[cluster.File] {
	return func(yield func(cluster.File) bool) {
		for i := range st.busy() + 1 {
			n := st.Endpoints
			if i >= st.Services && i < st.busy() {
				n = 1
			}
			if !yield(st.ServiceFile(i)) || !yield(st.SliceFile(i, n)) {
				return
			}
		}
	}
}

// NewProcess prepares a program on a testbed of its own. Close it.
func NewProcess(r *harness.Run, st *APICluster, p dataplane.Program) (*dataplane.Process, error) {
	l, err := r.NewTestbed()
	if err != nil {
		return nil, err
	}
	kubeconfig, dir := "", ""
	if err = st.Join(l); err == nil {
		kubeconfig, err = st.Kubeconfig(fmt.Sprintf("node-%d", r.Testbeds))
	}
	if err == nil {
		dir, err = os.MkdirTemp(st.dir, "process-*")
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("prepare node for %s: %w", p.Name, err), l.Close())
	}
	return dataplane.New(p, l, dir, kubeconfig), nil
}

// Running returns the shared APICluster with so many services; all programs run and have programmed
// everything.
func (c Comparison) Running(ctx context.Context, r *harness.Run, services int) (*APICluster, error) {
	st, err := c.Cluster(ctx, r, services)
	if err != nil {
		return nil, err
	}
	if st.Processes == nil {
		for _, p := range c.Programs(r, st) {
			s, err := NewProcess(r, st, p)
			if err != nil {
				return nil, err
			}
			st.Processes = append(st.Processes, s)
			if err := s.Start(); err != nil {
				return nil, err
			}
			watched, cancel := context.WithCancel(ctx)
			child := make(chan int, 1)
			go func() { child <- s.HeaviestChild(watched) }()
			at, err := Programmed(ctx, st, s)
			cancel()
			st.child = append(st.child, <-child)
			if err != nil {
				return nil, err
			}
			r.Logf("%s carries out %s after %s", s.Name, st.Cluster, at.Sub(s.Started()).Round(time.Millisecond))
		}
	}
	for _, s := range st.Processes {
		if err := s.Resume(); err != nil {
			return nil, err
		}
	}
	return st, nil
}

// maxWait is how long a program may take for anything.
const maxWait = 3 * time.Minute

// sampled is how many services stand for all when Programmed probes them.
const sampled = 50

// Programmed waits until connections to services drawn at random, to the last one and to the
// singles reach a backend, and returns when the last of them did.
func Programmed(ctx context.Context, st *APICluster, s *dataplane.Process) (time.Time, error) {
	targets := []probe.Target{serviceTarget(st.Services - 1)}
	for range sampled {
		targets = append(targets, serviceTarget(rand.IntN(st.Services)))
	}
	for i := range singles {
		targets = append(targets, serviceTarget(st.Services+i))
	}
	return waitReachable(ctx, s, targets...)
}

// serviceTarget is a probe of service i that any of its backends may answer.
func serviceTarget(i int) probe.Target {
	return probe.Target{Service: netip.AddrPortFrom(cluster.ServiceAddr(i), cluster.ServicePort)}
}

// waitReachable waits until each target is reached and returns since when all were.
func waitReachable(ctx context.Context, s *dataplane.Process, targets ...probe.Target) (time.Time, error) {
	ctx, end := s.WhileRunning(ctx)
	defer end()
	ctx, cancel := context.WithTimeout(ctx, maxWait)
	defer cancel()
	h, err := probe.New(s.Client, s.Backend, cluster.TargetPort, harness.PacketCPU)
	if err != nil {
		return time.Time{}, err
	}
	defer func() { _ = h.Close() }()
	at, err := h.Until(ctx, targets...)
	if err != nil {
		return at, fmt.Errorf("%s: %w; its log ends with: %s", s.Name, err, s.Log())
	}
	return at, nil
}

// nextEndpoint returns a slice that gives single i another endpoint, and the probe that shows it.
func (st *APICluster) nextEndpoint(i int) (cluster.File, probe.Target) {
	st.next[i] = (st.next[i] + 1) % 2
	n := st.Services + i
	d := serviceTarget(n)
	d.Backends = netip.PrefixFrom(st.Endpoint(n, st.next[i]).Addr(), 32)
	return st.MembersFile(n, cluster.Member{Index: st.next[i]}), d
}

// PauseOthers stops all programs but one and returns once that one has caught up.
func (st *APICluster) PauseOthers(ctx context.Context, one *dataplane.Process) error {
	for _, s := range st.Processes {
		if s != one {
			if err := s.Pause(); err != nil {
				return err
			}
		}
	}
	if err := one.Resume(); err != nil {
		return err
	}
	return st.WaitCaughtUp(ctx, one)
}

// InTurns calls do for each program of each cluster size, once a round, while the other programs
// are stopped.
func (c Comparison) InTurns(ctx context.Context, r *harness.Run, sizes []int, do func(*APICluster, *dataplane.Process) error) error {
	for _, n := range sizes {
		st, err := c.Running(ctx, r, n)
		if err != nil {
			return err
		}
		for round := range r.Options.Rounds {
			for _, s := range st.Processes {
				r.Logf("round %d of %d: %s, %s", round+1, r.Options.Rounds, s.Name, st.Cluster)
				err := st.PauseOthers(ctx, s)
				if err == nil {
					err = do(st, s)
				}
				if err != nil {
					return fmt.Errorf("%s, %s: %w", s.Name, st.Cluster, err)
				}
			}
		}
	}
	return nil
}

// WaitCaughtUp returns once a program has carried out all changes and could carry out the next one
// at once.
func (st *APICluster) WaitCaughtUp(ctx context.Context, s *dataplane.Process) error {
	for range 2 { // the first one may be in a round that is followed by another
		slice, d := st.nextEndpoint(0)
		if _, err := st.Put(ctx, slice); err != nil {
			return err
		}
		if _, err := waitReachable(ctx, s, d); err != nil {
			return err
		}
		if err := harness.Wait(ctx, s.Period); err != nil {
			return err
		}
	}
	return nil
}

// RecordProcess adds a sample of a program to the result.
func RecordProcess(r *harness.Run, st *APICluster, s *dataplane.Process, variant, metric, unit string, sample float64) {
	r.Add(report.Measurement{
		Dataplane: s.Name, Services: st.Services, Endpoints: st.Services * st.Endpoints, Variant: variant, Metric: metric, Unit: unit,
	}, sample)
}

// betterKubeProxy returns the measurement of kube-proxy's mode with the smaller median; nil if
// neither was measured.
func betterKubeProxy(r *harness.Run, services int, variant, metric string) *report.Measurement {
	a := r.Find(peer.KubeNftables{}.Name(), services, variant, metric)
	b := r.Find(peer.KubeIptables{}.Name(), services, variant, metric)
	if a == nil || b != nil && b.Median < a.Median {
		return b
	}
	return a
}

// ratioGoal adds a goal for the ratio of Sluice to the better mode of kube-proxy.
func ratioGoal(r *harness.Run, services int, what, variant, metric, goal string, most float64) {
	own := r.Find(peer.Sluice{}.Name(), services, variant, metric)
	best := betterKubeProxy(r, services, variant, metric)
	if own == nil || best == nil {
		return
	}
	ratio := report.Ratios(own, best)
	r.Goal(fmt.Sprintf("%s, %s services × 10 endpoints, over the better mode of kube-proxy", what, chart.Number(float64(services))), goal,
		fmt.Sprintf("%s; %s %s here, %s %s %s", ratio, chart.Number(own.Median), own.Unit, best.Dataplane, chart.Number(best.Median), best.Unit),
		ratio.Median <= most)
}
