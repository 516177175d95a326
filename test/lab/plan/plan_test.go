package plan

import (
	"encoding/json"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"testing/fstest"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
)

var epoch = time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)

// read parses valid manifests.
func read(t *testing.T, manifest string) *Objects {
	t.Helper()
	objs, err := ReadFS(fstest.MapFS{"app.yaml": {Data: []byte(manifest)}})
	if err != nil {
		t.Fatal(err)
	}
	return objs
}

func cluster(t *testing.T, nodes int, manifest string) *Cluster {
	t.Helper()
	c, err := New(Size{Nodes: nodes}, read(t, manifest), epoch)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// deployment is a manifest; template is added to a container port of its pods.
func deployment(name string, replicas int, template string) string {
	return fmt.Sprintf(`
---
apiVersion: apps/v1
kind: Deployment
metadata: {name: %s}
spec:
  replicas: %d
  template:
    metadata: {labels: {app: %[1]s}}
    spec: {containers: [{name: c, ports: [{name: http, containerPort: 8080}]}]%[3]s}
`, name, replicas, template)
}

func service(name, spec string) string {
	return fmt.Sprintf(`
---
apiVersion: v1
kind: Service
metadata: {name: %s}
spec: {%s}
`, name, spec)
}

func podNames(c *Cluster) []string {
	var names []string
	for _, p := range c.Pods {
		names = append(names, p.Name+"@"+p.Spec.NodeName)
	}
	return names
}

func TestReadLeavesOutWhatIsFaulty(t *testing.T) {
	objs := read(t, `# only a comment
---
apiVersion: v1
kind: List
items:
  - {apiVersion: v1, kind: Service, metadata: {name: a}, spec: {ports: [{port: 80}]}}
  - {apiVersion: v1, kind: ConfigMap, metadata: {name: a}}
---
{"apiVersion": "v1", "kind": "Service", "metadata": {"name": "b", "namespace": "other"}, "spec": {"ports": [{"port": 80}]}}
---
apiVersion: v1
kind: Service
metadata: {name: wrong}
spec: {ports: [{port: eighty}]}
---
apiVersion: v1
kind: Service
 metadata: {name: malformed}
---
apiVersion: v1
kind: Service
metadata: {name: a}
---
apiVersion: v1
kind: Service
metadata: {}
---
name: no kind
`)
	var got []string
	for _, s := range objs.Services {
		got = append(got, key(s.Namespace, s.Name))
	}
	if want := []string{"default/a", "other/b"}; !slices.Equal(got, want) {
		t.Errorf("services: %v, want %v", got, want)
	}
	if objs.Passed["ConfigMap"] != 1 {
		t.Errorf("passed over: %v", objs.Passed)
	}
	for i, want := range []string{"Service wrong", "app.yaml:18", "no kind", "declared twice", "no name"} {
		if i >= len(objs.Faults) || !strings.Contains(objs.Faults[i], want) {
			t.Errorf("faults: %q, want one with %q at %d", objs.Faults, want, i)
		}
	}
	if len(objs.Faults) != 5 {
		t.Errorf("%d faults, want 5", len(objs.Faults))
	}
}

func TestReadOfNothingUsefulFails(t *testing.T) {
	for name, fsys := range map[string]fstest.MapFS{
		"empty":      {},
		"other kind": {"a.yaml": {Data: []byte("apiVersion: v1\nkind: ConfigMap\n")}},
		"malformed":  {"a.json": {Data: []byte("{")}},
		"no such":    {"a.txt": {Data: []byte("kind: Service")}},
	} {
		if _, err := ReadFS(fsys); err == nil {
			t.Errorf("%s: no error", name)
		}
	}
	if _, err := Read("/nonexistent/app.yaml"); err == nil {
		t.Error("a path that is not there: no error")
	}
}

func TestPlacement(t *testing.T) {
	for _, tc := range []struct {
		name, manifest string
		want           []string
		notes          int
	}{
		{"round-robin over workloads", deployment("a", 2, "") + deployment("b", 2, ""),
			[]string{"a-1@node1", "a-2@node2", "b-1@node3", "b-2@node1"}, 0},
		{"node selector", deployment("a", 2, ", nodeSelector: {topology.kubernetes.io/zone: zone-c}"),
			[]string{"a-1@node3", "a-2@node3"}, 0},
		{"node selector that fits nowhere", deployment("a", 1, ", nodeSelector: {disk: ssd}"), []string{"a-1@node1"}, 1},
		{"node name", deployment("a", 1, ", nodeName: node2"), []string{"a-1@node2"}, 0},
		{"ports of the host", strings.ReplaceAll(deployment("a", 2, ""), "8080}", "8080, hostPort: 80}"), []string{"a-1@node1", "a-2@node2"}, 1},
		{"unknown node name", deployment("a", 1, ", nodeName: gpu"), []string{"a-1@node1"}, 1},
		{"ports of the node clash", deployment("a", 2, ", hostNetwork: true") + deployment("b", 2, ", hostNetwork: true"),
			[]string{"a-1@node1", "a-2@node2", "b-1@node3"}, 1},
		{"a name is taken by a bare pod", deployment("a", 2, "") + `
---
apiVersion: v1
kind: Pod
metadata: {name: a-1}
`, []string{"a-2@node1", "a-3@node2", "a-1@node3"}, 0},
		{"stateful and daemon sets", `
apiVersion: apps/v1
kind: StatefulSet
metadata: {name: s}
spec: {replicas: 2, serviceName: s, ordinals: {start: 5}}
---
apiVersion: apps/v1
kind: DaemonSet
metadata: {name: d}
`, []string{"s-5@node1", "s-6@node2", "d-node1@node1", "d-node2@node2", "d-node3@node3"}, 0},
	} {
		t.Run(tc.name, func(t *testing.T) {
			c := cluster(t, 3, tc.manifest)
			if diff := cmp.Diff(tc.want, podNames(c)); diff != "" {
				t.Errorf("pods (-want +got):\n%s", diff)
			}
			if len(c.Notes) != tc.notes {
				t.Errorf("notes: %q, want %d", c.Notes, tc.notes)
			}
		})
	}
}

func TestPodAddressesAreTheNodesOwnAndUnique(t *testing.T) {
	c := cluster(t, 3, deployment("a", 300, "")+deployment("b", 20, ", hostNetwork: true"))
	seen := map[netip.Addr]bool{}
	for _, p := range c.Pods {
		if p.Spec.HostNetwork {
			continue
		}
		addrs := Addrs(p)
		for i, a := range addrs {
			if seen[a] {
				t.Errorf("%s has %s, which another pod has", p.Name, a)
			}
			seen[a] = true
			if cidr := c.Node(p.Spec.NodeName).PodCIDRs[i]; !cidr.Contains(a) || !ClusterCIDRs[i].Contains(a) {
				t.Errorf("%s on %s has %s, not of %s", p.Name, p.Spec.NodeName, a, cidr)
			}
		}
		if len(addrs) != 2 {
			t.Errorf("%s has %v, want an address per family", p.Name, addrs)
		}
	}
}

func TestTooManyPods(t *testing.T) {
	c := cluster(t, 1, deployment("a", 300, ""))
	if len(c.Pods) != 253 || len(c.Notes) != 47 {
		t.Errorf("%d pods and %d notes on one node, want 253 and a note for each of the others", len(c.Pods), len(c.Notes))
	}
}

func TestServiceAllocation(t *testing.T) {
	c := cluster(t, 3, ""+
		service("first", "type: NodePort, ports: [{port: 80}]")+
		service("asked", "type: NodePort, clusterIP: 10.96.0.1, ports: [{port: 80, nodePort: 30000}]")+
		service("both", "ipFamilyPolicy: PreferDualStack, ports: [{port: 80}]")+
		service("six", "type: LoadBalancer, ipFamilies: [IPv6, IPv4], externalTrafficPolicy: Local, ports: [{port: 80}]")+
		service("dns", "type: NodePort, ports: [{name: u, port: 53, protocol: UDP}, {name: t, port: 53}]")+
		service("bare", "type: LoadBalancer, allocateLoadBalancerNodePorts: false, loadBalancerIP: 192.0.2.7, ports: [{port: 80}]")+
		service("foreign", "clusterIP: 172.20.1.1, ports: [{port: 80}]")+
		service("none", "clusterIP: None, ports: [{port: 80}]")+
		service("out", "type: ExternalName, externalName: example.com")+
		service("clash", "clusterIP: 10.96.0.1, ports: [{port: 80}]")+
		service("clash-port", "type: NodePort, ports: [{port: 80, nodePort: 30000}]")+
		service("far", "type: NodePort, ports: [{port: 80, nodePort: 80}]")+
		service("huge", "ports: [{port: 65536}]"))
	var got []string
	for _, s := range c.Services {
		text := s.Name + " " + strings.Join(s.Spec.ClusterIPs, ",")
		for _, p := range s.Spec.Ports {
			text += fmt.Sprintf(" %d:%d/%s", p.Port, p.NodePort, p.Protocol)
		}
		for _, in := range s.Status.LoadBalancer.Ingress {
			text += " " + in.IP
		}
		if p := s.Spec.HealthCheckNodePort; p != 0 {
			text += fmt.Sprintf(" health %d", p)
		}
		got = append(got, text)
	}
	want := []string{
		"first 10.96.0.2 80:30001/TCP",
		"asked 10.96.0.1 80:30000/TCP",
		"both 10.96.0.3,fd00:10:96::1 80:0/TCP",
		"six fd00:10:96::2,10.96.0.4 80:30002/TCP 2001:db8:51::1 198.51.100.1 health 30003",
		"dns 10.96.0.5 53:30004/UDP 53:30004/TCP",
		"bare 10.96.0.6 80:0/TCP 192.0.2.7",
		"foreign 10.96.0.7 80:0/TCP",
		"none None 80:0/TCP",
		"out ",
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("services (-want +got):\n%s", diff)
	}
	if len(c.Notes) != 5 { // four left out, and foreign's new address
		t.Errorf("notes: %q", c.Notes)
	}
}

func TestAllocationRunsOut(t *testing.T) {
	var b strings.Builder
	for i := range 260 {
		b.WriteString(service(fmt.Sprintf("s%d", i), "type: LoadBalancer, ports: [{port: 80}]"))
	}
	c := cluster(t, 1, b.String())
	if len(c.Services) != 254 || !strings.Contains(c.Notes[0], "198.51.100.0/24") {
		t.Errorf("%d services, notes %q", len(c.Services), c.Notes)
	}
}

// endpoints prints a Service's slices.
func endpoints(c *Cluster, name string) []string {
	var out []string
	for _, svc := range c.Services {
		if svc.Name != name {
			continue
		}
		for _, s := range c.SlicesOf(svc) {
			text := fmt.Sprintf("%s %s", s.Name, portKeys(s.Ports))
			for _, e := range s.Endpoints {
				text += fmt.Sprintf(" %s@%s", e.TargetRef.Name, *e.NodeName)
				for _, f := range []struct {
					set  bool
					mark string
				}{{*e.Conditions.Ready, "r"}, {*e.Conditions.Serving, "s"}, {*e.Conditions.Terminating, "t"}, {e.Hints != nil, "h"}} {
					if f.set {
						text += f.mark
					}
				}
			}
			out = append(out, text)
		}
	}
	return out
}

func TestSlices(t *testing.T) {
	old := strings.ReplaceAll(deployment("web-old", 1, ""), "8080", "8000")
	old = strings.ReplaceAll(old, "app: web-old", "app: web")
	c := cluster(t, 2, deployment("web", 3, "")+old+
		service("web", "selector: {app: web}, ipFamilyPolicy: RequireDualStack, ports: [{name: a, port: 80, targetPort: http}, {name: b, port: 81, targetPort: nothing}]")+
		service("all", "selector: {app: web}, publishNotReadyAddresses: true, trafficDistribution: PreferSameNode, ports: [{port: 80}]")+
		service("hand", "ports: [{port: 80}]"))
	if err := c.Mark("default", "web-2", false, false); err != nil {
		t.Fatal(err)
	}
	if err := c.Mark("default", "web-3", true, true); err != nil {
		t.Fatal(err)
	}
	if err := c.Mark("default", "web-9", true, true); err == nil {
		t.Error("marked a pod that is not there")
	}
	got := slices.Concat(endpoints(c, "web"), endpoints(c, "all"), endpoints(c, "hand"))
	want := []string{
		"web-ipv4-1 [a=8080/TCP] web-1@node1rs web-2@node2 web-3@node1st",
		"web-ipv4-2 [a=8000/TCP] web-old-1@node2rs",
		"web-ipv6-1 [a=8080/TCP] web-1@node1rs web-2@node2 web-3@node1st",
		"web-ipv6-2 [a=8000/TCP] web-old-1@node2rs",
		"all-ipv4-1 [=80/TCP] web-1@node1rsh web-2@node2rh web-3@node1rsth web-old-1@node2rsh",
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("slices (-want +got):\n%s", diff)
	}
}

func TestSlicesAreSplit(t *testing.T) {
	c := cluster(t, 2, deployment("web", 250, "")+service("web", "selector: {app: web}, ports: [{port: 80}]"))
	var sizes []int
	for _, s := range c.Slices {
		sizes = append(sizes, len(s.Endpoints))
	}
	if !slices.Equal(sizes, []int{100, 100, 50}) {
		t.Errorf("sizes of slices: %v", sizes)
	}
}

func TestGivenSlicesArePassedOn(t *testing.T) {
	c := cluster(t, 1, service("db", "ports: [{port: 80}]")+`
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: db-1, labels: {kubernetes.io/service-name: db}}
addressType: IPv4
ports: [{port: 5432}]
endpoints: [{addresses: [192.0.2.1]}]
`)
	got := c.SlicesOf(c.Services[0])
	if len(got) != 1 || got[0].Endpoints[0].Addresses[0] != "192.0.2.1" || got[0].Namespace != "default" {
		t.Errorf("slices of db: %+v", got)
	}
}

// The outcome of Scale depends only on the numbers, and remaining pods do not move.
func TestScale(t *testing.T) {
	c := cluster(t, 3, deployment("a", 3, "")+deployment("b", 2, "")+service("a", "selector: {app: a}, ports: [{port: 80}]"))
	before := map[string]*corev1.Pod{}
	for _, p := range c.Pods {
		before[p.Name] = p
	}
	for _, n := range []int{5, 1, 3} {
		if err := c.Scale("Deployment", "default", "a", n); err != nil {
			t.Fatal(err)
		}
		if got := len(c.Slices[0].Endpoints); got != n {
			t.Errorf("scaled to %d: %d endpoints", n, got)
		}
	}
	for _, name := range []string{"a-1", "b-1", "b-2"} {
		if !slices.Contains(c.Pods, before[name]) {
			t.Errorf("%s did not stay as it was", name)
		}
	}
	seen := map[netip.Addr]bool{}
	for _, p := range c.Pods {
		if a := Addrs(p)[0]; seen[a] {
			t.Errorf("%s has an address that another pod has: %s", p.Name, a)
		} else {
			seen[a] = true
		}
	}
	if err := c.Scale("DaemonSet", "default", "a", 1); err == nil {
		t.Error("scaled a workload that does not exist")
	}
}

func TestServedPorts(t *testing.T) {
	c := cluster(t, 1, deployment("a", 1, "")+
		service("named", "selector: {app: a}, ports: [{port: 80, targetPort: http}]")+
		service("number", "selector: {app: a}, ports: [{port: 53, targetPort: 5353, protocol: UDP}]")+
		service("others", "selector: {app: b}, ports: [{port: 99}]"))
	want := []Port{{corev1.ProtocolUDP, 5353}, {corev1.ProtocolTCP, 8080}}
	if got := c.Ports(c.Pods[0]); !slices.Equal(got, want) {
		t.Errorf("ports: %v, want %v", got, want)
	}
}

func TestRoutesLeadToAnEndpointUnderLocal(t *testing.T) {
	c := cluster(t, 3, deployment("a", 1, ", nodeName: node3")+
		service("local", "type: LoadBalancer, externalTrafficPolicy: Local, selector: {app: a}, ports: [{port: 80}]")+
		service("cluster", "type: LoadBalancer, selector: {app: a}, ports: [{port: 80}]")+
		service("fixed", "externalIPs: [203.0.113.1, 10.10.0.12], ports: [{port: 80}]"))
	// A node's own address needs no route.
	want := []string{"198.51.100.1 node3", "198.51.100.2 node2", "203.0.113.1 node3"}
	var got []string
	for _, r := range c.Routes {
		got = append(got, r.Addr.String()+" "+r.Node)
	}
	if !slices.Equal(got, want) {
		t.Errorf("routes: %v, want %v", got, want)
	}
}

func TestHosts(t *testing.T) {
	c := cluster(t, 1, `
apiVersion: apps/v1
kind: StatefulSet
metadata: {name: db}
spec: {replicas: 1, serviceName: db, template: {metadata: {labels: {app: db}}}}
`+service("db", "clusterIP: None, selector: {app: db}, ports: [{port: 80}]")+service("web", "ports: [{port: 80}]"))
	want := `127.0.0.1	localhost
::1	localhost ip6-localhost ip6-loopback
10.244.1.2	db.default.svc.cluster.local db.default.svc db.default db db-0.db.default.svc.cluster.local db-0.db.default.svc db-0.db.default db-0.db
10.96.0.1	web.default.svc.cluster.local web.default.svc web.default web
10.10.0.11	node1
fd00:10:10::b	node1
10.10.0.1	outside
fd00:10:10::1	outside
`
	if diff := cmp.Diff(want, c.Hosts("default")); diff != "" {
		t.Errorf("hosts (-want +got):\n%s", diff)
	}
	if got := c.Hosts("other"); strings.Contains(got, " web\n") || !strings.Contains(got, " web.default\n") {
		t.Errorf("hosts of another namespace:\n%s", got)
	}
}

func TestClusterSurvivesJSON(t *testing.T) {
	c := cluster(t, 2, deployment("a", 2, "")+service("a", "type: LoadBalancer, selector: {app: a}, ports: [{port: 80}]"))
	data, err := json.Marshal(c)
	if err != nil {
		t.Fatal(err)
	}
	var back Cluster
	if err := json.Unmarshal(data, &back); err != nil {
		t.Fatal(err)
	}
	again, err := json.Marshal(&back)
	if err != nil {
		t.Fatal(err)
	}
	if string(data) != string(again) {
		t.Errorf("changed by a round trip:\n%s\n%s", data, again)
	}
}

func TestNumberOfNodes(t *testing.T) {
	for _, n := range []int{0, MaxNodes + 1} {
		if _, err := New(Size{Nodes: n}, &Objects{}, epoch); err == nil {
			t.Errorf("%d nodes: no error", n)
		}
	}
	c, err := New(Size{Nodes: MaxNodes}, &Objects{}, epoch)
	if err != nil {
		t.Fatal(err)
	}
	seen := map[netip.Prefix]bool{}
	for _, n := range c.Nodes {
		for i, p := range n.PodCIDRs {
			if seen[p] || !ClusterCIDRs[i].Contains(p.Addr()) || !Subnet(0)[i].Contains(n.IPs[i]) {
				t.Errorf("%s: %v %v", n.Name, n.IPs, n.PodCIDRs)
			}
			seen[p] = true
		}
	}
}

func FuzzRead(f *testing.F) {
	f.Add(deployment("a", 2, "") + service("a", "ports: [{port: 80, targetPort: http}]"))
	f.Add("apiVersion: v1\nkind: List\nitems: [null, {}, {kind: Service}]")
	f.Add("apiVersion: v1\nkind: Service\nmetadata: {name: a}\nspec: {clusterIPs: [x], ipFamilies: [IPv9], externalIPs: ['']}")
	f.Fuzz(func(t *testing.T, manifest string) {
		objs, err := ReadFS(fstest.MapFS{"app.yaml": {Data: []byte(manifest)}})
		if err != nil {
			return
		}
		for i := range objs.Workloads {
			objs.Workloads[i].Replicas = min(objs.Workloads[i].Replicas, 10)
		}
		c, err := New(Size{Nodes: 2}, objs, epoch)
		if err != nil {
			t.Fatal(err)
		}
		c.Hosts("default")
		for _, p := range c.Pods {
			c.Ports(p)
		}
	})
}
