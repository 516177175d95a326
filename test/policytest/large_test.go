package policytest

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"
)

// largeRows are policies that an API accepts and of which what the kernel takes in one rule, one
// chain or one path of chains is too little. Who only multiplied them out would need thousands to
// millions of rules.
func largeRows(portNames int) []row {
	onlyA := []packet{{"a", "", tcp, "b", 80, "b", ""}, {"c", "", tcp, "b", 80, "", ""}, {"outside", "", udp, "b", 80, "", ""}}
	return []row{
		{name: "exceptions of every length", policies: isolated("b", "in ingress: [{from: ["+
			exceptAround("a", 0, 8)+", "+exceptAround("a", 1, 16)+"]}]"), packets: onlyA},
		{name: "three hundred policies for one pod", policies: many(300, func(i int) string {
			return networkPolicy(fmt.Sprint("p", i), "b", fmt.Sprintf("ingress: [{ports: [{port: %d}]}]", 10_000+i))
		}), packets: []packet{
			{"a", "", tcp, "b", 80, "", ""}, {"a", "", tcp, "b", 10_000, "b", ""}, {"outside", "", tcp, "b", 10_299, "b", ""}, {"a", "", tcp, "b", 10_300, "", ""}}},
		{name: "exclusions of every length at both ends", policies: globalPolicy("x", "default", 1, "b",
			fmt.Sprintf("ingress: [{action: Allow, source: {nets: [10.0.0.0/8], notNets: [%s]}, destination: {notNets: [%s]}}, {action: Allow, source: {nets: [\"fd00::/16\"], notNets: [%s]}, destination: {notNets: [%s]}}]",
				around("a", 0, 8), around("b", 0, 8), around("a", 1, 16), around("b", 1, 16))), packets: onlyA},
		{name: "ports that are excluded by hundreds of names", policies: globalPolicy("x", "default", 1, "b",
			"ingress: [{action: Allow, protocol: TCP, destination: {notPorts: [81, "+strings.Join(list(300, "port-%d"), ", ")+"]}}]"), packets: []packet{
			{"a", "", tcp, "b", 80, "b", ""}, {"a", "", tcp, "b", 81, "", ""}, {"a", "", udp, "b", 80, "", ""}}},
		{name: "forty tiers that pass", policies: many(40, func(i int) string {
			rules := fmt.Sprintf("ingress: [{action: Deny, protocol: TCP, destination: {ports: [%d]}}, {action: Pass, source: {selector: app == 'a'}}, {action: Pass, protocol: UDP, destination: {ports: [80]}}, {action: Allow, protocol: UDP, destination: {ports: [%d]}}, {action: Deny}]", 7000+i, 6000+i)
			if i == 39 {
				rules = "ingress: [{action: Allow, destination: {selector: app == 'b'}}]"
			}
			return tier(fmt.Sprint("t", i), i) + globalPolicy(fmt.Sprintf("t%d.x", i), fmt.Sprint("t", i), 1, "b", rules)
		}), packets: []packet{
			{"a", "", tcp, "b", 80, "b", ""}, {"c", "", tcp, "b", 80, "", ""}, {"c", "", udp, "b", 80, "b", ""}, {"a", "", tcp, "b", 7020, "", ""}, {"a", "", tcp, "b", 7038, "", ""},
			{"c", "", udp, "b", 6000, "b", ""}, {"c", "", udp, "b", 6001, "", ""}}},
		{name: "tiers with many ways to the next", policies: many(13, func(i int) string {
			var passes []string
			for j := range 40 {
				passes = append(passes, fmt.Sprintf("{action: Pass, protocol: TCP, destination: {ports: [%d]}}", 8000+j))
			}
			rules := "ingress: [" + strings.Join(passes, ", ") + ", {action: Deny}]"
			if i == 12 {
				rules = "ingress: [{action: Allow, protocol: TCP, destination: {ports: [8039]}}]"
			}
			return tier(fmt.Sprint("t", i), i) + globalPolicy(fmt.Sprintf("t%d.x", i), fmt.Sprint("t", i), 1, "b", rules)
		}), packets: []packet{{"a", "", tcp, "b", 8039, "b", ""}, {"a", "", tcp, "b", 8038, "", ""}, {"a", "", tcp, "b", 80, "", ""}}},
		{name: "many lengths and many ports at both ends", policies: globalPolicy("x", "default", 1, "b",
			fmt.Sprintf("ingress: [{action: Allow, protocol: TCP, source: {nets: [%s], ports: [%s]}, destination: {nets: [%s], ports: [%s]}}, {action: Allow, protocol: TCP, source: {nets: [%[5]s], ports: [%[2]s]}, destination: {nets: [%[6]s], ports: [%[4]s]}}]",
				towards("a", 0, 8), "'1024:65535', "+strings.Join(list(50, "1%03d"), ", "), towards("b", 0, 8), "80, "+strings.Join(list(50, "port-%d"), ", "), towards("a", 1, 100), towards("b", 1, 100))),
			packets: onlyA},
		{name: "lengths and very many names of ports", policies: isolated("b", fmt.Sprintf("in ingress: [{from: [%s, %s], ports: [{port: 80}, %s]}]",
			blocks(towards("a", 0, 25)), blocks(towards("a", 1, 121)), strings.Join(list(portNames, "{port: p-%d}"), ", "))),
			packets: []packet{{"a", "", tcp, "b", 80, "b", ""}, {"a", "", tcp, "b", 81, "", ""}, {"outside", "", tcp, "b", 80, "", ""}}},
		{name: "ten thousand ranges of ports", policies: isolated("b", "in ingress: [{ports: ["+strings.Join(texts(10_000, func(i int) string {
			return fmt.Sprintf("{port: %d, endPort: %d}", 5*i+1, 5*i+3)
		}), ", ")+"]}]"), packets: []packet{
			{"a", "", tcp, "b", 1, "b", ""}, {"a", "", tcp, "b", 3, "b", ""}, {"a", "", tcp, "b", 5, "", ""}, {"a", "", tcp, "b", 49_998, "b", ""}, {"a", "", tcp, "b", 50_000, "", ""}, {"a", "", udp, "b", 1, "", ""}}},
		{name: "two thousand rules", policies: isolated("b", "in ingress: ["+strings.Join(texts(2000, func(i int) string {
			return fmt.Sprintf("{ports: [{port: %d}], from: [{podSelector: {matchLabels: {app: a}}}]}", 1000+i)
		}), ", ")+"]"), packets: []packet{{"a", "", tcp, "b", 1000, "b", ""}, {"a", "", tcp, "b", 2999, "b", ""}, {"a", "", tcp, "b", 3000, "", ""}, {"c", "", tcp, "b", 1000, "", ""}}},
	}
}

// testLargePolicies follows packets through policies of sizes at which they met the kernel's
// limits.
func testLargePolicies(t *testing.T, p plane) { followRows(t, p, largeRows(p.names)) }

func many(n int, f func(int) string) string { return strings.Join(texts(n, f), "") }

func texts(n int, f func(int) string) (all []string) {
	for i := range n {
		all = append(all, f(i))
	}
	return all
}

func list(n int, format string) []string {
	return texts(n, func(i int) string { return fmt.Sprintf(format, i) })
}

func networkPolicy(name, pod, rules string) string {
	return fmt.Sprintf("---\napiVersion: networking.k8s.io/v1\nkind: NetworkPolicy\nmetadata: {name: %s, namespace: shop}\nspec: {podSelector: {matchLabels: {app: %s}}, %s}\n", name, pod, rules)
}

func tier(name string, order int) string {
	return fmt.Sprintf("---\napiVersion: projectcalico.org/v3\nkind: Tier\nmetadata: {name: %s}\nspec: {order: %d}\n", name, order)
}

func globalPolicy(name, tier string, order int, pod, rules string) string {
	return fmt.Sprintf("---\napiVersion: projectcalico.org/v3\nkind: GlobalNetworkPolicy\nmetadata: {name: %s}\nspec: {tier: %s, order: %d, selector: app == '%s', types: [Ingress], %s}\n", name, tier, order, pod, rules)
}

// siblings are, for each length from one bit more than the given on, the network that has all bits
// of a pod's address but the last: together all of the network but the address.
func siblings(pod string, family, bits int) (all []netip.Prefix) {
	for n := bits + 1; n <= names[pod][family].BitLen(); n++ {
		b := names[pod][family].AsSlice()
		b[(n-1)/8] ^= 0x80 >> ((n - 1) % 8)
		a, _ := netip.AddrFromSlice(b)
		all = append(all, netip.PrefixFrom(a, n).Masked())
	}
	return all
}

func quoted(list []netip.Prefix) string {
	var all []string
	for _, p := range list {
		all = append(all, fmt.Sprintf("%q", p.String()))
	}
	return strings.Join(all, ", ")
}

func around(pod string, family, bits int) string { return quoted(siblings(pod, family, bits)) }

func exceptAround(pod string, family, bits int) string {
	whole, _ := names[pod][family].Prefix(bits)
	return fmt.Sprintf("{ipBlock: {cidr: %q, except: [%s]}}", whole, around(pod, family, bits))
}

// towards are a network of every length from one bit more than the given on, of which that of the
// pod alone is in use here.
func towards(pod string, family, bits int) string {
	other := siblings(pod, family, bits)
	for i, p := range other {
		b := p.Addr().AsSlice()
		b[bits/8-1] ^= 0x20
		a, _ := netip.AddrFromSlice(b)
		other[i] = netip.PrefixFrom(a, p.Bits()).Masked()
	}
	return quoted(append(other, netip.PrefixFrom(names[pod][family], names[pod][family].BitLen())))
}

func blocks(nets string) string {
	return each(strings.Split(nets, ", "), func(n string) string { return "{ipBlock: {cidr: " + n + "}}" })
}

func each(in []string, f func(string) string) string {
	var all []string
	for _, s := range in {
		all = append(all, f(s))
	}
	return strings.Join(all, ", ")
}
