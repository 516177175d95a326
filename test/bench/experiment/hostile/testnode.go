package hostile

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"sluice.dev/sluice/internal/agent"
	"sluice.dev/sluice/test/bench/cluster"
	"sluice.dev/sluice/test/bench/harness"
	"sluice.dev/sluice/test/bench/hostile"
	"sluice.dev/sluice/test/bench/testbed"
)

// remotePods returns how many pods other nodes have.
func remotePods(r *harness.Run) hostile.RemotePods {
	switch {
	case r.Pods > 0:
		return hostile.RemotePods(r.Pods)
	case r.Full():
		return 10_000
	}
	return 500
}

func hostileObjects(r *harness.Run) hostile.Objects {
	return hostile.Objects{Seed: r.Seed, Most: hostile.MaxBytes, Addresses: remotePods(r).Addresses()}
}

// testNode is a node with an agent and with pods of tenants and of bystanders, whose counters it
// holds. Close it.
type testNode struct {
	*harness.Run
	*testbed.Testbed
	*harness.Site
	bystanders
	backend  netip.Addr
	changing chan struct{} // a lock: who sends may change the bystanders' objects

	agent   *harness.Agent
	present map[string]demand // the hostile files
	demand                    // of all hostile files
	bound   int               // the greatest memoryBound since the agent was started
	each    int               // how many addresses a selector can select
	end     func()
}

// demand has the quantities on which the bound on the agent's memory depends.
type demand struct {
	bytes    int // of objects
	selected int // addresses that selectors of policies can select
	elements int // of wide services
}

// memoryBound returns how much memory the agent may have if other nodes have so many pods.
func (h demand) memoryBound(pods hostile.RemotePods) int {
	return mostBase + mostPerPod*int(pods) + mostPerByte*h.bytes + mostPerAddress*min(h.selected, mostSelected) + mostPerElement*min(h.elements, mostElements)
}

// demandOf returns the demand of an object if a selector can select so many addresses.
func demandOf(f cluster.File, addresses int) demand {
	in, out := hostile.Selectors(f)
	return demand{bytes: len(f.JSON), selected: min(in*addresses, hostile.MostSelected) + min(out*addresses, hostile.MostSelected)}
}

// fabricFlags have the kinds count that are of the pod network; nobody answers as a peer.
var fabricFlags = []string{"--fabric", "pools", "--bgp"}

// podsOfBystanders is the number of their pods: client and backend.
const podsOfBystanders = 2

// others is, about, how many addresses there are beside the pods of other nodes.
const others = 200

// newEmptyTestNode makes a testNode with the objects of the bystanders but without an agent.
func newEmptyTestNode(r *harness.Run) (_ *testNode, err error) {
	const pods = podsOfBystanders + hostile.Pods
	b := &testNode{Run: r, backend: cluster.PodAddr(1, pods), present: map[string]demand{}, changing: make(chan struct{}, 1), end: func() {}}
	b.bound, b.each = b.memoryBound(remotePods(r)), remotePods(r).Addresses()+others
	b.reasons = map[string]int{}
	defer func() {
		if err != nil {
			err = errors.Join(err, b.Close())
		}
	}()
	if b.Testbed, err = testbed.NewPods(r.NextPrefix(), pods); err != nil {
		return nil, err
	}
	if b.Site, err = r.NewSite(b.Node); err != nil {
		return nil, err
	}
	b.Flags = append(slices.Clone(fabricFlags), "--service-addresses")
	if g, err := harness.NewMemoryGroup(fmt.Sprintf("%s-%d", r.Prefix, r.Testbeds)); err == nil { // without one, kernel memory is not measured
		b.Group = g
	}
	var addrs [hostile.Pods]netip.Addr
	for i := range addrs {
		addrs[i] = cluster.PodAddr(podsOfBystanders+i, pods)
	}
	files := append(hostile.Prerequisites(addrs), b.bystanderFiles(cluster.PodAddr(0, pods))...)
	for i := range remotePods(r).Files() {
		files = append(files, remotePods(r).File(i, 0))
	}
	for _, f := range files {
		if err := b.write(f); err != nil {
			return nil, err
		}
	}
	return b, nil
}

// newTestNode makes a testNode with an agent and returns once bystanders are served.
func newTestNode(ctx context.Context, r *harness.Run) (_ *testNode, err error) {
	b, err := newEmptyTestNode(r)
	if err != nil {
		return nil, err
	}
	under, end := context.WithCancel(context.WithoutCancel(ctx))
	b.end = end
	defer func() {
		if err != nil {
			err = errors.Join(err, b.Close())
		}
	}()
	if err := serveLetters(under, b.Backend); err != nil {
		return nil, err
	}
	if b.agent, err = b.Start(); err != nil {
		return nil, err
	}
	if _, err := b.agent.Ready(ctx, time.Minute); err != nil {
		return nil, err
	}
	b.expectAgent(b.agent.Pid())
	var all sync.WaitGroup
	for _, part := range []func(context.Context){b.connectSteadily, b.connectForbidden, b.changeService, b.checkHealth} {
		all.Go(func() { part(under) })
	}
	b.end = func() { end(); all.Wait() }
	served, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	if err := b.waitForChanges(served, 2); err != nil {
		return nil, err
	}
	if n := b.takeCounters(); n.lost > 0 || n.passed > 0 {
		return nil, fmt.Errorf("before anything hostile came, of %d connections %v failed, and %d of %d passed that should not", n.served, n.reasons, n.passed, n.tried)
	}
	return b, nil
}

// Close ends all of it.
func (b *testNode) Close() error {
	b.end()
	if b.agent != nil {
		b.agent.Kill()
	}
	var errs []error
	if b.Site != nil {
		if b.Group != nil {
			errs = append(errs, b.Group.Close())
		}
		errs = append(errs, b.Site.Close())
	}
	if b.Testbed != nil {
		errs = append(errs, b.Testbed.Close())
	}
	return errors.Join(errs...)
}

// bystanderFiles are the manifests of the bystanders. The policy allows the client all ports but
// one, which it allows to pods that do not exist.
func (b *testNode) bystanderFiles(client netip.Addr) []cluster.File {
	text := func(name, format string, args ...any) cluster.File {
		return cluster.File{Name: name, JSON: fmt.Appendf(nil, format, args...)}
	}
	files := []cluster.File{cluster.NamespaceFile(), cluster.NodeFile()}
	for _, p := range []struct {
		name string
		addr netip.Addr
	}{{"client", client}, {"backend", b.backend}} {
		files = append(files, text(p.name+".json", `{"apiVersion": "v1", "kind": "Pod",
			"metadata": {"name": %[1]q, "namespace": "bench", "labels": {"app": %[1]q}}, "spec": {"nodeName": %[3]q},
			"status": {"phase": "Running", "podIP": %[2]q, "podIPs": [{"ip": %[2]q}]}}`, p.name, p.addr, cluster.Node))
	}
	files = append(files, text("policy.json", `{"apiVersion": "networking.k8s.io/v1", "kind": "NetworkPolicy",
		"metadata": {"name": "backend", "namespace": "bench"}, "spec": {"podSelector": {"matchLabels": {"app": "backend"}}, "ingress": [
			{"from": [{"podSelector": {"matchLabels": {"app": "friend"}}}]},
			{"from": [{"podSelector": {"matchLabels": {"app": "client"}}}], "ports": [{"port": %d, "endPort": %d}]}]}}`, steadyPort, oddPort))
	for i, port := range []int{steadyPort, evenPort, shutPort} {
		files = append(files, cluster.Cluster{}.ServiceFile(i), b.slice(i, port))
	}
	return files
}

// slice is the EndpointSlice of a service of the bystanders.
func (b *testNode) slice(service, port int) cluster.File {
	return cluster.File{Name: fmt.Sprintf("slice-%d.json", service), JSON: fmt.Appendf(nil, `{
		"apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice", "addressType": "IPv4",
		"metadata": {"name": %[1]q, "namespace": "bench", "labels": {"kubernetes.io/service-name": %[1]q}},
		"ports": [{"name": "http", "port": %d, "protocol": "TCP"}], "endpoints": [{"addresses": [%q], "conditions": {"ready": true}}]}`,
		cluster.ServiceName(service).Name, port, b.backend)}
}

// write adds a manifest or replaces it.
func (b *testNode) write(f cluster.File) error { return errors.Join(b.StageFile(f), b.Place(f)) }

// add adds hostile files to the manifests.
func (b *testNode) add(files []cluster.File) error {
	for _, f := range files {
		if err := b.write(f); err != nil {
			return err
		}
		now, was := demandOf(f, b.each), b.present[f.Name]
		b.bytes, b.selected = b.bytes+now.bytes-was.bytes, b.selected+now.selected-was.selected
		b.present[f.Name] = now
		b.bound = max(b.bound, b.memoryBound(remotePods(b.Run)))
	}
	return nil
}

// removeAll removes all hostile files.
func (b *testNode) removeAll() error {
	for name := range b.present {
		if err := os.Remove(filepath.Join(b.Manifests(), name)); err != nil {
			return err
		}
	}
	b.present, b.demand = map[string]demand{}, demand{}
	return nil
}

// waitForChanges waits until packets have followed so many more changes.
func (b *testNode) waitForChanges(ctx context.Context, changes int) error {
	for have := b.changesDone(); b.changesDone() < have+changes; {
		if err := harness.Wait(ctx, 5*time.Millisecond); err != nil {
			return errors.Join(fmt.Errorf("the changed service does not follow: %w: %s", err, b.agent.Log), b.running())
		}
	}
	return nil
}

// running returns an error if the agent has ended.
func (b *testNode) running() error {
	select {
	case <-b.agent.Ended:
		return fmt.Errorf("the agent has ended: %s", b.agent.Log)
	default:
		return nil
	}
}

// The limits.
const (
	mostDelay      = time.Second     // from a bystander's change to packets that follow
	mostTaking     = 2 * time.Minute // from objects' files to the kernel
	mostBase       = 150 << 20       // memory without objects of tenants …
	mostPerPod     = 4 << 10         // … for each pod of other nodes …
	mostPerByte    = 60              // … for each byte of tenants' objects …
	mostPerAddress = 500             // … for each address that their policies' selectors select, of as many …
	mostSelected   = 1 << 22         // … as all together may select, see docs/limits.md …
	mostPerElement = 300             // … and for each element of their services, of as many …
	mostElements   = 1 << 22         // … as all together may have
)

// observation is what happened until objects were in the kernel.
type observation struct {
	counters
	problems []problem
	heaviest int      // the agent's most resident memory since its start, in bytes
	faults   []string // why the agent refused objects
}

// settle waits until all objects are in the kernel and returns what happened since its last call.
func (b *testNode) settle(ctx context.Context) (s observation) {
	ctx, cancel := context.WithTimeout(ctx, mostTaking)
	defer cancel()
	add := func(bad bool, kind, format string, args ...any) {
		if bad {
			s.problems = append(s.problems, problem{kind: kind, what: fmt.Sprintf(format, args...)})
		}
	}
	taken := b.AgentClient().Sync(ctx)
	if faults, ok := errors.AsType[*agent.FaultError](taken); ok {
		for _, i := range faults.Issues {
			s.faults = append(s.faults, i.Reason)
		}
		taken = nil
	}
	if taken == nil {
		taken = b.waitForChanges(ctx, 2)
	}
	s.counters = b.takeCounters()
	add(s.passed > 0, problemPassed, "%d of %d", s.passed, s.tried)
	add(s.lost > 0, problemLost, "%d of %d: %v", s.lost, s.served, s.reasons)
	if err := b.running(); err != nil {
		add(true, problemEnded, "%s", err)
		return s
	}
	if status, err := b.AgentClient().Status(context.WithoutCancel(ctx)); err == nil && status.Failure != nil {
		add(true, problemRefused, "%s", status.Failure.Error)
	}
	add(taken != nil, problemNotApplied, "%v", taken)
	if s.slowest > mostDelay {
		s.problems = append(s.problems, problem{problemSlow, s.slowest.Round(time.Millisecond).String(), s.slowest})
	}
	var err error
	s.heaviest, err = harness.PeakMemory(b.agent.Pid())
	add(err == nil && s.heaviest > b.bound, problemMemory, "%d MB, of %d MB that they may take; now there are objects of %d bytes that select %d addresses at most", s.heaviest>>20, b.bound>>20, b.bytes, b.selected)
	add(s.unhealthy != "", problemUnhealthy, "%s", s.unhealthy)
	return s
}

// compareWithPlan returns a problem if `sluice plan` of a fresh process would change anything.
func (b *testNode) compareWithPlan(ctx context.Context) (all []problem) {
	ctx, cancel := context.WithTimeout(ctx, mostTaking)
	defer cancel()
	select { // no bystander may change its objects meanwhile
	case b.changing <- struct{}{}:
		defer func() { <-b.changing }()
	case <-ctx.Done():
	}
	var out []byte
	err := b.Node.Do(func() (err error) {
		out, err = exec.CommandContext(ctx, b.Binary, slices.Concat([]string{"plan"}, fabricFlags, b.Objects())...).CombinedOutput()
		return err
	})
	if ctx.Err() != nil {
		return []problem{{kind: problemNotApplied, what: "the kernel could not be compared with the manifests in time"}}
	}
	if text := strings.TrimSpace(string(out)); err != nil || !strings.HasSuffix(text, "nothing to do") {
		all = append(all, problem{kind: problemLeftOver, what: fmt.Sprintf("%v %.2000s", err, text)})
	}
	return all
}

// restart kills the agent and starts it again with the present objects. Meanwhile bystanders are
// served, and changes wait.
func (b *testNode) restart(ctx context.Context) []problem {
	b.expectAgent(0)
	b.agent.Kill()
	b.bound = b.memoryBound(remotePods(b.Run))
	var err error
	if b.agent, err = b.Start(); err == nil {
		_, err = b.agent.Ready(ctx, mostTaking)
		b.expectAgent(b.agent.Pid())
	}
	if err != nil {
		return []problem{{kind: problemRestart, what: err.Error()}}
	}
	return nil
}

// expectAgent says that the agent should serve from now on, or, if pid is 0, that it does not run.
func (b *testNode) expectAgent(pid int) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.pid, b.unhealthyAnswers = pid, 0
	if !b.changed.IsZero() {
		b.begin()
	}
}
