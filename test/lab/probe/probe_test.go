package probe

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"testing/fstest"
	"text/tabwriter"
	"time"

	"github.com/google/go-cmp/cmp"

	"sluice.dev/sluice/test/lab/echo"
	"sluice.dev/sluice/test/lab/plan"
)

// cluster has three nodes; web runs on node1 and node2, nothing on node3.
func cluster(t *testing.T, services string) *plan.Cluster {
	t.Helper()
	const web = `
apiVersion: apps/v1
kind: Deployment
metadata: {name: web}
spec:
  replicas: 2
  template: {metadata: {labels: {app: web}}, spec: {containers: [{ports: [{containerPort: 80}]}]}}
`
	objs, err := plan.ReadFS(fstest.MapFS{"a.yaml": {Data: []byte(web + services)}})
	if err != nil {
		t.Fatal(err)
	}
	c, err := plan.New(plan.Size{Nodes: 3}, objs, time.Time{})
	if err != nil {
		t.Fatal(err)
	}
	if len(c.Notes) > 0 {
		t.Fatal(c.Notes)
	}
	return c
}

func sources(c *plan.Cluster) []Source {
	ss := []Source{{Kind: FromOutside, Name: "outside", Addrs: c.OutsideIPs}}
	for _, n := range c.Nodes {
		ss = append(ss, Source{Kind: FromNode, Name: n.Name, Node: n.Name, Addrs: n.IPs})
		a := n.PodCIDRs[0].Addr().Next()
		ss = append(ss, Source{Kind: FromPod, Name: "pod" + n.Name[4:], Node: n.Name, Addrs: []netip.Addr{a}})
	}
	return ss
}

// show writes an expected outcome in short form: who may answer, with "keep", "sticky" and
// "partly".
func show(e Expect) string {
	if e.Fate != Answered && e.Fate != Partly {
		return string(e.Fate)
	}
	var by []string
	for p := range e.By {
		by = append(by, strings.TrimPrefix(p, "default/web-"))
	}
	slices.Sort(by)
	text := strings.Join(by, "")
	if e.Keep {
		text += " keep"
	}
	if e.Sticky {
		text += " sticky"
	}
	if e.Fate == Partly {
		text += " partly"
	}
	return text
}

func TestExpect(t *testing.T) {
	for _, tc := range []struct {
		name, spec string
		mark       func(*plan.Cluster) error
		want       map[string]string // by "source via node", "source via" or "via": the fate of all that match
	}{
		{"cluster IP", "selector: {app: web}", nil, map[string]string{
			"node1 ClusterIP": "12", "pod3 ClusterIP": "12 keep", "outside ClusterIP": "not tried",
		}},
		{"no endpoints", "type: LoadBalancer, selector: {app: none}", nil, map[string]string{
			"ClusterIP": "refused", "NodePort": "refused", "LoadBalancer": "refused",
		}},
		{"internal policy local", "selector: {app: web}, internalTrafficPolicy: Local", nil, map[string]string{
			"pod1 ClusterIP": "1 keep", "node2 ClusterIP": "2 keep", "pod3 ClusterIP": "dropped", "node3 ClusterIP": "dropped",
		}},
		{"external policy cluster", "type: LoadBalancer, selector: {app: web}, sessionAffinity: ClientIP", nil, map[string]string{
			"NodePort": "12 sticky", "LoadBalancer": "12 sticky", "node3 ClusterIP": "12 sticky",
		}},
		{"external policy local", "type: LoadBalancer, selector: {app: web}, externalTrafficPolicy: Local", nil, map[string]string{
			"outside NodePort node1": "1 keep", "outside NodePort node3": "dropped", "outside LoadBalancer": "1 keep",
			"pod3 NodePort node3": "12", "pod1 NodePort node3": "12", "pod3 LoadBalancer": "12",
			"outside HealthCheck node1": "healthy", "outside HealthCheck node3": "unhealthy", "pod1 HealthCheck": "not tried",
			"node3 NodePort node3": "12", "node1 NodePort node3": "dropped", "node1 NodePort node2": "2 keep", "node3 LoadBalancer": "12",
		}},
		{"source ranges", "type: LoadBalancer, selector: {app: web}, loadBalancerSourceRanges: [10.244.0.0/16, 10.10.0.12/32]", nil, map[string]string{
			"outside LoadBalancer": "dropped", "pod1 LoadBalancer": "12", "node2 LoadBalancer": "12", "node1 LoadBalancer": "dropped", "outside NodePort": "12",
		}},
		{"source ranges of the other family", "type: LoadBalancer, selector: {app: web}, loadBalancerSourceRanges: ['2001:db8::/32']", nil, map[string]string{
			"outside LoadBalancer": "12",
		}},
		{"external IP", "selector: {app: web}, externalIPs: [203.0.113.1]", nil, map[string]string{
			"outside ExternalIP": "12", "pod1 ExternalIP": "12",
		}},
		{"a node's address as external IP", "selector: {app: web}, externalIPs: [10.10.0.12]", nil, map[string]string{
			"outside ExternalIP node2": "refused", "pod1 ExternalIP": "refused", "node2 ExternalIP": "refused", "pod1 ClusterIP": "12 keep",
		}},
		{"zones", "selector: {app: web}, trafficDistribution: PreferClose", nil, map[string]string{
			"pod1 ClusterIP": "1 keep", "node2 ClusterIP": "2", "pod3 ClusterIP": "12 keep",
		}},
		{"one not ready", "selector: {app: web}", func(c *plan.Cluster) error { return c.Mark("default", "web-1", false, false) }, map[string]string{
			"ClusterIP": "2", "pod1 ClusterIP": "2 keep",
		}},
		{"one terminating", "selector: {app: web}", func(c *plan.Cluster) error { return c.Mark("default", "web-1", true, true) }, map[string]string{
			"node1 ClusterIP": "2",
		}},
		{"all terminating", "selector: {app: web}", func(c *plan.Cluster) error {
			if err := c.Mark("default", "web-1", true, true); err != nil {
				return err
			}
			return c.Mark("default", "web-2", false, true)
		}, map[string]string{"node1 ClusterIP": "1"}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			c := cluster(t, fmt.Sprintf("---\napiVersion: v1\nkind: Service\nmetadata: {name: s}\nspec: {%s, ports: [{port: 80}]}\n", tc.spec))
			if tc.mark != nil {
				if err := tc.mark(c); err != nil {
					t.Fatal(err)
				}
			}
			tries, silent := Tries(c, sources(c))
			if len(silent) > 0 {
				t.Errorf("silent: %v", silent)
			}
			for match, want := range tc.want {
				got := map[string]bool{}
				for _, try := range tries {
					text := fmt.Sprintf("%s %s %s ", try.Source.Name, try.Frontend.Kind, try.Frontend.Node)
					wide := !strings.Contains(match, " ") && string(try.Frontend.Kind) == match && try.Source.Kind == FromNode
					if wide || strings.HasPrefix(text, match+" ") {
						got[show(try.Expect)] = true
					}
				}
				if len(got) == 0 {
					got["not tried"] = true
				}
				if len(got) != 1 || !got[want] {
					t.Errorf("%s: %v, want %s", match, got, want)
				}
			}
		})
	}
}

func TestSilentServices(t *testing.T) {
	c := cluster(t, `
---
apiVersion: v1
kind: Service
metadata: {name: a}
spec: {clusterIP: None, selector: {app: web}}
---
apiVersion: v1
kind: Service
metadata: {name: b}
spec: {type: ExternalName, externalName: example.com}
---
apiVersion: v1
kind: Service
metadata: {name: c, labels: {service.kubernetes.io/service-proxy-name: mesh}}
spec: {selector: {app: web}, ports: [{port: 80}]}
---
apiVersion: v1
kind: Service
metadata: {name: d, labels: {service.kubernetes.io/headless: ""}}
spec: {selector: {app: web}, ports: [{port: 80}]}
`)
	tries, silent := Tries(c, sources(c))
	want := []Silent{
		{"default/a", "headless: its name resolves to 2 pod addresses"},
		{"default/b", "ExternalName: DNS answers with example.com"},
		{"default/c", "left to the proxy mesh"},
		{"default/d", "labelled headless: no proxy programs it"},
	}
	if diff := cmp.Diff(want, silent); diff != "" || len(tries) > 0 {
		t.Errorf("%d tries; silent (-want +got):\n%s", len(tries), diff)
	}
}

func TestEndpointsThatAreNoPodsAreNotChecked(t *testing.T) {
	c := cluster(t, `
---
apiVersion: v1
kind: Service
metadata: {name: s}
spec: {ports: [{name: p, port: 80}]}
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: s, labels: {kubernetes.io/service-name: s}}
addressType: IPv4
ports: [{name: p, port: 80}]
endpoints: [{addresses: [192.0.2.1]}]
`)
	tries, _ := Tries(c, sources(c))
	for _, try := range tries {
		if try.Fate != Unknown {
			t.Errorf("%s: %v", try.Source.Name, try.Expect)
		}
	}
	if len(tries) == 0 {
		t.Error("no tries")
	}
}

// The outcome of a request is compared with the expected one.
func TestCheck(t *testing.T) {
	own, other := netip.MustParseAddrPort("10.244.1.2:5000"), netip.MustParseAddrPort("10.10.0.11:5000")
	src := Source{Kind: FromPod, Name: "default/web-1", Node: "node1", Addrs: []netip.Addr{own.Addr()}}
	from := func(pod string, client netip.AddrPort) echo.Answer {
		return echo.Answer{Pod: pod, Namespace: "default", Client: client}
	}
	both := map[string]bool{"default/web-1": true, "default/web-2": true}
	refused, silent := fmt.Errorf("x: %w", echo.ErrRefused), fmt.Errorf("x: %w", echo.ErrSilent)
	for _, tc := range []struct {
		name   string
		expect Expect
		answer echo.Answer
		err    error
		want   string // a part of the reason; empty: correct
	}{
		{"answered", Expect{Fate: Answered, By: both}, from("web-2", other), nil, ""},
		{"kept", Expect{Fate: Answered, By: both, Keep: true}, from("web-2", own), nil, ""},
		{"not kept", Expect{Fate: Answered, By: both, Keep: true}, from("web-2", other), nil, "own address"},
		{"hairpin", Expect{Fate: Answered, By: both, Keep: true}, from("web-1", other), nil, ""},
		{"wrong pod", Expect{Fate: Answered, By: both}, from("db-1", own), nil, "no endpoint"},
		{"silence", Expect{Fate: Answered, By: both}, echo.Answer{}, silent, "no answer"},
		{"refusal", Expect{Fate: Answered, By: both}, echo.Answer{}, refused, "refused"},
		{"refused as expected", Expect{Fate: Refused}, echo.Answer{}, refused, ""},
		{"not refused", Expect{Fate: Refused}, echo.Answer{}, silent, "should be refused"},
		{"not dropped", Expect{Fate: Dropped}, echo.Answer{}, refused, "should be dropped"},
		{"dropped as expected", Expect{Fate: Dropped}, echo.Answer{}, silent, ""},
		{"answered after all", Expect{Fate: Dropped}, from("web-1", own), nil, "should be dropped"},
		{"partly answered", Expect{Fate: Partly, By: map[string]bool{"default/web-2": true}}, from("web-2", own), nil, ""},
		{"partly silent", Expect{Fate: Partly, By: map[string]bool{"default/web-2": true}}, echo.Answer{}, silent, ""},
		{"partly refused", Expect{Fate: Partly, By: map[string]bool{"default/web-2": true}}, echo.Answer{}, refused, "refused"},
		{"answered by one that policies deny", Expect{Fate: Partly, By: map[string]bool{"default/web-2": true}}, from("web-1", own), nil, "policies"},
		{"unknown", Expect{Fate: Unknown}, echo.Answer{}, silent, ""},
		{"anything else", Expect{Fate: Answered}, echo.Answer{}, fmt.Errorf("odd"), "odd"},
	} {
		r := Result{Try: Try{Source: src, Expect: tc.expect}, By: map[string]int{}}
		got := r.check(tc.answer, tc.err)
		if (got == "") != (tc.want == "") || !strings.Contains(got, tc.want) {
			t.Errorf("%s: %q, want %q", tc.name, got, tc.want)
		}
	}
}

func TestCheckHealth(t *testing.T) {
	for _, tc := range []struct {
		want Fate
		code int
		err  error
		fine bool
	}{
		{Healthy, 200, nil, true}, {Healthy, 503, nil, false}, {Unhealthy, 503, nil, true}, {Unhealthy, 200, nil, false},
		{Healthy, 0, echo.ErrRefused, false}, {Unhealthy, 0, echo.ErrSilent, false},
	} {
		r := Result{Try: Try{Expect: Expect{Fate: tc.want}}}
		if got := r.checkHealth(tc.code, tc.err); (got == "") != tc.fine {
			t.Errorf("%+v: %q", tc, got)
		}
	}
}

func TestSessionAffinityIsChecked(t *testing.T) {
	client := netip.MustParseAddrPort("10.10.0.1:5000")
	r := Result{
		Try: Try{Source: Source{Addrs: []netip.Addr{client.Addr()}}, Expect: Expect{Fate: Answered, Sticky: true, By: map[string]bool{"default/a": true, "default/b": true}}},
		By:  map[string]int{},
	}
	for _, step := range []struct{ pod, want string }{{"a", ""}, {"a", ""}, {"b", "session affinity"}} {
		got := r.check(echo.Answer{Pod: step.pod, Namespace: "default", Client: client}, nil)
		if (got == "") != (step.want == "") || !strings.Contains(got, step.want) {
			t.Errorf("answered by %s: %q, want %q", step.pod, got, step.want)
		}
	}
}

func TestReportTable(t *testing.T) {
	node := func(name string) Source { return Source{Kind: FromNode, Name: name} }
	via := func(kind Kind, to string) Frontend {
		return Frontend{Service: "default/web", Kind: kind, Protocol: "TCP", To: netip.MustParseAddrPort(to)}
	}
	ok := Expect{Fate: Answered}
	rep := NewReport([]Result{
		{Try: Try{node("node1"), via(ClusterIP, "10.96.0.1:80"), ok}, Sent: 2, By: map[string]int{"default/web-1": 1, "default/web-2": 1}, Kept: 2},
		{Try: Try{node("node2"), via(ClusterIP, "10.96.0.1:80"), ok}, Sent: 2, By: map[string]int{"default/web-2": 2}, Kept: 1, Masqueraded: 1},
		{Try: Try{node("node1"), via(NodePort, "10.10.0.11:30000"), ok}, Sent: 2, Failed: 2, Reason: "refused"},
		{Try: Try{node("node1"), via(NodePort, "10.10.0.12:30000"), ok}, Sent: 2, Failed: 1, Reason: "refused", By: map[string]int{"default/web-1": 1}, Masqueraded: 1},
		{Try: Try{Source{Kind: FromOutside, Name: "outside"}, via(NodePort, "10.10.0.11:30000"), Expect{Fate: Dropped, Why: "no endpoint"}}, Sent: 1},
	}, []Silent{{"default/db", "headless"}})
	var b strings.Builder
	w := tabwriter.NewWriter(&b, 0, 0, 2, ' ', 0)
	rep.Table(w)
	if err := w.Flush(); err != nil {
		t.Fatal(err)
	}
	want := `SERVICE  FROM     VIA                         SENT  ANSWERED BY         CLIENT SEEN            RESULT
web      2 nodes  ClusterIP 10.96.0.1:80/TCP  4     web-2 ×3, web-1 ×1  kept 3, masqueraded 1  ok
         node1    NodePort 30000 (IPv4)/TCP   4     web-1 ×1            masqueraded            FAILED 3 of 4: node1 → 10.10.0.11:30000: refused (and 1 more like it)
         outside  NodePort 30000 (IPv4)/TCP   1     -                   -                      ok: dropped, no endpoint
db       -        -                           0     -                   -                      headless
`
	if diff := cmp.Diff(want, b.String()); diff != "" {
		t.Errorf("table (-want +got):\n%s", diff)
	}
	if rep.Failed != 3 || rep.Requests != 9 || !strings.Contains(rep.Summary(), "3 FAILED") {
		t.Errorf("summary: %s", rep.Summary())
	}
}

// What is at once, and what is silence, are longer where answers are slow: on a busy machine.
func TestPatience(t *testing.T) {
	for _, tc := range []struct {
		fate          Fate
		slowest, want time.Duration
	}{
		{Answered, 0, answerTime},
		{Answered, 2 * time.Second, answerTime},
		{Refused, time.Millisecond, refusalTime},
		{Refused, time.Second, 4 * time.Second},
		{Dropped, time.Millisecond, silenceTime},
		{Partly, time.Second, 4 * time.Second},
	} {
		if got := (Try{Expect: Expect{Fate: tc.fate}}).patience(tc.slowest); got != tc.want {
			t.Errorf("%s after answers within %v: %v, want %v", tc.fate, tc.slowest, got, tc.want)
		}
	}
}
