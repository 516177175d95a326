package policy

import (
	"strings"
	"testing"

	gocmp "github.com/google/go-cmp/cmp"

	"sluice.dev/sluice/internal/model"
	"sluice.dev/sluice/internal/state"
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
		{"so does one of an unknown tier", []any{web, good, networkPolicy("z-bad", ingress(model.PolicyRule{Name: "r"}), global, func(p *model.Policy) { p.Tier = "lost" })}, `
10.0.0.1 shop/p1 dev 4
  in refused z-bad
    unknown tier deny
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

// Calico's PolKVLess: ties within a tier go by the name as it is written, "namespace/name"; here the kind comes last.
func TestTies(t *testing.T) {
	of := func(kind model.PolicyKind, namespace, name string) *model.Policy {
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
	want := []string{"CalicoNetworkPolicy shop-2/c", "NetworkPolicy shop/a", "CalicoNetworkPolicy shop/b", "NetworkPolicy shop/b", "GlobalNetworkPolicy zero"}
	if diff := gocmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
}

func keyOf(v View) string {
	return model.PolicyKey{Kind: model.PolicyKind(v.Kind), Name: model.Name{Namespace: v.Namespace, Name: v.Name}}.String()
}
