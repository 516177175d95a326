package policytest

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	policyv1beta1 "sigs.k8s.io/network-policy-api/apis/v1beta1"
	"sigs.k8s.io/yaml"

	"sluice.dev/sluice/internal/model"
	"sluice.dev/sluice/internal/policy/verdict"
	"sluice.dev/sluice/internal/source/kinds"
	"sluice.dev/sluice/internal/source/kubeobj"
	"sluice.dev/sluice/internal/state"
	"sluice.dev/sluice/internal/store"
	"sluice.dev/sluice/test/drivertest"
	"sluice.dev/sluice/test/policytest/oracle"
)

// A row is what is declared beside the pods a, b and c, which have their names as the
// label app, in the namespace shop, and what becomes of packets then. The pod d is on the
// node too, but nobody has declared it yet.
type row struct {
	name     string
	services []svc
	policies string   // YAML documents
	denied   []string // addresses and networks on the deny list
	packets  []packet
}

// A svc is a service with one port 80 over TCP and UDP, and its backends' port 80.
type svc struct {
	model.Service
	on string // names of pods
}

// A packet names its sender, its source address if that is another's, and its destination.
type packet struct {
	from, as string
	proto    model.Protocol
	to       string
	port     uint16
	at       string // the host where it arrives; "" if it is dropped
	seen     string // the source that it has there, where it is not the sender's
}

const (
	tcp  = model.TCP
	udp  = model.UDP
	sctp = model.SCTP
	ping = drivertest.Ping
)

// names are the addresses of the rows, by family.
var names = map[string][2]netip.Addr{
	"a": pair("10.244.1.11", "fd00:10:244:1::11"), "b": pair("10.244.1.12", "fd00:10:244:1::12"),
	"c": pair("10.244.1.13", "fd00:10:244:1::13"), "d": pair("10.244.1.14", "fd00:10:244:1::14"),
	"node": [2]netip.Addr(NodeAddresses), "outside": drivertest.Outside,
	"vip": pair("10.96.0.10", "fd00:10:96::10"), "vip2": pair("10.96.0.11", "fd00:10:96::11"), "lb": pair("203.0.113.10", "2001:db8:113::10"),
	"nobody": pair("198.51.100.7", "2001:db8::7"),
}

func pair(v4, v6 string) [2]netip.Addr {
	return [2]netip.Addr{netip.MustParseAddr(v4), netip.MustParseAddr(v6)}
}

func shop() *oracle.Objects {
	o := &oracle.Objects{
		Nodes:      []*corev1.Node{nodeObject(NodeName, NodeAddresses)},
		Namespaces: []*corev1.Namespace{{ObjectMeta: metav1.ObjectMeta{Name: "shop"}}},
	}
	for _, name := range []string{"a", "b", "c"} {
		p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: "shop", Labels: map[string]string{"app": name}}}
		place(p, NodeName, []corev1.PodIP{{IP: names[name][0].String()}, {IP: names[name][1].String()}})
		o.Pods = append(o.Pods, p)
	}
	agent := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "agent", Namespace: "shop", Labels: map[string]string{"app": "agent"}}}
	agent.Spec.HostNetwork = true
	place(agent, NodeName, []corev1.PodIP{{IP: NodeAddresses[0].String()}, {IP: NodeAddresses[1].String()}})
	o.Pods = append(o.Pods, agent)
	return o
}

// isolated is a policy for a pod that allows nothing but what the rules say: the text of "ingress:"
// and "egress:" fields.
func isolated(pod, rules string) string {
	types := "[Ingress, Egress]"
	switch {
	case strings.HasPrefix(rules, "in "):
		types, rules = "[Ingress]", rules[3:]
	case strings.HasPrefix(rules, "out "):
		types, rules = "[Egress]", rules[4:]
	}
	return fmt.Sprintf("---\napiVersion: networking.k8s.io/v1\nkind: NetworkPolicy\nmetadata: {name: %s, namespace: shop}\nspec: {podSelector: {matchLabels: {app: %s}}, policyTypes: %s, %s}\n", pod, pod, types, rules)
}

// clusterPolicy is one for all pods, of what comes from some.
func clusterPolicy(tier, action, from string) string {
	return fmt.Sprintf("---\napiVersion: policy.networking.k8s.io/v1beta1\nkind: ClusterNetworkPolicy\nmetadata: {name: %s}\nspec: {tier: %s, priority: 1, subject: {namespaces: {}}, ingress: [{action: %s, from: [{pods: {namespaceSelector: {}, podSelector: {matchLabels: {%s}}}}]}]}\n", strings.ToLower(tier), tier, action, from)
}

func outsideBlock(direction, key string) string {
	return fmt.Sprintf("%s: [{%s: [{ipBlock: {cidr: 192.168.3.0/24}}, {ipBlock: {cidr: \"fd00:192:168:3::/64\"}}]}]", direction, key)
}

func lbService(s model.Service, on string) svc {
	s.Name = model.Name{Namespace: "shop", Name: "front"}
	return svc{s, on}
}

// calicoPolicy is one of Calico's for a pod, with these rules.
func calicoPolicy(pod, rules string) string {
	return fmt.Sprintf("---\napiVersion: projectcalico.org/v3\nkind: NetworkPolicy\nmetadata: {name: %s, namespace: shop}\nspec: {selector: app == '%s', %s}\n", pod, pod, rules)
}

// icmp isolates a pod except for what a match of ICMP allows, of either family.
func icmp(pod, match4, match6 string) string {
	return calicoPolicy(pod, fmt.Sprintf("types: [Ingress], ingress: [{action: Allow, protocol: ICMP, %s}, {action: Allow, protocol: ICMPv6, %s}]", match4, match6))
}

// hostEndpoint is the node's eth0, and hostPolicy what is in a policy for it.
const hostEndpoint = `---
apiVersion: projectcalico.org/v3
kind: HostEndpoint
metadata: {name: uplink, labels: {role: uplink}}
spec: {node: node, interfaceName: eth0}
`

func hostPolicy(spec string) string {
	return hostEndpoint + "---\napiVersion: projectcalico.org/v3\nkind: GlobalNetworkPolicy\nmetadata: {name: host}\nspec: {selector: role == 'uplink', " + spec + "}\n"
}

func rows() []row {
	return slices.Concat(podRows(), serviceRows(), hostRows())
}

func podRows() []row {
	return []row{
		{name: "nothing is declared but pods", packets: []packet{
			{"a", "", tcp, "b", 80, "b", ""}, {"outside", "", udp, "b", 80, "b", ""}, {"b", "", sctp, "outside", 80, "outside", ""}, {"a", "", ping, "b", 0, "b", ""},
			{"a", "", tcp, "node", 80, "node", ""}, {"node", "", tcp, "a", 80, "a", ""},
		}},
		{name: "addresses that are not the sender's", packets: []packet{
			{"a", "nobody", tcp, "b", 80, "", ""}, {"a", "b", udp, "c", 80, "", ""}, {"a", "nobody", udp, "node", 80, "", ""}, {"a", "b", tcp, "node", 80, "", ""},
			{"a", "node", tcp, "b", 80, "", ""}, {"a", "outside", tcp, "b", 80, "", ""}, {"a", "nobody", sctp, "outside", 80, "", ""}, {"a", "b", ping, "node", 0, "", ""},
			{"outside", "a", tcp, "b", 80, "", ""}, {"outside", "a", tcp, "node", 80, "", ""},
			{"outside", "nobody", tcp, "b", 80, "b", ""},
		}},
		{name: "a pod without rules yet", packets: []packet{
			{"d", "", tcp, "a", 80, "", ""}, {"a", "", tcp, "d", 80, "", ""}, {"outside", "", udp, "d", 80, "", ""}, {"d", "", udp, "outside", 80, "", ""},
			{"d", "", tcp, "node", 80, "", ""}, {"d", "", ping, "a", 0, "", ""},
		}},
		{name: "an isolated pod", policies: isolated("b", "ingress: []"), packets: []packet{
			{"a", "", tcp, "b", 80, "", ""}, {"b", "", tcp, "a", 80, "", ""}, {"a", "", ping, "b", 0, "", ""}, {"b", "", ping, "a", 0, "", ""},
			{"node", "", tcp, "b", 80, "b", ""}, {"node", "", ping, "b", 0, "b", ""}, {"b", "", tcp, "b", 80, "b", ""}, {"b", "", ping, "b", 0, "b", ""},
			{"b", "", tcp, "node", 10250, "", ""}, {"b", "", ping, "node", 0, "", ""}, {"outside", "", tcp, "b", 80, "", ""}, {"b", "", udp, "outside", 53, "", ""},
			{"a", "", tcp, "c", 80, "c", ""},
		}},
		{name: "replies to what an isolated pod may send", policies: isolated("b", "ingress: [], egress: [{to: [{podSelector: {matchLabels: {app: a}}}]}]"), packets: []packet{
			{"b", "", tcp, "a", 80, "a", ""}, {"b", "", udp, "a", 80, "a", ""}, {"b", "", sctp, "a", 80, "a", ""}, {"a", "", tcp, "b", 80, "", ""}, {"b", "", tcp, "c", 80, "", ""},
		}},
		{name: "a rule without ports passes no ICMP", policies: isolated("b", "in ingress: [{}]"), packets: []packet{
			{"a", "", tcp, "b", 80, "b", ""}, {"a", "", sctp, "b", 80, "b", ""}, {"a", "", ping, "b", 0, "", ""},
		}},
		{name: "types of ICMP", policies: icmp("b", "icmp: {type: 8}", "icmp: {type: 128}") + icmp("a", "notICMP: {type: 13}", "notICMP: {type: 1}") + icmp("c", "notICMP: {type: 8}", "notICMP: {type: 128}"), packets: []packet{
			{"a", "", ping, "b", 0, "b", ""}, {"b", "", ping, "a", 0, "a", ""}, {"b", "", ping, "c", 0, "", ""}, {"a", "", tcp, "b", 80, "", ""}, {"b", "", udp, "a", 80, "", ""},
		}},
		{name: "codes of ICMP", policies: icmp("b", "icmp: {type: 8, code: 0}", "icmp: {type: 128, code: 0}") + icmp("a", "icmp: {type: 8, code: 1}", "icmp: {type: 128, code: 1}") + icmp("c", "icmp: {type: 13}", "icmp: {type: 1}"), packets: []packet{
			{"a", "", ping, "b", 0, "b", ""}, {"b", "", ping, "a", 0, "", ""}, {"b", "", ping, "c", 0, "", ""},
		}},
		{name: "egress to the node", policies: isolated("b", "out egress: [{to: [{ipBlock: {cidr: 192.168.1.1/32}}, {ipBlock: {cidr: \"fd00:192:168:1::1/128\"}}], ports: [{port: 53, protocol: UDP}]}]"), packets: []packet{
			{"b", "", udp, "node", 53, "node", ""}, {"b", "", udp, "node", 54, "", ""}, {"b", "", tcp, "node", 53, "", ""}, {"a", "", tcp, "node", 53, "node", ""},
		}},
		{name: "a pod on the host network is left alone", policies: isolated("agent", "ingress: []"), packets: []packet{
			{"outside", "", tcp, "node", 80, "node", ""}, {"node", "", tcp, "outside", 80, "outside", ""}, {"a", "", tcp, "node", 80, "node", ""}, {"node", "", udp, "a", 80, "a", ""},
		}},
		{name: "a policy in a tier that does not exist waits for it", policies: "---\napiVersion: projectcalico.org/v3\nkind: GlobalNetworkPolicy\nmetadata: {name: nowhere.p}\nspec: {tier: nowhere, selector: app == 'b', types: [Ingress], ingress: [{action: Deny}]}\n", packets: []packet{
			{"a", "", tcp, "b", 80, "b", ""}, {"b", "", tcp, "a", 80, "a", ""}, {"a", "", tcp, "c", 80, "c", ""}, {"node", "", tcp, "b", 80, "b", ""},
		}},
		{name: "an admin's Deny comes before NetworkPolicy, which comes before the baseline", policies: isolated("b", "in ingress: [{from: [{podSelector: {}}], ports: [{port: 80}]}]") + clusterPolicy("Admin", "Deny", "app: c") + clusterPolicy("Baseline", "Deny", "app: a"), packets: []packet{
			{"a", "", tcp, "b", 80, "b", ""}, {"c", "", tcp, "b", 80, "", ""}, {"a", "", tcp, "b", 81, "", ""}, {"a", "", tcp, "c", 80, "", ""}, {"c", "", tcp, "a", 80, "", ""},
			{"b", "", tcp, "a", 80, "a", ""}, {"outside", "", tcp, "c", 80, "c", ""}, {"c", "", ping, "a", 0, "", ""},
		}},
		{name: "deny list", denied: []string{"192.168.3.1", "fd00:192:168:3::1"}, packets: []packet{
			{"outside", "", tcp, "b", 80, "", ""}, {"outside", "", tcp, "node", 80, "", ""}, {"outside", "nobody", tcp, "b", 80, "b", ""}, {"a", "", tcp, "b", 80, "b", ""},
		}},
	}
}

func serviceRows() []row {
	vip, lb := []netip.Addr{names["vip"][0], names["vip"][1]}, []netip.Addr{names["lb"][0], names["lb"][1]}
	fromC := "in ingress: [{from: [{podSelector: {matchLabels: {app: c}}}]}]"
	local := model.Service{ClusterIPs: vip, LoadBalancerIPs: lb, ExternalLocal: true, Ports: nodePort}
	cluster := model.Service{ClusterIPs: vip, LoadBalancerIPs: lb, Ports: nodePort}
	ranged := local
	ranged.SourceRanges = []netip.Prefix{netip.MustParsePrefix("192.168.3.0/24"), netip.MustParsePrefix("fd00:192:168:3::/64")}
	barred := local
	barred.SourceRanges = []netip.Prefix{netip.MustParsePrefix("198.51.100.0/24"), netip.MustParsePrefix("2001:db8::/64")}
	inner := model.Service{ClusterIPs: vip, InternalLocal: true}
	return []row{
		{name: "a denied backend behind an allowed service", services: []svc{lbService(cluster, "b")}, policies: isolated("b", fromC), packets: []packet{
			{"a", "", tcp, "vip", 80, "", ""}, {"c", "", tcp, "vip", 80, "b", ""}, {"c", "", udp, "vip", 80, "b", ""}, {"a", "", udp, "vip", 80, "", ""}, {"node", "", tcp, "vip", 80, "b", "node"},
		}},
		{name: "egress sees the backend, not the service", services: []svc{lbService(cluster, "b")}, policies: isolated("a", "out egress: [{to: [{podSelector: {matchLabels: {app: b}}}]}]"), packets: []packet{
			{"a", "", tcp, "vip", 80, "b", ""}, {"a", "", tcp, "b", 80, "b", ""}, {"a", "", tcp, "c", 80, "", ""},
		}},
		{name: "egress to the service's address alone allows nothing", services: []svc{lbService(cluster, "b")}, policies: isolated("a", "out egress: [{to: [{ipBlock: {cidr: 10.96.0.0/16}}, {ipBlock: {cidr: \"fd00:10:96::/112\"}}]}]"), packets: []packet{
			{"a", "", tcp, "vip", 80, "", ""},
		}},
		{name: "hairpin of an isolated pod", services: []svc{lbService(cluster, "b")}, policies: isolated("b", "ingress: []"), packets: []packet{
			{"b", "", tcp, "vip", 80, "b", "node"}, {"a", "", tcp, "vip", 80, "", ""},
		}},
		{name: "load balancer with the client's address kept", services: []svc{lbService(local, "b")}, policies: isolated("b", "in "+outsideBlock("ingress", "from")), packets: []packet{
			{"outside", "", tcp, "lb", 80, "b", ""}, {"outside", "", tcp, "node", 30080, "b", ""}, {"outside", "nobody", tcp, "lb", 80, "", ""}, {"outside", "nobody", udp, "node", 30080, "", ""},
		}},
		{name: "the client's address counts before masquerade", services: []svc{lbService(cluster, "b")}, policies: isolated("b", "in "+outsideBlock("ingress", "from")), packets: []packet{
			{"outside", "", tcp, "node", 30080, "b", "node"}, {"outside", "", udp, "lb", 80, "b", "node"}, {"outside", "nobody", tcp, "node", 30080, "", ""},
		}},
		{name: "source ranges and policy both allow", services: []svc{lbService(ranged, "b")}, policies: isolated("b", "in "+outsideBlock("ingress", "from")), packets: []packet{
			{"outside", "", tcp, "lb", 80, "b", ""}, {"outside", "nobody", tcp, "lb", 80, "", ""},
		}},
		{name: "source ranges forbid what policy allows", services: []svc{lbService(barred, "b")}, policies: isolated("b", "in "+outsideBlock("ingress", "from")), packets: []packet{
			{"outside", "", tcp, "lb", 80, "", ""}, {"outside", "nobody", tcp, "lb", 80, "", ""}, {"outside", "", tcp, "b", 80, "b", ""},
		}},
		{name: "egress to a service's endpoints", services: []svc{lbService(cluster, "b")}, policies: calicoPolicy("a", "egress: [{action: Allow, protocol: TCP, destination: {services: {name: front}}}]"), packets: []packet{
			{"a", "", tcp, "vip", 80, "b", ""}, {"a", "", tcp, "b", 80, "b", ""}, {"a", "", tcp, "b", 81, "", ""}, {"a", "", udp, "b", 80, "", ""}, {"a", "", tcp, "c", 80, "", ""}, {"a", "", ping, "b", 0, "", ""},
			{"c", "", tcp, "b", 81, "b", ""},
		}},
		{name: "its endpoints change, and the policy stays", services: []svc{lbService(cluster, "c")}, policies: calicoPolicy("a", "egress: [{action: Allow, protocol: TCP, destination: {services: {name: front}}}]"), packets: []packet{
			{"a", "", tcp, "vip", 80, "c", ""}, {"a", "", tcp, "c", 80, "c", ""}, {"a", "", tcp, "b", 80, "", ""},
		}},
		{name: "egress to a service's endpoints in all protocols", services: []svc{lbService(cluster, "b")}, policies: calicoPolicy("a", "egress: [{action: Allow, destination: {services: {name: front, namespace: shop}}}]"), packets: []packet{
			{"a", "", udp, "vip", 80, "b", ""}, {"a", "", tcp, "vip", 80, "b", ""}, {"a", "", sctp, "b", 80, "", ""}, {"a", "", udp, "b", 53, "", ""},
		}},
		{name: "egress to all but a service's endpoints", services: []svc{lbService(cluster, "b")}, policies: calicoPolicy("a", "egress: [{action: Deny, destination: {services: {name: front}}}, {action: Allow}]"), packets: []packet{
			{"a", "", tcp, "vip", 80, "", ""}, {"a", "", tcp, "b", 81, "b", ""}, {"a", "", tcp, "c", 80, "c", ""},
		}},
		{name: "ingress from a service's endpoints", services: []svc{lbService(cluster, "b")}, policies: calicoPolicy("a", "ingress: [{action: Allow, source: {services: {name: front}}}]"), packets: []packet{
			{"b", "", tcp, "a", 80, "a", ""}, {"b", "", udp, "a", 99, "a", ""}, {"b", "", ping, "a", 0, "a", ""}, {"c", "", tcp, "a", 80, "", ""}, {"outside", "", tcp, "a", 80, "", ""},
		}},
		{name: "endpoints outside the cluster", services: []svc{lbService(cluster, "outside")}, policies: calicoPolicy("a", "egress: [{action: Allow, destination: {services: {name: front}}}]"), packets: []packet{
			{"a", "", tcp, "vip", 80, "outside", ""}, {"a", "", tcp, "outside", 80, "outside", ""}, {"a", "", tcp, "outside", 81, "", ""}, {"a", "", tcp, "b", 80, "", ""},
		}},
		{name: "a service that does not exist", policies: calicoPolicy("a", "egress: [{action: Allow, destination: {services: {name: front}}}]"), packets: []packet{
			{"a", "", tcp, "b", 80, "", ""}, {"b", "", tcp, "a", 80, "a", ""},
		}},
		{name: "deny list, before services", services: []svc{lbService(cluster, "b")}, denied: []string{"192.168.3.1", "fd00:192:168:3::1"}, packets: []packet{
			{"outside", "", tcp, "lb", 80, "", ""}, {"outside", "", udp, "node", 30080, "", ""}, {"outside", "nobody", udp, "lb", 80, "b", "node"}, {"a", "", tcp, "vip", 80, "b", ""},
		}},
		{name: "internal traffic policy Local", services: []svc{lbService(inner, "b")}, policies: isolated("b", fromC), packets: []packet{
			{"c", "", tcp, "vip", 80, "b", ""}, {"a", "", tcp, "vip", 80, "", ""},
		}},
	}
}

var nodePort = []model.ServicePort{
	{Name: "tcp", Protocol: tcp, Port: 80, NodePort: 30080, TargetPort: 80}, {Name: "udp", Protocol: udp, Port: 80, NodePort: 30080, TargetPort: 80},
}

func hostRows() []row {
	service := model.Service{ClusterIPs: []netip.Addr{names["vip"][0], names["vip"][1]}, Ports: nodePort}
	cluster, beyond := lbService(service, "b"), lbService(service, "outside")
	service.Ports = []model.ServicePort{{Protocol: udp, Port: 53, TargetPort: 53}}
	dns := lbService(service, "outside")
	return []row{
		{name: "host endpoint without policy denies, pods' traffic passes", policies: hostEndpoint, packets: []packet{
			{"outside", "", tcp, "node", 80, "", ""}, {"node", "", tcp, "outside", 8080, "", ""}, {"outside", "", tcp, "a", 80, "a", ""}, {"a", "", tcp, "outside", 80, "outside", ""},
			{"a", "", tcp, "node", 80, "node", ""}, {"node", "", tcp, "a", 80, "a", ""},
		}},
		{name: "host endpoint, input and output", policies: hostPolicy("types: [Ingress, Egress], ingress: [{action: Allow, protocol: TCP, destination: {ports: [80]}}], egress: [{action: Allow, protocol: UDP, destination: {ports: [5353]}}]"), packets: []packet{
			{"outside", "", tcp, "node", 80, "node", ""}, {"outside", "", tcp, "node", 81, "", ""}, {"outside", "", udp, "node", 80, "", ""},
			{"node", "", udp, "outside", 5353, "outside", ""}, {"node", "", tcp, "outside", 5353, "", ""}, {"outside", "", tcp, "a", 81, "a", ""},
		}},
		{name: "host endpoint, output through a service to the node's own pod", services: []svc{cluster}, policies: hostPolicy("types: [Egress], egress: [{action: Allow, protocol: UDP}]"), packets: []packet{
			{"node", "", tcp, "vip", 80, "b", "node"}, {"node", "", tcp, "node", 30080, "b", "node"}, {"node", "", udp, "vip", 80, "b", "node"},
		}},
		{name: "host endpoint, output through a service to the outside", services: []svc{beyond}, policies: hostPolicy("types: [Egress], egress: [{action: Allow, protocol: UDP}]"), packets: []packet{
			{"node", "", tcp, "vip", 80, "", ""}, {"node", "", tcp, "node", 30080, "", ""}, {"node", "", udp, "vip", 80, "outside", "node"}, {"node", "", udp, "node", 30080, "outside", "node"},
			{"a", "", tcp, "vip", 80, "outside", ""}, {"a", "", tcp, "node", 30080, "outside", "node"},
		}},
		{name: "host endpoint, forward", policies: hostPolicy("applyOnForward: true, types: [Ingress], ingress: [{action: Deny, protocol: TCP, destination: {ports: [81]}}, {action: Allow}]"), packets: []packet{
			{"outside", "", tcp, "a", 80, "a", ""}, {"outside", "", tcp, "a", 81, "", ""}, {"a", "", tcp, "outside", 81, "outside", ""}, {"b", "", tcp, "a", 81, "a", ""},
		}},
		{name: "host endpoint, before services", services: []svc{cluster}, policies: hostPolicy("applyOnForward: true, preDNAT: true, types: [Ingress], ingress: [{action: Deny, protocol: TCP, destination: {ports: [30080]}}]"), packets: []packet{
			{"outside", "", tcp, "node", 30080, "", ""}, {"outside", "", udp, "node", 30080, "b", "node"}, {"outside", "", tcp, "b", 80, "b", ""},
		}},
		{name: "host endpoint, untracked", policies: hostPolicy("applyOnForward: true, doNotTrack: true, types: [Ingress, Egress], ingress: [{action: Deny, protocol: UDP, destination: {ports: [81]}}, {action: Allow, protocol: UDP, destination: {ports: [82]}}], egress: [{action: Allow, protocol: UDP, source: {ports: [82]}}]"), packets: []packet{
			{"outside", "", udp, "node", 81, "", ""}, {"outside", "", udp, "a", 81, "", ""}, {"outside", "", udp, "node", 82, "node", ""},
		}},
		{name: "host endpoint, untracked: failsafe ports are tracked", services: []svc{dns}, policies: hostPolicy("applyOnForward: true, doNotTrack: true, types: [Ingress, Egress], ingress: [{action: Deny, protocol: UDP}], egress: [{action: Deny, protocol: UDP}]"), packets: []packet{
			{"a", "", udp, "vip", 53, "outside", ""}, {"node", "", udp, "outside", 53, "outside", ""}, {"a", "", udp, "outside", 53, "outside", ""}, {"outside", "", tcp, "node", 22, "node", ""},
			{"outside", "", tcp, "a", 22, "a", ""}, {"node", "", udp, "outside", 54, "", ""},
		}},
		{name: "host endpoint, untracked: what the node itself sends, and not what it passes on to a service", services: []svc{beyond}, policies: hostPolicy("applyOnForward: true, doNotTrack: true, types: [Egress], egress: [{action: Deny, protocol: UDP}]"), packets: []packet{
			{"a", "", udp, "vip", 80, "outside", ""}, {"a", "", udp, "node", 30080, "outside", "node"}, {"node", "", udp, "vip", 80, "", ""}, {"node", "", udp, "outside", 80, "", ""},
		}},
		{name: "host endpoint, untracked: networks are denied, but for failsafe ports", services: []svc{cluster}, policies: hostPolicy("applyOnForward: true, doNotTrack: true, types: [Ingress], ingress: [{action: Deny, source: {nets: [192.168.3.0/24]}}, {action: Deny, source: {nets: ['fd00:192:168:3::/64']}}]"), packets: []packet{
			{"outside", "", udp, "b", 80, "", ""}, {"outside", "", tcp, "node", 80, "", ""}, {"outside", "", tcp, "vip", 80, "", ""}, {"outside", "", ping, "b", 0, "", ""}, {"outside", "", sctp, "b", 80, "", ""},
			{"outside", "", tcp, "node", 22, "node", ""}, {"outside", "", tcp, "b", 22, "b", ""}, {"outside", "nobody", udp, "b", 80, "b", ""}, {"a", "", udp, "b", 80, "b", ""},
		}},
		{name: "host endpoint, untracked: what is allowed before networks are denied", policies: hostPolicy("applyOnForward: true, doNotTrack: true, types: [Ingress, Egress], ingress: [{action: Allow, protocol: UDP, destination: {ports: [82]}}, {action: Deny, source: {nets: [192.168.3.0/24]}}, {action: Deny, source: {nets: ['fd00:192:168:3::/64']}}], egress: [{action: Allow, protocol: UDP, source: {ports: [82]}}]"), packets: []packet{
			{"outside", "", udp, "node", 82, "node", ""}, {"outside", "", udp, "node", 83, "", ""}, {"outside", "", tcp, "b", 82, "", ""},
		}},
		{name: "host endpoint, untracked: no way past a pod's policy", services: []svc{cluster}, policies: isolated("b", "in ingress: []") + hostPolicy("applyOnForward: true, doNotTrack: true, types: [Ingress], ingress: [{action: Allow, protocol: UDP}]"), packets: []packet{
			{"outside", "nobody", udp, "b", 80, "", ""}, {"outside", "nobody", udp, "vip", 80, "", ""},
		}},
		{name: "host endpoint, untracked: what no rule is about is tracked", services: []svc{cluster}, policies: hostPolicy("applyOnForward: true, doNotTrack: true, types: [Ingress], ingress: [{action: Allow, protocol: UDP}]"), packets: []packet{
			{"outside", "", tcp, "node", 30080, "b", "node"}, {"outside", "", tcp, "b", 80, "b", ""}, {"outside", "", ping, "b", 0, "b", ""},
		}},
	}
}

// testRows follows the packets of every row, in both families. What "why" says must be what the
// kernel does.
func testRows(t *testing.T, p plane) { followRows(t, p, rows()) }

// followRows has a kernel to itself.
func followRows(t *testing.T, p plane, rows []row) {
	pods := map[string][2]netip.Addr{"a": names["a"], "b": names["b"], "c": names["c"], "d": names["d"]}
	k := p.kernel(t, pods)
	for i, r := range rows {
		if !p.cases.has(i) {
			continue
		}
		t.Run(r.name, func(t *testing.T) {
			k.declare(t, r)
			if lacks := k.driver.Capabilities().Issues(k.Compiler.State()); len(lacks) > 0 {
				t.Skipf("the driver does not support this row: %v", lacks)
			}
			for family := range Families {
				for _, p := range r.packets {
					k.follow(t, p, family)
				}
			}
		})
	}
	k.declare(t, row{})
	k.settled(t)
}

// declare makes a row's objects the only ones there are.
func (k *kernel) declare(t testing.TB, r row) {
	t.Helper()
	plan, err := k.driver.Update(t.Context(), k.Apply(k.changes(mustEventsOf(t, r))))
	k.carryOut(t, plan, err)
}

// mustEventsOf are the events of all that a row declares, beside the shop.
func mustEventsOf(t testing.TB, r row) []store.Event {
	t.Helper()
	events := mustEvents(t, shop())
	for document := range strings.SplitSeq(r.policies, "---\n") {
		if strings.TrimSpace(document) != "" {
			events = append(events, policyEvent(t, []byte(document)))
		}
	}
	for _, s := range r.services {
		events = append(events, s.events()...)
	}
	if r.denied != nil {
		set := &model.NetworkSet{Key: model.NetworkSetKey{Kind: model.AddressList, Name: model.Name{Name: DenyList}}, Labels: map[string]string{"sluice.dev/list": DenyList}}
		for _, a := range r.denied {
			net, err := model.ParsePrefix(a)
			if err != nil {
				one := netip.MustParseAddr(a)
				net = netip.PrefixFrom(one, one.BitLen())
			}
			set.Nets = append(set.Nets, net)
		}
		slices.SortFunc(set.Nets, netip.Prefix.Compare)
		events = append(events, store.Event{Kind: model.AddressList, Name: set.Key.Name, Object: set})
	}
	return events
}

// events are those of a service and of its endpoints in both families.
func (s svc) events() []store.Event {
	v := s.Service
	if v.Ports == nil {
		v.Ports = []model.ServicePort{{Name: "tcp", Protocol: tcp, Port: 80, TargetPort: 80}, {Name: "udp", Protocol: udp, Port: 80, TargetPort: 80}}
	}
	events := []store.Event{{Kind: model.ServiceKind, Name: v.Name, Object: &v}}
	for _, f := range Families {
		slice := &model.EndpointSlice{Name: model.Name{Namespace: v.Name.Namespace, Name: fmt.Sprint(v.Name.Name, "-", f)}, Service: v.Name.Name}
		for _, p := range v.Ports {
			slice.Ports = append(slice.Ports, model.EndpointPort{Name: p.Name, Protocol: p.Protocol, Port: p.TargetPort})
		}
		for pod := range strings.FieldsSeq(s.on) {
			slice.Endpoints = append(slice.Endpoints, model.Endpoint{Addr: names[pod][f], Ready: true, Serving: true, Node: NodeName})
		}
		events = append(events, store.Event{Kind: model.EndpointSliceKind, Name: slice.Name, Object: slice})
	}
	return events
}

// policyEvent takes a policy, or what belongs to one, of any of the three APIs.
func policyEvent(t testing.TB, document []byte) store.Event {
	t.Helper()
	var kind metav1.TypeMeta
	if err := yaml.Unmarshal(document, &kind); err != nil {
		t.Fatal(err)
	}
	var p *model.Policy
	var err error
	switch kind.APIVersion {
	case "networking.k8s.io/v1":
		var np networkingv1.NetworkPolicy
		if err := yaml.UnmarshalStrict(document, &np); err != nil {
			t.Fatal(err)
		}
		p, err = kubeobj.NetworkPolicy(&np)
	case "policy.networking.k8s.io/v1beta1":
		var cnp policyv1beta1.ClusterNetworkPolicy
		if err := yaml.UnmarshalStrict(document, &cnp); err != nil {
			t.Fatal(err)
		}
		p, err = kubeobj.ClusterNetworkPolicy(&cnp)
	default:
		return calicoEvent(t, kind, document)
	}
	if err != nil {
		t.Fatal(err)
	}
	return ofPolicy(p)
}

func calicoEvent(t testing.TB, kind metav1.TypeMeta, document []byte) store.Event {
	t.Helper()
	json, err := yaml.YAMLToJSON(document)
	if err != nil {
		t.Fatal(err)
	}
	for _, k := range kinds.All {
		isAt := func(p kinds.Resource) bool { return p.APIVersion() == kind.APIVersion }
		if k.Name != kind.Kind || !slices.ContainsFunc(k.Places, isAt) {
			continue
		}
		o, err := k.Decode(kinds.Text{Data: json})
		if err != nil {
			t.Fatalf("%v\n%s", err, document)
		}
		return store.Event{Kind: k.Kind, Name: o.Ref().Name, Object: o}
	}
	t.Fatalf("%v is no kind that is known", kind)
	return store.Event{}
}

func ofPolicy(p *model.Policy) store.Event {
	return store.Event{Kind: p.Key.Kind, Name: p.Key.Name, Object: p}
}

// follow sends one packet and compares where it went with what is expected and with what "why"
// says.
func (k *kernel) follow(t *testing.T, p packet, family int) {
	t.Helper()
	from := p.from
	if p.as != "" {
		from = p.as
	}
	sent := drivertest.Packet{Host: p.from, From: names[from][family], To: names[p.to][family], Protocol: p.proto, Port: p.port}
	trail, err := k.mesh.Trace(sent)
	if err != nil {
		t.Fatal(err)
	}
	seen := from
	if p.seen != "" {
		seen = p.seen
	}
	answered := p.at != "" && p.as == "" || p.at != "" && trail.Answered
	if trail.At != p.at || p.at != "" && (trail.Seen != names[seen][family] || trail.Answered != answered) {
		t.Errorf("%+v: %+v", p, trail)
	}
	if p.as != "" {
		if allowed := k.arrives(sent); allowed != (p.at != "") {
			t.Errorf("%+v: the kernel's trail is %+v, but the walk allows it: %v", p, trail, allowed)
		}
	} else {
		if answer := k.why(sent); (answer.Outcome == verdict.Allowed) != (p.at != "") || answer.Outcome == verdict.Unknown {
			t.Errorf("%+v: the kernel's trail is %+v, but why says %+v", p, trail, answer)
		}
	}
}

// arrives walks the stages of a packet that comes in by its sender's interface, whatever source
// address it claims to have.
func (k *kernel) arrives(p drivertest.Packet) bool {
	device, _ := k.route(drivertest.Outside[0])
	if p.Host != "outside" {
		device, _ = k.route(names[p.Host][0])
	}
	f := verdict.Flow{Source: p.From, Destination: p.To, Protocol: uint8(p.Protocol), SourcePort: 40000, DestinationPort: p.Port}
	policy := k.Policy()
	steps := verdict.Arrive(policy, f, device)
	key := state.FrontendKey{Addr: p.To, Protocol: p.Protocol, Port: p.Port}
	if service := k.Compiler.State().Services.Frontends[key]; service != nil { // they have one backend each
		if len(service.SourceRanges) > 0 && !slices.ContainsFunc(service.SourceRanges, func(r netip.Prefix) bool { return r.Contains(p.From) }) {
			return false
		}
		f.Destination, f.DestinationPort = service.Backends[0].Addr(), service.Backends[0].Port()
	}
	if slices.Contains(NodeAddresses, f.Destination) {
		steps = append(steps, verdict.Input(policy, f, device)...)
	} else {
		steps = append(steps, verdict.Forward(policy, f, device, 0)...)
	}
	_, denied := verdict.Denial(steps)
	return !denied
}

func (k *kernel) why(p drivertest.Packet) verdict.Answer {
	proto := uint8(p.Protocol)
	q := verdict.Question{From: p.From, To: p.To, Protocol: proto, FromPort: 40000, Port: p.Port}
	if p.Protocol == ping {
		q.ICMPType = 8
		if p.To.Is6() {
			q.Protocol, q.ICMPType = 58, 128
		}
	}
	node := &verdict.Node{State: k.Compiler.State(), Route: func(a netip.Addr) verdict.Way {
		device, own := k.route(a)
		return verdict.Way{Device: device, Own: own}
	}}
	c := verdict.Cluster{
		Here: "node", Nodes: map[string]*verdict.Node{"node": node},
		Home: func(netip.Addr) string { return "" }, Object: func(netip.Addr) model.Ref { return model.Ref{} },
	}
	return c.Why(q)
}

// route is what the node's kernel would say of an address.
func (k *kernel) route(a netip.Addr) (device int, own bool) {
	if slices.Contains(k.links.Local, a) {
		return 0, true
	}
	for _, r := range k.links.Routes {
		if r.Prefix.IsSingleIP() && r.Prefix.Contains(a) {
			return r.Link, false
		}
	}
	for _, l := range k.links.Links {
		if l.Name == "eth0" {
			return l.Index, false
		}
	}
	return 0, false
}
