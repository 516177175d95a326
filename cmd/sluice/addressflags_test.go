package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/vishvananda/netlink"

	"sluice.dev/sluice/internal/agent"
	"sluice.dev/sluice/internal/cli"
	"sluice.dev/sluice/internal/preflight"
	"sluice.dev/sluice/test/netns"
)

// thieves are services with addresses that belong to others: node-a is 192.0.2.1, node-b 192.0.2.2.
const thieves = `
apiVersion: v1
kind: Node
metadata: {name: node-a}
status: {addresses: [{type: InternalIP, address: 192.0.2.1}]}
---
apiVersion: v1
kind: Node
metadata: {name: node-b}
status: {addresses: [{type: InternalIP, address: 192.0.2.2}]}
---
apiVersion: v1
kind: Service
metadata: {name: external, namespace: thieves}
spec: {clusterIP: 10.0.0.11, externalIPs: [192.0.2.1, 203.0.113.5], ports: [{name: ssh, port: 22}, {name: http, port: 80}]}
---
apiVersion: v1
kind: Service
metadata: {name: balanced, namespace: thieves}
spec: {type: LoadBalancer, clusterIP: 10.0.0.12, ports: [{port: 10250}, {name: x, port: 81}]}
status: {loadBalancer: {ingress: [{ip: 192.0.2.2}, {ip: 203.0.113.6}]}}
---
apiVersion: v1
kind: Service
metadata: {name: nodeport, namespace: thieves}
spec: {type: NodePort, clusterIP: 10.0.0.13, ports: [{port: 80, nodePort: 22}, {name: x, port: 81, nodePort: 30081}]}
---
apiVersion: v1
kind: Service
metadata: {name: cluster, namespace: thieves}
spec: {clusterIP: 192.0.2.1, ports: [{port: 8080}]}
`

// Each flag allows services what it names, in 'plan' as in 'run', and nothing more.
func TestAddressFlags(t *testing.T) {
	useKernel(t)
	dir := folder(t, map[string]string{"thieves.yaml": thieves})
	always := "10.0.0.11:22 10.0.0.11:80 10.0.0.12:81 10.0.0.12:10250 10.0.0.13:80 10.0.0.13:81 192.0.2.1:30081"
	for flags, want := range map[string]string{
		"":                                    "203.0.113.5:22 203.0.113.5:80 203.0.113.6:81 203.0.113.6:10250",
		"--allow-node-addresses 192.0.2.0/24": "192.0.2.1:80 192.0.2.2:81 203.0.113.5:22 203.0.113.5:80 203.0.113.6:81 203.0.113.6:10250",
		"--allow-node-addresses 192.0.2.2/32 --reserved-ports none":                               "192.0.2.1:22 192.0.2.2:81 192.0.2.2:10250 203.0.113.5:22 203.0.113.5:80 203.0.113.6:81 203.0.113.6:10250",
		"--reserved-ports tcp:80-81":                                                              "192.0.2.1:22 203.0.113.5:22 203.0.113.5:80 203.0.113.6:81 203.0.113.6:10250",
		"--external-ip-cidrs 203.0.113.5/32 --load-balancer-cidrs none":                           "203.0.113.5:22 203.0.113.5:80",
		"--external-ip-cidrs none":                                                                "203.0.113.6:81 203.0.113.6:10250",
		"--external-ip-cidrs 198.51.100.0/24,203.0.113.0/24 --load-balancer-cidrs 203.0.112.0/24": "203.0.113.5:22 203.0.113.5:80",
	} {
		code, stdout, stderr := sluice(t, append([]string{"plan", "--manifests", dir, "--node", "node-a"}, strings.Fields(flags)...)...)
		got := map[string]bool{}
		for line := range strings.Lines(stdout) {
			if at, ok := strings.CutPrefix(strings.TrimSpace(line), "set TCP "); ok {
				got[at] = true
			}
		}
		for _, at := range strings.Fields(always + " " + want) {
			if !got[at] {
				t.Errorf("%q: %s is not served", flags, at)
			}
			delete(got, at)
		}
		if code != cli.ExitOK || len(got) > 0 {
			t.Errorf("%q: exits with %d; served too: %v", flags, code, got)
		}
		for _, say := range []string{"Service thieves/cluster: clusterIP 192.0.2.1 is an address of node node-a"} {
			if !strings.Contains(stderr, say) {
				t.Errorf("%q: does not say %q: %s", flags, say, stderr)
			}
		}
	}
	for _, c := range []struct{ args, say string }{
		{"--external-ip-cidrs 10.0.0.300/8", "not a CIDR"}, {"--load-balancer-cidrs some", "not a CIDR"},
		{"--allow-node-addresses all", "not a CIDR"}, {"--reserved-ports 22", "tcp:22"},
	} {
		code, _, stderr := sluice(t, append([]string{"run", "--manifests", dir}, strings.Fields(c.args)...)...)
		if code != cli.ExitUsage || !strings.Contains(stderr, c.say) {
			t.Errorf("run %s exits with %d: %s", c.args, code, stderr)
		}
	}
}

// What listens on a node stays reachable whatever addresses services ask for; so does what the
// agent itself listens on.
func TestNodeStaysReachable(t *testing.T) {
	t.Parallel()
	ns := nodeNS(t)
	give(t, ns, "192.0.2.1/24")
	const own = `
apiVersion: v1
kind: Service
metadata: {name: own, namespace: thieves}
spec: {type: NodePort, clusterIP: 10.0.0.14, ports: [{port: 80, nodePort: 10999}]}
`
	dir := folder(t, map[string]string{"thieves.yaml": thieves, "own.yaml": own})
	for _, port := range []string{"22", "10250"} {
		listen(t, ns, "192.0.2.1:"+port)
	}
	socket := filepath.Join(t.TempDir(), "s.sock")
	startAgent(t, dir, socket, ns.Do, "--healthz-address", "192.0.2.1:10999")
	if code, _, stderr := sluice(t, "sync", "--socket", socket); code != cli.ExitOK {
		t.Fatal(stderr)
	}
	for _, at := range []string{"192.0.2.1:22", "192.0.2.1:10250"} {
		if !hears(ns, at) {
			t.Errorf("%s is not reached", at)
		}
	}
	if err := connect(ns, "192.0.2.1:10999"); err != nil {
		t.Errorf("the agent is not reached: %v", err)
	}
	s, err := agent.NewClient(socket).Status(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for _, say := range []string{"thieves/external: externalIP 192.0.2.1 ", "thieves/balanced: load balancer address 192.0.2.2 ", "thieves/nodeport: TCP 192.0.2.1:22 ",
		"thieves/cluster: clusterIP 192.0.2.1 ", "thieves/own: TCP 192.0.2.1:10999 "} {
		if !strings.Contains(fmt.Sprint(s.Issues), say) {
			t.Errorf("the status does not say %q: %v", say, s.Issues)
		}
	}
}

// preflight names what would not be served: from what kube-proxy serves before there is an agent,
// and from the agent afterwards.
func TestPreflightNamesAddresses(t *testing.T) {
	t.Parallel()
	ns := nodeNS(t)
	give(t, ns, "192.0.2.1/24")
	give(t, ns, "203.0.113.5/32") // an address of a service, as keepalived assigns it
	nft(t, ns, `table ip kube-proxy {
		chain service-A { accept; }
		chain nodeport-A { accept; }
		map service-ips { type ipv4_addr . inet_proto . inet_service : verdict;
			elements = { 10.0.0.1 . tcp . 443 comment "default/kubernetes:https" : goto service-A, 192.0.2.1 . tcp . 443 comment "a/own:https" : goto service-A,
				203.0.113.5 . tcp . 443 comment "a/vip:https" : goto service-A }; }
		map service-nodeports { type inet_proto . inet_service : verdict;
			elements = { tcp . 10250 comment "a/low:https" : goto nodeport-A, tcp . 30080 comment "a/web:http" : goto nodeport-A }; }
		chain nat-prerouting { type nat hook prerouting priority -100; ip daddr . meta l4proto . th dport vmap @service-ips; meta l4proto . th dport vmap @service-nodeports; }
	}`)
	socket := filepath.Join(t.TempDir(), "s.sock")
	expect := func(want ...string) {
		t.Helper()
		var results []preflight.Result
		err := ns.Do(func() error {
			var out, errs bytes.Buffer
			execute(t.Context(), []string{"preflight", "--socket", socket, "-o", "json"}, &out, &errs)
			return json.Unmarshal(out.Bytes(), &results)
		})
		if err != nil {
			t.Fatal(err)
		}
		var said []string
		for _, r := range results {
			if r.Check == "services' addresses" {
				said = append(said, r.Seen)
			}
		}
		for _, w := range want {
			if !strings.Contains(strings.Join(said, "\n"), w) {
				t.Errorf("preflight does not say %q: %q", w, said)
			}
		}
		if len(said) != len(want) {
			t.Errorf("preflight says %q", said)
		}
	}
	expect("TCP 192.0.2.1:443 (a/own:https), which is this node's own address", "node port 0.0.0.0:10250 (a/low:https), which is one of the agent's --reserved-ports")
	startAgent(t, folder(t, map[string]string{"thieves.yaml": thieves}), socket, ns.Do)
	if code, _, stderr := sluice(t, "sync", "--socket", socket); code != cli.ExitOK {
		t.Fatal(stderr)
	}
	expect("thieves/external: externalIP 192.0.2.1 ", "thieves/balanced: load balancer address 192.0.2.2 ", "thieves/nodeport: TCP 192.0.2.1:22 ",
		"thieves/cluster: clusterIP 192.0.2.1 ")
}

// give assigns an address to a namespace, on its loopback device.
func give(t *testing.T, ns *netns.NS, address string) {
	t.Helper()
	lo, err := ns.LinkByName("lo")
	if err != nil {
		t.Fatal(err)
	}
	a, err := netlink.ParseAddr(address)
	if err != nil {
		t.Fatal(err)
	}
	if err := ns.AddrReplace(lo, a); err != nil {
		t.Fatal(err)
	}
	if err := ns.LinkSetUp(lo); err != nil {
		t.Fatal(err)
	}
}

// listen says "hello" at an address of a namespace until the test ends.
func listen(t *testing.T, ns *netns.NS, address string) {
	t.Helper()
	var l net.Listener
	err := ns.Do(func() (err error) { l, err = net.Listen("tcp", address); return err })
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() })
	go func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			_, _ = io.WriteString(conn, "hello")
			_ = conn.Close()
		}
	}()
}

// hears reports whether "hello" is said at an address.
func hears(ns *netns.NS, address string) bool {
	var text []byte
	_ = ns.Do(func() error {
		conn, err := net.DialTimeout("tcp", address, 2*time.Second)
		if err != nil {
			return err
		}
		defer func() { _ = conn.Close() }()
		_ = conn.SetDeadline(time.Now().Add(2 * time.Second))
		text, err = io.ReadAll(conn)
		return err
	})
	return string(text) == "hello"
}
