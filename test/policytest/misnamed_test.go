package policytest

import (
	"net/netip"
	"testing"

	corev1 "k8s.io/api/core/v1"
)

// While no Node has this node's name, pods of which nothing is declared are not cut off, and those
// that are known keep to their policies. Once the node is known, so are its pods, and all others
// are cut off.
func testMisnamedNodePackets(t *testing.T, p plane) {
	pods := map[string][2]netip.Addr{"a": names["a"], "b": names["b"], "c": names["c"], "d": names["d"]}
	k := p.kernel(t, pods)
	for _, step := range []struct {
		name    string
		node    string
		packets []packet
	}{
		{"another node's name", NodeName + "-not", []packet{
			{"d", "", tcp, "a", 80, "a", ""}, {"a", "", udp, "d", 80, "d", ""}, {"outside", "", tcp, "d", 80, "d", ""}, {"d", "", tcp, "node", 80, "node", ""},
			{"d", "", tcp, "b", 80, "", ""}, {"a", "", tcp, "b", 80, "", ""}, {"outside", "", udp, "b", 80, "", ""},
		}},
		{"its own name", NodeName, []packet{
			{"d", "", tcp, "a", 80, "", ""}, {"a", "", udp, "d", 80, "", ""}, {"outside", "", tcp, "d", 80, "", ""}, {"d", "", tcp, "node", 80, "", ""},
			{"a", "", tcp, "b", 80, "", ""}, {"a", "", tcp, "c", 80, "c", ""},
		}},
	} {
		t.Run(step.name, func(t *testing.T) {
			o := shop()
			o.Nodes = []*corev1.Node{nodeObject(step.node, NodeAddresses)}
			events := append(mustEvents(t, o), policyEvent(t, []byte(isolated("b", "ingress: []"))))
			plan, err := k.driver.Update(t.Context(), k.Apply(k.changes(events)))
			k.carryOut(t, plan, err)
			for family := range Families {
				for _, p := range step.packets {
					k.follow(t, p, family)
				}
			}
		})
	}
	k.settled(t)
}
