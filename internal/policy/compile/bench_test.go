package compile

import (
	"fmt"
	"net/netip"
	"runtime"
	"testing"

	"sluice.dev/sluice/internal/model"
	"sluice.dev/sluice/internal/store"
)

// benchScale is a number of policies, of pods, and of those that are local.
type benchScale struct{ policies, pods, local int }

func (sc benchScale) String() string {
	return fmt.Sprintf("%d-policies-%d-pods-%d-local", sc.policies, sc.pods, sc.local)
}

func benchAddr(i int) netip.Addr {
	return netip.AddrFrom4([4]byte{10, byte(i >> 16), byte(i >> 8), byte(i)})
}

// benchPod is one of ten with its label app, of a hundred in its namespace.
func benchPod(i int, node string, extra ...string) *model.Pod {
	l := map[string]string{"app": fmt.Sprint(i / 10), "env": "prod", "pod-template-hash": fmt.Sprint(i / 10)}
	for i := 0; i < len(extra); i += 2 {
		l[extra[i]] = extra[i+1]
	}
	return &model.Pod{
		Name: model.Name{Namespace: fmt.Sprintf("ns-%d", i/100), Name: fmt.Sprintf("pod-%d", i)}, Labels: l,
		IPs: []netip.Addr{benchAddr(i)}, Node: node, Ready: true, ServiceAccount: "default",
		Ports: []model.ContainerPort{{Name: "http", Protocol: model.TCP, Port: 8080}},
	}
}

func appIn(namespace, app string) model.Selector {
	return model.And(model.Equal(model.OrchestratorLabel, "k8s"), model.Equal(model.NamespaceLabel, namespace), model.Equal("app", app))
}

// benchPolicy lets one app of the policy's namespace talk to another on two ports.
func benchPolicy(i, apps int) *model.Policy {
	to := i % apps
	from := to/10*10 + (to+1)%10
	ns := fmt.Sprintf("ns-%d", to/10)
	return &model.Policy{
		Key:  model.PolicyKey{Kind: model.NetworkPolicy, Name: model.Name{Namespace: ns, Name: fmt.Sprintf("policy-%d", i)}},
		Tier: "default", Order: 1000, Subject: appIn(ns, fmt.Sprint(to)), Ingress: true,
		IngressRules: []model.PolicyRule{{
			Name:   "ingress[0]",
			Source: model.RuleEnd{Peers: [][]model.Peer{{{Selector: appIn(ns, fmt.Sprint(from))}}}},
			Destination: model.RuleEnd{Ports: []model.PolicyPort{
				{Protocol: model.TCP, First: 8080, Last: 8080}, {Protocol: model.UDP, First: 53, Last: 53}}},
		}},
	}
}

func benchStore(sc benchScale) *store.Store {
	s := store.New()
	var events []store.Event
	for i := range sc.pods {
		node := "there"
		if i%(sc.pods/sc.local) == 0 {
			node = "here"
		}
		events = append(events, event(benchPod(i, node)))
	}
	for i := range sc.pods / 100 {
		ns := fmt.Sprintf("ns-%d", i)
		events = append(events, event(&model.Namespace{Name: ns, Labels: map[string]string{"team": ns}}))
	}
	for i := range sc.policies {
		events = append(events, event(benchPolicy(i, sc.pods/10)))
	}
	s.Apply(events)
	return s
}

// BenchmarkStart compiles everything.
func BenchmarkStart(b *testing.B) {
	for _, sc := range []benchScale{{100, 1_000, 10}, {10_000, 10_000, 30}, {10_000, 100_000, 30}} {
		b.Run(sc.String(), func(b *testing.B) {
			s := benchStore(sc)
			var c *Compiler
			for b.Loop() {
				c = New(Config{Node: "here"})
				s.Read(func(v *store.View) { c.Update(v, v.All(), nil) })
			}
			b.StopTimer()
			if len(c.policy.Workloads) != sc.local && sc.pods%sc.local == 0 || len(c.policy.Rules) == 0 {
				b.Fatalf("%d workloads, %d rules", len(c.policy.Workloads), len(c.policy.Rules))
			}
			before := heap()
			runtime.KeepAlive(c)
			c = nil // so that the difference is what it held
			b.ReportMetric(float64(before-heap())/1e6, "MB")
			runtime.KeepAlive(s)
		})
	}
}

func heap() int64 {
	runtime.GC()
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc)
}

// BenchmarkPodChange changes a pod that ten of all programmed selectors select: its address, and
// a label that they ask for.
func BenchmarkPodChange(b *testing.B) {
	for _, selectors := range []int{10, 1_000, 10_000} {
		s := benchStore(benchScale{0, 100_000, 30})
		var events []store.Event
		for i := range selectors {
			p := benchPolicy(i, 10_000)
			p.Subject = model.Equal("app", "0") // of a pod here
			p.IngressRules[0].Source.Peers[0][0].Selector = model.And(appIn(fmt.Sprintf("ns-%d", i/10/100), fmt.Sprint(i/10)), model.Has(fmt.Sprintf("with-%d", i)))
			events = append(events, event(p))
		}
		s.Apply(events)
		of := func(pod *model.Pod) *model.Pod {
			for i := range 10 {
				pod.Labels[fmt.Sprintf("with-%d", i)] = ""
			}
			return pod
		}
		c := New(Config{Node: "here"})
		s.Read(func(v *store.View) { c.Update(v, v.All(), nil) })
		s.Apply([]store.Event{event(of(benchPod(1, "there")))})
		update(c, s, s.Take(), nil)
		if n := c.sets.Total(); n != 10 {
			b.Fatal(n)
		}
		other := of(benchPod(1, "there"))
		other.IPs = []netip.Addr{benchAddr(1 << 20)}
		without := benchPod(1, "there")
		for what, next := range map[string]*model.Pod{"address": other, "label": without} {
			b.Run(fmt.Sprintf("%s/%d-selectors", what, selectors), func(b *testing.B) {
				b.ReportAllocs()
				pods, i := [2]*model.Pod{next, of(benchPod(1, "there"))}, 0
				for b.Loop() {
					s.Apply([]store.Event{event(pods[i%2])})
					if d := update(c, s, s.Take(), nil); len(d.Groups) != 10 {
						b.Fatal(len(d.Groups))
					}
					i++
				}
				s.Apply([]store.Event{event(pods[1])})
				update(c, s, s.Take(), nil)
			})
		}
	}
}

// BenchmarkListChange changes one of a million networks of a set that a policy selects.
func BenchmarkListChange(b *testing.B) {
	const nets = 1_000_000
	list := func(last int) *model.NetworkSet {
		set := &model.NetworkSet{Key: model.NetworkSetKey{Kind: model.AddressList, Name: model.Name{Name: "bad"}}, Labels: map[string]string{"name": "bad"}}
		for i := range nets - 1 {
			set.Nets = append(set.Nets, netip.PrefixFrom(benchAddr(i), 32))
		}
		set.Nets = append(set.Nets, netip.PrefixFrom(benchAddr(nets+last), 32))
		return set
	}
	s := benchStore(benchScale{1_000, 1_000, 30})
	p := benchPolicy(0, 1)
	p.Key.Name.Name = "bad"
	p.IngressRules[0].Source.Peers[0][0].Selector = model.Equal("name", "bad")
	sets := [2]*model.NetworkSet{list(0), list(1)}
	s.Apply([]store.Event{event(p), event(sets[0])})
	c := New(Config{Node: "here"})
	s.Read(func(v *store.View) { c.Update(v, v.All(), nil) })
	s.Take()
	for i := 1; b.Loop(); i++ {
		s.Apply([]store.Event{event(sets[i%2])})
		if d := update(c, s, s.Take(), nil); len(d.Lists) != 1 || len(d.Rules) != 0 {
			b.Fatal(len(d.Lists), len(d.Rules))
		}
	}
}
