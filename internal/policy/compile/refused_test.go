package compile

import (
	"strings"
	"testing"

	gocmp "github.com/google/go-cmp/cmp"

	"sluice.dev/sluice/internal/model"
	"sluice.dev/sluice/internal/policy/compile/sets"
	"sluice.dev/sluice/internal/state"
	"sluice.dev/sluice/internal/store"
)

func refused(p *model.Policy) { p.Refused = "no good" }

// What a policy that is refused denies does not depend on its name, nor on what else there is.
func TestRefusedPolicies(t *testing.T) {
	failsafe := Config{Node: "here", FailsafeInbound: []state.PortRange{{Protocol: model.TCP, First: 22, Last: 22}}}
	web := pod(1, "here", "app", "web")
	good := networkPolicy("m-good", ingress(model.PolicyRule{Name: "r"}))
	global := func(p *model.Policy) { p.Key.Kind = model.GlobalNetworkPolicy }
	isolates := func(first, second string) string {
		return `
10.0.0.1 shop/p1 dev 4
  in default ` + first + " " + second + `
    r allow
    else deny
  in else allow`
	}
	for _, tc := range []struct {
		name    string
		objects []any
		want    string
	}{
		{"a NetworkPolicy isolates, others allow", []any{web, good, networkPolicy("z-bad", ingress(), refused)}, isolates("m-good", "z-bad")},
		{"the same with another name", []any{web, good, networkPolicy("a-bad", ingress(), refused)}, isolates("a-bad", "m-good")},
		{"in its directions alone", []any{web, networkPolicy("bad", egress(), refused)}, `
10.0.0.1 shop/p1 dev 4
  out default bad
    else deny
  out else allow`},
		{"one of an ordered kind denies in front of all", []any{web,
			networkPolicy("a-first", ingress(model.PolicyRule{Name: "r"}), global, func(p *model.Policy) { p.Tier = model.AdminTier.Name }),
			networkPolicy("z-bad", ingress(), refused, global, func(p *model.Policy) { p.Tier = model.BaselineTier.Name })}, `
10.0.0.1 shop/p1 dev 4
  in refused z-bad
    refused deny
    else pass
  in kube-admin a-first
    r allow
    else pass
  in else allow`},
		{"one of an unknown tier waits for it", []any{web, good, networkPolicy("z-bad", ingress(model.PolicyRule{Name: "r"}), global, func(p *model.Policy) { p.Tier = "lost" })}, `
10.0.0.1 shop/p1 dev 4
  in default m-good
    r allow
    else deny
  in else allow`},
		{"one of a tier that cannot be read denies in front of all", []any{web, good, &model.Tier{Name: "lost", Refused: "no good"},
			networkPolicy("z-bad", ingress(model.PolicyRule{Name: "r"}), global, func(p *model.Policy) { p.Tier = "lost" })}, `
10.0.0.1 shop/p1 dev 4
  in refused z-bad
    refused deny
    else pass
  in default m-good
    r allow
    else deny
  in else allow`},
		{"of host endpoints the failsafe ports stay open", []any{hostEndpoint("h", "eth0", true), hostPolicy("bad", ingress(), refused)}, `
h eth0
  input failsafe ports
    failsafe allow to port [TCP 22]
    else pass
  input refused bad
    refused deny
    else pass
  input else allow`},
	} {
		t.Run(tc.name, func(t *testing.T) {
			c := compiled(failsafe, testLinks, tc.objects...)
			if diff := gocmp.Diff(strings.TrimSpace(tc.want), strings.TrimSpace(show(c.Policy()))); diff != "" {
				t.Error(diff)
			}
			sound(t, c.Policy())
		})
	}
}

// Calico's PolKVLess: ties within a tier go by the name as it is written, "namespace/name"; here
// the kind comes last.
func TestTies(t *testing.T) {
	of := func(kind model.Kind, namespace, name string) *model.Policy {
		return networkPolicy(name, func(p *model.Policy) {
			p.Key = model.PolicyKey{Kind: kind, Name: model.Name{Namespace: namespace, Name: name}}
		})
	}
	c := compiled(config, testLinks, of(model.CalicoPolicy, "shop", "b"), of(model.NetworkPolicy, "shop", "b"),
		of(model.NetworkPolicy, "shop", "a"), of(model.GlobalNetworkPolicy, "", "zero"), of(model.CalicoPolicy, "shop-2", "c"))
	var got []string
	for _, v := range c.Views() {
		got = append(got, keyOf(v))
	}
	want := []string{"NetworkPolicy.projectcalico.org shop-2/c", "NetworkPolicy shop/a", "NetworkPolicy.projectcalico.org shop/b", "NetworkPolicy shop/b", "GlobalNetworkPolicy zero"}
	if diff := gocmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
}

func keyOf(v View) string {
	return model.PolicyKey{Kind: model.Kind(v.Kind), Name: model.Name{Namespace: v.Namespace, Name: v.Name}}.String()
}

func refusedSet(name string) *model.NetworkSet {
	set := networkSet(model.AddressList, name)
	set.Refused = "line 1: no address"
	return set
}

// What is in a set that is refused is not known: a Deny that refers to it denies all that it might,
// and the others match what they are certain to.
func TestRefusedSets(t *testing.T) {
	bad, db := model.Peer{Selector: model.Equal("name", "bad")}, app("db")
	is := func(action model.Action, peers, not []model.Peer) model.PolicyRule {
		r := model.PolicyRule{Name: action.String(), Action: action, Source: model.RuleEnd{NotPeers: not}}
		if peers != nil {
			r.Source.Peers = [][]model.Peer{peers}
		}
		return r
	}
	only := func(p ...model.Peer) []model.Peer { return p }
	all := is(model.Allow, nil, nil)
	part, half := model.Peer{Selector: model.Equal("name", "part")}, networkSet(model.AddressList, "part", "10.9.0.0/16")
	half.Refused = "line 2: no address"
	tier := func(rules ...model.PolicyRule) *model.Policy { return networkPolicy("x", ingress(rules...)) }
	for _, tc := range []struct {
		name   string
		policy *model.Policy
		more   []any
		want   string // the rules
	}{
		{"denied", tier(is(model.Deny, only(bad), nil), all), nil, "deny deny, allow allow"},
		{"denied with others", tier(is(model.Deny, only(bad, db), nil), all), nil, "deny deny, allow allow"},
		{"all but those denied", tier(is(model.Deny, nil, only(bad)), all), nil, "deny deny not from {<AddressList bad>[][]}, allow allow"},
		{"all but those and others denied", tier(is(model.Deny, nil, only(bad, db)), all), nil, "deny deny not from {10.0.0.2 <AddressList bad>[][]}, allow allow"},
		{"allowed", tier(is(model.Allow, only(bad), nil)), nil, "allow allow from {<AddressList bad>[][]}"},
		{"allowed with others", tier(is(model.Allow, only(bad, db), nil)), nil, "allow allow from {10.0.0.2 <AddressList bad>[][]}"},
		{"all but those allowed", tier(is(model.Allow, nil, only(bad))), nil, ""},
		{"others but those allowed", tier(is(model.Allow, only(db), only(bad))), nil, ""},
		{"all but those logged", tier(is(model.Log, nil, only(bad))), nil, ""},
		{"passed on, nothing allowed after", tier(is(model.Pass, only(bad), nil), is(model.Deny, nil, nil)), nil, "pass pass from {<AddressList bad>[][]}, deny deny"},
		{"passed on, all others allowed", tier(is(model.Pass, only(bad), nil), all), nil, "pass pass from {<AddressList bad>[][]}, pass deny, allow allow"},
		{"all but those passed on, others allowed", tier(is(model.Pass, nil, only(bad, db)), all), nil, "pass deny not from {10.0.0.2 <AddressList bad>[][]}, allow allow"},
		{"passed on, all others allowed by another policy", tier(is(model.Pass, only(bad), nil)),
			[]any{networkPolicy("y", ingress(all))}, "pass pass from {<AddressList bad>[][]}, pass deny, allow allow"},
		{"allowed and denied of a set that could be read in part", tier(is(model.Allow, only(part), nil), is(model.Deny, only(part), nil), all), []any{half},
			"allow allow from {<AddressList part>[16][]}, deny deny, allow allow"},
		{"another set", tier(is(model.Deny, only(model.Peer{Selector: model.Equal("name", "good")}), nil)), nil, "deny deny from {}"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			c := compiled(config, testLinks, append(tc.more, pod(1, "here", "app", "web"), pod(2, "there", "app", "db"), refusedSet("bad"), tc.policy)...)
			if got := rules(c); got != tc.want {
				t.Errorf("got  %s\nwant %s", got, tc.want)
			}
			sound(t, c.Policy())
		})
	}
}

// rules writes all that there are.
func rules(c *Compiler) string {
	var list []string
	for line := range strings.Lines(show(c.Policy())) {
		if text, ok := strings.CutPrefix(line, "    "); ok && !strings.HasPrefix(text, "else") {
			list = append(list, strings.TrimSpace(text))
		}
	}
	return strings.Join(list, ", ")
}

// Policies deny as long as their tier cannot be read, and each says so.
func TestRefusedTierIsMended(t *testing.T) {
	h := newHistory(config, sets.IDSpace)
	policy := networkPolicy("x", ingress(model.PolicyRule{Name: "r"}), func(p *model.Policy) { p.Key.Kind, p.Tier = model.GlobalNetworkPolicy, "own" })
	h.apply(t, event(pod(1, "here", "app", "web")), event(policy))
	bad, good := &model.Tier{Name: "own", Refused: "no good"}, &model.Tier{Name: "own"}
	for i, step := range []struct {
		tier         *model.Tier
		want, reason string
	}{
		{bad, "refused deny", "spec.tier: Tier own cannot be read (no good): mend it; until then it allows nothing"}, {good, "r allow", ""}, {bad, "refused deny", "no good"},
	} {
		h.apply(t, event(step.tier))
		issues := h.compiler.Issues()
		if got := rules(h.compiler); got != step.want || len(issues) > 1 || (len(issues) == 1) != (step.reason != "") || len(issues) == 1 && !strings.Contains(issues[0].Reason, step.reason) {
			t.Errorf("step %d: %q, %+v", i, got, issues)
		}
	}
}

// Rules follow a set that is refused, mended and refused again, and one that loses its label or
// is gone.
func TestRefusedSetIsMended(t *testing.T) {
	h := newHistory(config, sets.IDSpace)
	policy := networkPolicy("x", ingress(model.PolicyRule{Name: "r", Action: model.Deny, Source: model.RuleEnd{Peers: [][]model.Peer{{{Selector: model.Equal("name", "bad")}}}}}))
	unlabelled := refusedSet("bad")
	unlabelled.Labels = nil
	good := networkSet(model.AddressList, "bad", "10.9.0.0/16")
	h.apply(t, event(pod(1, "here", "app", "web")), event(policy))
	none := "r deny from {}"
	known := "r deny from {<AddressList bad>[16][]}"
	for i, step := range []struct {
		event store.Event
		want  string
	}{
		{event(refusedSet("bad")), "r deny"}, {event(good), known}, {event(refusedSet("bad")), "r deny"}, {event(unlabelled), none},
		{event(refusedSet("bad")), "r deny"}, {store.Event{Kind: model.AddressList, Name: model.Name{Name: "bad"}}, none},
	} {
		h.apply(t, step.event)
		if got := rules(h.compiler); got != step.want {
			t.Errorf("step %d: got %q, want %q", i, got, step.want)
		}
		issues := h.compiler.Issues()
		reason := "denies what its rules on AddressList bad could deny, and allows nothing by it, as nobody knows what is in it: line 1: no address"
		if doubted := step.want == "r deny"; doubted != (len(issues) == 1) || doubted && issues[0] != (model.Ref{Kind: "NetworkPolicy", Name: model.Name{Namespace: "shop", Name: "x"}}).Issue(reason) {
			t.Errorf("step %d: issues %+v", i, issues)
		}
		same(t, h.compiler, h.fresh())
	}
}

// A deny list of which nothing is known is not advised to be named, as it is.
func TestRefusedDenyList(t *testing.T) {
	c := compiled(Config{Node: "here", DenyLists: []string{"bad"}, DenyDevices: []string{"eth0"}}, testLinks, refusedSet("bad"))
	want := []model.Issue{listKey("bad").Issue("is to be denied, and nothing is, as nobody knows what is in it: line 1: no address")}
	if diff := gocmp.Diff(want, c.Issues()); diff != "" {
		t.Error(diff)
	}
}
