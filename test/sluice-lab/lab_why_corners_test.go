package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"sluice.dev/sluice/test/lab"
	"sluice.dev/sluice/test/lab/plan"
)

// corners is a cluster of what random clusters lack.
const corners = `
{apiVersion: v1, kind: Namespace, metadata: {name: green, labels: {env: prod}}}
---
{apiVersion: v1, kind: Namespace, metadata: {name: red, labels: {env: test}}}
---
apiVersion: apps/v1
kind: Deployment
metadata: {name: web-a, namespace: green}
spec: {replicas: 2, template: {metadata: {labels: {app: web, kind: a}}, spec: {containers: [{name: c, ports: [{name: http, containerPort: 8080}, {name: dns, containerPort: 53, protocol: UDP}]}]}}}
---
apiVersion: apps/v1
kind: Deployment
metadata: {name: web-b, namespace: green}
spec: {replicas: 2, template: {metadata: {labels: {app: web, kind: b}}, spec: {containers: [{name: c, ports: [{name: http, containerPort: 9090}]}]}}}
---
apiVersion: apps/v1
kind: Deployment
metadata: {name: host, namespace: green}
spec: {replicas: 2, template: {metadata: {labels: {app: host}}, spec: {hostNetwork: true, containers: [{name: c, ports: [{name: http, containerPort: 7777}]}]}}}
---
apiVersion: apps/v1
kind: Deployment
metadata: {name: client, namespace: red}
spec: {replicas: 3, template: {metadata: {labels: {app: client}}, spec: {containers: [{name: c, ports: [{containerPort: 6000}]}]}}}
---
{apiVersion: v1, kind: Service, metadata: {name: web, namespace: green}, spec: {ipFamilyPolicy: PreferDualStack, selector: {app: web}, ports: [{port: 80, targetPort: http}]}}
---
{apiVersion: v1, kind: Service, metadata: {name: dns, namespace: green}, spec: {ipFamilyPolicy: PreferDualStack, selector: {kind: a}, ports: [{port: 53, protocol: UDP, targetPort: dns}]}}
---
{apiVersion: v1, kind: Service, metadata: {name: ext, namespace: green}, spec: {selector: {app: web}, externalIPs: [198.51.100.10], ports: [{port: 80, targetPort: http}]}}
---
{apiVersion: v1, kind: Service, metadata: {name: np, namespace: green}, spec: {ipFamilyPolicy: PreferDualStack, type: NodePort, externalTrafficPolicy: Local, selector: {kind: a}, ports: [{port: 80, targetPort: http}]}}
---
{apiVersion: v1, kind: Service, metadata: {name: lb, namespace: green}, spec: {ipFamilyPolicy: PreferDualStack, type: LoadBalancer, selector: {kind: b}, loadBalancerSourceRanges: ["10.244.1.0/24", "fd00:10:244:1::/64"], ports: [{port: 80, targetPort: http}]}}
---
{apiVersion: v1, kind: Service, metadata: {name: lblocal, namespace: green}, spec: {ipFamilyPolicy: PreferDualStack, type: LoadBalancer, externalTrafficPolicy: Local, internalTrafficPolicy: Local, sessionAffinity: ClientIP, selector: {kind: b}, ports: [{port: 80, targetPort: http}]}}
---
{apiVersion: v1, kind: Service, metadata: {name: host, namespace: green}, spec: {ipFamilyPolicy: PreferDualStack, type: NodePort, selector: {app: host}, ports: [{port: 80, targetPort: http}]}}
---
{apiVersion: v1, kind: Service, metadata: {name: hostlocal, namespace: green}, spec: {ipFamilyPolicy: PreferDualStack, type: NodePort, externalTrafficPolicy: Local, selector: {app: host}, ports: [{port: 80, targetPort: 7777}]}}
---
{apiVersion: v1, kind: Service, metadata: {name: headless, namespace: green}, spec: {clusterIP: None, selector: {app: web}, ports: [{port: 80, targetPort: http}]}}
---
{apiVersion: v1, kind: Service, metadata: {name: client, namespace: red}, spec: {ipFamilyPolicy: PreferDualStack, selector: {app: client}, ports: [{port: 80, targetPort: 6000}]}}
---
apiVersion: apps/v1
kind: Deployment
metadata: {name: odd, namespace: red}
spec: {replicas: 2, template: {metadata: {labels: {app: odd}}, spec: {containers: [{name: c, ports: [{containerPort: 5000}, {containerPort: 5001, protocol: UDP}]}]}}}
---
{apiVersion: v1, kind: Service, metadata: {name: odd, namespace: red}, spec: {ipFamilyPolicy: PreferDualStack, publishNotReadyAddresses: true, trafficDistribution: PreferSameNode, selector: {app: odd}, ports: [{name: t, port: 5000}, {name: u, port: 5001, protocol: UDP}]}}
---
apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata: {name: refused, namespace: red}
spec: {podSelector: {matchLabels: {app: odd}}, ingress: [{from: [{podSelector: {matchLabels: {"not/a/label": x}}}]}, {}]}
---
apiVersion: policy.networking.k8s.io/v1beta1
kind: ClusterNetworkPolicy
metadata: {name: admin}
spec:
  tier: Admin
  priority: 3
  subject: {pods: {namespaceSelector: {matchLabels: {env: prod}}, podSelector: {matchLabels: {kind: a}}}}
  ingress:
  - {name: outside, action: Accept, from: [{pods: {namespaceSelector: {}, podSelector: {matchLabels: {app: host}}}}]}
  - {name: pass, action: Pass, from: [{namespaces: {}}], protocols: [{udp: {destinationPort: {number: 53}}}]}
---
apiVersion: policy.networking.k8s.io/v1beta1
kind: ClusterNetworkPolicy
metadata: {name: baseline}
spec:
  tier: Baseline
  priority: 5
  subject: {namespaces: {matchLabels: {env: test}}}
  ingress: [{name: odd, action: Deny, from: [{namespaces: {matchLabels: {env: prod}}}]}]
---
apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata: {name: web, namespace: green}
spec:
  podSelector: {matchLabels: {app: web}}
  policyTypes: [Ingress, Egress]
  ingress:
  - {from: [{namespaceSelector: {matchLabels: {env: test}}, podSelector: {matchLabels: {app: client}}}], ports: [{port: http}, {port: dns, protocol: UDP}]}
  - {from: [{ipBlock: {cidr: 192.0.2.0/24}}, {ipBlock: {cidr: "fd00::/16", except: ["fd00:10:244::/56"]}}], ports: [{port: 8080, endPort: 9000}]}
  egress:
  - {to: [{podSelector: {matchLabels: {kind: b}}}]}
---
apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata: {name: client, namespace: red}
spec:
  podSelector: {}
  policyTypes: [Egress]
  egress:
  - {to: [{namespaceSelector: {matchLabels: {env: prod}}}], ports: [{port: 8000, endPort: 9089}, {port: 53, protocol: UDP}, {port: 7777}]}
  - {to: [{ipBlock: {cidr: 198.51.100.0/24}}]}
---
apiVersion: projectcalico.org/v3
kind: Tier
metadata: {name: first}
spec: {order: 1}
---
apiVersion: projectcalico.org/v3
kind: GlobalNetworkPolicy
metadata: {name: first.web}
spec: {tier: first, order: 1, selector: kind == 'b', types: [Ingress], ingress: [{action: Log}, {action: Pass, source: {selector: all()}}, {action: Deny, protocol: TCP, destination: {ports: [9090]}, source: {nets: [192.0.2.128/25]}}, {action: Pass}]}
`

// hostCorners are host endpoints of one interface and of all, with policies of every kind.
const hostCorners = `
---
apiVersion: projectcalico.org/v3
kind: HostEndpoint
metadata: {name: two, labels: {host: two}}
spec: {node: node2, interfaceName: eth0}
---
apiVersion: projectcalico.org/v3
kind: HostEndpoint
metadata: {name: three, labels: {host: three}}
spec: {node: node3, interfaceName: "*"}
---
apiVersion: projectcalico.org/v3
kind: HostEndpoint
metadata: {name: one, labels: {host: one}}
spec: {node: node1, interfaceName: eth0}
---
apiVersion: projectcalico.org/v3
kind: GlobalNetworkPolicy
metadata: {name: untracked-one}
spec: {order: 5, selector: host == 'one', doNotTrack: true, applyOnForward: true, types: [Ingress, Egress], ingress: [{action: Deny, protocol: TCP, destination: {ports: [6000]}}, {action: Allow, protocol: TCP, destination: {ports: [7777]}}], egress: [{action: Allow, protocol: TCP, source: {ports: [7777]}}]}
---
apiVersion: projectcalico.org/v3
kind: GlobalNetworkPolicy
metadata: {name: host-two}
spec: {order: 10, selector: host == 'two', types: [Ingress, Egress], ingress: [{action: Deny, protocol: TCP, source: {nets: [10.244.1.0/24]}}, {action: Allow}], egress: [{action: Allow}]}
---
apiVersion: projectcalico.org/v3
kind: GlobalNetworkPolicy
metadata: {name: forward-three}
spec: {order: 20, selector: host == 'three', applyOnForward: true, types: [Ingress], ingress: [{action: Deny, protocol: TCP, destination: {ports: [9090]}, source: {nets: [10.244.2.0/24]}}, {action: Allow}]}
---
apiVersion: projectcalico.org/v3
kind: GlobalNetworkPolicy
metadata: {name: prednat-two}
spec: {order: 30, selector: host == 'two', preDNAT: true, applyOnForward: true, types: [Ingress], ingress: [{action: Deny, protocol: TCP, destination: {ports: ["30000:32767"]}, source: {nets: [10.244.3.0/24]}}, {action: Allow}]}
`

// TestWhyCorners compares answers with packets where policy and services have corners, before and
// while a pod terminates, and then with host endpoints, too, where every node's agent gives the
// same answer.
func TestWhyCorners(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "corners.yaml")
	if err := os.WriteFile(file, []byte(corners), 0o600); err != nil {
		t.Fatal(err)
	}
	l := upLab(t, "testwhycor", file)
	compareWhy(t, l, inTurn)
	if err := l.Change(t.Context(), func(c *plan.Cluster) error { return c.Mark("green", "web-a-1", true, true) }); err != nil {
		t.Fatal(err)
	}
	if err := l.Sync(t.Context()); err != nil {
		t.Fatal(err)
	}
	compareWhy(t, l, inTurn)
	texts := policyTexts(l)
	for text := range strings.SplitSeq(strings.TrimPrefix(hostCorners, "\n---\n"), "\n---\n") {
		texts = append(texts, []byte(text))
	}
	setPolicies(t, l, texts...)
	compareWhy(t, l, everyNode)
}

// TestWhyThroughTunnels compares answers with packets where nodes reach each other's pods through
// VXLAN, and so send to them from the addresses of their tunnels.
func TestWhyThroughTunnels(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "corners.yaml")
	if err := os.WriteFile(file, []byte(corners), 0o600); err != nil {
		t.Fatal(err)
	}
	l := upLab(t, "testwhytun", file)
	layTunnels(t, l)
	for name, blocks := range map[string]string{
		"nodes":   `{ipBlock: {cidr: 10.10.0.0/24}}, {ipBlock: {cidr: "fd00:10:10::/64"}}`,
		"tunnels": `{ipBlock: {cidr: 10.244.1.0/32}}, {ipBlock: {cidr: 10.244.2.0/32}}, {ipBlock: {cidr: "fd00:10:244:1::/128"}}`,
	} {
		t.Run(name, func(t *testing.T) {
			setPolicies(t, l, []byte(`{apiVersion: networking.k8s.io/v1, kind: NetworkPolicy, metadata: {name: web, namespace: green}, spec: {podSelector: {}, ingress: [{from: [`+blocks+`]}]}}`))
			compareWhy(t, l, inTurn)
		})
	}
}

// layTunnels has each node reach the pods of others through VXLAN. The tunnel has the first address
// of the node's range of pods, as flannel gives it.
func layTunnels(t *testing.T, l *lab.Lab) {
	t.Helper()
	for _, n := range l.Cluster.Nodes {
		run := func(args ...string) {
			t.Helper()
			if out, err := exec.Command("nsenter", append([]string{"--net=/run/netns/" + l.NodeNS(n.Name)}, args...)...).CombinedOutput(); err != nil {
				t.Fatalf("%v: %v: %s", args, err, out)
			}
		}
		run("ip", "link", "add", "vxlan0", "type", "vxlan", "id", "1", "dstport", "8472", "local", n.IPs[0].String())
		for _, r := range n.PodCIDRs {
			run("ip", "address", "add", r.Addr().String(), "dev", "vxlan0", "nodad")
		}
		run("ip", "link", "set", "vxlan0", "up")
		for _, other := range l.Cluster.Nodes {
			if other.Name == n.Name {
				continue
			}
			run("bridge", "fdb", "append", "00:00:00:00:00:00", "dev", "vxlan0", "dst", other.IPs[0].String())
			for _, r := range other.PodCIDRs {
				run("ip", "route", "delete", r.String())
				run("ip", "route", "add", r.String(), "via", r.Addr().String(), "dev", "vxlan0", "onlink")
			}
		}
	}
}
