package bench

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"sluice.dev/sluice/internal/agent"
	"sluice.dev/sluice/internal/bench/cluster"
	"sluice.dev/sluice/internal/bench/hostile"
	"sluice.dev/sluice/internal/bench/testbed"
)

// testNode is an agent on a node with pods of tenants and of bystanders, and what the bystanders notice. Close it.
type testNode struct {
	*run
	*testbed.Testbed
	*site
	watch
	backend  netip.Addr
	changing chan struct{} // holds something while a change of the bystanders' is under way

	agent   *agentProcess
	present map[string]hunger // hostile files
	hunger                    // of those
	most    int               // of their bound, since the agent was started
	each    int               // addresses that a selector selects at the most
	end     func()
}

// hunger is what memory goes by.
type hunger struct {
	bytes    int // of objects
	selected int // addresses, by selectors of policies, at the most
	elements int // of wide services
}

// bound is how much the agent may have where so many pods are on other nodes.
func (h hunger) bound(crowd hostile.Crowd) int {
	return mostBase + mostPerPod*int(crowd) + mostPerByte*h.bytes + mostPerAddress*min(h.selected, mostSelected) + mostPerElement*min(h.elements, mostElements)
}

// hungerOf is that of an object where a selector selects so many addresses at the most.
func hungerOf(f cluster.File, addresses int) hunger {
	in, out := hostile.Selectors(f)
	return hunger{bytes: len(f.JSON), selected: min(in*addresses, hostile.MostSelected) + min(out*addresses, hostile.MostSelected)}
}

// podsOfBystanders are the client and the backend.
const podsOfBystanders = 2

// others are the addresses beside those of the crowd, about.
const others = 200

// newGround makes a testNode with all that is there before anything hostile comes, but without an agent.
func (r *run) newGround() (_ *testNode, err error) {
	const pods = podsOfBystanders + hostile.Pods
	b := &testNode{run: r, backend: cluster.PodAddr(1, pods), present: map[string]hunger{}, changing: make(chan struct{}, 1), end: func() {}}
	b.most, b.each = b.bound(r.crowd()), r.crowd().Addresses()+others
	b.reasons = map[string]int{}
	defer func() {
		if err != nil {
			err = errors.Join(err, b.Close())
		}
	}()
	if b.Testbed, err = testbed.NewPods(r.nextPrefix(), pods); err != nil {
		return nil, err
	}
	if b.site, err = r.newSite(b.Node); err != nil {
		return nil, err
	}
	if g, err := newMemoryGroup(fmt.Sprintf("%s-%d", r.prefix, r.testbeds)); err == nil { // it is asked only where kernel memory counts
		b.group = g
	}
	var addrs [hostile.Pods]netip.Addr
	for i := range addrs {
		addrs[i] = cluster.PodAddr(podsOfBystanders+i, pods)
	}
	files := append(hostile.Ground(addrs), b.bystanders(cluster.PodAddr(0, pods))...)
	for i := range r.crowd().Files() {
		files = append(files, r.crowd().File(i, 0))
	}
	for _, f := range files {
		if err := b.write(f); err != nil {
			return nil, err
		}
	}
	return b, nil
}

// newTestNode makes one with an agent, and returns once bystanders are served.
func (r *run) newTestNode(ctx context.Context) (_ *testNode, err error) {
	b, err := r.newGround()
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
	if b.agent, err = b.start(); err != nil {
		return nil, err
	}
	if _, err := b.agent.ready(ctx, time.Minute); err != nil {
		return nil, err
	}
	b.there(b.agent.pid())
	var all sync.WaitGroup
	for _, part := range []func(context.Context){b.steady, b.trespass, b.change, b.examine} {
		all.Go(func() { part(under) })
	}
	b.end = func() { end(); all.Wait() }
	served, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	if err := b.followed(served, 2); err != nil {
		return nil, err
	}
	if n := b.take(); n.lost > 0 || n.opened > 0 {
		return nil, fmt.Errorf("before anything hostile came, of %d connections %v failed, and %d of %d passed that should not", n.served, n.reasons, n.opened, n.tried)
	}
	return b, nil
}

// Close ends all of it.
func (b *testNode) Close() error {
	b.end()
	if b.agent != nil {
		b.agent.kill()
	}
	var errs []error
	if b.site != nil {
		if b.group != nil {
			errs = append(errs, b.group.Close())
		}
		errs = append(errs, b.site.Close())
	}
	if b.Testbed != nil {
		errs = append(errs, b.Testbed.Close())
	}
	return errors.Join(errs...)
}

// bystanders are their objects. The policy opens one port to friends that are not there, and the others to the client.
func (b *testNode) bystanders(client netip.Addr) []cluster.File {
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

// slice is that of a service of the bystanders'.
func (b *testNode) slice(service, port int) cluster.File {
	return cluster.File{Name: fmt.Sprintf("slice-%d.json", service), JSON: fmt.Appendf(nil, `{
		"apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice", "addressType": "IPv4",
		"metadata": {"name": %[1]q, "namespace": "bench", "labels": {"kubernetes.io/service-name": %[1]q}},
		"ports": [{"name": "http", "port": %d, "protocol": "TCP"}], "endpoints": [{"addresses": [%q], "conditions": {"ready": true}}]}`,
		cluster.ServiceName(service).Name, port, b.backend)}
}

// write puts a file among the manifests, or in the place of another.
func (b *testNode) write(f cluster.File) error { return errors.Join(b.stageFile(f), b.place(f)) }

// add puts hostile files among the manifests.
func (b *testNode) add(files []cluster.File) error {
	for _, f := range files {
		if err := b.write(f); err != nil {
			return err
		}
		now, was := hungerOf(f, b.each), b.present[f.Name]
		b.bytes, b.selected = b.bytes+now.bytes-was.bytes, b.selected+now.selected-was.selected
		b.present[f.Name] = now
		b.most = max(b.most, b.bound(b.crowd()))
	}
	return nil
}

// removeAll takes all hostile files away.
func (b *testNode) removeAll() error {
	for name := range b.present {
		if err := os.Remove(filepath.Join(b.manifests(), name)); err != nil {
			return err
		}
	}
	b.present, b.hunger = map[string]hunger{}, hunger{}
	return nil
}

// followed waits until packets have followed so many changes more.
func (b *testNode) followed(ctx context.Context, changes int) error {
	for have := b.done(); b.done() < have+changes; {
		if err := wait(ctx, 5*time.Millisecond); err != nil {
			return errors.Join(fmt.Errorf("the changed service does not follow: %w: %s", err, b.agent.log), b.running())
		}
	}
	return nil
}

// running says how the agent ended, if it did.
func (b *testNode) running() error {
	select {
	case <-b.agent.ended:
		return fmt.Errorf("the agent has ended: %s", b.agent.log)
	default:
		return nil
	}
}

// trouble is something that hostile objects have done.
type trouble struct {
	kind string // one of those below
	what string
	took time.Duration // that a change waited; 0: it is about something else
}

// The kinds of trouble.
const (
	troubleOpened   = "something passed where policy forbids it"
	troubleLost     = "a bystander's connection failed"
	troubleEnded    = "the agent ended"
	troubleRefused  = "the kernel refused something, and all waited"
	troubleSlow     = "a bystander's change waited for more than a second"
	troubleMemory   = "the agent's memory was over its bound"
	troubleSick     = "the agent said that it was not well"
	troubleUntaken  = "objects were not taken in two minutes"
	troubleLeftOver = "something was left over or missing in the kernel"
	troubleRestart  = "the agent could not be started anew"
)

// troubleKinds are all of them, the worst first.
var troubleKinds = []string{
	troubleOpened, troubleLost, troubleEnded, troubleRefused, troubleSlow, troubleMemory, troubleSick, troubleUntaken, troubleLeftOver, troubleRestart,
}

// key is alike for troubles that are the same but for numbers and names.
func (t trouble) key() string {
	if t.kind == troubleRefused {
		return t.kind + t.what[strings.LastIndex(t.what, ":")+1:]
	}
	return t.kind
}

// The limits.
const (
	mostDelay      = time.Second     // from a bystander's change to packets that follow
	mostTaking     = 2 * time.Minute // until objects are in the kernel
	mostBase       = 150 << 20       // memory without objects of tenants …
	mostPerPod     = 4 << 10         // … for each pod of other nodes …
	mostPerByte    = 60              // … for each byte of tenants' objects …
	mostPerAddress = 500             // … for each address that their policies' selectors select, of as many …
	mostSelected   = 1 << 22         // … as all together may select, see docs/limits.md …
	mostPerElement = 300             // … and for each element of their services, of as many …
	mostElements   = 1 << 22         // … as all together may have
)

// seen is what was seen while objects were taken.
type seen struct {
	noticed
	trouble  []trouble
	heaviest int      // bytes of the agent since it was started
	faults   []string // why objects were refused
}

// settle waits until the kernel has all objects, and tells of what was seen since it was called last.
func (b *testNode) settle(ctx context.Context) (s seen) {
	ctx, cancel := context.WithTimeout(ctx, mostTaking)
	defer cancel()
	add := func(bad bool, kind, format string, args ...any) {
		if bad {
			s.trouble = append(s.trouble, trouble{kind: kind, what: fmt.Sprintf(format, args...)})
		}
	}
	taken := b.ask().Sync(ctx)
	if faults, ok := errors.AsType[*agent.FaultError](taken); ok {
		for _, i := range faults.Issues {
			s.faults = append(s.faults, i.Reason)
		}
		taken = nil
	}
	if taken == nil {
		taken = b.followed(ctx, 2)
	}
	s.noticed = b.take()
	add(s.opened > 0, troubleOpened, "%d of %d", s.opened, s.tried)
	add(s.lost > 0, troubleLost, "%d of %d: %v", s.lost, s.served, s.reasons)
	if err := b.running(); err != nil {
		add(true, troubleEnded, "%s", err)
		return s
	}
	if status, err := b.ask().Status(context.WithoutCancel(ctx)); err == nil && status.Failure != nil {
		add(true, troubleRefused, "%s", status.Failure.Error)
	}
	add(taken != nil, troubleUntaken, "%v", taken)
	if s.slowest > mostDelay {
		s.trouble = append(s.trouble, trouble{troubleSlow, s.slowest.Round(time.Millisecond).String(), s.slowest})
	}
	var err error
	s.heaviest, err = peakMemory(b.agent.pid())
	add(err == nil && s.heaviest > b.most, troubleMemory, "%d MB, of %d MB that they may take; now there are objects of %d bytes that select %d addresses at most", s.heaviest>>20, b.most>>20, b.bytes, b.selected)
	add(s.sick != "", troubleSick, "%s", s.sick)
	return s
}

// leftOver compares the kernel with what a fresh agent would make of the manifests.
func (b *testNode) leftOver(ctx context.Context) (all []trouble) {
	ctx, cancel := context.WithTimeout(ctx, mostTaking)
	defer cancel()
	select { // nothing else is to change meanwhile
	case b.changing <- struct{}{}:
		defer func() { <-b.changing }()
	case <-ctx.Done():
	}
	var out []byte
	err := b.Node.Do(func() (err error) {
		out, err = exec.CommandContext(ctx, b.binary, append([]string{"plan"}, b.objects()...)...).CombinedOutput()
		return err
	})
	if ctx.Err() != nil {
		return []trouble{{kind: troubleUntaken, what: "the kernel could not be compared with the manifests in time"}}
	}
	if text := strings.TrimSpace(string(out)); err != nil || !strings.HasSuffix(text, "nothing to do") {
		all = append(all, trouble{kind: troubleLeftOver, what: fmt.Sprintf("%v %.2000s", err, text)})
	}
	return all
}

// restart kills the agent and starts it with all that is there now. Bystanders are served meanwhile, changes wait.
func (b *testNode) restart(ctx context.Context) []trouble {
	b.there(0)
	b.agent.kill()
	b.most = b.bound(b.crowd())
	var err error
	if b.agent, err = b.start(); err == nil {
		_, err = b.agent.ready(ctx, mostTaking)
		b.there(b.agent.pid())
	}
	if err != nil {
		return []trouble{{kind: troubleRestart, what: err.Error()}}
	}
	return nil
}

// there says that the agent is expected to serve from now on, or not to be there if pid is 0.
func (b *testNode) there(pid int) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.pid, b.answers = pid, 0
	if !b.changed.IsZero() {
		b.begin()
	}
}
