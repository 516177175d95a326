package main

import (
	"encoding/json"
	"flag"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"sluice.dev/sluice/internal/agent"
	"sluice.dev/sluice/internal/cli"
	"sluice.dev/sluice/test/netns"
	"sluice.dev/sluice/test/world"
)

var updateAnswers = flag.Bool("update", false, "write the answers in testdata/why.txt anew")

// nodes is how many nodes a large cluster has.
const nodes = 80

// largeCluster are the manifests of a cluster of 80 nodes: a pod of shop/web on each, behind a
// Service with source ranges and one with externalTrafficPolicy Local; of shop/api on every second
// of the first 60, behind one that is for an office by policy; and twelve of a StatefulSet, behind
// policies. Addresses that are listed may not reach shop/web.
func largeCluster() string {
	var b strings.Builder
	object := func(format string, args ...any) { fmt.Fprintf(&b, "---\n"+format+"\n", args...) }
	pod := func(namespace, name, labels string, node, ip, port int) {
		object(`{apiVersion: v1, kind: Pod, metadata: {name: %s, namespace: %s, labels: {%s}}, spec: {nodeName: node%02d, containers: [{name: c, ports: [{containerPort: %d}]}]},
  status: {phase: Running, podIPs: [{ip: 10.244.%[4]d.%[6]d}, {ip: "fd00:10:244:%[4]x::%[6]x"}], conditions: [{type: Ready, status: "True"}]}}`, name, namespace, labels, node, port, ip)
	}
	service := func(namespace, name, app string, ip, port, target int, spec, external string) {
		object(`{apiVersion: v1, kind: Service, metadata: {name: %s, namespace: %s}, spec: {selector: {app: %s}, clusterIPs: [10.96.0.%d, "fd00:10:96::%[4]d"], ipFamilyPolicy: PreferDualStack, ports: [{port: %d, targetPort: %d%s,
  status: {loadBalancer: {ingress: [%s]}}}`, name, namespace, app, ip, port, target, spec, external)
	}
	for i := 1; i <= nodes; i++ {
		object(`{apiVersion: v1, kind: Node, metadata: {name: node%02d}, spec: {podCIDRs: [10.244.%[1]d.0/24, "fd00:10:244:%[1]x::/64"]}, status: {addresses: [{type: InternalIP, address: 192.168.10.%[1]d}, {type: InternalIP, address: "fd00:192:168:10::%[1]x"}]}}`, i)
		pod("shop", fmt.Sprintf("web-7d4b9-%05d", i*7919%99999), "app: web, pod-template-hash: 7d4b9", i, 10, 8080)
		if i <= 60 && i%2 == 0 {
			pod("shop", fmt.Sprintf("api-6c5d-%05d", i*7919%99999), "app: api, pod-template-hash: 6c5d", i, 30, 8080)
		}
		if i%6 == 1 && i < 72 {
			pod("data", fmt.Sprintf("db-%d", i/6), fmt.Sprintf("app: db, statefulset.kubernetes.io/pod-name: db-%d", i/6), i, 20, 5432)
		}
	}
	for _, namespace := range []string{"shop", "data", "dev"} {
		object("{apiVersion: v1, kind: Namespace, metadata: {name: %s}}", namespace)
	}
	service("shop", "web", "web", 10, 80, 8080, "}], type: ClusterIP}", "")
	service("shop", "web-lb", "web", 11, 80, 8080, ", nodePort: 30080}], type: LoadBalancer, loadBalancerSourceRanges: [198.51.100.0/24]}", "{ip: 203.0.113.10}")
	service("shop", "web-local", "web", 12, 80, 8080, ", nodePort: 30081}], type: LoadBalancer, externalTrafficPolicy: Local}", "{ip: 203.0.113.11}")
	service("shop", "api", "api", 30, 443, 8080, ", nodePort: 30443}], type: LoadBalancer}", "{ip: 203.0.113.30}")
	service("data", "db", "db", 20, 5432, 5432, "}], type: ClusterIP}", "")
	object(`apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata: {name: api-from-office, namespace: shop}
spec: {podSelector: {matchLabels: {app: api}}, ingress: [{from: [{ipBlock: {cidr: 198.51.100.0/24}}], ports: [{port: 8080}]}]}`)
	object("{apiVersion: networking.k8s.io/v1, kind: NetworkPolicy, metadata: {name: default-deny, namespace: data}, spec: {podSelector: {}}}")
	from := func(namespace, pods, port string) string {
		return "{from: [{namespaceSelector: {matchLabels: {kubernetes.io/metadata.name: " + namespace + "}}" + pods + "}], ports: [{" + port + "}]}"
	}
	object("{apiVersion: networking.k8s.io/v1, kind: NetworkPolicy, metadata: {name: db, namespace: data}, spec: {podSelector: {matchLabels: {app: db}}, ingress: [%s]}}", strings.Join([]string{
		from("monitoring", "", "port: 9187"), from("dev", ", podSelector: {matchLabels: {app: web}}", "port: 5432"), from("data", ", podSelector: {matchLabels: {app: migrate}}", "port: 5432"),
		from("shop", "", "port: 9187"), from("shop", "", "port: 5432, protocol: UDP"), from("shop", ", podSelector: {matchLabels: {app: cart}}", "port: 5432")}, ", "))
	object("{apiVersion: projectcalico.org/v3, kind: GlobalNetworkSet, metadata: {name: blocked, labels: {list: blocked}}, spec: {nets: [192.0.2.0/24, 45.9.0.0/16]}}")
	object(`{apiVersion: projectcalico.org/v3, kind: GlobalNetworkPolicy, metadata: {name: block-lists}, spec: {order: 10, selector: "app == 'web'", types: [Ingress], ingress: [{action: Deny, source: {selector: "list == 'blocked'"}}, {action: Allow}]}}`)
	return b.String()
}

// In a cluster of 80 nodes an answer is short, and its first lines say it; --all and -o json have
// everything. testdata/why.txt has the answers.
func TestWhyInALargeCluster(t *testing.T) {
	useKernel(t)
	node := world.NewHost(t, "node07")
	node.Forward()
	ns := node.NS
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	for _, device := range []string{"eth0", "web", "db"} {
		must(netns.Veth(ns, device, ns, device+"-far"))
	}
	must(ns.Address("eth0", netip.MustParsePrefix("192.168.10.7/24"), netip.MustParsePrefix("fd00:192:168:10::7/64")))
	must(ns.Route(netip.MustParsePrefix("0.0.0.0/0"), netip.MustParseAddr("192.168.10.254"), "eth0"))
	must(ns.Route(netip.MustParsePrefix("::/0"), netip.MustParseAddr("fd00:192:168:10::fe"), "eth0"))
	for to, device := range map[string]string{"10.244.7.10/32": "web", "fd00:10:244:7::a/128": "web", "10.244.7.20/32": "db", "fd00:10:244:7::14/128": "db"} {
		must(ns.Route(netip.MustParsePrefix(to), netip.Addr{}, device))
	}
	socket := filepath.Join(t.TempDir(), "s.sock")
	startAgent(t, folder(t, map[string]string{"all.yaml": largeCluster()}), socket, ns.Do, "--node", "node07", "--cluster-cidr", "10.244.0.0/16,fd00:10:244::/48", "--service-cidr", "10.96.0.0/16,fd00:10:96::/112")
	if code, _, stderr := sluice(t, "sync", "--socket", socket); code != cli.ExitOK {
		t.Fatal(stderr)
	}
	golden, err := os.ReadFile("testdata/why.txt")
	must(err)
	var said strings.Builder
	for block := range strings.SplitSeq(string(golden), "$ sluice why ") {
		question, _, _ := strings.Cut(block, "\n")
		if question == "" {
			continue
		}
		args := strings.Fields(question)
		code, text, stderr := sluice(t, append([]string{"why", "--socket", socket, "-o", "json"}, args...)...)
		var e agent.Explanation
		if err := json.Unmarshal([]byte(text), &e); err != nil {
			t.Fatalf("why %s exits with %d: %v: %s", question, code, err, stderr)
		}
		e.OnTheWay = nil // these pods are not there, and do not answer
		var short, all strings.Builder
		explanation(&short, e, false)
		explanation(&all, e, true)
		fmt.Fprintf(&said, "$ sluice why %s\n%s\n", question, short.String())
		if lines := strings.Count(short.String(), "\n"); lines > maxLines {
			t.Errorf("why %s: %d lines", question, lines)
		}
		if first, _, _ := strings.Cut(short.String(), "\n"); !strings.Contains(first, "denied: ") && !strings.Contains(first, "allowed: ") {
			t.Errorf("why %s begins with %q", question, first)
		}
		for _, con := range e.Connections {
			for _, p := range con.Paths {
				if to := p.To.String(); !strings.Contains(all.String(), to) {
					t.Errorf("why %s --all does not tell of %s", question, to)
				}
			}
			if !strings.Contains(all.String(), con.From.String()+" -> "+con.To.String()) {
				t.Errorf("why %s --all does not tell of %v -> %v", question, con.From, con.To)
			}
		}
	}
	if _, stdout, _ := sluice(t, "why", "--socket", socket, "svc/shop/web", "data/db-0:5432", "--all"); strings.Count(stdout, " -> ") != 32 || strings.Contains(stdout, "folded") {
		t.Errorf("why --all:\n%s", stdout)
	}
	if code, stdout, _ := sluice(t, "why", "--socket", socket, "198.51.100.7", "svc/shop/api", "--suggest"); code != int(statusDenied) || strings.Contains(stdout, "kind:") || !strings.Contains(stdout, "# no policy: policies admit the client where they see it: set externalTrafficPolicy: Local") {
		t.Errorf("why --suggest exits with %d:\n%s", code, stdout)
	}
	if *updateAnswers {
		must(os.WriteFile("testdata/why.txt", []byte(said.String()), 0o600))
	} else if diff := cmp.Diff(string(golden), said.String()); diff != "" {
		t.Errorf("answers (-want +got):\n%s", diff)
	}
}

// What another program's rule drops, why says, and names the rule.
func TestWhyFollowsOtherRules(t *testing.T) {
	t.Parallel()
	node := world.NewHost(t, "node-a")
	node.IP("addr add 192.0.2.1/32 dev lo")
	client, server := world.NewPod(node, "client", "10.1.0.1"), world.NewPod(node, "server", "10.1.0.2")
	server.Serve("server", ":8080")
	node.Forward()
	socket := filepath.Join(t.TempDir(), "s.sock")
	startAgent(t, folder(t, map[string]string{"pods.yaml": `
{apiVersion: v1, kind: Pod, metadata: {name: client, namespace: default}, spec: {nodeName: node-a}, status: {phase: Running, podIPs: [{ip: 10.1.0.1}]}}
---
{apiVersion: v1, kind: Pod, metadata: {name: server, namespace: default, labels: {app: server}}, spec: {nodeName: node-a}, status: {phase: Running, podIPs: [{ip: 10.1.0.2}], conditions: [{type: Ready, status: "True"}]}}
---
{apiVersion: v1, kind: Service, metadata: {name: server, namespace: default}, spec: {selector: {app: server}, clusterIP: 10.96.0.1, ports: [{port: 80, targetPort: 8080}]}}
`}), socket, node.Do, "--service-cidr", "10.96.0.0/16")
	if code, _, stderr := sluice(t, "sync", "--socket", socket); code != cli.ExitOK {
		t.Fatal(stderr)
	}
	node.Exec("nft", "table ip fw { chain quarantine { ip daddr 10.1.0.2 tcp dport 8080 counter drop comment \"ticket 4711\"; }\n chain c { type filter hook forward priority -5; ct state established accept; jump quarantine; }\n}")
	for _, c := range []struct {
		rules string
		code  int
		says  []string
	}{
		{"list ruleset", int(statusDenied), []string{"denied: ", "other rules  denied", `rule 1 ("ticket 4711") of chain quarantine, to which nftables chain ip fw c (forward) jumps, drops it; see that rule: nft -a list chain ip fw quarantine`}},
		{"flush chain ip fw quarantine; add rule ip fw quarantine ip daddr 10.1.0.2 limit rate 1/hour burst 1 packets drop", 0, []string{"allowed: ", "warning: other rules: rule 1 of chain quarantine"}},
		{"flush chain ip fw quarantine; add rule ip fw c ip daddr 10.96.0.1 drop; add chain ip fw p { type filter hook prerouting priority -300; }; add rule ip fw p ip daddr 10.96.0.1 tcp dport 80 drop", int(statusDenied), []string{"rule 1 of nftables chain ip fw p (prerouting) drops it"}},
		{"flush chain ip fw p", 0, []string{"allowed: "}},
	} {
		node.Exec("nft", c.rules)
		code, out, stderr := sluice(t, "why", "--socket", socket, "client", "svc/server")
		for _, w := range c.says {
			if code != c.code || !strings.Contains(out, w) {
				t.Errorf("after %q why exits with %d and lacks %q:\n%s%s", c.rules, code, w, out, stderr)
			}
		}
		limit := world.Patience
		if c.code != 0 {
			limit = 200 * time.Millisecond
		}
		if _, err := client.Ask("tcp", "", "10.96.0.1:80", limit); (err == nil) != (c.code == 0) {
			t.Errorf("after %q the packet: %v", c.rules, err)
		}
		if code, out, _ := sluice(t, "why", "--socket", socket, "client", "svc/server", "--suggest"); c.code != 0 && (code != c.code || !strings.Contains(out, "# no policy: no policy can allow it: rule 1")) {
			t.Errorf("why --suggest exits with %d:\n%s", code, out)
		}
	}
}

// Where routes or interfaces lose packets, why says so.
func TestWhyNamesLostWays(t *testing.T) {
	t.Parallel()
	node := world.NewHost(t, "node-a")
	for i, name := range []string{"one", "two"} {
		world.NewPod(node, name, fmt.Sprintf("10.1.0.%d", i+1)).Serve(name, ":80")
	}
	router := world.NewHost(t, "router")
	node.Join("eth0", router, "eth0")
	node.Address("eth0", "192.0.2.1/24")
	node.Forward()
	socket := filepath.Join(t.TempDir(), "s.sock")
	startAgent(t, folder(t, map[string]string{"pods.yaml": `
{apiVersion: v1, kind: Pod, metadata: {name: one, namespace: default}, spec: {nodeName: node-a}, status: {phase: Running, podIPs: [{ip: 10.1.0.1}]}}
---
{apiVersion: v1, kind: Pod, metadata: {name: two, namespace: default}, spec: {nodeName: node-a}, status: {phase: Running, podIPs: [{ip: 10.1.0.2}]}}
`}), socket, node.Do)
	if code, _, stderr := sluice(t, "sync", "--socket", socket); code != cli.ExitOK {
		t.Fatal(stderr)
	}
	for _, c := range []struct{ fault, to, says, mend string }{
		{"", "two:80", "", ""},
		{"", "198.51.100.1:80", "node node-a does not reach 198.51.100.1: there is no route", ""},
		{"route add blackhole 198.51.100.0/24", "198.51.100.1:80", "a blackhole route or rule drops", ""},
		{"route replace prohibit 198.51.100.0/24", "198.51.100.1:80", "a prohibit route or rule rejects", ""},
		{"route add 203.0.113.0/24 via 192.0.2.2", "203.0.113.1:80", "", ""},
		{"rule add to 10.1.0.2 lookup 77\nroute add 10.1.0.2 dev eth0 table 77", "two:80", "node node-a does not reach 10.1.0.2: the route leads to eth0, not to two; see 'ip route get 10.1.0.2 from 10.1.0.1 iif one'", "rule del to 10.1.0.2 lookup 77"},
	} {
		for line := range strings.Lines(c.fault) {
			node.IP(strings.TrimSpace(line))
		}
		code, out, stderr := sluice(t, "why", "--socket", socket, "one", c.to)
		if (code == 0) != (c.says == "") || (c.says == "") == strings.Contains(out, "does not reach") || !strings.Contains(out, c.says) {
			t.Errorf("after %q why %s exits with %d, want %q:\n%s%s", c.fault, c.to, code, c.says, out, stderr)
		}
		if c.mend != "" {
			node.IP(c.mend)
		}
	}
	router.IP("link set eth0 down")
	eventually(t, "why says that the interface is down", func() bool {
		_, out, _ := sluice(t, "why", "--socket", socket, "one", "203.0.113.1:80")
		return strings.Contains(out, "node node-a does not reach 203.0.113.1: the route leads to interface eth0, which is ")
	})
}

// The kernel is asked as the packets go that the node passes on, and their answers: by their source
// and the interface at which they come in. What it says is compared with what the fabric wants.
func TestWhyAsksAsPacketsGo(t *testing.T) {
	t.Parallel()
	node, router := world.NewHost(t, "node-a"), world.NewHost(t, "router")
	node.Join("eth0", router, "eth0")
	node.Address("eth0", "192.0.2.1/24")
	node.Forward()
	node.Address("eth0", "fd00:2::1/64")
	world.NewPod(node, "here", "10.244.1.5", "fd00:10:244:1::5")
	both := strings.NewReplacer("podCIDRs: [10.244.1.0/24", `podCIDRs: [10.244.1.0/24, "fd00:10:244:1::/64"`, "podCIDRs: [10.244.2.0/24", `podCIDRs: [10.244.2.0/24, "fd00:10:244:2::/64"`,
		"192.0.2.1}", `192.0.2.1}, {type: InternalIP, address: "fd00:2::1"}`, "192.0.2.2}", `192.0.2.2}, {type: InternalIP, address: "fd00:2::2"}`,
		"{ip: 10.244.1.5}", `{ip: 10.244.1.5}, {ip: "fd00:10:244:1::5"}`, "{ip: 10.244.2.5}", `{ip: 10.244.2.5}, {ip: "fd00:10:244:2::5"}`)
	socket := filepath.Join(t.TempDir(), "s.sock")
	startAgent(t, folder(t, map[string]string{"nodes.yaml": both.Replace(twoNodes), "pods.yaml": both.Replace(twoPods)}), socket, node.Do, "--fabric", "vxlan")
	why := func() string {
		_, out, stderr := sluice(t, "why", "--socket", socket, "default/here", "default/there:80", "--all")
		return out + stderr
	}
	eventually(t, "all ways lead where they have to", func() bool {
		out := why()
		return strings.Contains(out, "allowed") && !strings.Contains(out, "does not reach")
	})
	for _, c := range []struct{ fault, says, mend string }{
		{"rule add from 10.244.1.5 blackhole", "10.244.2.5: a blackhole route or rule drops what goes there; see 'ip route get 10.244.2.5 from 10.244.1.5 iif here'", "rule del from 10.244.1.5 blackhole"},
		{"rule add from 10.244.2.5 prohibit", "10.244.1.5: a prohibit route or rule rejects what goes there; see 'ip route get 10.244.1.5 from 10.244.2.5 iif sluice.vxlan'", "rule del from 10.244.2.5 prohibit"},
		{"rule add from 10.244.1.5 lookup 77\nroute add 10.244.2.0/24 via 192.0.2.9 table 77", "10.244.2.5: the route leads to eth0 via 192.0.2.9, not to sluice.vxlan; see", "rule del from 10.244.1.5 lookup 77"},
		{"route add 10.244.2.5 via 192.0.2.77", "10.244.2.5: the route leads to eth0 via 192.0.2.77, not to sluice.vxlan; see", "route del 10.244.2.5"},
		{"route add 10.244.2.0/24 via 192.0.2.9 proto bird", "10.244.2.5: the route leads to eth0 via 192.0.2.9, not to sluice.vxlan; see", "route del 10.244.2.0/24 proto bird"},
		{"route add 10.244.2.0/24 via 10.244.2.9 dev sluice.vxlan onlink proto bird", "10.244.2.5: the route leads to sluice.vxlan via 10.244.2.9, not via 192.0.2.2; see", "route del 10.244.2.0/24 proto bird"},
		{"route add unreachable 10.244.2.5", "10.244.2.5: an unreachable route rejects what goes there; see", "route del 10.244.2.5"},
		{"sysctl net.ipv4.conf.sluice/vxlan.forwarding=0", "10.244.1.5: forwarding is off for what comes in by sluice.vxlan: net.ipv4.conf.sluice/vxlan.forwarding is 0; see", "sysctl net.ipv4.conf.sluice/vxlan.forwarding=1"},
		{"sysctl net.ipv4.ip_forward=0", "10.244.2.5, 10.244.1.5: forwarding is off: net.ipv4.ip_forward is 0; see", "sysctl net.ipv4.ip_forward=1"},
		{"sysctl net.ipv4.conf.sluice/vxlan.rp_filter=1\nroute add 10.244.2.5 via 192.0.2.77", "10.244.1.5: rp_filter is strict at sluice.vxlan, and drops what comes from 10.244.2.5: the route back leads to eth0 via 192.0.2.77; see", "sysctl net.ipv4.conf.sluice/vxlan.rp_filter=0\nroute del 10.244.2.5"},
		{"-6 rule add from fd00:10:244:1::5 blackhole", "fd00:10:244:2::5: a blackhole route or rule drops what goes there; see 'ip route get fd00:10:244:2::5 from fd00:10:244:1::5 iif here'", "-6 rule del from fd00:10:244:1::5 blackhole"},
		{"route add fd00:10:244:2::/64 via fd00:2::9 metric 5", "fd00:10:244:2::5: the route leads to eth0 via fd00:2::9, not to sluice.vxlan6; see", "route del fd00:10:244:2::/64 via fd00:2::9"},
		{"sysctl net.ipv6.conf.all.forwarding=0", "forwarding is off: net.ipv6.conf.all.forwarding is 0; see", "sysctl net.ipv6.conf.all.forwarding=1"},
		{"", "", ""},
	} {
		do := func(lines string) {
			for line := range strings.Lines(lines) {
				line = strings.TrimSpace(line)
				if setting, is := strings.CutPrefix(line, "sysctl "); is {
					node.Exec("sysctl", "-qw", setting)
				} else {
					node.IP(line)
				}
			}
		}
		do(c.fault)
		if out := why(); (c.says == "") == strings.Contains(out, "does not reach") || !strings.Contains(out, c.says) {
			t.Errorf("after %q, want %q:\n%s", c.fault, c.says, out)
		}
		do(c.mend)
	}
}

// What of this node concerns the packets of a connection is said with it: a tunnel that the kernel
// refuses, and a table of connections that is full.
func TestWhyNamesFaultsOfTheNode(t *testing.T) {
	t.Parallel()
	node, router := world.NewHost(t, "node-a"), world.NewHost(t, "router")
	node.Join("eth0", router, "eth0")
	node.Address("eth0", "192.0.2.1/24")
	node.Forward()
	world.NewPod(node, "here", "10.244.1.5").Serve("here", ":80")
	node.IP("link add flannel.1 type vxlan id 4096 dstport 4789 local 192.0.2.1", "link set flannel.1 up")
	dir, socket := folder(t, map[string]string{"nodes.yaml": twoNodes, "pods.yaml": twoPods, "pool.yaml": fmt.Sprintf(onePool, "Always", false)}), filepath.Join(t.TempDir(), "s.sock")
	limit := filepath.Join(folder(t, map[string]string{"limit": "1\n"}), "limit")
	startProgram(t, node.NS, exec.Command("unshare", "--mount", "sh", "-c", `mount --bind "$0" /proc/sys/net/netfilter/nf_conntrack_max && exec "$@"`, limit, self,
		"run", "--manifests", dir, "--node", "node-a", "--socket", socket, "--fabric", "pools", "--metrics-address", "", "--healthz-address", "", "--set-sysctls=false"))
	eventually(t, "why names them", func() bool {
		_, _ = node.Ask("tcp", "", "10.244.1.5:80", time.Second)
		_, out, _ := sluice(t, "why", "--socket", socket, "default/here", "default/there:80", "--all")
		return strings.Contains(out, "warning: device sluice.vxlan: ") && strings.Contains(out, "flannel.1") &&
			strings.Contains(out, "warning: the connection table is ") && strings.Contains(out, "there is no interface sluice.vxlan")
	})
}

// A policy that would allow the connection and applies to nothing is named, also where another
// node's policies deny it.
func TestWhyNamesIdlePolicies(t *testing.T) {
	t.Parallel()
	node := world.NewHost(t, "node-a")
	world.NewPod(node, "front", "10.1.0.1")
	world.NewPod(node, "cart", "10.1.0.2")
	socket := filepath.Join(t.TempDir(), "s.sock")
	startAgent(t, folder(t, map[string]string{"all.yaml": `
{apiVersion: v1, kind: Pod, metadata: {name: front, namespace: shop}, spec: {nodeName: node-a}, status: {phase: Running, podIPs: [{ip: 10.1.0.1}]}}
---
{apiVersion: v1, kind: Pod, metadata: {name: cart, namespace: shop, labels: {app: cart}}, spec: {nodeName: node-a}, status: {phase: Running, podIPs: [{ip: 10.1.0.2}]}}
---
{apiVersion: networking.k8s.io/v1, kind: NetworkPolicy, metadata: {name: deny, namespace: shop}, spec: {podSelector: {}, policyTypes: [Ingress]}}
---
{apiVersion: networking.k8s.io/v1, kind: NetworkPolicy, metadata: {name: cart, namespace: shop}, spec: {podSelector: {matchLabels: {app: crat}}, ingress: [{}]}}
---
{apiVersion: networking.k8s.io/v1, kind: NetworkPolicy, metadata: {name: lost, namespace: default}, spec: {podSelector: {matchLabels: {app: cart}}, ingress: [{}]}}
`}), socket, node.Do)
	if code, _, stderr := sluice(t, "sync", "--socket", socket); code != cli.ExitOK {
		t.Fatal(stderr)
	}
	code, out, _ := sluice(t, "why", "--socket", socket, "shop/front", "shop/cart:80")
	for _, want := range []string{
		"nearest: ingress[0] of NetworkPolicy shop/cart would allow it and applies to nothing: it wants label app=crat; shop/cart has app=cart",
		"nearest: ingress[0] of NetworkPolicy default/lost would allow it and applies to nothing: it wants namespace default; shop/cart is in namespace shop",
	} {
		if code != int(statusDenied) || !strings.Contains(out, want) {
			t.Errorf("why exits with %d and lacks %q:\n%s", code, want, out)
		}
	}
}

// Whether a pod of the node answers, why finds out.
func TestWhyAsksPods(t *testing.T) {
	t.Parallel()
	node := world.NewHost(t, "node-a")
	node.Forward()
	node.IP("addr add 192.0.2.1/32 dev lo")
	client := world.NewPod(node, "client", "10.1.0.1")
	server := world.NewPod(node, "server", "10.1.0.2")
	server.Serve("server", ":8080")
	socket := filepath.Join(t.TempDir(), "s.sock")
	startAgent(t, folder(t, map[string]string{"all.yaml": `
{apiVersion: v1, kind: Pod, metadata: {name: client, namespace: default}, spec: {nodeName: node-a}, status: {phase: Running, podIPs: [{ip: 10.1.0.1}]}}
---
{apiVersion: v1, kind: Pod, metadata: {name: server, namespace: default}, spec: {nodeName: node-a}, status: {phase: Running, podIPs: [{ip: 10.1.0.2}]}}
---
{apiVersion: networking.k8s.io/v1, kind: NetworkPolicy, metadata: {name: server, namespace: default}, spec: {podSelector: {}, ingress: [{from: [{podSelector: {}}], ports: [{port: 8080}, {port: 8081}]}]}}
`}), socket, node.Do)
	if code, _, stderr := sluice(t, "sync", "--socket", socket); code != cli.ExitOK {
		t.Fatal(stderr)
	}
	for _, c := range []struct {
		fault, to string
		code      int
		says      string
	}{
		{"", "server:8080", 0, "allowed: "},
		{"", "server:8081", 4, "allowed, but see the warning: 10.1.0.1 (pod default/client) -> 10.1.0.2:8081 (pod default/server), TCP 8081\n  warning: asked from node node-a, pod default/server refuses TCP 8081: nothing listens there"},
		{"", "server:8082", 3, "denied: "},
		{"", "server/icmp", 3, "denied: "},
		{"client: route del default", "server:8080", 4, "warning: asked from node node-a, pod default/client does not answer at 10.1.0.1: see its interface, its address, its routes"},
		{"server: addr del 10.1.0.2/32 dev eth0", "server:8080", 4, "warning: asked from node node-a, pod default/server does not answer at 10.1.0.2: see its interface"},
	} {
		if of, fault, _ := strings.Cut(c.fault, ": "); fault != "" {
			map[string]*world.Host{"client": client, "server": server}[of].IP(fault)
		}
		if code, out, stderr := sluice(t, "why", "--socket", socket, "client", c.to); code != c.code || !strings.Contains(out, c.says) || code != 4 && strings.Contains(out, "asked from node") {
			t.Errorf("after %q why %s exits with %d, want %d and %q:\n%s%s", c.fault, c.to, code, c.code, c.says, out, stderr)
		}
	}
}
