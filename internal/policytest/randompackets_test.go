package policytest

import (
	"flag"
	"net/netip"
	"slices"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/yaml"

	"sluice.dev/sluice/internal/driver/drivertest"
	"sluice.dev/sluice/internal/policytest/oracle"
	"sluice.dev/sluice/internal/verdict"
)

var kernels = flag.Int("kernels", 40, "how many random clusters to try with real packets")

// TestRandomPackets gives the kernel one random cluster after the other, each as a change of the one before. On
// every first packet between pods, those that nobody has declared included, the node and the
// world outside, the kernel, the oracle and "why" must agree.
func TestRandomPackets(t *testing.T) {
	pods := map[string][2]netip.Addr{}
	for i := range 9 {
		ips := podAddresses(i + 1)
		pods[string(rune('a'+i))] = pair(ips[0].IP, ips[1].IP)
	}
	k := openKernel(t, "rand", pods)
	for seed := range uint64(*kernels) {
		o := newDice(1_000_000 + seed).cluster()
		k.set(t, o)
		if k.disagrees(t, o, everywhere(pods)) {
			text, _ := yaml.Marshal(o)
			t.Fatalf("seed %d:\n%s", seed, text)
		}
	}
	k.settled(t)
}

// everywhere is every first packet from pods and the outside to those and the node.
func everywhere(pods map[string][2]netip.Addr) (firsts []drivertest.First) {
	for family := range Families {
		from := []netip.Addr{drivertest.Outside[family]}
		for _, p := range pods {
			from = append(from, p[family])
		}
		to := append(slices.Clone(from), NodeAddresses[family])
		for _, a := range from {
			for _, b := range to {
				for _, proto := range Protocols {
					for _, port := range []uint16{53, 80, 8080} {
						firsts = append(firsts, drivertest.First{From: a, To: b, Protocol: numbers[proto], Port: port})
					}
				}
			}
		}
	}
	return firsts
}

func (k *kernel) disagrees(t *testing.T, o *oracle.Objects, firsts []drivertest.First) (bad bool) {
	t.Helper()
	fates, err := k.mesh.Probe(firsts)
	if err != nil {
		t.Fatal(err)
	}
	for f, fate := range fates {
		c := oracle.Connection{From: f.From, To: f.To, Protocol: corev1.Protocol(f.Protocol.String()), Port: int32(f.Port)}
		want := locally(o, c) && k.known(c.From) && k.known(c.To) || c.From == c.To
		steps := k.Walk(c)
		_, denied := verdict.Denied(steps)
		if denied && c.From == c.To {
			denied = false // a pod that is not known reaches itself without the node
		}
		if fate.Arrived != want || denied == want {
			t.Errorf("%+v: %+v; want it to pass: %v; why denies it: %v: %+v", c, fate, want, denied, steps)
			bad = true
		}
	}
	return bad
}

// known: what has an address of the node's pods is a pod that was declared.
func (k *kernel) known(a netip.Addr) bool {
	own := slices.ContainsFunc(PodCIDRs, func(p netip.Prefix) bool { return p.Contains(a) })
	return !own || k.Policy().Workloads[a] != nil
}
