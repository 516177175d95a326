package nftables

import (
	"flag"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"reflect"
	"strconv"
	"strings"
	"testing"
	"time"

	"sluice.dev/sluice/internal/driver"
	"sluice.dev/sluice/internal/model"
	"sluice.dev/sluice/internal/state"
	"sluice.dev/sluice/test/world"
)

var raceCommits = flag.Int("race-commits", 100, "so many changes does TestVerdictsWhileAllChanges make")

// raceChange is a part of the state that has versions, each of them right for all flows.
type raceChange struct {
	name     string
	versions int
	to       func(was, version int) state.Delta // was is -1 the first time
}

// Packets are judged, translated and sent on as they should be, each of them as the first one of
// its connection, while everything that they are looked up in changes as fast as it can. What
// leaves the node is counted and dropped there, before a connection is remembered.
//
//	go test ./internal/driver/nftables -run TestVerdictsWhileAllChanges -race-commits 100000 -timeout 2h -v
func TestVerdictsWhileAllChanges(t *testing.T) {
	t.Parallel()
	w := newRaceWorld(t)
	d := openIn(t, w.node.NS, Options{Options: driver.Options{Policy: true, Fabric: true}})
	want := state.New()
	want.Policy = state.NewPolicy()
	changes := w.changes()
	is := make([]int, len(changes))
	for i, c := range changes {
		want.Apply(c.to(-1, 0))
		is[i] = 0
	}
	adopt(t, d, want)

	packets := w.node.Flood(w.flows, func() {
		begun, told := time.Now(), time.Now()
		for n := range *raceCommits {
			delta := state.Delta{}
			for range 1 + rand.N(3) {
				i := rand.N(len(changes))
				if next := rand.N(changes[i].versions); next != is[i] {
					join(reflect.ValueOf(&delta).Elem(), reflect.ValueOf(changes[i].to(is[i], next)))
					is[i] = next
				}
			}
			if delta.Len() == 0 {
				continue
			}
			if p, err := d.Update(t.Context(), delta); err != nil || p.Apply(t.Context()) != nil {
				t.Errorf("change %d: %v", n, err)
				return
			}
			if time.Since(told) > 20*time.Second {
				told = time.Now()
				t.Logf("%d changes after %s", n, time.Since(begun).Round(time.Second))
			}
		}
	})
	t.Logf("%d packets, %d changes", packets, *raceCommits)
}

// join has a change be both, what it names and what a later one does.
func join(change, later reflect.Value) {
	switch later.Kind() {
	case reflect.Struct:
		for i := range later.NumField() {
			join(change.Field(i), later.Field(i))
		}
	case reflect.Map:
		if change.IsNil() && !later.IsNil() {
			change.Set(reflect.MakeMap(later.Type()))
		}
		for _, k := range later.MapKeys() {
			change.SetMapIndex(k, later.MapIndex(k))
		}
	case reflect.Pointer:
		if !later.IsNil() {
			change.Set(later)
		}
	}
}

type raceWorld struct {
	node, pod, served, outside *world.Host
	flows                      []*world.Flow
}

const (
	racePod     = "10.1.0.1"
	raceNode    = "192.0.2.1"
	raceClient  = "192.0.2.10"
	raceBad     = "192.0.2.66" // on a deny list
	raceForeign = "192.0.2.77" // in no source range
	raceServed  = "10.1.0.2-10.1.0.4"
)

func newRaceWorld(t *testing.T) *raceWorld {
	w := &raceWorld{node: world.NewHost(t, "node"), outside: world.NewHost(t, "outside")}
	w.node.Forward()
	w.pod, w.served = world.NewPod(w.node, "pod", racePod), world.NewPod(w.node, "served", "10.1.0.2", "10.1.0.3", "10.1.0.4")
	w.node.Join("eth0", w.outside, "eth0")
	w.node.Address("eth0", raceNode+"/24")
	w.outside.Address("eth0", raceClient+"/24", raceBad+"/24", raceForeign+"/24")
	w.outside.Gateway(raceNode)
	w.node.IP("link set lo up")
	w.flows = []*world.Flow{
		{Name: "allowed", Host: w.pod, From: racePod, To: "10.1.0.2:7001", Gets: "10.1.0.2"},
		{Name: "allowed-by-group", Host: w.pod, From: racePod, To: "10.1.0.3:7002", Gets: "10.1.0.3"},
		{Name: "denied-to-pod", Host: w.pod, From: racePod, To: "10.1.0.2:7003"},
		{Name: "denied-from-pod", Host: w.pod, From: racePod, To: "10.1.0.3:7004"},
		{Name: "cluster-ip", Host: w.pod, From: racePod, To: "10.96.0.10:7005", Gets: raceServed},
		{Name: "no-service", Host: w.pod, From: racePod, To: "10.96.0.99:7006"},
		{Name: "with-affinity", Host: w.pod, From: racePod, To: "10.96.0.11:7007", Gets: raceServed},
		{Name: "to-outside", Host: w.pod, From: racePod, To: raceClient + ":7008", Gets: raceClient, As: raceNode},
		{Name: "external", Host: w.outside, From: raceClient, To: "203.0.113.1:7009", Gets: raceServed, As: raceNode},
		{Name: "local", Host: w.outside, From: raceClient, To: "203.0.113.2:7010", Gets: raceServed},
		{Name: "in-range", Host: w.outside, From: raceClient, To: "203.0.113.3:7011", Gets: raceServed, As: raceNode},
		{Name: "out-of-range", Host: w.outside, From: raceForeign, To: "203.0.113.3:7012"},
		{Name: "denied-by-host", Host: w.outside, From: raceClient, To: "10.1.0.2:7013"},
		{Name: "denied-before-dnat", Host: w.outside, From: raceClient, To: "203.0.113.1:7014"},
		{Name: "allowed-by-host", Host: w.outside, From: raceClient, To: "10.1.0.3:7015", Gets: "10.1.0.3"},
		{Name: "untracked", Host: w.outside, From: raceClient, To: "10.1.0.4:7016", Gets: "10.1.0.4", Untracked: true},
		{Name: "denied-untracked", Host: w.outside, From: raceClient, To: "10.1.0.4:7017"},
		{Name: "deny-list", Host: w.outside, From: raceBad, To: "10.1.0.3:7015", Early: true},
	}
	return w
}

// changes are the parts of the state.
func (w *raceWorld) changes() []raceChange {
	frontend := func(name, at string, version func(v int) *state.Frontend) raceChange {
		k := state.FrontendKey{Protocol: model.UDP, Addr: netip.MustParseAddrPort(at).Addr(), Port: netip.MustParseAddrPort(at).Port()}
		return raceChange{name, 6, func(_, v int) state.Delta {
			f := version(v)
			f.Service, f.Port = model.Name{Namespace: "default", Name: name}, strings.Repeat("p", v%2)
			b := addrPorts("10.1.0.2:"+port(k.Port), "10.1.0.3:"+port(k.Port), "10.1.0.4:"+port(k.Port))
			if f.Backends == nil { // with affinity, a client's first packet may be lost when its backend goes
				f.Backends = b[:1+v%3]
			}
			if f.LocalOnly {
				f.Local = b[2-v%3:]
			}
			f.Alive, f.Serving = f.Backends, f.Backends
			return state.Delta{Services: state.ServicesDelta{Frontends: map[state.FrontendKey]*state.Frontend{k: f}}}
		}}
	}
	kind := func(k state.Kind, more func(f *state.Frontend, v int)) func(int) *state.Frontend {
		return func(v int) *state.Frontend {
			f := &state.Frontend{Kind: k}
			if more != nil {
				more(f, v)
			}
			return f
		}
	}
	settings := raceChange{"settings", 5, func(_, v int) state.Delta {
		s := state.Settings{
			ServiceCIDRs: [][]netip.Prefix{prefixes("10.96.0.0/16"), prefixes("10.96.0.0/12"), prefixes("10.96.0.0/17", "10.96.128.0/17"), prefixes("10.96.0.0/24"), prefixes("10.96.0.0/15", "172.16.0.0/12")}[v],
			ClusterCIDRs: [][]netip.Prefix{prefixes("10.1.0.0/16"), prefixes("10.1.0.0/17", "10.1.128.0/17"), prefixes("10.0.0.0/14"), prefixes("10.1.0.0/24", "10.2.0.0/16"), prefixes("10.1.0.0/16")}[v],
			LocalCIDRs:   [][]netip.Prefix{prefixes("10.1.0.0/24"), prefixes("10.1.0.0/25"), prefixes("10.1.0.0/26", "10.1.0.64/26"), prefixes("10.1.0.0/24"), prefixes("10.1.0.0/28")}[v],
			SNAT:         [][]state.SNAT{nil, {{Device: "eth0", Addr: netip.MustParseAddr(raceNode)}}, {{Device: "served", Addr: netip.MustParseAddr(raceNode)}}}[v%3],
		}
		s.PoolCIDRs, s.OutgoingCIDRs = s.ClusterCIDRs, s.ClusterCIDRs
		return state.Delta{Services: state.ServicesDelta{Settings: &s}}
	}}
	device := func(name string) int { return w.node.Device(name).Attrs().Index }
	pod, served, eth0 := device("pod"), device("served"), device("eth0")
	fixed := raceChange{"fixed", 1, func(int, int) state.Delta {
		ips := map[netip.Addr]bool{}
		for _, a := range []string{"10.96.0.10", "10.96.0.11"} {
			ips[netip.MustParseAddr(a)] = true
		}
		hairpins := map[netip.Addr]bool{}
		for _, a := range []string{racePod, "10.1.0.2", "10.1.0.3", "10.1.0.4"} {
			hairpins[netip.MustParseAddr(a)] = true
		}
		return state.Delta{
			Services: state.ServicesDelta{ClusterIPs: ips, Hairpins: hairpins},
			Policy: state.PolicyDelta{PodDevices: map[int]bool{pod: true, served: true}, HostDevices: map[int]bool{eth0: true, 1: true},
				Groups: map[state.SetID]map[netip.Addr]bool{9: {netip.MustParseAddr(racePod): true}}},
		}
	}}
	rest := []uint16{7001, 7005, 7007, 7009, 7010, 7011, 7015, 7016}
	// The pods' policies allow what has to pass, in one of several ways of saying so.
	ingress := w.rules("to", rest, func(v int) state.Rule {
		group := state.SetID(9)
		if v%2 == 1 {
			group = state.SetID(20 + v) // comes and goes with the version
		}
		return state.Rule{Name: "by-group", Action: model.Allow, Protocol: uint8(model.UDP),
			Source: state.End{In: []state.Term{{Groups: []state.SetID{group}}}}, Destination: state.End{Ports: raceUDP(7002)}}
	})
	egress := w.rules("from", []uint16{7001, 7002, 7003, 7005, 7006, 7007, 7008}, nil)
	host := w.rules("host", append([]uint16{7014, 7017}, rest...), nil)
	before := w.rules("before", append([]uint16{7012, 7013}, rest...), nil)
	raw := w.rules("raw", []uint16{7016}, nil)
	workloads := raceChange{"workloads", 4, func(was, v int) state.Delta {
		d := state.PolicyDelta{Rules: map[state.RulesID]*state.Rules{}, Workloads: map[netip.Addr]*state.Workload{}}
		in, out := ingress(v), egress(v)
		if was >= 0 {
			d.Rules[ingress(was).ID], d.Rules[egress(was).ID] = nil, nil
		}
		d.Rules[in.ID], d.Rules[out.ID] = in, out
		d.Groups = map[state.SetID]map[netip.Addr]bool{}
		if v%2 == 1 {
			d.Groups[state.SetID(20+v)] = map[netip.Addr]bool{netip.MustParseAddr(racePod): true}
		}
		if was >= 0 && was%2 == 1 && was != v {
			d.Groups[state.SetID(20+was)] = map[netip.Addr]bool{netip.MustParseAddr(racePod): false}
		}
		for _, a := range []string{"10.1.0.2", "10.1.0.3", "10.1.0.4"} {
			d.Workloads[netip.MustParseAddr(a)] = &state.Workload{Pod: model.Name{Namespace: "default", Name: "served"}, Device: served, Ingress: in.ID}
		}
		d.Workloads[netip.MustParseAddr(racePod)] = &state.Workload{Pod: model.Name{Namespace: "default", Name: "pod"}, Device: pod, Egress: out.ID}
		return state.Delta{Policy: d}
	}}
	hosts := raceChange{"hosts", 4, func(was, v int) state.Delta {
		d := state.PolicyDelta{Rules: map[state.RulesID]*state.Rules{}}
		for _, p := range []func(int) *state.Rules{host, before, raw} {
			if was >= 0 {
				d.Rules[p(was).ID] = nil
			}
			d.Rules[p(v).ID] = p(v)
		}
		d.Hosts = map[int]*state.Host{eth0: {Name: "node-eth0", Device: "eth0", ForwardIn: host(v).ID, PreDNAT: before(v).ID, UntrackedIn: w.rawFor(raw(v)).ID}}
		d.Rules[raw(v).ID] = w.rawFor(raw(v))
		return state.Delta{Policy: d}
	}}
	return []raceChange{
		fixed, settings, workloads, hosts,
		{"pod CIDRs", 4, func(_, v int) state.Delta {
			c := [][]netip.Prefix{prefixes("10.1.0.0/24"), prefixes("10.1.0.0/25", "10.1.0.128/25"), prefixes("10.1.0.0/26"), nil}[v]
			return state.Delta{Policy: state.PolicyDelta{PodCIDRs: &c}}
		}},
		{"denied", 4, func(_, v int) state.Delta {
			lists := [][]netip.Prefix{prefixes(raceBad + "/32"), prefixes("192.0.2.64/30"), prefixes("192.0.2.64/29", "198.51.100.0/24"), prefixes(raceBad+"/32", "198.51.100.1/32")}[v]
			return state.Delta{Policy: state.PolicyDelta{Denied: &state.Denied{Devices: []state.Device{{Name: "eth0", Index: eth0}}, Lists: []*state.List{{Name: "bad", Prefixes: lists}}}}}
		}},
		frontend("cluster-ip", "10.96.0.10:7005", kind(state.ClusterIP, nil)),
		frontend("with-affinity", "10.96.0.11:7007", kind(state.ClusterIP, func(f *state.Frontend, v int) {
			f.Affinity = time.Duration(v%4) * time.Hour
			f.Backends = addrPorts("10.1.0.2:7007", "10.1.0.3:7007", "10.1.0.4:7007")
		})),
		frontend("external", "203.0.113.1:7009", kind(state.ExternalIP, nil)),
		frontend("local", "203.0.113.2:7010", kind(state.LoadBalancer, func(f *state.Frontend, v int) { f.LocalOnly = true })),
		frontend("in-range", "203.0.113.3:7011", kind(state.LoadBalancer, func(f *state.Frontend, v int) {
			f.SourceRanges = [][]netip.Prefix{prefixes(raceClient + "/32"), prefixes("192.0.2.0/27"), prefixes("192.0.2.0/28", "198.51.100.0/24")}[v%3]
		})),
		frontend("out-of-range", "203.0.113.3:7012", kind(state.LoadBalancer, func(f *state.Frontend, v int) {
			f.SourceRanges = [][]netip.Prefix{prefixes(raceClient + "/32"), prefixes("192.0.2.0/27"), prefixes("192.0.2.0/28", "198.51.100.0/24")}[v%3]
		})),
		frontend("denied-before-dnat", "203.0.113.1:7014", kind(state.ExternalIP, nil)),
	}
}

// rules returns rules that allow some ports of UDP and deny the others, in a way of saying so for
// each version.
func (w *raceWorld) rules(name string, allowed []uint16, extra func(v int) state.Rule) func(int) *state.Rules {
	return func(v int) *state.Rules {
		var rules []state.Rule
		for i, p := range allowed {
			if i%4 == v && i > 0 {
				rules = append([]state.Rule{{Name: fmt.Sprint("first-", p), Action: model.Allow, Protocol: uint8(model.UDP), Destination: state.End{Ports: raceUDP(p)}}}, rules...)
				continue
			}
			rules = append(rules, state.Rule{Name: fmt.Sprint(p), Action: model.Allow, Protocol: uint8(model.UDP), Destination: state.End{Ports: raceUDP(p)}})
		}
		if extra != nil {
			rules = append(rules, extra(v))
		}
		id := fmt.Sprintf("%s-%d", name, v)
		return &state.Rules{ID: state.RulesID(id), Default: model.Deny, Tiers: []state.Tier{{Name: "default", Default: model.Deny, Policies: []*state.PolicyRules{
			{ID: id, Policy: model.PolicyKey{Kind: model.NetworkPolicy, Name: model.Name{Namespace: "default", Name: name}}, Rules: rules},
		}}}}
	}
}

// rawFor has rules deny one port and pass what they do not allow on, to be tracked.
func (w *raceWorld) rawFor(p *state.Rules) *state.Rules {
	raw, policy, tier := *p, *p.Tiers[0].Policies[0], p.Tiers[0]
	policy.Rules = append([]state.Rule{{Name: "deny", Action: model.Deny, Protocol: uint8(model.UDP), Destination: state.End{Ports: raceUDP(7017)}}}, policy.Rules...)
	tier.Policies, tier.Default = []*state.PolicyRules{&policy}, model.Pass
	raw.Tiers, raw.Default = []state.Tier{tier}, model.Allow
	return &raw
}

func raceUDP(ports ...uint16) *state.Ports {
	p := &state.Ports{}
	for _, n := range ports {
		p.Ranges = append(p.Ranges, state.PortRange{Protocol: model.UDP, First: n, Last: n})
	}
	return p
}

func port(n uint16) string { return strconv.Itoa(int(n)) }
