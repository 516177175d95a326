package policytest

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"
)

// testOverlappingNets shows that of networks which hold each other, in a set that a policy asks for
// and in a deny list, those that are left hold as before when one goes
// (projectcalico/calico#13274).
func testOverlappingNets(t *testing.T, p plane) {
	k := p.kernel(t, map[string][2]netip.Addr{"a": names["a"], "b": names["b"], "c": names["c"]})
	// Around each family's address: nothing but it, and two networks that all pods, or all hosts on
	// the outside, are in.
	around := func(host string, which ...int) (nets []string) {
		for _, a := range names[host] {
			for _, w := range which {
				bits := []int{128, 64, 48}[w]
				if a.Is4() {
					bits = []int{32, 24, 16}[w]
				}
				nets = append(nets, netip.PrefixFrom(a, bits).Masked().String())
			}
		}
		return nets
	}
	const alone, near, far = 0, 1, 2
	for _, left := range [][]int{{alone, near, far}, {alone, near}, {alone}, {alone, far}, {far}, {near, far}, {near}, {near, alone}, {}, {alone}} {
		t.Run(fmt.Sprint(left), func(t *testing.T) {
			nets := strings.Join(strings.Fields(fmt.Sprintf("%q", around("a", left...))), ", ")
			k.declare(t, row{denied: around("outside", left...), policies: globalPolicy("x", "default", 1, "b", "ingress: [{action: Allow, source: {selector: role == 'known'}}]") +
				"---\napiVersion: projectcalico.org/v3\nkind: GlobalNetworkSet\nmetadata: {name: known, labels: {role: known}}\nspec: {nets: " + nets + "}\n"})
			where := func(pod string, passes bool) string {
				if passes {
					return pod
				}
				return ""
			}
			wide := len(left) > 1 || len(left) == 1 && left[0] != alone
			for family := range Families {
				k.follow(t, packet{from: "a", proto: tcp, to: "b", port: 80, at: where("b", len(left) > 0)}, family)
				k.follow(t, packet{from: "c", proto: tcp, to: "b", port: 80, at: where("b", wide)}, family)
				k.follow(t, packet{from: "outside", proto: tcp, to: "a", port: 80, at: where("a", len(left) == 0)}, family)
			}
		})
	}
	k.settled(t)
}
