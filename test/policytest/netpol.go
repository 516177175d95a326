package policytest

import (
	_ "embed"
	"fmt"
	"maps"
	"path"
	"regexp"
	"slices"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/yaml"

	"sluice.dev/sluice/test/policytest/oracle"
)

//go:embed data/netpol.yaml
var netpolData []byte

// netpolCase is a case as it is written in data/netpol.yaml.
type netpolCase struct {
	Name  string
	Steps []struct {
		Apply []struct {
			Name, Namespace string
			Spec            networkingv1.NetworkPolicySpec
		}
		Delete          []string
		LabelNamespaces map[string]map[string]string
		LabelPods       map[string]map[string]string
		Tables          []table
	}
}

// A table is what is expected of each pair of pods on a protocol and port.
type table struct {
	At    string
	Lines []string
}

// The pods of the cases, and the ports that each serves with each protocol.
var (
	netpolNamespaces = []string{"x", "y", "z"}
	netpolPods       = []string{"a", "b", "c"}
	NetpolPorts      = []int32{80, 81}
	Protocols        = []corev1.Protocol{corev1.ProtocolTCP, corev1.ProtocolUDP, corev1.ProtocolSCTP}
)

// Netpol returns the 48 cases of Kubernetes' end-to-end tests of NetworkPolicy.
func Netpol() ([]Scenario, error) {
	var cases []netpolCase
	if err := yaml.UnmarshalStrict(netpolData, &cases); err != nil {
		return nil, fmt.Errorf("read the netpol cases: %w", err)
	}
	var out []Scenario
	for _, c := range cases {
		s := Scenario{Name: c.Name}
		o := NetpolCluster()
		for i, step := range c.Steps {
			o = clone(o)
			for _, p := range step.Apply {
				np := &networkingv1.NetworkPolicy{ObjectMeta: metav1.ObjectMeta{Name: p.Name, Namespace: p.Namespace}, Spec: p.Spec}
				applyNetworkPolicy(o, np)
			}
			for _, name := range step.Delete {
				o.NetworkPolicies = slices.DeleteFunc(o.NetworkPolicies, func(np *networkingv1.NetworkPolicy) bool { return np.Namespace+"/"+np.Name == name })
			}
			relabel(o, step.LabelNamespaces, step.LabelPods)
			probes, err := expand(step.Tables)
			if err != nil {
				return nil, fmt.Errorf("read case %q: %w", c.Name, err)
			}
			s.Steps = append(s.Steps, Step{Name: fmt.Sprint("step ", i+1), Objects: o, Probes: probes})
		}
		out = append(out, s)
	}
	return out, nil
}

// NetpolCluster is the cluster of the cases before there is any policy.
func NetpolCluster() *oracle.Objects {
	o := &oracle.Objects{Nodes: []*corev1.Node{nodeObject(NodeName, NodeAddresses)}}
	for i, ns := range netpolNamespaces {
		o.Namespaces = append(o.Namespaces, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: ns, Labels: map[string]string{corev1.LabelMetadataName: ns}}})
		for j, name := range netpolPods {
			p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: ns, Labels: map[string]string{"pod": name}}}
			for _, port := range NetpolPorts {
				for _, proto := range Protocols {
					p.Spec.Containers = append(p.Spec.Containers, corev1.Container{
						Name: fmt.Sprintf("cont-%d-%s", port, strings.ToLower(string(proto))),
						Ports: []corev1.ContainerPort{{
							Name: fmt.Sprintf("serve-%d-%s", port, strings.ToLower(string(proto))), ContainerPort: port, Protocol: proto,
						}},
					})
				}
			}
			place(p, NodeName, podAddresses(10*(i+1)+j+1))
			o.Pods = append(o.Pods, p)
		}
	}
	return o
}

// PodNames are "namespace/name" of the cluster's pods that have a network of their own.
func PodNames(o *oracle.Objects) (names []string) {
	for _, p := range o.Pods {
		if !p.Spec.HostNetwork {
			names = append(names, p.Namespace+"/"+p.Name)
		}
	}
	return names
}

var podAddress = regexp.MustCompile(`\{(\S+) ([46])\}`)

// applyNetworkPolicy creates or replaces a policy. "{x/a 4}" in an address block is
// the IPv4 address of the pod a in x. The API server fills in policyTypes.
func applyNetworkPolicy(o *oracle.Objects, np *networkingv1.NetworkPolicy) {
	if np.Namespace == "" {
		np.Namespace = netpolNamespaces[0]
	}
	resolve := func(s string) string {
		return podAddress.ReplaceAllStringFunc(s, func(m string) string {
			part := podAddress.FindStringSubmatch(m)
			return Address(o, part[1], map[string]int{"4": 0, "6": 1}[part[2]]).String()
		})
	}
	for _, r := range np.Spec.Egress {
		for _, peer := range r.To {
			if peer.IPBlock != nil {
				peer.IPBlock.CIDR = resolve(peer.IPBlock.CIDR)
				for i := range peer.IPBlock.Except {
					peer.IPBlock.Except[i] = resolve(peer.IPBlock.Except[i])
				}
			}
		}
	}
	same := func(old *networkingv1.NetworkPolicy) bool {
		return old.Namespace == np.Namespace && old.Name == np.Name
	}
	o.NetworkPolicies = append(slices.DeleteFunc(o.NetworkPolicies, same), np)
}

func relabel(o *oracle.Objects, namespaces, pods map[string]map[string]string) {
	for i, ns := range o.Namespaces {
		if more := namespaces[ns.Name]; more != nil {
			o.Namespaces[i] = ns.DeepCopy()
			maps.Copy(o.Namespaces[i].Labels, more)
		}
	}
	for i, p := range o.Pods {
		if more := pods[p.Namespace+"/"+p.Name]; more != nil {
			o.Pods[i] = p.DeepCopy()
			maps.Copy(o.Pods[i].Labels, more)
		}
	}
}

// expand writes tables out in full. A pod always reaches itself, which the
// tests that the cases come from do not look at.
func expand(tables []table) (probes []Probe, err error) {
	pods := PodNames(NetpolCluster())
	for _, t := range tables {
		protocol, number, _ := strings.Cut(t.At, " ")
		port, err := strconv.Atoi(number)
		if err != nil {
			return nil, fmt.Errorf("read table %q: %w", t.At, err)
		}
		for _, from := range pods {
			for _, to := range pods {
				allowed, err := t.expects(from, to)
				if err != nil {
					return nil, err
				}
				probes = append(probes, Probe{from, to, corev1.Protocol(protocol), int32(port), allowed || from == to})
			}
		}
	}
	return probes, nil
}

func (t table) expects(from, to string) (bool, error) {
	allowed := true
	for _, l := range t.Lines {
		f := strings.Fields(l)
		if len(f) != 4 || f[0] != "allow" && f[0] != "deny" || f[2] != ">" {
			return false, fmt.Errorf("read line %q: want \"allow FROM > TO\" or \"deny FROM > TO\"", l)
		}
		if fits(f[1], from) && fits(f[3], to) {
			allowed = f[0] == "allow"
		}
	}
	return allowed, nil
}

// fits: "*" is every pod, "x/*" those of a namespace.
func fits(pattern, pod string) bool {
	if pattern == "*" {
		return true
	}
	ok, err := path.Match(pattern, pod)
	return ok && err == nil
}
