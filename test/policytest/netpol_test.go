package policytest

import (
	"context"
	"fmt"
	"net/netip"
	"strconv"
	"sync"
	"testing"

	"sluice.dev/sluice/internal/driver"
	"sluice.dev/sluice/internal/kernel/link"
	"sluice.dev/sluice/internal/model"
	"sluice.dev/sluice/internal/policy/verdict"
	"sluice.dev/sluice/internal/state"
	"sluice.dev/sluice/internal/upkeep"
	"sluice.dev/sluice/test/drivertest"
	"sluice.dev/sluice/test/policytest/oracle"
)

// The cases are read once for all drivers, and so is what the oracle says of them.
var (
	netpolCases      = sync.OnceValues(Netpol)
	conformanceTests = sync.OnceValues(Conformance)
	truths           sync.Map // of *oracle.Objects: a function that returns their truth
)

// truth is what the oracle says of every connection between two pods on the ports that scenarios
// know, and on one that none does.
func truth(o *oracle.Objects) map[oracle.Connection]bool {
	told, _ := truths.LoadOrStore(o, sync.OnceValue(func() map[oracle.Connection]bool {
		allowed := map[oracle.Connection]bool{}
		for c := range truthTable(o, tablePorts) {
			allowed[c] = o.Allowed(c)
		}
		return allowed
	}))
	return told.(func() map[oracle.Connection]bool)()
}

// distinct are connections from all pods to all others, in all protocols and both families. Of
// ports of a protocol that have the same fate between all pods, a pair has one: each in its turn,
// so that packets go to all ports.
func distinct(o *oracle.Objects, ports []int32) (all []oracle.Connection) {
	allowed := truth(o)
	for _, proto := range Protocols {
		alike := map[string][]int32{} // by their fates
		for _, port := range ports {
			var fates []byte
			for c := range between(o, proto, port) {
				fate, told := allowed[c]
				if !told {
					panic(fmt.Sprintf("nothing is said of port %d", port))
				}
				fates = strconv.AppendBool(fates, fate)
			}
			alike[string(fates)] = append(alike[string(fates)], port)
		}
		for _, same := range alike {
			for c, turn := range between(o, proto, same[0]) {
				if c.Port = same[turn%len(same)]; c.From != c.To {
					all = append(all, c)
				}
			}
		}
	}
	return all
}

// testNetpol runs the 48 cases of Kubernetes' end-to-end tests in the kernel, with real packets
// between all pods, in both families at once.
func testNetpol(t *testing.T, p plane) {
	cases, err := netpolCases()
	if err != nil {
		t.Fatal(err)
	}
	k := p.newKernel(t, cases[0].Steps[0].Objects)
	for i, c := range cases {
		if p.cases.has(i) {
			t.Run(c.Name, func(t *testing.T) { k.run(t, c, NetpolPorts) })
		}
	}
	k.settled(t)
}

// testConformance does the same with the conformance suite of ClusterNetworkPolicy.
func testConformance(t *testing.T, p plane) {
	tests, err := conformanceTests()
	if err != nil {
		t.Fatal(err)
	}
	k := p.newKernel(t, tests[0].Steps[0].Objects)
	for i, c := range tests {
		if !p.cases.has(i) || experimental(c.Steps[0].Objects) { // refused; TestScenarios looks at that
			continue
		}
		t.Run(c.Name, func(t *testing.T) { k.run(t, c, []int32{53, 80, 5353, 8080, 9003, 9005}) })
	}
	k.settled(t)
}

// A kernel is a node with its pods, on which the driver does what the product says.
type kernel struct {
	*Product
	plane  plane
	mesh   *drivertest.Mesh
	links  model.Links
	driver *upkeep.Driver
}

func (p plane) newKernel(t *testing.T, o *oracle.Objects) *kernel {
	t.Helper()
	pods := map[string][2]netip.Addr{}
	for i, name := range PodNames(o) {
		pods[string(rune('a'+i))] = [2]netip.Addr{Address(o, name, 0), Address(o, name, 1)}
	}
	return p.kernel(t, pods)
}

// kernel opens the driver on a node with pods that have the addresses, of which nothing is
// declared.
func (p plane) kernel(t testing.TB, pods map[string][2]netip.Addr, change ...func(*options)) *kernel {
	t.Helper()
	k := &kernel{plane: p, mesh: drivertest.NewMesh(t, [2]netip.Addr(NodeAddresses), pods)}
	err := k.mesh.Node.Do(func() (err error) {
		if k.links, err = link.Here.Links(); err != nil {
			return err
		}
		o := defaults()
		for _, f := range change {
			f(&o)
		}
		k.driver, err = p.openWith(t, o)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := k.driver.Purge(context.WithoutCancel(t.Context())); err != nil {
			t.Errorf("purge: %v", err)
		}
		if err := k.driver.Close(); err != nil {
			t.Errorf("close the driver: %v", err)
		}
	})
	if err := k.driver.Probe(t.Context()); err != nil {
		t.Fatal(err)
	}
	k.Product = NewProduct(k.links)
	k.Apply(nil)
	plan, err := k.driver.Adopt(t.Context(), k.Compiler.State(), driver.Keep{})
	k.carryOut(t, plan, err)
	return k
}

func (k *kernel) carryOut(t testing.TB, plan driver.Plan, err error) {
	t.Helper()
	if err != nil {
		t.Fatalf("plan: %v", err)
	}
	if err = plan.Apply(t.Context()); err == nil {
		err = k.driver.AwaitCuts(t.Context())
	}
	if err != nil {
		t.Fatalf("apply: %v\n%s", err, plan)
	}
}

// set makes these the only objects, for the product and the kernel.
func (k *kernel) set(t *testing.T, o *oracle.Objects) {
	t.Helper()
	delta, err := k.Set(o)
	if err != nil {
		t.Fatal(err)
	}
	plan, err := k.driver.Update(t.Context(), delta)
	k.carryOut(t, plan, err)
}

// settled checks that the kernel holds what the state says: an adoption finds nothing to do.
func (k *kernel) settled(t *testing.T) {
	t.Helper()
	plan, err := k.driver.Adopt(t.Context(), k.Compiler.State(), driver.Keep{})
	if err != nil {
		t.Fatal(err)
	}
	if plan.Len() > 0 {
		t.Errorf("nothing changed, but adoption plans %d operations:\n%s", plan.Len(), plan)
	}
}

func (k *kernel) run(t *testing.T, s Scenario, ports []int32) {
	for _, step := range s.Steps {
		k.set(t, step.Objects)
		k.check(t, step.Objects, ports)
	}
}

// check sends the first packets of connections between all pods. The oracle, the kernel and the
// evaluator behind "why" must agree on each.
func (k *kernel) check(t *testing.T, o *oracle.Objects, ports []int32) {
	t.Helper()
	var firsts []drivertest.First
	asked := map[drivertest.First]oracle.Connection{}
	allowed := truth(o)
	for _, c := range distinct(o, ports) {
		f := drivertest.First{From: c.From, To: c.To, Protocol: numbers[c.Protocol], Port: uint16(c.Port)}
		firsts, asked[f] = append(firsts, f), c
	}
	fates, err := k.mesh.Probe(firsts)
	if err != nil {
		t.Fatal(err)
	}
	for f, fate := range fates {
		c := asked[f]
		want, steps := allowed[c], k.Walk(c)
		_, denied := verdict.Denial(steps)
		if fate.Arrived != want || fate.Answered != want || denied == want {
			t.Errorf("%+v: %+v; the oracle allows it: %v; why denies it: %v: %+v", c, fate, want, denied, steps)
		}
	}
}

// adoptKeeping plans an adoption that keeps something, and returns how much it does.
func adoptKeeping(t *testing.T, d driver.Driver, want *state.State, keep driver.Keep) (driver.Plan, int, error) {
	p, err := d.Adopt(t.Context(), want, keep)
	if err != nil {
		return nil, 0, err
	}
	return p, p.Kept().Elements(), nil
}
