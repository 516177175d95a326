package main

import (
	"encoding/json"
	"path/filepath"
	"strings"
	"testing"

	"sluice.dev/sluice/internal/agent"
	"sluice.dev/sluice/internal/cli"
)

// webshop has a service with an endpoint on node-a, where the agent runs, and others elsewhere, and
// policies.
const webshop = `{apiVersion: v1, kind: Node, metadata: {name: node-a}, status: {addresses: [{type: InternalIP, address: 192.0.2.1}]}}
---
{apiVersion: v1, kind: Node, metadata: {name: node-b, labels: {topology.kubernetes.io/zone: west}}, status: {addresses: [{type: InternalIP, address: 192.0.2.2}]}}
---
{apiVersion: v1, kind: Namespace, metadata: {name: shop}}
---
apiVersion: v1
kind: Pod
metadata: {name: web-1, namespace: shop, labels: {app: web}}
spec: {nodeName: node-a, containers: [{name: web, image: web}]}
status: {phase: Running, podIP: 10.1.0.1, podIPs: [{ip: 10.1.0.1}]}
---
apiVersion: v1
kind: Service
metadata: {name: web, namespace: shop}
spec:
  type: NodePort
  externalTrafficPolicy: Local
  clusterIP: 10.0.0.1
  ports: [{name: http, port: 80, targetPort: 8080, nodePort: 30080}]
---
{apiVersion: v1, kind: Service, metadata: {name: webhook, namespace: tools}, spec: {clusterIP: 10.0.0.2, ports: [{port: 443}]}}
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: web-1, namespace: shop, labels: {kubernetes.io/service-name: web}}
addressType: IPv4
ports: [{name: http, port: 8080}]
endpoints:
- {addresses: [10.1.0.1], nodeName: node-a, zone: east, conditions: {ready: true}}
- {addresses: [10.1.0.2], nodeName: node-b, conditions: {ready: true}}
- {addresses: [10.1.0.3], nodeName: node-b, conditions: {ready: false, serving: true, terminating: true}}
- {addresses: [10.1.0.4], conditions: {ready: false}}
---
apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata: {name: web, namespace: shop}
spec: {podSelector: {matchLabels: {app: web}}}
---
apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata: {name: default-deny, namespace: tools}
spec: {podSelector: {}}
`

func TestNames(t *testing.T) {
	useKernel(t)
	socket := filepath.Join(t.TempDir(), "s.sock")
	startAgent(t, folder(t, map[string]string{"shop.yaml": webshop}), socket, here)
	if code, _, stderr := sluice(t, "sync", "--socket", socket); code != cli.ExitOK {
		t.Fatal(stderr)
	}
	t.Run("services", func(t *testing.T) {
		says(t, socket, "services shop/web", "ENDPOINT POD NODE ZONE STATE CHOSEN FLOWS NOTE",
			"TCP http 10.1.0.1:8080 shop/web-1 node-a east ready yes 0",
			"TCP http 10.1.0.2:8080 - node-b west ready from inside 0 from outside: it is not on this node: the traffic policy is Local",
			"TCP http 10.1.0.3:8080 - node-b west serving, terminating no 0 from inside: it is terminating, and others are ready; from outside: it is not on this node: the traffic policy is Local",
			"TCP http 10.1.0.4:8080 - - - not ready no 0 it is not ready")
		says(t, socket, "services -n shop web", "10.1.0.1:8080")
		says(t, socket, "services tools/webhook", "no endpoints")
		says(t, socket, "services -n tools", "tools webhook", "!shop")
		says(t, socket, "services --name hook", "tools webhook", "!shop")
		says(t, socket, "services --name nosuch", "no services")
		refuses(t, socket, "services shop/wbe", "there is no service shop/wbe: did you mean shop/web?")
		refuses(t, socket, "services shop/nothing-of-the-kind", "'sluice services' lists those that there are")
		refuses(t, socket, "services /web", "/web is no name: write NAMESPACE/NAME")
		refuses(t, socket, "services shop/", "shop/ is no name: write NAMESPACE/NAME")
		refuses(t, socket, "services shop/web -n tools", "shop/web is not in the namespace tools: leave out -n")
		refuses(t, socket, "services shop/web --name w", "leave out --name or shop/web")
		_, stdout, _ := sluice(t, "services", "shop/web", "-o", "json", "--socket", socket)
		var r agent.ServiceReport
		if err := json.Unmarshal([]byte(stdout), &r); err != nil || len(r.EndpointList) != 4 || r.EndpointList[0].Pod.Name.String() != "shop/web-1" || r.EndpointList[1].Outside.Chosen {
			t.Errorf("services shop/web -o json: %v\n%s", err, stdout)
		}
	})
	t.Run("policies", func(t *testing.T) {
		says(t, socket, "policies", "shop web", "tools default-deny")
		says(t, socket, "policies -n tools", "tools default-deny", "!shop web")
		says(t, socket, "policies shop/web", "shop web", "!default-deny")
		refuses(t, socket, "policies shop/default-deny", "there is no policy shop/default-deny: did you mean tools/default-deny?")
	})
	t.Run("completion", func(t *testing.T) {
		says(t, socket, "__complete services sh", "shop/web", "!tools")
		says(t, socket, "__complete services shop/web x", "!shop/web")
		says(t, socket, "__complete services -n t", "tools", "!shop")
		says(t, socket, "__complete policies t", "tools/default-deny")
		says(t, socket, "__complete why s", "shop/web-1", "svc/shop/web", "!node/")
		says(t, socket, "__complete why shop/web-1 svc/", "svc/tools/webhook")
		says(t, socket, "__complete why --via n", "node-b")
	})
}

// says runs a command line. Its output has these words, whatever is between columns; none that
// begin with "!".
func says(t *testing.T, socket, line string, words ...string) {
	t.Helper()
	args := strings.Fields(line)
	at := len(args)
	if args[0] == "__complete" {
		at = 2
	}
	args = append(args[:at:at], append([]string{"--socket", socket}, args[at:]...)...)
	code, stdout, stderr := sluice(t, args...)
	plain := strings.Join(strings.Fields(stdout), " ")
	if code != cli.ExitOK {
		t.Errorf("sluice %s exits with %d: %s", line, code, stderr)
	}
	for _, w := range words {
		if unwanted, no := strings.CutPrefix(w, "!"); no == strings.Contains(plain, strings.TrimPrefix(w, "!")) {
			t.Errorf("sluice %s: %q is %s in:\n%s", line, unwanted, map[bool]string{true: "wrongly", false: "not"}[no], stdout)
		}
	}
}

// refuses runs a command line that is answered with an error.
func refuses(t *testing.T, socket, line, want string) {
	t.Helper()
	if code, stdout, stderr := sluice(t, append(strings.Fields(line), "--socket", socket)...); code == cli.ExitOK || !strings.Contains(stderr, want) {
		t.Errorf("sluice %s exits with %d and does not say %q:\n%s%s", line, code, want, stdout, stderr)
	}
}
