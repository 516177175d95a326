package balancer

import (
	"context"
	"fmt"
	"log/slog"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"k8s.io/client-go/tools/clientcmd"

	"sluice.dev/sluice/test/lab/control"
	"sluice.dev/sluice/test/lab/control/controltest"
	"sluice.dev/sluice/test/machine"
)

// routes stands in for a router's table.
type routes struct {
	mu    sync.Mutex
	known map[string]string // address: nodes, separated by spaces, or by "+" if connections are spread
	fail  bool              // error of the next call
}

func (r *routes) set(addr netip.Addr, nodes []string, spread bool) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.fail {
		r.fail = false
		return fmt.Errorf("the router is busy")
	}
	if r.known[addr.String()] = strings.Join(nodes, map[bool]string{false: " ", true: "+"}[spread]); len(nodes) == 0 {
		delete(r.known, addr.String())
	}
	return nil
}

func (r *routes) get(addr string) string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.known[addr]
}

const cluster = `
{apiVersion: v1, kind: Node, metadata: {name: node1}}
---
{apiVersion: v1, kind: Node, metadata: {name: node2}}
---
apiVersion: v1
kind: Service
metadata: {name: both}
spec: {type: LoadBalancer, ipFamilyPolicy: RequireDualStack, ports: [{port: 80}]}
---
apiVersion: v1
kind: Service
metadata: {name: local}
spec: {type: LoadBalancer, externalTrafficPolicy: Local, loadBalancerIP: 198.51.100.77, ports: [{port: 80}]}
---
apiVersion: v1
kind: Service
metadata: {name: rival}
spec: {type: LoadBalancer, loadBalancerIP: 198.51.100.77, ports: [{port: 80}]}
---
apiVersion: v1
kind: Service
metadata: {name: other}
spec: {type: LoadBalancer, loadBalancerClass: example.com/other, ports: [{port: 80}]}
---
apiVersion: v1
kind: Service
metadata: {name: plain}
spec: {type: ClusterIP, externalIPs: [203.0.113.6], ports: [{port: 80}]}
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: local-1, labels: {kubernetes.io/service-name: local}}
addressType: IPv4
endpoints:
- {addresses: [10.244.1.1], nodeName: node1, conditions: {ready: true}}
- {addresses: [10.244.2.1], nodeName: node2, conditions: {ready: false}}
ports: [{port: 80}]
`

// TestBalancer changes Services on a real API server.
func TestBalancer(t *testing.T) {
	machine.ControlPlane.Take(t)
	p := controltest.Start(t, control.Config{})
	api, err := clientcmd.BuildConfigFromFlags("", p.Admin())
	if err != nil {
		t.Fatal(err)
	}
	api.Dial = p.Dial
	kubectl := func(args ...string) string {
		t.Helper()
		out, err := p.Kubectl(args...)
		if err != nil {
			t.Fatal(err)
		}
		return strings.TrimSpace(string(out))
	}
	r := &routes{known: map[string]string{}, fail: true}
	prefixes := []netip.Prefix{netip.MustParsePrefix("198.51.100.0/24"), netip.MustParsePrefix("2001:db8:51::/112")}
	start := func() (stop func()) {
		ctx, cancel := context.WithCancel(t.Context())
		var wg sync.WaitGroup
		wg.Go(func() {
			if err := Run(ctx, api, prefixes, r.set, slog.New(slog.NewTextHandler(t.Output(), nil))); err != nil {
				t.Error(err)
			}
		})
		stop = sync.OnceFunc(func() { cancel(); wg.Wait() })
		t.Cleanup(stop)
		return stop
	}
	stop := start()
	has := func(service, want string) {
		t.Helper()
		eventually(t, service+" has "+want, func() string {
			return kubectl("get", "service", service, "-o", "jsonpath={.status.loadBalancer.ingress[*].ip}")
		}, want)
	}
	leads := func(addr, want string) {
		t.Helper()
		eventually(t, addr+" leads to "+want, func() string { return r.get(addr) }, want)
	}
	ready := func(node, status string) {
		kubectl("patch", "node", node, "--subresource=status", "-p",
			`{"status":{"conditions":[{"type":"Ready","status":"`+status+`"}]}}`)
	}
	file := filepath.Join(t.TempDir(), "cluster.yaml")
	if err := os.WriteFile(file, []byte(cluster), 0o600); err != nil {
		t.Fatal(err)
	}
	kubectl("apply", "--server-side", "--force-conflicts", "-f", file)
	ready("node1", "True")
	ready("node2", "True")
	eventually(t, "both has two addresses", func() string {
		return fmt.Sprint(len(strings.Fields(kubectl("get", "service", "both", "-o", "jsonpath={.status.loadBalancer.ingress[*].ip}"))))
	}, "2")
	both := strings.Fields(kubectl("get", "service", "both", "-o", "jsonpath={.status.loadBalancer.ingress[*].ip}"))
	for i, a := range both {
		if !prefixes[i].Contains(netip.MustParseAddr(a)) {
			t.Errorf("%s is not of %s", a, prefixes[i])
		}
		leads(a, "node1 node2")
	}
	eventually(t, "one of two has the address that both wish", func() string {
		got := []string{}
		for _, s := range []string{"local", "rival"} {
			got = append(got, kubectl("get", "service", s, "-o", "jsonpath={.status.loadBalancer.ingress[*].ip}"))
		}
		slices.Sort(got)
		return strings.Join(got, ",")
	}, ",198.51.100.77")
	kubectl("delete", "service", "rival")
	has("local", "198.51.100.77")
	leads("198.51.100.77", "node1")

	// Changes in the cluster move traffic.
	kubectl("patch", "endpointslice", "local-1", "--type=json", "-p", `[{"op":"replace","path":"/endpoints/1/conditions/ready","value":true}]`)
	leads("198.51.100.77", "node1+node2")
	kubectl("patch", "service", "local", "-p", `{"spec":{"sessionAffinity":"ClientIP"}}`)
	leads("198.51.100.77", "node1 node2")
	ready("node1", "False")
	leads("198.51.100.77", "node2")
	leads(both[0], "node2")
	kubectl("label", "node", "node2", "node.kubernetes.io/exclude-from-external-load-balancers=")
	leads(both[0], "")

	// A Service is held until nothing leads to it any more.
	held := func() string { return kubectl("get", "service", "both", "-o", "jsonpath={.metadata.finalizers[*]}") }
	if got := held(); got != finalizer {
		t.Errorf("both has the finalizers %q", got)
	}
	kubectl("patch", "service", "both", "-p", `{"spec":{"type":"ClusterIP"}}`)
	eventually(t, "both is let go", held, "")
	kubectl("patch", "service", "both", "-p", `{"spec":{"type":"LoadBalancer","loadBalancerIP":"`+both[0]+`"}}`)
	eventually(t, "both is held", held, finalizer)
	both = strings.Fields(kubectl("get", "service", "both", "-o", "jsonpath={.status.loadBalancer.ingress[*].ip}"))

	// Another run goes on with the assigned addresses.
	stop()
	kubectl("label", "node", "node2", "node.kubernetes.io/exclude-from-external-load-balancers-")
	start()
	leads(both[0], "node2")
	has("both", strings.Join(both, " "))

	// A Service that changes its type gives up its addresses.
	kubectl("patch", "service", "both", "-p", `{"spec":{"type":"ClusterIP"}}`)
	has("both", "")
	leads(both[0], "")
	kubectl("delete", "service", "local")
	leads("198.51.100.77", "")
	has("other", "")

	// The outside routes external addresses too, though the balancer does not assign them.
	kubectl("patch", "service", "both", "-p", `{"spec":{"externalIPs":["203.0.113.5"]}}`)
	leads("203.0.113.5", "node2")
	kubectl("patch", "service", "both", "-p", `{"spec":{"externalIPs":null}}`)
	leads("203.0.113.5", "")
	leads("203.0.113.6", "node2") // of a Service that never had another type
	kubectl("delete", "service", "plain")
	leads("203.0.113.6", "")
}

func eventually(t *testing.T, what string, got func() string, want string) {
	t.Helper()
	for deadline := time.Now().Add(20 * time.Second); got() != want; time.Sleep(20 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("timed out waiting for %s; got %q", what, got())
		}
	}
}
