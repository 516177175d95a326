package policytest

import (
	"iter"
	"net/netip"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	policyv1beta1 "sigs.k8s.io/network-policy-api/apis/v1beta1"

	"sluice.dev/sluice/test/policytest/oracle"
)

// TestScenarios puts every scenario to the product: what the tests that it comes
// from expect, and the full truth table as the oracle sees it, in both families.
func TestScenarios(t *testing.T) {
	t.Parallel()
	for name, s := range scenarios(t) {
		t.Run(name, func(t *testing.T) {
			product := NewProduct(LinksOf(s.Steps[0].Objects))
			for _, step := range s.Steps {
				if _, err := product.Set(step.Objects); err != nil {
					t.Fatal(err)
				}
				if experimental(step.Objects) {
					refusesNodes(t, product, step.Objects)
					continue
				}
				checkProbes(t, product, step)
				checkTable(t, product, step.Objects)
			}
		})
	}
}

func checkProbes(t *testing.T, product *Product, step Step) {
	t.Helper()
	for _, p := range step.Probes {
		for _, f := range Families {
			c := p.Connection(step.Objects, f)
			if got := product.Allowed(c); got != p.Allowed {
				t.Errorf("%s: %v (%v): got %v, want %v\n%+v", step.Name, p, c.To, got, p.Allowed, product.Walk(c))
			}
		}
	}
}

// checkTable compares all pairs of pods with the oracle, on the ports that policies of the
// scenarios know and one that none does.
func checkTable(t *testing.T, product *Product, o *oracle.Objects) {
	t.Helper()
	for c, want := range truth(o) {
		if got := product.Allowed(c); got != want {
			t.Errorf("%+v: got %v, the oracle says %v\n%+v", c, got, want, product.Walk(c))
		}
	}
}

var tablePorts = []int32{53, 80, 81, 443, 5353, 8080, 9003, 9005}

// truthTable is every connection between two of the pods, protocols, ports and families.
func truthTable(o *oracle.Objects, ports []int32) iter.Seq[oracle.Connection] {
	return func(yield func(oracle.Connection) bool) {
		for _, proto := range Protocols {
			for _, port := range ports {
				for c := range between(o, proto, port) {
					if !yield(c) {
						return
					}
				}
			}
		}
	}
}

// between are the connections of all pairs of pods to a port, in both families. Their numbers go up
// by one with each sender, each destination and the family.
func between(o *oracle.Objects, proto corev1.Protocol, port int32) iter.Seq2[oracle.Connection, int] {
	var addresses [2][]netip.Addr
	for _, name := range PodNames(o) {
		for _, f := range Families {
			addresses[f] = append(addresses[f], Address(o, name, f))
		}
	}
	return func(yield func(oracle.Connection, int) bool) {
		for _, f := range Families {
			for i, from := range addresses[f] {
				for j, to := range addresses[f] {
					if !yield(oracle.Connection{From: from, To: to, Protocol: proto, Port: port}, f+i+j) {
						return
					}
				}
			}
		}
	}
}

// experimental reports whether a policy has node peers, an experimental field of the
// API that Sluice refuses.
func experimental(o *oracle.Objects) bool {
	return slices.ContainsFunc(o.ClusterPolicies, func(p *policyv1beta1.ClusterNetworkPolicy) bool {
		return slices.ContainsFunc(p.Spec.Egress, func(r policyv1beta1.ClusterNetworkPolicyEgressRule) bool {
			return slices.ContainsFunc(r.To, func(peer policyv1beta1.ClusterNetworkPolicyEgressPeer) bool { return peer.Nodes != nil })
		})
	})
}

// refusesNodes checks that a policy with node peers is named, with the reason, and denies.
func refusesNodes(t *testing.T, product *Product, o *oracle.Objects) {
	t.Helper()
	refused := 0
	for _, v := range product.Compiler.Policy.Views() {
		if strings.Contains(v.Refused, "nodes") {
			refused++
		}
	}
	if refused != 1 {
		t.Errorf("%d policies are refused for their node peers, want 1", refused)
	}
	for _, to := range []string{"network-policy-conformance-ravenclaw/luna-lovegood-0", "network-policy-conformance-forbidden-forrest/centaur-1"} {
		c := Probe{From: "network-policy-conformance-gryffindor/harry-potter-1", To: to, Protocol: corev1.ProtocolTCP, Port: 80}.Connection(o, 0)
		if product.Allowed(c) {
			t.Errorf("%+v passes a policy that is refused", c)
		}
	}
}
