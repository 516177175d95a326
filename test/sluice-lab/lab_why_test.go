package main

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/yaml"

	"sluice.dev/sluice/internal/agent"
	"sluice.dev/sluice/internal/cli"
	"sluice.dev/sluice/internal/model"
	"sluice.dev/sluice/internal/policy/question"
	"sluice.dev/sluice/internal/policy/verdict"
	"sluice.dev/sluice/test/lab"
	"sluice.dev/sluice/test/lab/echo"
	"sluice.dev/sluice/test/lab/plan"
	"sluice.dev/sluice/test/lab/probe"
	"sluice.dev/sluice/test/netns"
	"sluice.dev/sluice/test/policytest"
)

var whyClusters = flag.Int("why-clusters", 4, "how many random clusters to ask `sluice why` about")

// TestWhyAgreesWithPackets sends requests between all pods, nodes and the outside, to pods and to
// each address of each service, and asks the nodes' agents about them, in turn: the answers are
// what the packets say.
func TestWhyAgreesWithPackets(t *testing.T) {
	t.Run("shop", func(t *testing.T) {
		t.Parallel()
		compareWhy(t, shopLab(t, "testwhyshop"), inTurn)
	})
	t.Run("online boutique", func(t *testing.T) {
		t.Parallel()
		folder := "../../../shared/manifests/online-boutique"
		if _, err := os.Stat(folder); err != nil {
			t.Skip("Online Boutique's manifests are not there: see 'make run'")
		}
		compareWhy(t, upLab(t, "testwhyob", folder), inTurn)
	})
	t.Run("random", func(t *testing.T) {
		t.Parallel()
		crowd := filepath.Join(t.TempDir(), "crowd.yaml")
		if err := os.WriteFile(crowd, []byte(crowdManifests()), 0o600); err != nil {
			t.Fatal(err)
		}
		l := upLab(t, "testwhyrand", crowd)
		for seed := range uint64(*whyClusters) {
			change(t, l, 9_000_000+seed)
			if compareWhy(t, l, inTurn); t.Failed() {
				for _, p := range l.Cluster.Policies {
					t.Logf("%s", p.Object)
				}
				t.Fatalf("seed %d", seed)
			}
		}
	})
}

func upLab(t *testing.T, name string, paths ...string) *lab.Lab {
	t.Helper()
	needRoot(t)
	name = named(name)
	t.Cleanup(func() {
		if err := lab.Down(name); err != nil {
			t.Error(err)
		}
	})
	var progress bytes.Buffer
	o := labOptions{name: name, nodes: 3, sluice: os.Getenv(cli.SluiceEnv)}
	l, err := o.up(t.Context(), &progress, paths)
	if err != nil {
		t.Fatalf("%v\n%s", err, progress.String())
	}
	return l
}

// crowdManifests are pods with the labels and namespaces that random policies ask for, and services
// of all types over them.
func crowdManifests() string {
	var b strings.Builder
	for name, labels := range map[string]string{"red": "{tier: a}", "green": "{app: b, env: c}", "blue": "{}"} {
		fmt.Fprintf(&b, "---\napiVersion: v1\nkind: Namespace\nmetadata: {name: %s, labels: %s}\n", name, labels)
	}
	ports := []string{"{name: web, containerPort: 80}, {name: dns, containerPort: 53, protocol: UDP}", "{name: admin, containerPort: 8080}", "{name: web, containerPort: 81}"}
	for i, labels := range []string{"app: a", "app: b, tier: a", "app: c, env: b", "tier: b, env: a", "tier: c", "app: a, tier: c, env: c"} {
		fmt.Fprintf(&b, "---\napiVersion: apps/v1\nkind: Deployment\nmetadata: {name: w%d, namespace: %s}\nspec:\n  replicas: %d\n  template:\n"+
			"    metadata: {labels: {set: w%d, %s}}\n    spec: {containers: [{name: c, ports: [%s]}]}\n",
			i, []string{"red", "green", "blue"}[i%3], 1+i%2, i, labels, ports[i%3])
	}
	service := func(name, namespace, set, spec string) {
		fmt.Fprintf(&b, "---\napiVersion: v1\nkind: Service\nmetadata: {name: %s, namespace: %s}\nspec: {ipFamilyPolicy: PreferDualStack, selector: {%s}, %s}\n", name, namespace, set, spec)
	}
	service("plain", "red", "set: w0", "ports: [{name: web, port: 80}, {name: dns, port: 53, protocol: UDP}]")
	service("two", "green", "set: w1", "ports: [{port: 80, targetPort: admin}]")
	service("mixed", "red", "app: a", "type: NodePort, ports: [{port: 80}]")
	service("balanced", "blue", "set: w5", "type: LoadBalancer, externalTrafficPolicy: Local, ports: [{port: 81}]")
	service("inner", "red", "set: w3", "internalTrafficPolicy: Local, ports: [{port: 80}]")
	service("ranged", "blue", "set: w2", `type: LoadBalancer, loadBalancerSourceRanges: ["203.0.113.0/24"], ports: [{port: 81}]`)
	service("empty", "green", "set: none", "ports: [{port: 80}]")
	return b.String()
}

// change gives the lab the policies of a random cluster.
func change(t *testing.T, l *lab.Lab, seed uint64) {
	t.Helper()
	texts, err := policytest.RandomPolicies(seed)
	if err != nil {
		t.Fatal(err)
	}
	setPolicies(t, l, texts...)
}

// setPolicies makes policies, in JSON or YAML, the lab's only ones.
func setPolicies(t *testing.T, l *lab.Lab, texts ...[]byte) {
	t.Helper()
	var policies []plan.Policy
	for _, text := range texts {
		var o corev1.ObjectReference // for its type's fields
		var meta struct {
			Metadata struct{ Name, Namespace string }
		}
		text, err := yaml.YAMLToJSON(text)
		if err := errors.Join(err, json.Unmarshal(text, &o), json.Unmarshal(text, &meta)); err != nil {
			t.Fatal(err)
		}
		p, err := plan.NewPolicy(o.APIVersion, o.Kind, meta.Metadata.Namespace, meta.Metadata.Name, text)
		if err != nil {
			t.Fatalf("%v\n%s", err, text)
		}
		policies = append(policies, p)
	}
	err := l.Change(t.Context(), func(c *plan.Cluster) error { c.Policies = policies; return nil })
	if err == nil {
		err = l.Sync(t.Context())
	}
	if err != nil {
		t.Fatal(err)
	}
}

// whyCase is one connection from one place.
type whyCase struct {
	source   probe.Source
	from     netip.Addr
	to       netip.AddrPort
	protocol string
	via      string
	answer   echo.Answer
	err      error
	took     time.Duration
}

// These bound requests: the time to an answer on a slow machine, and for silence at least some time
// and a multiple of the slowest answer.
const (
	answerTime    = 5 * time.Second
	silenceTime   = 500 * time.Millisecond
	silenceFactor = 4
)

// whom says which nodes' agents are asked about a case. An answer takes some milliseconds, of which
// most go into what is of other nodes.
type whom func(node, nodes, i int) bool

var (
	everyNode whom = func(int, int, int) bool { return true }
	inTurn    whom = func(node, nodes, i int) bool { return i%nodes == node }
)

// told are the agents' answers, by node and case.
type told map[string]map[int]agent.Explanation

func compareWhy(t *testing.T, l *lab.Lab, asked whom) {
	t.Helper()
	cases := whyCases(l)
	answers := askWhy(t, l, cases, asked)
	sendAll(t, cases, allowed(answers))
	counts := map[verdict.Outcome]int{}
	for _, all := range answers {
		for _, e := range all {
			counts[e.Outcome]++
		}
	}
	agree := func(i int) bool {
		for node, all := range answers {
			if e, asked := all[i]; asked && !cases[i].agrees(node, e) {
				return false
			}
		}
		return true
	}
	var odd []int
	var again []*whyCase
	for i := range cases {
		if !agree(i) {
			odd, again = append(odd, i), append(again, &cases[i])
		}
	}
	send(t, again, answerTime) // a slow machine may lose a packet to the time-out
	for _, i := range odd {
		for node, all := range answers {
			if e, asked := all[i]; asked && !cases[i].agrees(node, e) {
				c := &cases[i]
				t.Errorf("on %s, why says %v of %s, the kernel says %v %v:\n%v%v", node, e.Outcome, c, c.answer, c.err, verdict.TextOfAll(e.Connections), e.Warnings)
			}
		}
	}
	t.Logf("%d connections: %v", len(cases), counts)
}

// askWhy asks the nodes' agents about the cases.
func askWhy(t *testing.T, l *lab.Lab, cases []whyCase, asked whom) told {
	t.Helper()
	var questions []question.Question
	for _, c := range cases {
		questions = append(questions, c.question(t))
	}
	answers := told{}
	var all sync.WaitGroup
	nodes := l.Status(t.Context()).Nodes
	for n, node := range nodes {
		said := map[int]agent.Explanation{}
		answers[node.Name] = said
		all.Go(func() {
			client := agent.NewClient(node.Socket)
			for i, q := range questions {
				if !asked(n, len(nodes), i) {
					continue
				}
				e, err := client.Explain(t.Context(), q)
				if err != nil {
					t.Errorf("%s asked about %s: %v", node.Name, cases[i], err)
					return
				}
				said[i] = e
			}
		})
	}
	if all.Wait(); t.Failed() {
		t.FailNow()
	}
	return answers
}

// allowed returns which cases all agents that were asked say are allowed.
func allowed(answers told) func(i int) bool {
	return func(i int) bool {
		for _, all := range answers {
			if e, asked := all[i]; asked && e.Outcome != verdict.Allowed {
				return false
			}
		}
		return true
	}
}

// whyCases are connections from each pod, node and the outside to each pod's ports and each
// frontend.
func whyCases(l *lab.Lab) (cases []whyCase) {
	var sources []probe.Source
	for _, p := range l.Cluster.Pods {
		if !p.Spec.HostNetwork {
			sources = append(sources, probe.Source{Kind: probe.FromPod, Name: p.Namespace + "/" + p.Name, Node: p.Spec.NodeName, NetNS: l.PodNS(p), Addrs: plan.Addrs(p)})
		}
	}
	for _, n := range l.Cluster.Nodes {
		sources = append(sources, probe.Source{Kind: probe.FromNode, Name: n.Name, Node: n.Name, NetNS: l.NodeNS(n.Name), Addrs: n.IPs})
	}
	sources = append(sources, probe.Source{Kind: probe.FromOutside, Name: plan.Outside, NetNS: l.NodeNS(plan.Outside), Addrs: l.Cluster.OutsideIPs})
	add := func(s probe.Source, to netip.AddrPort, protocol, via string) {
		for _, a := range s.Addrs {
			if a.Is4() == to.Addr().Is4() && protocol != string(corev1.ProtocolSCTP) {
				if s.Kind != probe.FromOutside {
					via = ""
				}
				cases = append(cases, whyCase{source: s, from: a, to: to, protocol: protocol, via: via})
				return
			}
		}
	}
	tries, _ := probe.Tries(l.Cluster, sources)
	for _, try := range tries {
		if try.Frontend.Kind != probe.HealthCheck {
			add(try.Source, try.To, try.Protocol, try.Frontend.Node)
		}
	}
	for _, s := range sources {
		for _, p := range l.Cluster.Pods {
			for _, c := range p.Spec.Containers {
				for _, port := range c.Ports {
					for _, a := range plan.Addrs(p) {
						add(s, netip.AddrPortFrom(a, uint16(port.ContainerPort)), cmp.Or(string(port.Protocol), "TCP"), "")
					}
				}
			}
		}
	}
	return cases
}

func (c whyCase) String() string {
	return fmt.Sprintf("%s %s to %s/%s", c.source.Name, c.from, c.to, c.protocol)
}

func (c whyCase) question(t *testing.T) question.Question {
	t.Helper()
	q, err := question.Parse(c.from.String(), c.to.String()+"/"+strings.ToLower(c.protocol))
	if err != nil {
		t.Fatal(err)
	}
	if q.Via = c.via; c.source.Kind == probe.FromNode {
		q.From = question.End{Kind: question.Node, Name: c.source.Name}
		if q.Family = 6; c.to.Addr().Is4() {
			q.Family = 4
		}
	}
	return q
}

// agrees reports whether the answer to the request is as it was said on a node: of several
// backends, the one that answered is allowed, and silence means that one is denied. What only
// another node knows, by the host endpoints there, may be unknown.
func (c whyCase) agrees(node string, e agent.Explanation) bool {
	if len(e.Connections) != 1 {
		return false
	}
	if e.Outcome == verdict.Unknown {
		return slices.ContainsFunc(e.Connections[0].Paths, func(p verdict.Path) bool {
			return slices.ContainsFunc(p.Steps, func(s verdict.Step) bool {
				return s.Outcome == verdict.Unknown && s.Of.Kind == model.HostEndpointKind && s.Node != node
			})
		})
	}
	if c.err != nil {
		return e.Outcome == verdict.Denied
	}
	for _, p := range e.Connections[0].Paths {
		if name := p.To.Object.Name; p.Outcome == verdict.Allowed && (name.Namespace == c.answer.Namespace && name.Name == c.answer.Pod || name.Namespace == "") {
			return true
		}
	}
	return false
}

// sendAll sends a request for each case: first where an answer is expected, then the others. How
// long the first took says how long a silence has to be.
func sendAll(t *testing.T, cases []whyCase, answered func(i int) bool) {
	t.Helper()
	var loud, quiet []*whyCase
	for i := range cases {
		if answered(i) {
			loud = append(loud, &cases[i])
		} else {
			quiet = append(quiet, &cases[i])
		}
	}
	send(t, loud, answerTime)
	silence := silenceTime
	for _, c := range loud {
		if c.err == nil {
			silence = max(silence, min(silenceFactor*c.took, answerTime))
		}
	}
	send(t, quiet, silence)
}

// send sends a request for each case, and notes what came of it.
func send(t *testing.T, cases []*whyCase, silence time.Duration) {
	t.Helper()
	const workers = 24
	queues := map[string][]*whyCase{}
	for _, c := range cases {
		queues[c.source.NetNS] = append(queues[c.source.NetNS], c)
	}
	var all sync.WaitGroup
	for name, queue := range queues {
		ns, err := netns.Open(name)
		if err != nil {
			t.Fatal(err)
		}
		work := make(chan *whyCase, len(queue))
		for _, c := range queue {
			work <- c
		}
		close(work)
		var here sync.WaitGroup
		for range min(workers, len(queue)) {
			here.Go(func() {
				err := ns.Do(func() error {
					for c := range work {
						begin := time.Now()
						c.answer, c.err = echo.Ask(c.protocol, c.to, silence)
						c.took = time.Since(begin)
					}
					return nil
				})
				if err != nil {
					t.Error(err)
				}
			})
		}
		all.Go(func() { here.Wait(); ns.Close() })
	}
	all.Wait()
}
