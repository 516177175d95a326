package fabric

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"sort"
	"strings"
	"sync"
	"time"

	current "github.com/containernetworking/cni/pkg/types/100"
	"golang.org/x/sys/unix"

	"sluice.dev/sluice/internal/pods/attach"
	"sluice.dev/sluice/test/bench/chart"
	"sluice.dev/sluice/test/bench/cluster"
	"sluice.dev/sluice/test/bench/harness"
	"sluice.dev/sluice/test/bench/peer"
	"sluice.dev/sluice/test/bench/report"
	"sluice.dev/sluice/test/netns"
)

// CNI is the experiment fabric-cni.
var CNI = harness.Experiment{
	Name:  "fabric-cni",
	Title: "CNI ADD, until the node reaches the pod",
	How: "From the start of the plugin's process with ADD to an answer of the pod to a packet of the node, one pod after the other and all at once, on a node that has no other pods. " +
		"Beside it the reference plugin bridge, both with addresses of host-local's store. No agent runs, except for sluice with an agent, where ADD waits until the kernel has the pod's policy.",
	Run:    runCNI,
	Charts: cniCharts,
}

// The ways that pods come.
const (
	oneByOne = "one by one"
	atOnce   = "all at once"
	p50      = "ADD, p50"
	p99      = "ADD, p99"
)

const withAgent = sluice + " with an agent"

// plugin is a CNI plugin in its configuration.
type plugin struct {
	name, path string
	more       string // of its configuration
	ranges     []string
	agent      bool // one runs, and knows all pods before
}

func (p plugin) families() string {
	if len(p.ranges) > 1 {
		return "dual stack"
	}
	return "IPv4"
}

func runCNI(ctx context.Context, r *harness.Run) error {
	own := filepath.Join(filepath.Dir(r.Binary), "sluice-cni")
	if _, err := os.Stat(own); err != nil {
		return fmt.Errorf("find sluice-cni beside %s: %w", r.Binary, err)
	}
	const bridge = "/usr/lib/cni/bridge"
	if _, err := os.Stat(bridge); err != nil {
		return fmt.Errorf("%w: %s (apt-get install containernetworking-plugins)", peer.ErrMissing, bridge)
	}
	v4, both := []string{"10.200.0.0/16"}, []string{"10.200.0.0/16", "fd77::/64"}
	plugins := []plugin{
		{name: sluice, path: own, ranges: v4},
		{name: "bridge", path: bridge, more: `"isGateway": true, "ipMasq": false, `, ranges: v4},
		{name: sluice, path: own, ranges: both},
		{name: withAgent, path: own, ranges: v4, agent: true},
	}
	r.Note("bridge with IPv6, too, is not measured: it waits a second or two for duplicate address detection, which routed pods do without.")
	pods := 100
	if !r.Full() {
		pods = 20
	}
	for round := range r.Options.Rounds {
		for _, p := range plugins {
			r.Logf("round %d of %d: %s, %s", round+1, r.Options.Rounds, p.name, p.families())
			for _, how := range []string{oneByOne, atOnce} {
				if err := measureCNI(ctx, r, p, how, pods); err != nil {
					return fmt.Errorf("%s, %s, %s: %w", p.name, p.families(), how, err)
				}
			}
		}
	}
	cniGoals(r)
	return nil
}

func cniGoals(r *harness.Run) {
	for _, g := range []struct {
		how, metric string
		most        float64
	}{{oneByOne, p50, 20}, {oneByOne, p99, 40}, {atOnce, p99, 100}} {
		own, other := r.Find(sluice, 0, "IPv4, "+g.how, g.metric), r.Find("bridge", 0, "IPv4, "+g.how, g.metric)
		if own == nil || other == nil {
			continue
		}
		got, ratio := report.SpreadOf(own.Samples), report.Ratios(own, other)
		r.Goal(fmt.Sprintf("CNI %s, %s", g.metric, g.how), fmt.Sprintf("≤ %.0f ms", g.most), got.String()+" ms", got.Median <= g.most)
		r.Goal(fmt.Sprintf("CNI %s, %s, over the bridge plugin", g.metric, g.how), "≤ 1.0", ratio.String(), ratio.Median <= 1)
	}
}

// measureCNI adds so many pods to a new node.
func measureCNI(ctx context.Context, r *harness.Run, p plugin, how string, pods int) (err error) {
	prefix := r.NextPrefix()
	dir, err := os.MkdirTemp(harness.WorkDir(), prefix+"-*")
	if err != nil {
		return err
	}
	var all []*netns.NS
	defer func() {
		for _, ns := range all {
			err = errors.Join(err, ns.Delete())
		}
		err = errors.Join(err, os.RemoveAll(dir))
	}()
	for i := range pods + 1 {
		ns, err := netns.New(fmt.Sprintf("%s-%d", prefix, i))
		if err != nil {
			return err
		}
		all = append(all, ns)
	}
	node := all[pods]
	err = errors.Join(node.Sysctl("net/ipv4/ip_forward", "1"), node.Sysctl("net/ipv6/conf/all/forwarding", "1"),
		commands(node, "ip link add eth0 type veth peer name far", "ip address add 192.0.2.1/24 dev eth0", "ip link set far up", "ip link set eth0 up"))
	if err != nil {
		return err
	}
	if p.agent {
		a, err := startAgent(ctx, r, node, pods)
		if err != nil {
			return err
		}
		defer func() { a.Kill(); err = errors.Join(err, a.Close()) }()
		p.more = fmt.Sprintf(`"agent": {"socket": %q}, `, a.Socket())
	}
	conf := p.conf(dir)
	took := make([]time.Duration, pods)
	errs := make([]error, pods)
	var wg sync.WaitGroup
	for i := range pods {
		one := func() { took[i], errs[i] = p.add(ctx, node, all[i], podName(i), conf) }
		if how == atOnce {
			wg.Go(one)
		} else if one(); errs[i] != nil {
			return errs[i]
		}
	}
	wg.Wait()
	if err := errors.Join(errs...); err != nil {
		return err
	}
	slices.Sort(took)
	if silent := len(took) - sort.Search(len(took), func(i int) bool { return took[i] >= patience }); silent > 0 {
		r.Note("%s, %s: %d of %d pods did not answer within %s.", p.name, how, silent, pods, patience)
	}
	for metric, d := range map[string]time.Duration{p50: took[pods/2], p99: took[pods*99/100]} {
		r.Add(report.Measurement{Dataplane: p.name, Variant: p.families() + ", " + how, Metric: metric, Unit: "ms"}, d.Seconds()*1000)
	}
	return nil
}

const podNamespace = "bench"

func podName(i int) string { return fmt.Sprint("pod-", i) }

// startAgent starts an agent that knows the pods, without addresses yet, and a policy of them that
// lets them be asked. End it by Kill and Close.
func startAgent(ctx context.Context, r *harness.Run, node *netns.NS, pods int) (*harness.Agent, error) {
	files := []cluster.File{cluster.NodeFile(), {Name: "policy.json", JSON: fmt.Appendf(nil, `{"apiVersion": "networking.k8s.io/v1", "kind": "NetworkPolicy", "metadata": {"namespace": %q, "name": "p"},
		"spec": {"podSelector": {"matchLabels": {"app": "a"}}, "policyTypes": ["Ingress"], "ingress": [{"ports": [{"port": 9}]}]}}`, podNamespace)}}
	for i := range pods {
		files = append(files, cluster.File{Name: podName(i) + ".json", JSON: fmt.Appendf(nil,
			`{"apiVersion": "v1", "kind": "Pod", "metadata": {"namespace": %q, "name": %q, "labels": {"app": "a"}}, "spec": {"nodeName": %q}}`, podNamespace, podName(i), cluster.Node)})
	}
	s, err := r.NewSite(node)
	if err != nil {
		return nil, err
	}
	if err := s.Fill(slices.Values(files)); err != nil {
		return nil, errors.Join(err, s.Close())
	}
	a, err := s.Start()
	if err != nil {
		return nil, errors.Join(err, s.Close())
	}
	if _, err := a.Ready(ctx, time.Minute); err != nil {
		a.Kill()
		return nil, errors.Join(err, s.Close())
	}
	return a, nil
}

func (p plugin) conf(dir string) string {
	var ranges []string
	for _, r := range p.ranges {
		ranges = append(ranges, fmt.Sprintf(`[{"subnet": %q}]`, r))
	}
	return fmt.Sprintf(`{"cniVersion": "1.0.0", "name": "pods", "type": %q, %s"ipam": {"type": "host-local", "dataDir": %q, "ranges": [%s]}}`,
		filepath.Base(p.path), p.more, dir, strings.Join(ranges, ", "))
}

// patience is how long a pod has to answer; one that does not counts as having taken so long.
const patience = 5 * time.Second

// add adds a pod and waits until the node has an answer of it: a refusal, as nothing listens there.
func (p plugin) add(ctx context.Context, node, pod *netns.NS, name, conf string) (took time.Duration, err error) {
	cmd := exec.CommandContext(ctx, p.path)
	cmd.Env = []string{"CNI_COMMAND=ADD", "CNI_CONTAINERID=" + pod.Name, "CNI_NETNS=" + pod.Path(), "CNI_IFNAME=" + attach.Interface, "CNI_PATH=" + filepath.Dir(p.path),
		"CNI_ARGS=IgnoreUnknown=1;K8S_POD_NAMESPACE=" + podNamespace + ";K8S_POD_NAME=" + name}
	cmd.Stdin = strings.NewReader(conf)
	err = node.Do(func() error {
		began := time.Now()
		out, err := cmd.Output()
		if err != nil {
			return fmt.Errorf("%w: %s", err, out)
		}
		var result current.Result
		if err := json.Unmarshal(out, &result); err != nil {
			return err
		}
		addr, _ := netip.AddrFromSlice(result.IPs[0].Address.IP)
		_, err = net.DialTimeout("tcp", netip.AddrPortFrom(addr.Unmap(), 9).String(), patience)
		took = time.Since(began)
		if !errors.Is(err, unix.ECONNREFUSED) {
			took = max(took, patience)
		}
		return nil
	})
	return took, err
}

func cniCharts(r *report.Result) []report.Figure {
	c := chart.Chart{Kind: chart.Bars, LogY: true, Title: "CNI ADD, until the node reaches the pod", Subtitle: "lower is better", YLabel: "ms (logarithmic)"}
	for _, how := range []string{oneByOne, atOnce} {
		for _, metric := range []string{p50, p99} {
			c.Categories = append(c.Categories, metric+", "+how)
		}
	}
	for _, s := range []struct{ name, families string }{{sluice, "IPv4"}, {"bridge", "IPv4"}, {sluice, "dual stack"}, {withAgent, "IPv4"}} {
		series := chart.Series{Name: s.name + ", " + s.families}
		for _, how := range []string{oneByOne, atOnce} {
			for _, metric := range []string{p50, p99} {
				series.Values = append(series.Values, report.ValueOf(r.Find(s.name, 0, s.families+", "+how, metric)))
			}
		}
		c.Series = append(c.Series, series)
	}
	return []report.Figure{{Name: "add", Chart: c}}
}
