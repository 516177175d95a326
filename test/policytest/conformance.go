package policytest

import (
	"bytes"
	_ "embed"
	"errors"
	"fmt"
	"net/netip"
	"strconv"
	"strings"
	"text/template"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	policyv1beta1 "sigs.k8s.io/network-policy-api/apis/v1beta1"
	suite "sigs.k8s.io/network-policy-api/conformance"
	"sigs.k8s.io/yaml"

	"sluice.dev/sluice/test/policytest/oracle"
)

//go:embed data/conformance.yaml
var conformanceData []byte

// conformanceTest is a test of the suite as it is written in data/conformance.yaml.
type conformanceTest struct {
	Test     string
	Manifest string
	Steps    []struct {
		Name       string
		Change     []string
		Pass, Drop []string
	}
}

// hostPorts are the ports that pods on the host network serve in the suite.
var hostPorts = []int{36000, 36001, 36002, 36003, 36004, 36005, 36006, 36007}

// Conformance returns the tests of the network-policy-api conformance suite: its own
// manifests, from the module itself, with what its tests change and expect.
func Conformance() ([]Scenario, error) {
	var tests []conformanceTest
	if err := yaml.UnmarshalStrict(conformanceData, &tests); err != nil {
		return nil, fmt.Errorf("read the conformance tests: %w", err)
	}
	base := &oracle.Objects{}
	if err := load(base, "base/manifests.yaml"); err != nil {
		return nil, err
	}
	var out []Scenario
	for _, t := range tests {
		o := clone(base)
		if err := load(o, t.Manifest); err != nil {
			return nil, err
		}
		s := Scenario{Name: t.Test}
		for _, step := range t.Steps {
			o = clone(o)
			for _, change := range step.Change {
				if err := alter(o, change); err != nil {
					return nil, fmt.Errorf("change %q of test %s: %w", change, t.Test, err)
				}
			}
			next := Step{Name: step.Name, Objects: o}
			for allowed, lines := range map[bool][]string{true: step.Pass, false: step.Drop} {
				for _, l := range lines {
					p, err := probeLine(o, l, allowed)
					if err != nil {
						return nil, fmt.Errorf("read probe %q of test %s: %w", l, t.Test, err)
					}
					next.Probes = append(next.Probes, p)
				}
			}
			s.Steps = append(s.Steps, next)
		}
		out = append(out, s)
	}
	return out, nil
}

// load adds the objects of one of the suite's manifests.
func load(o *oracle.Objects, file string) error {
	text, err := suite.Manifests.ReadFile(file)
	if err != nil {
		return fmt.Errorf("read the suite's %s: %w", file, err)
	}
	t, err := template.New(file).Parse(string(text))
	if err != nil {
		return fmt.Errorf("read the suite's %s: %w", file, err)
	}
	var filled bytes.Buffer
	if err := t.Execute(&filled, map[string]any{"HostNetworkPorts": hostPorts}); err != nil {
		return fmt.Errorf("fill in the suite's %s: %w", file, err)
	}
	for document := range bytes.SplitSeq(filled.Bytes(), []byte("\n---\n")) {
		if err := add(o, document); err != nil {
			return fmt.Errorf("read the suite's %s: %w", file, err)
		}
	}
	return nil
}

// add takes one object from its YAML.
func add(o *oracle.Objects, document []byte) error {
	var kind metav1.TypeMeta
	if err := yaml.Unmarshal(document, &kind); err != nil {
		return err
	}
	switch kind.Kind {
	case "Namespace":
		return decode(document, &o.Namespaces)
	case "NetworkPolicy":
		return decode(document, &o.NetworkPolicies)
	case "ClusterNetworkPolicy":
		return decode(document, &o.ClusterPolicies)
	case "StatefulSet":
		var sets []*appsv1.StatefulSet
		if err := decode(document, &sets); err != nil {
			return err
		}
		replicas(o, sets[0])
		return nil
	}
	return fmt.Errorf("unexpected kind %q", kind.Kind)
}

func decode[T any](document []byte, to *[]*T) error {
	v := new(T)
	*to = append(*to, v)
	return yaml.UnmarshalStrict(document, v)
}

// replicas adds the pods of a stateful set. Those on the host network are each on a node of its
// own.
func replicas(o *oracle.Objects, s *appsv1.StatefulSet) {
	for i := range int(*s.Spec.Replicas) {
		p := &corev1.Pod{ObjectMeta: *s.Spec.Template.ObjectMeta.DeepCopy(), Spec: *s.Spec.Template.Spec.DeepCopy()}
		p.Name, p.Namespace = fmt.Sprintf("%s-%d", s.Name, i), s.Namespace
		p.Labels[appsv1.StatefulSetPodNameLabel] = p.Name
		if !p.Spec.HostNetwork {
			place(p, NodeName, podAddresses(len(o.Pods)+1))
			o.Pods = append(o.Pods, p)
			continue
		}
		node, addresses := NodeName, NodeAddresses
		if i > 0 {
			node = fmt.Sprint("remote-", i)
			addresses = []netip.Addr{netip.AddrFrom4([4]byte{192, 168, 2, byte(i)}), netip.MustParseAddr(fmt.Sprintf("fd00:192:168:2::%d", i))}
		}
		o.Nodes = append(o.Nodes, nodeObject(node, addresses))
		place(p, node, []corev1.PodIP{{IP: addresses[0].String()}, {IP: addresses[1].String()}})
		o.Pods = append(o.Pods, p)
	}
}

// alter makes one change of a step: "swap POLICY DIRECTION I J" of two rules,
// "pass POLICY DIRECTION I", "named-port POLICY DIRECTION I NAME", "priority POLICY N",
// "allow-networks POLICY POD…" as a new first rule, "delete NetworkPolicy", "label POD KEY=VALUE",
// or of a namespace; without a value, the label goes.
func alter(o *oracle.Objects, change string) error {
	f := strings.Fields(change)
	if change == "delete NetworkPolicy" {
		o.NetworkPolicies = nil
		return nil
	}
	if f[0] == "label" {
		return label(o, f[1], f[2])
	}
	p, err := replaceable(o, f[1])
	if err != nil {
		return err
	}
	if f[0] == "allow-networks" {
		return allowNetworks(o, p, f[2:])
	}
	var numbers []int
	for _, s := range f[2:] {
		if n, err := strconv.Atoi(s); err == nil {
			numbers = append(numbers, n)
		}
	}
	if f[0] == "priority" {
		p.Spec.Priority = int32(numbers[0])
		return nil
	}
	in, out := p.Spec.Ingress, p.Spec.Egress
	named := []policyv1beta1.ClusterNetworkPolicyProtocol{{DestinationNamedPort: f[len(f)-1]}}
	switch f[0] + " " + f[2] {
	case "swap ingress":
		in[numbers[0]], in[numbers[1]] = in[numbers[1]], in[numbers[0]]
	case "swap egress":
		out[numbers[0]], out[numbers[1]] = out[numbers[1]], out[numbers[0]]
	case "pass ingress":
		in[numbers[0]].Action = policyv1beta1.ClusterNetworkPolicyRuleActionPass
	case "pass egress":
		out[numbers[0]].Action = policyv1beta1.ClusterNetworkPolicyRuleActionPass
	case "named-port ingress":
		in[numbers[0]].Protocols = named
	case "named-port egress":
		out[numbers[0]].Protocols = named
	default:
		return errors.New("no such change is known")
	}
	return nil
}

// replaceable returns a copy of the policy, which takes its place.
func replaceable(o *oracle.Objects, name string) (*policyv1beta1.ClusterNetworkPolicy, error) {
	for i, p := range o.ClusterPolicies {
		if p.Name == name {
			o.ClusterPolicies[i] = p.DeepCopy()
			return o.ClusterPolicies[i], nil
		}
	}
	return nil, errors.New("there is no such policy")
}

// label gives a label to a copy of the pod or namespace, which takes its place, or takes one away.
func label(o *oracle.Objects, name, text string) error {
	var labels map[string]string
	for i, p := range o.Pods {
		if p.Name == name {
			o.Pods[i] = p.DeepCopy()
			labels = o.Pods[i].Labels
		}
	}
	for i, n := range o.Namespaces {
		if n.Name == name {
			o.Namespaces[i] = n.DeepCopy()
			labels = o.Namespaces[i].Labels
		}
	}
	if labels == nil {
		return errors.New("there is no such pod or namespace")
	}
	key, value, set := strings.Cut(text, "=")
	if labels[key] = value; !set {
		delete(labels, key)
	}
	return nil
}

func allowNetworks(o *oracle.Objects, p *policyv1beta1.ClusterNetworkPolicy, pods []string) error {
	rule := policyv1beta1.ClusterNetworkPolicyEgressRule{
		Name: "allow-egress-to-specific-podIPs", Action: policyv1beta1.ClusterNetworkPolicyRuleActionAccept,
		To: []policyv1beta1.ClusterNetworkPolicyEgressPeer{{}},
	}
	for _, pod := range o.Pods {
		for _, name := range pods {
			for _, ip := range pod.Status.PodIPs {
				if a := netip.MustParseAddr(ip.IP); pod.Name == name {
					rule.To[0].Networks = append(rule.To[0].Networks, policyv1beta1.CIDR(netip.PrefixFrom(a, a.BitLen()).String()))
				}
			}
		}
	}
	if len(rule.To[0].Networks) != 2*len(pods) {
		return errors.New("there is no such pod")
	}
	p.Spec.Egress = append([]policyv1beta1.ClusterNetworkPolicyEgressRule{rule}, p.Spec.Egress...)
	return nil
}

func probeLine(o *oracle.Objects, line string, allowed bool) (Probe, error) {
	f := strings.Fields(line)
	if len(f) != 4 {
		return Probe{}, errors.New("want client, server, protocol and port")
	}
	p := Probe{Protocol: corev1.Protocol(strings.ToUpper(f[2])), Allowed: allowed}
	for _, pod := range o.Pods {
		switch pod.Name {
		case f[0]:
			p.From = pod.Namespace + "/" + pod.Name
		case f[1]:
			p.To = pod.Namespace + "/" + pod.Name
		}
	}
	number, onHost := strings.CutPrefix(f[3], "host")
	port, err := strconv.Atoi(number)
	if onHost {
		port = hostPorts[port]
	}
	p.Port = int32(port)
	return p, err
}
