package policytest

import (
	"context"
	"fmt"
	"maps"
	"net"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"sluice.dev/sluice/internal/driver"
	"sluice.dev/sluice/internal/model"
	"sluice.dev/sluice/internal/state"
	"sluice.dev/sluice/test/drivertest"
)

// testNothingPassesWhileProgramsChange floods a pod that all of its policies close, while each is
// replaced by another.
func testNothingPassesWhileProgramsChange(t *testing.T, p plane) {
	k := p.kernel(t, map[string][2]netip.Addr{"b": names["b"]})
	k.declare(t, row{})
	for family := range Families {
		from, pod := names["outside"][family], names["b"][family]
		_, arrived, err := k.mesh.Storm(from, netip.AddrPortFrom(pod, 5001), func() error { time.Sleep(10 * time.Millisecond); return nil })
		if err != nil || arrived == 0 {
			t.Fatalf("of a storm at an open pod %d arrived: %v", arrived, err)
		}
		n, last := 0, state.RulesID("")
		next := func() error {
			n++
			p := closing(fmt.Sprint("closed-", family, "-", n))
			w := *k.Policy().Workloads[pod]
			w.Ingress = p.ID
			d := state.PolicyDelta{Rules: map[state.RulesID]*state.Rules{p.ID: p}, Workloads: map[netip.Addr]*state.Workload{pod: &w}}
			if last != "" {
				d.Rules[last] = nil
			}
			last = p.ID
			plan, err := k.driver.Update(t.Context(), state.Delta{Policy: d})
			if err != nil {
				return err
			}
			return plan.Apply(t.Context())
		}
		if err := next(); err != nil {
			t.Fatal(err)
		}
		sent, arrived, err := k.mesh.Storm(from, netip.AddrPortFrom(pod, 5002), func() error {
			for end := time.Now().Add(500 * time.Millisecond); n < 20 || time.Now().Before(end); {
				if err := next(); err != nil {
					return err
				}
			}
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
		t.Logf("%v: %d packets during %d changes: %d arrived", pod, sent, n, arrived)
		if arrived > 0 || sent < 1000 {
			t.Errorf("%v: %d of %d packets arrived during %d changes between rules that all deny", pod, arrived, sent, n)
		}
	}
}

// closing are the rules of one policy that allows nothing.
func closing(name string) *state.Rules {
	key := model.PolicyKey{Kind: model.NetworkPolicy, Name: model.Name{Namespace: "shop", Name: name}}
	return &state.Rules{ID: state.RulesID(name), Tiers: []state.Tier{{Name: "default", Default: model.Deny, Policies: []*state.PolicyRules{{Policy: key}}}}}
}

// testCutBeforeServices shows that what a host endpoint comes to deny before services are
// translated is cut too.
func testCutBeforeServices(t *testing.T, p plane) {
	k := p.kernel(t, map[string][2]netip.Addr{"b": names["b"]})
	services := []svc{lbService(model.Service{ClusterIPs: []netip.Addr{names["vip"][0], names["vip"][1]}, Ports: nodePort, ExternalLocal: true}, "b")}
	k.declare(t, row{services: services})
	pairs := map[string]*drivertest.Pair{}
	for _, proto := range []model.Protocol{tcp, udp} {
		for family := range Families {
			via := netip.AddrPortFrom(names["node"][family], 30080)
			p, err := k.mesh.Pair(t, "outside", proto, netip.AddrPortFrom(names["b"][family], 80), via)
			if err != nil {
				t.Fatal(err)
			}
			pairs[fmt.Sprint(proto, " ", via)] = p
		}
	}
	deny := hostPolicy("applyOnForward: true, preDNAT: true, types: [Ingress], ingress: [{action: Deny, protocol: TCP, destination: {ports: [30080]}}, {action: Deny, protocol: UDP, destination: {ports: [30080]}}]")
	k.declare(t, row{services: services, policies: deny})
	together(pairs, func(name string, p *drivertest.Pair) { falls(t, name, p, false) })
	k.declare(t, row{services: services})
	together(pairs, func(name string, p *drivertest.Pair) { revives(t, name, p) })
}

// testCutKeeping shows what is cut while the kernel keeps rules that want may lack, until all has
// been read: a connection that rules of want forbid is cut, and one is left alone where the kernel
// has other rules than want.
func testCutKeeping(t *testing.T, p plane) {
	for name, c := range map[string]struct {
		lack func(*state.Policy) // takes out what could not be read
		cut  bool
	}{
		"another pod could not be read":         {func(p *state.Policy) { delete(p.Workloads, names["c"][0]) }, true},
		"the server could not be read":          {func(p *state.Policy) { delete(p.Workloads, names["b"][0]); delete(p.Workloads, names["b"][1]) }, false},
		"the server's policy could not be read": {func(p *state.Policy) { lackIngress(p, "b") }, false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			k := p.kernel(t, map[string][2]netip.Addr{"a": names["a"], "b": names["b"], "c": names["c"]}, keepEstablished)
			k.declare(t, row{})
			pairs := k.directPairs(t)
			k.declare(t, row{policies: isolated("b", "in ingress: []")})
			k.reopen(t)

			whole := *k.Compiler.State()
			part, policy := whole, *k.Policy()
			part.Policy = &policy
			policy.Workloads = maps.Clone(policy.Workloads)
			c.lack(&policy)
			plan, kept, err := adoptKeeping(t, k.driver, &part, driver.Keep{Services: true, Policy: true})
			k.carryOut(t, plan, err)
			if kept == 0 {
				t.Fatal("nothing is kept")
			}
			if c.cut {
				together(pairs, func(name string, p *drivertest.Pair) { falls(t, name, p, false) })
				return
			}
			for end := time.Now().Add(soon); time.Now().Before(end); {
				for name, p := range pairs {
					if !p.Speak(true, drivertest.Patient) || !p.Speak(false, drivertest.Patient) {
						t.Fatalf("%s is cut by what may be kept for it", name)
					}
				}
			}
			plan, err = k.driver.Adopt(t.Context(), &whole, driver.Keep{})
			k.carryOut(t, plan, err)
			together(pairs, func(name string, p *drivertest.Pair) { falls(t, name, p, false) })
		})
	}
}

// testCutFromServices shows that a connection is cut when its destination is no longer an endpoint
// of the service that allows it, and goes on while others come.
func testCutFromServices(t *testing.T, p plane) {
	k := p.kernel(t, map[string][2]netip.Addr{"a": names["a"], "b": names["b"], "c": names["c"]})
	service := model.Service{ClusterIPs: []netip.Addr{names["vip"][0], names["vip"][1]}}
	policies := calicoPolicy("a", "egress: [{action: Allow, destination: {services: {name: front}}}]")
	on := func(pods string) { k.declare(t, row{services: []svc{lbService(service, pods)}, policies: policies}) }
	on("b")
	pairs := k.directPairs(t)
	on("b c")
	for name, p := range pairs {
		if !p.Speak(true, drivertest.Patient) || !p.Speak(false, drivertest.Patient) {
			t.Errorf("%s: another endpoint came, and it is cut", name)
		}
	}
	on("c")
	together(pairs, func(name string, p *drivertest.Pair) { falls(t, name, p, false) })
}

// lackIngress has no policy judge what reaches the pod.
func lackIngress(p *state.Policy, pod string) {
	for _, a := range names[pod] {
		w := *p.Workloads[a]
		w.Ingress = ""
		p.Workloads[a] = &w
	}
}

// directPairs are connections from a to b, without a service.
func (k *kernel) directPairs(t *testing.T) map[string]*drivertest.Pair {
	t.Helper()
	pairs := map[string]*drivertest.Pair{}
	for _, proto := range []model.Protocol{tcp, udp} {
		for family := range Families {
			server := netip.AddrPortFrom(names["b"][family], 80)
			p, err := k.mesh.Pair(t, "a", proto, server, server)
			if err != nil {
				t.Fatal(err)
			}
			pairs[fmt.Sprint(proto, " ", server)] = p
		}
	}
	return pairs
}

// reopen goes on with another driver, which cuts connections, as after a restart.
func (k *kernel) reopen(t *testing.T) {
	t.Helper()
	if err := k.driver.Close(); err != nil {
		t.Fatal(err)
	}
	err := k.mesh.Node.Do(func() (err error) {
		k.driver, err = k.plane.openWith(t, defaults())
		return err
	})
	if err == nil {
		err = k.driver.Probe(context.WithoutCancel(t.Context()))
	}
	if err != nil {
		t.Fatal(err)
	}
}

// testJudgedAgain shows that what is sent on a connection ends with the transaction that forbids
// it, before anybody has looked for connections, and answers with it; that what is allowed goes on;
// and that packets are judged again no longer than until all connections are labelled.
func testJudgedAgain(t *testing.T, p plane) {
	k := p.kernel(t, map[string][2]netip.Addr{"a": names["a"], "b": names["b"], "c": names["c"]})
	k.declare(t, row{})
	pairs := k.directPairs(t)
	before := k.driver.FlowsCut()
	k.forbidUnseen(t)
	list, element := []string{"nft", "list", "set", "inet", "sluice", "ip-again"}, "expires"
	if k.driver.Capabilities().Name == "iptables" {
		list, element = []string{"ipset", "list", "SLUICE-4-P-AGAIN"}, names["b"][0].String()+" timeout"
	}
	again := func() string {
		out, err := k.mesh.Node.Run(list[0], list[1:]...)
		if err != nil {
			t.Fatal(err)
		}
		return string(out)
	}
	if !strings.Contains(again(), element) {
		t.Fatalf("nothing is judged again:\n%s", again())
	}
	for name, p := range pairs {
		if p.Speak(true, drivertest.Silent) {
			t.Errorf("%s: a packet passes that the change forbids", name)
		}
		if p.Speak(false, drivertest.Silent) {
			t.Errorf("%s: an answer passes after a packet that was denied", name)
		}
	}
	if n := k.driver.FlowsCut(); n != before {
		t.Errorf("%d connections were cut by somebody else", n-before)
	}
	k.declare(t, row{policies: isolated("b", "in ingress: [{}]")})
	for name, p := range pairs {
		revives(t, name, p)
	}
	if strings.Contains(again(), element) {
		t.Errorf("packets are judged again though all connections are labelled:\n%s", again())
	}
}

// testAnswering shows that the driver tells of connections of UDP whose answers alone come, as
// these are not judged again: in both families, and for as long as packets are.
func testAnswering(t *testing.T, p plane) {
	k := p.kernel(t, map[string][2]netip.Addr{"a": names["a"], "b": names["b"], "c": names["c"]})
	k.declare(t, row{})
	pairs := k.directPairs(t)
	maps.DeleteFunc(pairs, func(_ string, p *drivertest.Pair) bool { _, is := p.Client.(*net.UDPConn); return !is })
	told := func() (list []string) {
		err := k.driver.Capabilities().Answerer.Answering(t.Context(), func(from, to netip.AddrPort) {
			if from.Port() == 80 { // by the other tuple
				from, to = to, from
			}
			list = append(list, fmt.Sprint(from, " ", to))
		})
		if err != nil {
			t.Fatal(err)
		}
		slices.Sort(list)
		return slices.Compact(list)
	}
	answer := func() (connections []string) {
		for name, p := range pairs {
			if !p.Speak(false, drivertest.Patient) {
				t.Errorf("%s: an answer is dropped, and nobody has looked at the connection", name)
			}
			connections = append(connections, fmt.Sprint(p.Client.LocalAddr(), " ", p.Client.RemoteAddr()))
		}
		slices.Sort(connections)
		return connections
	}
	if answer(); len(told()) > 0 {
		t.Errorf("told of before any change: %q", told())
	}
	k.forbidUnseen(t)
	if want := answer(); !slices.Equal(told(), want) {
		t.Errorf("told of: %q, want %q", told(), want)
	}
	k.declare(t, row{policies: isolated("b", "in ingress: [{}]")})
	if answer(); len(told()) > 0 {
		t.Errorf("told of after all connections were looked at: %q", told())
	}
}

// forbidUnseen forbids all that is sent to b, by the driver alone: nobody looks at connections.
func (k *kernel) forbidUnseen(t *testing.T) {
	t.Helper()
	plan, err := k.driver.Driver.Update(t.Context(), k.Apply(k.changes(mustEventsOf(t, row{policies: isolated("b", "in ingress: []")}))))
	if err == nil {
		err = plan.Apply(t.Context())
	}
	if err != nil {
		t.Fatal(err)
	}
}
