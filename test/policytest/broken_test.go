package policytest

import (
	"net/netip"
	"testing"
	"time"

	"sluice.dev/sluice/internal/driver"
	"sluice.dev/sluice/internal/model"
	"sluice.dev/sluice/test/drivertest"
)

// broken is a policy that a driver which starts does not know any more, as it can't be told whom it
// selects.
var broken = model.PolicyKey{Kind: model.GlobalNetworkPolicy, Name: model.Name{Name: "broken"}}

// brokenFor is the same, as it was when it could.
func brokenFor(selector, more string) string {
	return "---\napiVersion: projectcalico.org/v3\nkind: GlobalNetworkPolicy\nmetadata: {name: broken}\nspec: {selector: \"" + selector + "\", types: [Ingress], ingress: [{action: Allow, protocol: TCP, destination: {ports: [5432]}}]" + more + "}\n"
}

// testBrokenPolicy shows that a policy of which it can't be told whom it selects keeps nothing but
// what is judged by its own earlier version; that other policies take effect, also those that
// changed while no agent ran; and that they cut connections.
func testBrokenPolicy(t *testing.T, p plane) {
	from := func(pod string) string {
		return isolated("b", "in ingress: [{from: [{podSelector: {matchLabels: {app: "+pod+"}}}]}]")
	}
	for name, c := range map[string]struct {
		before, after string // what is declared beside
		kept          bool
		cut           bool   // the connections from a to b are
		closed        packet // as long as something is kept
	}{
		"it was not in force":                {from("a"), from("c"), false, true, packet{from: "a", proto: tcp, to: "b", port: 80}},
		"it was about somebody elsewhere":    {from("a") + brokenFor("app == 'nobody'", ""), from("c"), false, true, packet{from: "a", proto: tcp, to: "b", port: 80}},
		"it was about another pod":           {from("a") + brokenFor("app == 'c'", ""), from("c"), true, true, packet{from: "a", proto: tcp, to: "c", port: 80}},
		"it was about the pod":               {from("a") + brokenFor("app == 'b'", ", order: 2000"), from("c"), true, false, packet{from: "c", proto: tcp, to: "b", port: 80}},
		"it was about a host":                {from("a") + hostEndpoint + brokenFor("role == 'uplink'", ""), from("c") + hostEndpoint, true, true, packet{from: "outside", proto: tcp, to: "node", port: 80}},
		"it was about a host, and untracked": {from("a") + hostEndpoint + brokenFor("role == 'uplink'", ", doNotTrack: true, applyOnForward: true"), from("c") + hostEndpoint, true, true, packet{}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			k := p.kernel(t, map[string][2]netip.Addr{"a": names["a"], "b": names["b"], "c": names["c"]}, keepEstablished)
			k.declare(t, row{policies: c.before})
			pairs := k.directPairs(t)
			k.Apply(k.changes(mustEventsOf(t, row{policies: c.after}))) // nobody tells the kernel
			k.reopen(t)

			adopt := func() (kept int) {
				plan, kept, err := adoptKeeping(t, k.driver, k.Compiler.State(), driver.Keep{Policies: []model.PolicyKey{broken}})
				k.carryOut(t, plan, err)
				return kept
			}
			if kept := adopt(); kept > 0 != c.kept {
				t.Fatalf("%d elements are kept, want some: %v", kept, c.kept)
			}
			if kept := adopt(); kept > 0 != c.kept {
				t.Errorf("adopted again: %d elements are kept, want some: %v", kept, c.kept)
			}
			if c.cut {
				together(pairs, func(name string, p *drivertest.Pair) { falls(t, name, p, false) })
			} else {
				for end := time.Now().Add(soon); time.Now().Before(end); {
					for name, p := range pairs {
						if !p.Speak(true, drivertest.Patient) || !p.Speak(false, drivertest.Patient) {
							t.Fatalf("%s is cut though it is judged as before", name)
						}
					}
				}
			}
			if p := c.closed; p.from != "" {
				for family := range Families {
					trail, err := k.mesh.Trace(drivertest.Packet{Host: p.from, From: names[p.from][family], To: names[p.to][family], Protocol: p.proto, Port: p.port})
					if err != nil || trail.At != "" {
						t.Errorf("%+v: %+v, %v", p, trail, err)
					}
				}
			}
			plan, err := k.driver.Adopt(t.Context(), k.Compiler.State(), driver.Keep{})
			k.carryOut(t, plan, err)
			if (plan.Len() > 0) != c.kept {
				t.Errorf("once all is read there is to do, though %v was kept:\n%s", c.kept, plan)
			}
			together(pairs, func(name string, p *drivertest.Pair) { falls(t, name, p, false) })
			k.settled(t)
		})
	}
}

// testBrokenPolicyOnAFirstStart shows that it keeps a kernel that nobody programmed before from
// nothing.
func testBrokenPolicyOnAFirstStart(t *testing.T, p plane) {
	k := p.kernel(t, map[string][2]netip.Addr{"a": names["a"], "b": names["b"]})
	if err := k.driver.Purge(t.Context()); err != nil {
		t.Fatal(err)
	}
	plan, kept, err := adoptKeeping(t, k.driver, k.Compiler.State(), driver.Keep{Policies: []model.PolicyKey{broken}})
	k.carryOut(t, plan, err)
	if kept > 0 {
		t.Errorf("%d elements are kept of nothing", kept)
	}
	k.declare(t, row{})
	pairs := k.directPairs(t)
	k.declare(t, row{policies: isolated("b", "in ingress: []")})
	together(pairs, func(name string, p *drivertest.Pair) { falls(t, name, p, false) })
}
