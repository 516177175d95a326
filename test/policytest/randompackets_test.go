package policytest

import (
	"flag"
	"fmt"
	"maps"
	"net/netip"
	"os/exec"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/yaml"

	"sluice.dev/sluice/internal/model"
	"sluice.dev/sluice/internal/policy/verdict"
	"sluice.dev/sluice/test/drivertest"
	"sluice.dev/sluice/test/policytest/oracle"
)

var kernels = flag.Int("kernels", 40, "how many random clusters to try with real packets")

// testRandomPackets gives the kernel one random cluster after the other, each as a change of the
// one before. On first packets between all pods, those that nobody has declared included, the node
// and the world outside, the kernel, the oracle and "why" must agree.
func testRandomPackets(t *testing.T, p plane) {
	pods := ninePods()
	k := p.kernel(t, pods)
	randomPackets(t, k, pods, 1_000_000, *kernels)
	k.settled(t)
}

// testRandomPacketsApart does the same where the driver asks rules in chains of their own, whose
// outcome is in packets' marks. Packets that come with these bits set are judged alike, and leave
// with them.
func testRandomPacketsApart(t *testing.T, p plane) {
	pods := ninePods()
	k := p.kernel(t, pods, apart)
	for i, mark := range []uint32{0, 1 << 31, 1 << 30, 3<<30 | 5} {
		k.mark(t, mark)
		randomPackets(t, k, pods, 2_000_000+1000*uint64(i), *kernels/4)
	}
	k.settled(t)
}

// testMarkOfWhatReachesItself follows a pod's packets to itself through a service, which no policy
// keeps from it: they too leave with the mark that they came with.
func testMarkOfWhatReachesItself(t *testing.T, p plane) {
	k := p.kernel(t, map[string][2]netip.Addr{"a": names["a"], "b": names["b"], "c": names["c"]}, apart)
	k.declare(t, row{
		services: []svc{lbService(model.Service{ClusterIPs: []netip.Addr{names["vip"][0], names["vip"][1]}}, "b")},
		policies: isolated("b", "in ingress: [{from: ["+blocks(towards("c", 0, 8))+", "+blocks(towards("c", 1, 64))+"]}]"),
	})
	for _, mark := range []uint32{0, 1 << 31, 1 << 30, 3<<30 | 5} {
		k.mark(t, mark)
		for family := range Families {
			k.follow(t, packet{"b", "", tcp, "vip", 80, "b", "node"}, family)
		}
	}
}

// mark has packets come with a mark, and drops those that leave with another one.
func (k *kernel) mark(t *testing.T, mark uint32) {
	t.Helper()
	text := fmt.Sprintf(`table inet marks
delete table inet marks
table inet marks {
	chain in { type filter hook prerouting priority -350; meta mark set %[1]d; }
	chain own { type filter hook output priority -350; meta mark set %[1]d; }
	chain out { type filter hook postrouting priority 300; meta mark != %[1]d drop; }
	chain end { type filter hook input priority 300; meta mark != %[1]d drop; }
}`, mark)
	err := k.mesh.Node.Do(func() error {
		c := exec.Command("nft", "-f", "-")
		c.Stdin = strings.NewReader(text)
		out, err := c.CombinedOutput()
		if err != nil {
			err = fmt.Errorf("%w: %s", err, out)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
}

func ninePods() map[string][2]netip.Addr {
	pods := map[string][2]netip.Addr{}
	for i := range 9 {
		ips := podAddresses(i + 1)
		pods[string(rune('a'+i))] = pair(ips[0].IP, ips[1].IP)
	}
	return pods
}

func randomPackets(t *testing.T, k *kernel, pods map[string][2]netip.Addr, first uint64, n int) {
	t.Helper()
	for seed := range uint64(n) {
		if !k.plane.clusters.has(int(seed)) {
			continue
		}
		o := newDice(first + seed).cluster()
		k.set(t, o)
		if k.disagrees(t, o, everywhere(pods, int(seed))) {
			text, _ := yaml.Marshal(o)
			t.Fatalf("seed %d:\n%s", first+seed, text)
		}
	}
}

// everywhere are first packets from pods and the outside to those and the node, in all protocols.
// Each has one of the ports, another one with the next turn.
func everywhere(pods map[string][2]netip.Addr, turn int) (firsts []drivertest.First) {
	ports := []uint16{53, 80, 8080}
	for family := range Families {
		from := []netip.Addr{drivertest.Outside[family]}
		for _, name := range slices.Sorted(maps.Keys(pods)) {
			from = append(from, pods[name][family])
		}
		to := append(slices.Clone(from), NodeAddresses[family])
		for i, a := range from {
			for j, b := range to {
				for k, proto := range Protocols {
					port := ports[(turn+family+i+j+k)%len(ports)]
					firsts = append(firsts, drivertest.First{From: a, To: b, Protocol: numbers[proto], Port: port})
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
		_, denied := verdict.Denial(steps)
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
