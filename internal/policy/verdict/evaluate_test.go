package verdict

import (
	"math/rand/v2"
	"net/netip"
	"reflect"
	"slices"
	"strconv"
	"testing"

	"sluice.dev/sluice/internal/model"
	"sluice.dev/sluice/internal/state"
)

func addr(s string) netip.Addr     { return netip.MustParseAddr(s) }
func prefix(s string) netip.Prefix { return netip.MustParsePrefix(s) }

func np(name string) model.PolicyKey {
	return model.PolicyKey{Kind: model.NetworkPolicy, Name: model.Name{Namespace: "shop", Name: name}}
}

func admin(name string) model.PolicyKey {
	return model.PolicyKey{Kind: model.ClusterPolicy, Name: model.Name{Name: name}}
}

func tcpPorts(first, last uint16) *state.Ports {
	return &state.Ports{Ranges: []state.PortRange{{Protocol: model.TCP, First: first, Last: last}}}
}

const (
	webGroup  = state.SetID(0x100)
	badList   = state.SetID(0x200)
	httpPorts = state.SetID(0x300)
)

// testPolicy has a group, a list and named ports.
func testPolicy() *state.Policy {
	p := state.NewPolicy()
	p.Groups[webGroup] = map[netip.Addr]struct{}{addr("10.1.0.5"): {}, addr("fd00::5"): {}}
	p.Lists[badList] = &state.List{Name: "GlobalNetworkSet bad", Prefixes: []netip.Prefix{
		prefix("198.51.100.0/24"), prefix("198.51.100.7/32"), prefix("203.0.113.0/28"), prefix("2001:db8::/32")}}
	p.NamedPorts[httpPorts] = map[state.NamedPort]struct{}{{Addr: addr("10.1.0.7"), Protocol: model.TCP, Port: 8080}: {}}
	return p
}

var badRef = state.ListRef{ID: badList, IPv4: []uint8{24, 28, 32}, IPv6: []uint8{32}}

func TestMatches(t *testing.T) {
	p := testPolicy()
	web, bad := state.Term{Groups: []state.SetID{webGroup}}, state.Term{Lists: []state.ListRef{badRef}}
	tcp := Flow{Source: addr("10.1.0.5"), Destination: addr("10.1.0.7"), Protocol: 6, SourcePort: 4000, DestinationPort: 8080}
	with := func(change func(*Flow)) Flow { f := tcp; change(&f); return f }
	udp := with(func(f *Flow) { f.Protocol = 17 })
	ping := Flow{Source: tcp.Source, Destination: tcp.Destination, Protocol: 1, ICMPType: 8}
	v6 := Flow{Source: addr("fd00::5"), Destination: addr("fd00::7"), Protocol: 6, DestinationPort: 8080}
	from := func(s string) Flow { return with(func(f *Flow) { f.Source = addr(s) }) }
	source := func(e state.End) state.Rule { return state.Rule{Source: e} }
	to := func(e state.End) state.Rule { return state.Rule{Destination: e} }
	tests := map[string]struct {
		rule    state.Rule
		yes, no []Flow
	}{
		"everything":           {state.Rule{}, []Flow{tcp, udp, ping, v6}, nil},
		"a family":             {state.Rule{Family: 6}, []Flow{v6}, []Flow{tcp, ping}},
		"a protocol":           {state.Rule{Protocol: 6}, []Flow{tcp, v6}, []Flow{udp, ping}},
		"not a protocol":       {state.Rule{NotProtocol: 6}, []Flow{udp, ping}, []Flow{tcp, v6}},
		"an ICMP type":         {state.Rule{Protocol: 1, ICMP: &model.ICMP{Type: 8, Code: -1}}, []Flow{ping}, []Flow{tcp}},
		"an ICMP code":         {state.Rule{Protocol: 1, ICMP: &model.ICMP{Type: 8, Code: 1}}, nil, []Flow{ping}},
		"not an ICMP type":     {state.Rule{Protocol: 1, NotICMP: &model.ICMP{Type: 8, Code: -1}}, nil, []Flow{ping, tcp}},
		"not an ICMP code":     {state.Rule{Protocol: 1, NotICMP: &model.ICMP{Type: 8, Code: 1}}, []Flow{ping}, []Flow{tcp}},
		"a group":              {source(state.End{In: []state.Term{web}}), []Flow{tcp, v6}, []Flow{from("10.1.0.6")}},
		"not a group":          {source(state.End{NotIn: []state.Term{web}}), []Flow{from("10.1.0.6")}, []Flow{tcp, v6}},
		"a list":               {source(state.End{In: []state.Term{bad}}), []Flow{from("198.51.100.7"), from("198.51.100.255"), from("203.0.113.15"), from("2001:db8:1::1")}, []Flow{tcp, v6, from("203.0.113.16")}},
		"one of two":           {source(state.End{In: []state.Term{{Groups: web.Groups, Lists: bad.Lists}}}), []Flow{tcp, from("198.51.100.7")}, []Flow{from("10.1.0.6")}},
		"both of two":          {source(state.End{In: []state.Term{web, bad}}), nil, []Flow{tcp, from("198.51.100.7")}},
		"nothing":              {source(state.End{In: []state.Term{{}}}), nil, []Flow{tcp, v6}},
		"a set that is gone":   {source(state.End{In: []state.Term{{Groups: []state.SetID{1}, Lists: []state.ListRef{{ID: 1, IPv4: []uint8{0}}}}}}), nil, []Flow{tcp}},
		"a port":               {to(state.End{Ports: tcpPorts(8080, 8080)}), []Flow{tcp, v6}, []Flow{udp, ping}},
		"a range":              {to(state.End{Ports: tcpPorts(8000, 8079)}), nil, []Flow{tcp}},
		"all ports":            {to(state.End{Ports: tcpPorts(0, 65535)}), []Flow{tcp}, []Flow{udp, ping}},
		"no port":              {to(state.End{Ports: &state.Ports{}}), nil, []Flow{tcp, ping}},
		"a source port":        {source(state.End{Ports: tcpPorts(4000, 4000)}), []Flow{tcp}, []Flow{v6}},
		"a named port":         {to(state.End{Ports: &state.Ports{Named: []state.SetID{httpPorts}}}), []Flow{tcp}, []Flow{udp, v6}},
		"one of two names":     {to(state.End{Ports: &state.Ports{Named: []state.SetID{webGroup, httpPorts}}}), []Flow{tcp}, []Flow{udp, v6}},
		"another's name":       {source(state.End{Ports: &state.Ports{Named: []state.SetID{httpPorts}}}), nil, []Flow{tcp}},
		"not a port":           {to(state.End{NotPorts: tcpPorts(8080, 8080)}), []Flow{udp, ping}, []Flow{tcp}},
		"not a named port":     {to(state.End{NotPorts: &state.Ports{Named: []state.SetID{httpPorts}}}), []Flow{v6}, []Flow{tcp}},
		"not one of two names": {to(state.End{NotPorts: &state.Ports{Named: []state.SetID{webGroup, httpPorts}}}), []Flow{v6}, []Flow{tcp}},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			for _, f := range tt.yes {
				if !Matches(p, &tt.rule, f) {
					t.Errorf("does not match %+v", f)
				}
			}
			for _, f := range tt.no {
				if Matches(p, &tt.rule, f) {
					t.Errorf("matches %+v", f)
				}
			}
		})
	}
}

// TestListed compares the search in a list with a walk of it.
func TestListed(t *testing.T) {
	r := rand.New(rand.NewPCG(3, 4))
	random := func() netip.Addr {
		if r.IntN(2) == 0 {
			return netip.AddrFrom4([4]byte{10, byte(r.IntN(2)), byte(r.IntN(4)), byte(r.IntN(8))})
		}
		return netip.AddrFrom16([16]byte{0xfd, 15: byte(r.IntN(64))})
	}
	hits := 0
	for range 500 {
		var l state.List
		ref := state.ListRef{ID: 1}
		for range r.IntN(10) {
			a := random()
			c, err := a.Prefix(a.BitLen() - r.IntN(10))
			if err != nil {
				t.Fatal(err)
			}
			l.Prefixes = append(l.Prefixes, c)
			if a.Is4() {
				ref.IPv4 = append(ref.IPv4, uint8(c.Bits()))
			} else {
				ref.IPv6 = append(ref.IPv6, uint8(c.Bits()))
			}
		}
		slices.SortFunc(l.Prefixes, netip.Prefix.Compare)
		l.Prefixes = slices.Compact(l.Prefixes)
		for _, lengths := range []*[]uint8{&ref.IPv4, &ref.IPv6} {
			slices.Sort(*lengths)
			*lengths = slices.Compact(*lengths)
		}
		p := state.NewPolicy()
		p.Lists[1] = &l
		for range 20 {
			a := random()
			want := model.Within(a, l.Prefixes)
			if got := listed(p, ref, a); got != want {
				t.Fatalf("%v in %v: %v, want %v", a, l.Prefixes, got, want)
			}
			if want {
				hits++
			}
		}
	}
	if hits == 0 {
		t.Error("nothing was ever listed")
	}
}

func TestJudge(t *testing.T) {
	rule := func(name string, action model.Action, port uint16) state.Rule {
		return state.Rule{Name: name, Action: action, Destination: state.End{Ports: tcpPorts(port, port)}}
	}
	rules := &state.Rules{ID: "x", Tiers: []state.Tier{
		{Name: "kube-admin", Default: model.Pass, Policies: []*state.PolicyRules{{Policy: admin("a"), Rules: []state.Rule{
			rule("log", model.Log, 1), rule("deny", model.Deny, 1), rule("late", model.Allow, 1),
			rule("pass", model.Pass, 2), rule("too late", model.Deny, 2),
			rule("allow", model.Allow, 3),
		}}}},
		{Name: "default", Default: model.Deny, Policies: []*state.PolicyRules{{Policy: np("db"), Rules: []state.Rule{
			rule("ingress[0]", model.Allow, 2), rule("ingress[1]", model.Pass, 4), rule("ingress[2]", model.Pass, 5),
		}}, {Policy: np("all")}}},
		{Name: "kube-baseline", Default: model.Pass, Policies: []*state.PolicyRules{{Policy: admin("default"), Rules: []state.Rule{
			rule("deny", model.Deny, 4),
		}}}},
	}}
	host := &state.Rules{ID: "h", Default: model.Deny, Tiers: rules.Tiers[:1]}
	p := state.NewPolicy()
	p.Rules["x"], p.Rules["h"] = rules, host
	tests := []struct {
		id   state.RulesID
		port uint16
		want Verdict
	}{
		{"", 1, Verdict{Outcome: Allowed}},
		{"gone", 1, Verdict{}},
		{"x", 1, Verdict{Decider: Decider{Tier: "kube-admin", Policy: admin("a"), Rule: "deny"}, Asked: []model.PolicyKey{admin("a")}}},
		{"x", 2, Verdict{Outcome: Allowed, Decider: Decider{Tier: "default", Policy: np("db"), Rule: "ingress[0]"}}},
		{"x", 3, Verdict{Outcome: Allowed, Decider: Decider{Tier: "kube-admin", Policy: admin("a"), Rule: "allow"}}},
		{"x", 4, Verdict{Decider: Decider{Tier: "kube-baseline", Policy: admin("default"), Rule: "deny"}, Asked: []model.PolicyKey{admin("default")}}},
		{"x", 5, Verdict{Outcome: Allowed}},
		{"x", 6, Verdict{Decider: Decider{Tier: "default"}, Isolating: []model.PolicyKey{np("db"), np("all")}}},
		{"h", 2, Verdict{}},
		{"h", 6, Verdict{}},
		{"h", 3, Verdict{Outcome: Allowed, Decider: Decider{Tier: "kube-admin", Policy: admin("a"), Rule: "allow"}}},
	}
	for _, tt := range tests {
		t.Run(string(tt.id)+" "+strconv.Itoa(int(tt.port)), func(t *testing.T) {
			got := Evaluate(p, tt.id, Flow{Source: addr("10.0.0.1"), Destination: addr("10.0.0.2"), Protocol: 6, DestinationPort: tt.port})
			if !reflect.DeepEqual(got, tt.want) {
				t.Errorf("got  %+v\nwant %+v", got, tt.want)
			}
		})
	}
}
