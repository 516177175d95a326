package drivertest

import (
	"context"
	"log/slog"
	"net/netip"
	"slices"
	"testing"

	"sluice.dev/sluice/internal/compile"
	"sluice.dev/sluice/internal/driver"
	"sluice.dev/sluice/internal/kernel/link"
	"sluice.dev/sluice/internal/model"
	"sluice.dev/sluice/internal/reconcile"
	services "sluice.dev/sluice/internal/services/compile"
	"sluice.dev/sluice/internal/state"
	"sluice.dev/sluice/internal/store"
)

// policed is a node with the pods a, b and c, and a driver that carries out policy beside services.
// The service web has its one endpoint outside of the node.
type policed struct {
	*Mesh
	cluster *cluster
	driver  driver.Driver
}

// The pods, the service, and where it leads to.
var (
	policedPods = map[string][2]netip.Addr{
		"a": both("10.244.1.11", "fd00:10:244:1::11"), "b": both("10.244.1.12", "fd00:10:244:1::12"), "c": both("10.244.1.13", "fd00:10:244:1::13"),
	}
	policedNode = [2]netip.Addr(both("192.168.1.1", "fd00:192:168:1::1"))
	policedVIP  = both("10.96.0.80", "fd00:10:96::80")
)

// newPoliced opens the driver on a node of which nothing is declared; it skips the test if the
// driver lacks what the test needs.
func newPoliced(t *testing.T, open Open, need driver.Capability) *policed {
	t.Helper()
	p := &policed{Mesh: NewMesh(t, policedNode, policedPods)}
	p.cluster = &cluster{store: store.New(), compiler: compile.New(compile.Config{Config: services.Config{Node: "node", ClusterCIDRs: clusterCIDRs, ServiceCIDRs: serviceCIDRs}, Policy: true})}
	err := p.Node.Do(func() error {
		links, err := link.Here.Links()
		p.cluster.compiler.SetLinks(links)
		return err
	})
	if err != nil {
		t.Fatalf("list links: %v", err)
	}
	p.reopen(t, open)
	t.Cleanup(func() {
		if err := p.driver.Purge(context.WithoutCancel(t.Context())); err != nil {
			t.Errorf("purge: %v", err)
		}
		if err := p.driver.Close(); err != nil {
			t.Errorf("close the driver: %v", err)
		}
	})
	can := p.driver.Capabilities()
	if lacks := (need | driver.Policy) &^ can.Can; lacks != 0 {
		t.Skipf("the driver %s does not support this: it lacks %s", can.Name, lacks)
	}
	return p
}

// reopen closes the driver, if there is one, and opens another.
func (p *policed) reopen(t *testing.T, open Open) {
	t.Helper()
	if p.driver != nil {
		if err := p.driver.Close(); err != nil {
			t.Fatalf("close the driver: %v", err)
		}
	}
	err := p.Node.Do(func() (err error) {
		p.driver, err = open()
		return err
	})
	if err != nil {
		t.Fatalf("open the driver: %v", err)
	}
}

// declare makes these all policies there are, beside the pods and the service on some port.
func (p *policed) declare(port uint16, policies ...*model.Policy) state.Delta {
	name := func(s string) model.Name { return model.Name{Namespace: "shop", Name: s} }
	now := objects{
		{model.NodeKind, model.Name{Name: "node"}}:      &model.Node{Name: "node", IPs: policedNode[:], PodCIDRs: nodePodCIDRs},
		{model.NamespaceKind, model.Name{Name: "shop"}}: &model.Namespace{Name: "shop"},
		{model.ServiceKind, name("web")}: &model.Service{Name: name("web"), ClusterIPs: policedVIP[:],
			Ports: []model.ServicePort{{Name: "http", Protocol: model.UDP, Port: port, TargetPort: 8080}}},
	}
	for i, a := range Outside {
		slice := name([]string{"web-4", "web-6"}[i])
		now[objectKey{model.EndpointSliceKind, slice}] = &model.EndpointSlice{Name: slice, Service: "web",
			Ports: []model.EndpointPort{{Name: "http", Protocol: model.UDP, Port: 8080}}, Endpoints: []model.Endpoint{{Addr: a, Ready: true, Serving: true}}}
	}
	for pod, addresses := range policedPods {
		now[objectKey{model.PodKind, name(pod)}] = &model.Pod{Name: name(pod), Node: "node", IPs: addresses[:], Labels: map[string]string{"app": pod}, Ready: true}
	}
	for _, policy := range policies {
		now[objectKey{policy.Key.Kind, policy.Key.Name}] = policy
	}
	return p.cluster.declare(now)
}

// allows is a policy that lets a pod receive what is sent to one UDP port, and nothing else.
func allows(name, pod string, port uint16) *model.Policy {
	return &model.Policy{
		Key:  model.PolicyKey{Kind: model.NetworkPolicy, Name: model.Name{Namespace: "shop", Name: name}},
		Tier: model.DefaultTier.Name, Order: 1000, Subject: model.Equal("app", pod), Ingress: true,
		IngressRules: []model.PolicyRule{{Name: "ingress[0]", Action: model.Allow,
			Destination: model.RuleEnd{Ports: []model.PolicyPort{{Protocol: model.UDP, First: port, Last: port}}}}},
	}
}

// carryOut applies a plan.
func (p *policed) carryOut(t *testing.T, plan driver.Plan, err error) {
	t.Helper()
	if err != nil {
		t.Fatalf("plan: %v", err)
	}
	if err := plan.Apply(t.Context()); err != nil {
		t.Fatalf("apply: %v\n%s", err, plan)
	}
}

// hop is a packet that goes from a pod, or the node, to an address.
type hop struct {
	from string
	to   dual
	port uint16
	at   string // where it arrives; "": nowhere
}

func (p *policed) sends(t *testing.T, hops ...hop) {
	t.Helper()
	for _, h := range hops {
		from := policedNode
		if h.from != "node" {
			from = policedPods[h.from]
		}
		for f := range from {
			trail, err := p.Trace(Packet{Host: h.from, From: from[f], To: h.to[f], Protocol: model.UDP, Port: h.port})
			if err != nil || trail.At != h.at || trail.Answered != (h.at != "") {
				t.Errorf("%s to %v:%d: %+v, want it at %q (%v)", h.from, h.to[f], h.port, trail, h.at, err)
			}
		}
	}
}

// aside fails the test unless these are the policies that are set aside.
func (p *policed) aside(t *testing.T, want ...string) {
	t.Helper()
	var names []string
	for _, s := range p.driver.SetAside() {
		names = append(names, s.Object())
	}
	if !slices.Equal(names, want) {
		t.Errorf("set aside: %v, want %v", names, want)
	}
}

// RefusedPolicies is Refusals for policies: of pods that a refused policy selects nothing is
// allowed, and all other policies are in force. The driver that open opens finds that its kernel
// refuses what is made of the rules of policies for which refused answers true.
func RefusedPolicies(t *testing.T, open func(refused func(model.PolicyKey) bool) (driver.Driver, error)) {
	t.Parallel()
	refusing := true
	opened := func() (driver.Driver, error) {
		return open(func(k model.PolicyKey) bool { return refusing && k.Name.Name == "bad" })
	}
	p := newPoliced(t, opened, 0)
	b, c := dual(policedPods["b"]), dual(policedPods["c"])
	const bad = "NetworkPolicy shop/bad"
	adopt := func() (operations int) {
		t.Helper()
		plan, err := p.driver.Adopt(t.Context(), p.cluster.state(), driver.Keep{})
		p.carryOut(t, plan, err)
		return plan.Len()
	}
	update := func(delta state.Delta) {
		t.Helper()
		plan, err := p.driver.Update(t.Context(), delta)
		p.carryOut(t, plan, err)
	}
	p.declare(80, allows("good", "b", 80), allows("bad", "c", 80))
	adopt()
	p.aside(t, bad)
	p.sends(t, hop{"a", b, 80, "b"}, hop{"a", b, 81, ""}, hop{"a", c, 80, ""}, hop{"c", b, 80, "b"}, hop{"b", dual(policedPods["a"]), 80, "a"}, hop{"node", policedVIP, 80, "outside"})
	update(p.declare(80, allows("good", "b", 81), allows("bad", "c", 80)))
	p.aside(t, bad)
	p.sends(t, hop{"a", b, 80, ""}, hop{"a", b, 81, "b"}, hop{"a", c, 80, ""})
	if p.driver.Capabilities().Can&driver.Survives != 0 {
		p.reopen(t, opened)
		adopt()
		p.aside(t, bad)
		p.sends(t, hop{"a", b, 80, ""}, hop{"a", b, 81, "b"}, hop{"a", c, 80, ""}, hop{"c", b, 81, "b"})
	}
	refusing = false
	update(p.declare(80, allows("good", "b", 81), allows("bad", "c", 82)))
	p.aside(t)
	p.sends(t, hop{"a", b, 81, "b"}, hop{"a", c, 80, ""}, hop{"a", c, 82, "c"})
	if n := adopt(); n > 0 {
		t.Errorf("an adoption plans %d operations", n)
	}
}

// FailingParts shows that a part of the state that cannot be programmed holds up no other, from the
// first programming on; and that, after a restart, what was in force of it stays in force, also if
// the driver that comes then, which other opens, has another ruleset. The kernel of the drivers
// fails, for a reason that may pass, whatever a part puts into it for which failing answers true
// (projectcalico/calico#13425).
func FailingParts(t *testing.T, open, other func(failing func(reconcile.Part) bool) (driver.Driver, error)) {
	t.Parallel()
	for _, failing := range []reconcile.Part{reconcile.Policy, reconcile.Services} {
		t.Run(failing.String(), func(t *testing.T) {
			t.Parallel()
			fails := true
			by := func(open func(func(reconcile.Part) bool) (driver.Driver, error)) Open {
				return func() (driver.Driver, error) {
					return open(func(p reconcile.Part) bool { return fails && p == failing })
				}
			}
			p := newPoliced(t, by(open), driver.Services|driver.Survives|driver.Keeps)
			b := dual(policedPods["b"])
			var r *reconcile.Reconciler
			start := func() {
				r = reconcile.New(p.driver, p.cluster.state, slog.New(slog.DiscardHandler))
				r.Lack(reconcile.Lacking{})
			}
			attempt := func(delta state.Delta, failed ...reconcile.Part) {
				t.Helper()
				r.Hurry()
				_, err := r.Attempt(t.Context(), delta, 0)
				got := r.Failed()
				if (err != nil) != (len(failed) > 0) || len(got) != len(failed) {
					t.Fatalf("%v: failed are %v, want %v", err, got, failed)
				}
			}
			service := func(port uint16, at string) hop { return hop{"node", policedVIP, port, at} }
			start()
			attempt(p.declare(80, allows("good", "b", 80)), failing)
			if failing == reconcile.Policy { // nobody knows what pods may send or receive
				p.sends(t, service(80, "outside"), hop{"a", b, 80, ""}, hop{"a", b, 81, ""})
			} else {
				p.sends(t, service(80, ""), hop{"a", b, 80, "b"}, hop{"a", b, 81, ""})
			}
			fails = false
			attempt(state.Delta{})
			p.sends(t, service(80, "outside"), hop{"a", b, 80, "b"}, hop{"a", b, 81, ""})

			fails = true
			p.reopen(t, by(open))
			start()
			attempt(p.declare(90, allows("good", "b", 81)), failing)
			if failing == reconcile.Policy {
				p.sends(t, service(90, "outside"), hop{"a", b, 80, "b"}, hop{"a", b, 81, ""})
			} else {
				p.sends(t, service(80, "outside"), hop{"a", b, 80, ""}, hop{"a", b, 81, "b"})
			}
			fails = false
			attempt(state.Delta{})
			p.sends(t, service(90, "outside"), hop{"a", b, 80, ""}, hop{"a", b, 81, "b"})

			fails = true
			p.reopen(t, by(other))
			start()
			attempt(p.declare(91, allows("good", "b", 82)), reconcile.Services, reconcile.Policy)
			p.sends(t, service(90, "outside"), hop{"a", b, 80, ""}, hop{"a", b, 81, "b"})
			fails = false
			attempt(state.Delta{})
			p.sends(t, service(91, "outside"), hop{"a", b, 81, ""}, hop{"a", b, 82, "b"})
		})
	}
}
