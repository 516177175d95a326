package policytest

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"

	"sluice.dev/sluice/internal/model"
	"sluice.dev/sluice/internal/store"
	"sluice.dev/sluice/test/drivertest"
)

// testLargePolicyChanges: while the sets of a large policy come and go in slices, what it allows
// before and after passes and what it never allows does not, neither on new connections nor on
// those that there are.
func testLargePolicyChanges(t *testing.T, p plane) {
	k := p.kernel(t, map[string][2]netip.Addr{"a": names["a"], "b": names["b"], "c": names["c"]})
	crowd := store.Event{Kind: model.NamespaceKind, Name: model.Name{Name: "crowd"}, Object: &model.Namespace{Name: "crowd"}}
	others := []store.Event{crowd}
	for i := range 1200 {
		pod := &model.Pod{Name: model.Name{Namespace: "crowd", Name: fmt.Sprint("p", i)}, Node: "elsewhere", IPs: []netip.Addr{netip.AddrFrom4([4]byte{10, 99, byte(i >> 8), byte(i)})}}
		others = append(others, store.Event{Kind: model.PodKind, Name: pod.Name, Object: pod})
	}
	// from a, and from nearly all pods of the crowd by each of many selectors
	policy := func(version string) string {
		var rules strings.Builder
		for i := range 60 {
			fmt.Fprintf(&rules, "{from: [{namespaceSelector: {matchLabels: {kubernetes.io/metadata.name: crowd}}, podSelector: {matchExpressions: [{key: x%s%d, operator: DoesNotExist}]}}]}, ", version, i)
		}
		return networkPolicy("large", "b", "ingress: ["+rules.String()+"{from: [{podSelector: {matchLabels: {app: a}}}]}]")
	}
	events := func(policies string) []store.Event {
		service := lbService(model.Service{ClusterIPs: []netip.Addr{names["vip"][0], names["vip"][1]}}, "b")
		return append(mustEventsOf(t, row{policies: policies, services: []svc{service}}), others...)
	}
	plan, err := k.driver.Update(t.Context(), k.Apply(k.changes(events(networkPolicy("large", "b", "ingress: [{from: [{podSelector: {matchLabels: {app: a}}}]}]")))))
	k.carryOut(t, plan, err)
	pairs := k.pairs(t)
	for _, next := range []string{policy("old"), policy("new"), networkPolicy("large", "b", "ingress: [{from: [{podSelector: {matchLabels: {app: a}}}]}]")} {
		k.tell(k.changes(events(next)))
		steps := 0
		for more := true; more; steps++ {
			delta := k.Compiler.Step(k.store, k.store.Take(), 1<<15)
			plan, err := k.driver.Update(t.Context(), delta)
			k.carryOut(t, plan, err)
			for family := range Families {
				k.follow(t, packet{"a", "", tcp, "b", 80, "b", ""}, family)
				k.follow(t, packet{"c", "", tcp, "b", 80, "", ""}, family)
			}
			for name, p := range pairs {
				if !p.Speak(steps%2 == 0, drivertest.Patient) {
					t.Errorf("step %d: connection %s does not go on", steps, name)
				}
			}
			more = k.Compiler.Waiting().Len() > 0
		}
		if steps < 3 {
			t.Errorf("it took %d steps: nothing was seen of what is between", steps)
		}
	}
	k.settled(t)
}
