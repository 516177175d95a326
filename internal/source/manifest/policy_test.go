package manifest

import (
	"fmt"
	"os"
	"strings"
	"testing"

	"sluice.dev/sluice/internal/model"
)

// policyObjects is one object of each kind that belongs to policy.
var policyObjects = map[string]string{
	"NetworkPolicy shop/db": `{"apiVersion":"networking.k8s.io/v1","kind":"NetworkPolicy","metadata":{"name":"db","namespace":"shop","managedFields":[{"x":1}]},
"spec":{"podSelector":{"matchLabels":{"app":"db"}},"policyTypes":["Ingress","Egress"],
 "ingress":[{"from":[{"podSelector":{"matchExpressions":[{"key":"app","operator":"In","values":["web"]}]}},{"ipBlock":{"cidr":"10.0.0.0/8","except":["10.1.0.0/16"]}}],"ports":[{"port":5432},{"port":"metrics","protocol":"TCP"},{"port":1000,"endPort":2000,"protocol":"UDP"}]}],
 "egress":[{}]},"status":{"conditions":[]}}`,
	"ClusterNetworkPolicy base": `{"apiVersion":"policy.networking.k8s.io/v1alpha2","kind":"ClusterNetworkPolicy","metadata":{"name":"base"},
"spec":{"tier":"Baseline","priority":5,"subject":{"namespaces":{}},"ingress":[{"name":"none","action":"Deny","from":[{"namespaces":{}}]}]},"status":{"conditions":[]}}`,
	"ClusterNetworkPolicy admin": `{"apiVersion":"policy.networking.k8s.io/v1beta1","kind":"ClusterNetworkPolicy","metadata":{"name":"admin"},
"spec":{"tier":"Admin","priority":5,"subject":{"namespaces":{}},"egress":[{"action":"Pass","to":[{"networks":["192.0.2.0/24"]}]}]}}`,
	"NetworkPolicy.projectcalico.org shop/db": `{"apiVersion":"projectcalico.org/v3","kind":"NetworkPolicy","metadata":{"name":"db","namespace":"shop"},
"spec":{"order":10,"selector":"app == 'db'","types":["Ingress"],"ingress":[{"action":"Allow","protocol":"TCP","source":{"selector":"app == 'web'"},"destination":{"ports":[5432]}}]}}`,
	"GlobalNetworkPolicy deny": `{"apiVersion":"crd.projectcalico.org/v1","kind":"GlobalNetworkPolicy","metadata":{"name":"default.deny"},
"spec":{"selector":"all()","types":["Ingress","Egress"]}}`,
	"Tier security":            `{"apiVersion":"projectcalico.org/v3","kind":"Tier","metadata":{"name":"security"},"spec":{"order":100}}`,
	"NetworkSet shop/partners": `{"apiVersion":"projectcalico.org/v3","kind":"NetworkSet","metadata":{"name":"partners","namespace":"shop","labels":{"a":"b"}},"spec":{"nets":["192.0.2.0/24"]}}`,
	"GlobalNetworkSet bad":     `{"apiVersion":"projectcalico.org/v3","kind":"GlobalNetworkSet","metadata":{"name":"bad"},"spec":{"nets":["192.0.2.0/24"]}}`,
	"ServiceAccount shop/a":    `{"apiVersion":"v1","kind":"ServiceAccount","metadata":{"name":"a","namespace":"shop","labels":{"role":"sales"}},"secrets":[{"name":"x"}]}`,
	"HostEndpoint n1-eth0":     `{"apiVersion":"projectcalico.org/v3","kind":"HostEndpoint","metadata":{"name":"n1-eth0"},"spec":{"node":"n1","interfaceName":"eth0"}}`,
}

// policyOf is the NetworkPolicy of the shop's database with another spec.
func policyOf(spec string) string {
	return `{"apiVersion":"networking.k8s.io/v1","kind":"NetworkPolicy","metadata":{"name":"db","namespace":"shop"},"spec":` + spec + "}\n"
}

// TestPolicyKinds reads all kinds, alone, as a List and as typed lists.
func TestPolicyKinds(t *testing.T) {
	for name, text := range policyObjects {
		version := text[:strings.Index(text, `,"metadata"`)]
		typed := strings.TrimSuffix(version, `"`) + `List","items":[` + strings.Replace(text, version+",", "{", 1) + "]}"
		for _, wrapped := range []string{text, `{"apiVersion":"v1","kind":"List","items":[` + text + "]}", typed} {
			c := newParsers(false)[0].parse("x.json", []byte(wrapped), nil)
			if len(c.objects) != 1 || len(c.issues) != 0 || c.objects[0].Ref.String() != name {
				t.Errorf("%s: %+v, issues %v", name, c.objects, c.issues)
				continue
			}
			p, ok := c.objects[0].value.(*model.Policy)
			if ok && (p.Refused != "" || p.Key.String() != name) {
				t.Errorf("%s: %+v", name, p)
			}
		}
	}
}

// TestUnread names policies and others of versions that are not read, lest
// somebody think that they are in force.
func TestUnread(t *testing.T) {
	for _, c := range []struct{ apiVersion, kind, instead string }{
		{"extensions/v1beta1", "NetworkPolicy", "networking.k8s.io/v1"},
		{"networking.k8s.io/v2", "NetworkPolicy", "networking.k8s.io/v1"},
		{"policy.networking.k8s.io/v1alpha1", "AdminNetworkPolicy", "ClusterNetworkPolicy"},
		{"cilium.io/v2", "CiliumNetworkPolicy", "a ClusterNetworkPolicy or one of Calico's"},
		{"cilium.io/v2", "CiliumClusterwideNetworkPolicy", "a ClusterNetworkPolicy or one of Calico's"},
		{"policy.networking.k8s.io/v1", "ClusterNetworkPolicy", "policy.networking.k8s.io/v1beta1"},
		{"projectcalico.org/v4", "GlobalNetworkPolicy", "projectcalico.org/v3"},
		{"projectcalico.org/v3", "StagedNetworkPolicy", ""}, // is not to be in force
		{"cilium.io/v2", "CiliumCIDRGroup", "a GlobalNetworkSet of projectcalico.org/v3"},
		{"cilium.io/v2alpha1", "CiliumLoadBalancerIPPool", "an IPAddressPool of metallb.io/v1beta1"},
		{"cilium.io/v2", "CiliumEndpoint", ""},
		{"crd.antrea.io/v1beta1", "ClusterNetworkPolicy", "a ClusterNetworkPolicy or one of Calico's"},
		{"projectcalico.org/v3", "FelixConfiguration", ""}, // check has a hint
		{"networking.k8s.io/v1", "Ingress", ""},
		{"metallb.io/v1beta1", "AddressPool", "an IPAddressPool of metallb.io/v1beta1"},
		{"metallb.io/v1beta1", "BGPPeer", "metallb.io/v1beta2"},
		{"discovery.k8s.io/v1beta1", "EndpointSlice", "discovery.k8s.io/v1"},
		{"v1", "ConfigMap", "IPAddressPools, "},
		{"v2", "ConfigMap", ""},
	} {
		text := fmt.Sprintf(`{"apiVersion":%q,"kind":%q,"metadata":{"name":"x"},"spec":{},"data":{"config":"peers:\naddress-pools:\n- name: x\n"}}`, c.apiVersion, c.kind)
		got := newParsers(false)[0].parse("x.json", []byte(text+policyOf(`{"podSelector":{}}`)), nil)
		if names(got) != "NetworkPolicy shop/db" || len(got.skipped) != 1 {
			t.Errorf("%s: objects %q, skipped %v", c.kind, names(got), got.skipped)
		}
		switch {
		case c.instead == "" && len(got.issues) == 0:
		case c.instead != "" && len(got.issues) == 1 && strings.Contains(got.issues[0].String(), c.kind+" x (x.json:1): is not in force") && strings.Contains(got.issues[0].Reason, c.instead):
		default:
			t.Errorf("%s %s: issues %v", c.apiVersion, c.kind, got.issues)
		}
	}
}

func TestRefusedPolicies(t *testing.T) {
	const subject = `"podSelector":{"matchLabels":{"app":"db"}},"policyTypes":["Ingress","Egress"]`
	for _, c := range []struct{ name, spec, fault string }{
		{"an unknown field of a rule", `{` + subject + `,"ingress":[{"form":[{"podSelector":{}}]}]}`, "spec.ingress[0].form: there is no such field"},
		{"an unknown field of a peer", `{` + subject + `,"egress":[{"to":[{"podSelector":{},"only":true}]}]}`, "spec.egress[0].to[0].only: there is no such field"},
		{"another spelling", `{` + subject + `,"ingress":[{"From":[{"podSelector":{}}]}]}`, "spec.ingress[0].From: there is no such field"},
		{"an unknown field of spec", `{` + subject + `,"mode":"strict"}`, "spec.mode: there is no such field"},
		{"a field twice", `{` + subject + `,"ingress":[{"ports":[{"port":1}],"ports":[]}]}`, "spec.ingress[0].ports: is given twice"},
		{"a wrong type", `{` + subject + `,"ingress":[{"ports":{}}]}`, "ingress"},
		{"a wrong type throughout", `{` + subject + `,"ingress":7}`, "ingress"},
		{"a wrong value", `{` + subject + `,"ingress":[{"from":[{"ipBlock":{"cidr":"10.0.0.0/33"}}]}]}`, "spec.ingress[0].from[0].ipBlock.cidr"},
	} {
		t.Run(c.name, func(t *testing.T) {
			p := newParsers(false)[0]
			first := p.parse("x.json", []byte(policyOf(c.spec)), nil)
			got := refusal(t, first, c.fault)
			want, _ := p.parse("x.json", []byte(policyOf("{"+subject+"}")), nil).objects[0].value.(*model.Policy)
			if got.Subject.String() != want.Subject.String() || !got.Ingress || !got.Egress || got.Tier != want.Tier || got.Order != want.Order {
				t.Errorf("it does not deny what it is about: %+v, want as %+v", got, want)
			}
			if first.incomplete {
				t.Error("it counts as unknown, though it denies")
			}
			// The last good version stays, and is replaced by the next good one.
			good := p.parse("x.json", []byte(policyOf("{"+subject+"}")), first.objects)
			bad := p.parse("x.json", []byte(policyOf(c.spec)), good.objects)
			if bad.objects[0].value != good.objects[0].value || len(bad.issues) != 1 || len(good.issues) != 0 {
				t.Errorf("after a good version: %+v, issues %v", bad.objects[0].value, bad.issues)
			}
			again := p.parse("x.json", []byte(policyOf(c.spec)), bad.objects)
			if again.objects[0].value != good.objects[0].value || len(again.issues) != 1 {
				t.Errorf("read again: %+v, issues %v", again.objects[0].value, again.issues)
			}
		})
	}
}

// refusal is the one policy in c, which is to be refused for a fault.
func refusal(t *testing.T, c content, fault string) *model.Policy {
	t.Helper()
	if len(c.objects) != 1 || len(c.issues) != 1 || !strings.Contains(c.issues[0].Reason, fault) || c.issues[0].Source == "" {
		t.Fatalf("%+v, issues %v, want one with %q", c.objects, c.issues, fault)
	}
	p, _ := c.objects[0].value.(*model.Policy)
	if p == nil || !strings.Contains(p.Refused, fault) || len(p.IngressRules)+len(p.EgressRules) != 0 {
		t.Fatalf("got %+v, want a policy refused for %q", p, fault)
	}
	return p
}

// TestPoliciesOfNobody can't be told whom they apply to, so there is nothing to deny.
func TestPoliciesOfNobody(t *testing.T) {
	for _, spec := range []string{
		`{"podSelector":{"matchLabel":{"app":"db"}}}`,
		`{"podSelector":{"matchExpressions":[{"key":"a","operator":"Like"}]}}`,
		`{"podSelector":[]}`,
		`{"podSelector":{},"policyTypes":["Sideways"]}`,
		`{"podSelector":{},"policyTypes":{},"ingress":[{"x":1}]}`,
	} {
		c := newParsers(false)[0].parse("x.json", []byte(policyOf(spec)), nil)
		if len(c.objects) != 1 || c.objects[0].value != nil || len(c.issues) != 1 || c.issues[0].Object.String() != "NetworkPolicy shop/db" {
			t.Errorf("%s: %+v, issues %v", spec, c.objects, c.issues)
		}
	}
}

func TestRefusedClusterPolicy(t *testing.T) {
	text := strings.Replace(policyObjects["ClusterNetworkPolicy base"], `"from":[{"namespaces":{}}]`, `"from":[{"namespaces":{},"not":{}}]`, 1)
	p := refusal(t, newParsers(false)[0].parse("x.json", []byte(text), nil), "spec.ingress[0].from[0].not")
	if p.Tier != model.BaselineTier.Name || p.Order != 5 || !p.Ingress || p.Egress || p.Subject.IsZero() {
		t.Errorf("got %+v", p)
	}
}

func TestRefusedCalicoObjects(t *testing.T) {
	text := strings.Replace(policyObjects["NetworkPolicy.projectcalico.org shop/db"], `"action":"Allow"`, `"action":"Allow","http":{}`, 1)
	refusal(t, newParsers(false)[0].parse("x.json", []byte(text), nil), "spec.ingress[0].http")
	for name, inForce := range map[string]string{"Tier security": model.InForceTier, "HostEndpoint n1-eth0": model.InForceNothing} {
		text := strings.Replace(policyObjects[name], `"spec":{`, `"spec":{"extra":1,`, 1)
		c := newParsers(false)[0].parse("x.json", []byte(text), nil)
		if len(c.objects) != 1 || (c.objects[0].value == nil) != (inForce == model.InForceNothing) || len(c.issues) != 1 || c.issues[0].InForce != inForce ||
			!strings.Contains(c.issues[0].Reason, "spec.extra") || c.issues[0].Object.String() != name {
			t.Errorf("%s: %+v, issues %v", name, c.objects, c.issues)
		}
	}
}

// TestIgnoredPolicies holds that a refused policy stands for nothing where that is asked for, also
// one of which nobody knows whom it is about; but no good version goes for it.
func TestIgnoredPolicies(t *testing.T) {
	p := newParsers(true)[0]
	good := policyObjects["NetworkPolicy.projectcalico.org shop/db"]
	bad := strings.Replace(good, `"action":"Allow"`, `"action":"Allow","http":{}`, 1)
	for _, text := range []string{bad, strings.Replace(bad, `"selector":"`, `"selector":"&&`, 1), policyOf(`{"podSelector":[]}`)} {
		c := p.parse("x.json", []byte(text), nil)
		if len(c.objects) != 1 || c.objects[0].value == nil {
			t.Fatalf("%s: %+v, issues %v", text, c.objects, c.issues)
		}
		policy := c.objects[0].value.(*model.Policy)
		if !policy.Ignored || policy.Refused == "" || policy.Key.Name.String() != "shop/db" || c.objects[0].Ref != policy.Key {
			t.Errorf("%s: %+v", text, policy)
		}
		if len(c.issues) != 1 || !strings.HasPrefix(c.issues[0].Reason, "ignored: spec.") || c.issues[0].InForce != model.InForceNothing {
			t.Errorf("%s: issues %v", text, c.issues)
		}
	}
	last := p.parse("x.json", []byte(good), nil)
	c := p.parse("x.json", []byte(bad), last.objects)
	if p := c.objects[0].value.(*model.Policy); p.Refused != "" || len(c.issues) != 1 || !strings.HasPrefix(c.issues[0].Reason, "spec.") || c.issues[0].InForce != model.InForceLast {
		t.Errorf("after a good version: %+v, issues %v", p, c.issues)
	}
	if c := p.parse("x.json", []byte(strings.ReplaceAll(bad, `"name":"db"`, `"name":""`)), nil); len(c.objects) != 0 || len(c.issues) != 1 {
		t.Errorf("without a name: %+v, issues %v", c.objects, c.issues)
	}
}

// TestRefusedNetworkSets holds that of a set at fault the labels are known, so that rules
// which refer to it do, until it is good; and that it takes no good one's place.
func TestRefusedNetworkSets(t *testing.T) {
	p := newParsers(false)[0]
	good := policyObjects["NetworkSet shop/partners"]
	for bad, nets := range map[string]int{
		strings.Replace(good, "192.0.2.0/24", "192.0.2.0/33", 1):                       0,
		strings.Replace(good, `"192.0.2.0/24"`, `"192.0.2.0/33","198.51.100.0/24"`, 1): 1,
		strings.Replace(good, `"spec":{`, `"spec":{"extra":1,`, 1):                     0,
	} {
		first := p.parse("x.json", []byte(bad), nil)
		set, _ := first.objects[0].value.(*model.NetworkSet)
		if set == nil || set.Refused == "" || set.Labels["a"] != "b" || len(set.Nets) != nets || len(first.issues) != 1 {
			t.Fatalf("got %+v, issues %v", set, first.issues)
		}
		mended := p.parse("x.json", []byte(good), first.objects)
		if set := mended.objects[0].value.(*model.NetworkSet); set.Refused != "" || len(set.Nets) != 1 || len(mended.issues) != 0 {
			t.Errorf("mended: %+v, issues %v", set, mended.issues)
		}
		again := p.parse("x.json", []byte(bad), mended.objects)
		if again.objects[0].value != mended.objects[0].value || len(again.issues) != 1 {
			t.Errorf("broken again: %+v, issues %v", again.objects[0].value, again.issues)
		}
	}
}

// TestStoredNames has a policy whose name in the text is not the one it is
// known by: its last good version is found when not even its name can be made out.
func TestStoredNames(t *testing.T) {
	p := newParsers(false)[0]
	for _, others := range []int{0, 16} {
		var rest strings.Builder
		for i := range others {
			fmt.Fprintf(&rest, `{"apiVersion":"v1","kind":"Namespace","metadata":{"name":"n%d"}}`, i)
		}
		text := policyObjects["GlobalNetworkPolicy deny"]
		good := p.parse("x.json", []byte(text+rest.String()), nil)
		bad := p.parse("x.json", []byte(strings.Replace(text, "all()", "all(", 1)+rest.String()), good.objects)
		if o := bad.objects[0]; o.Ref.String() != "GlobalNetworkPolicy deny" || o.value != good.objects[0].value || len(bad.issues) != 1 {
			t.Errorf("got %+v, issues %v", o, bad.issues)
		}
		again := p.parse("x.json", []byte(text+rest.String()), bad.objects)
		if o := again.objects[0]; o.Ref.String() != "GlobalNetworkPolicy deny" || len(again.issues) != 0 {
			t.Errorf("mended: %+v, issues %v", o, again.issues)
		}
	}
}

// TestKeyTwiceInYAML has a key twice, of which YAML readers take the last.
func TestKeyTwiceInYAML(t *testing.T) {
	text := `apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata: {name: db, namespace: shop}
spec:
  podSelector: {}
  ingress:
  - from: [{podSelector: {}}]
    from: []
`
	refusal(t, newParsers(false)[0].parse("x.yaml", []byte(text), nil), `line 8: key "from" already set`)
	calico := `apiVersion: projectcalico.org/v3
kind: Tier
metadata: {name: t}
spec: {order: 1, order: 2}
`
	c := newParsers(false)[0].parse("x.yaml", []byte(calico), nil)
	if len(c.objects) != 1 || len(c.issues) != 1 || c.issues[0].InForce != model.InForceTier {
		t.Errorf("got %+v, issues %v", c.objects, c.issues)
	}
	// A Service is read as ever.
	c = newParsers(false)[0].parse("x.yaml", []byte(serviceYAML("a", 80)+"  type: ClusterIP\n  type: ClusterIP\n"), nil)
	if len(c.objects) != 1 || len(c.issues) != 0 {
		t.Errorf("got %+v, issues %v", c.objects, c.issues)
	}
}

// TestPoliciesOfTwoGroups follows two policies of one name: neither disturbs the other.
func TestPoliciesOfTwoGroups(t *testing.T) {
	f := follow(t, folderWith(t, "all.json", policyObjects["NetworkPolicy shop/db"]+policyObjects["NetworkPolicy.projectcalico.org shop/db"]))
	f.waitNames("NetworkPolicy shop/db", "NetworkPolicy.projectcalico.org shop/db")
	f.waitNoIssue()
	f.write("all.json", policyObjects["NetworkPolicy.projectcalico.org shop/db"])
	f.waitNames("NetworkPolicy.projectcalico.org shop/db")
	f.write("all.json", policyObjects["NetworkPolicy shop/db"])
	f.waitNames("NetworkPolicy shop/db")
	must(t, os.Remove(f.path("all.json")))
	f.waitNames()
}

// TestRefusedPolicyIsDelivered starts on a policy at fault, mends it and breaks it again.
func TestRefusedPolicyIsDelivered(t *testing.T) {
	good := policyOf(`{"podSelector":{},"ingress":[{}]}`)
	bad := policyOf(`{"podSelector":{},"ingress":[{"form":[]}]}`)
	f := follow(t, folderWith(t, "p.json", bad))
	refused := func() string {
		f.sink.mu.Lock()
		defer f.sink.mu.Unlock()
		p, _ := f.sink.objects[model.Ref{Kind: model.NetworkPolicy, Name: model.Name{Namespace: "shop", Name: "db"}}].(*model.Policy)
		if p == nil {
			return "none"
		}
		return p.Refused
	}
	f.waitSynced()
	f.waitIssue("NetworkPolicy shop/db", "p.json:1", "spec.ingress[0].form")
	if !strings.Contains(refused(), "spec.ingress[0].form") {
		t.Errorf("refused: %q", refused())
	}
	f.waitLacking()
	f.write("p.json", good)
	f.wait("a good policy", func() bool { return refused() == "" })
	f.waitNoIssue()
	f.write("p.json", bad)
	f.waitIssue("spec.ingress[0].form")
	if refused() != "" {
		t.Errorf("the last good version is gone: %q", refused())
	}
	f.write("p.json", policyOf(`{"podSelector":{"x":1}}`))
	f.waitIssue("spec.podSelector.x")
	if refused() != "" {
		t.Errorf("the last good version is gone: %q", refused())
	}
}

// TestUnknownPolicyIsLacking starts on a policy of which not even its pods are known.
func TestUnknownPolicyIsLacking(t *testing.T) {
	f := follow(t, folderWith(t, "p.json", policyOf(`{"podSelector":{"x":1}}`)))
	f.waitSynced()
	f.waitLacking("p.json: it is at fault")
	if names := f.sink.names(); len(names) != 0 {
		t.Errorf("delivered: %v", names)
	}
	f.write("p.json", policyOf(`{"podSelector":{}}`))
	f.waitLacking()
}

// FuzzPolicy breaks policies: whatever comes of it, none is read in part.
func FuzzPolicy(f *testing.F) {
	for _, text := range policyObjects {
		f.Add(text)
	}
	p := newParsers(false)[0]
	f.Fuzz(func(t *testing.T, text string) {
		for _, file := range []string{"a.json", "a.yaml"} {
			for _, o := range p.parse(file, []byte(text), nil).objects {
				policy, ok := o.value.(*model.Policy)
				if !ok {
					continue
				}
				if policy.Key.Name != o.Name {
					t.Fatalf("%s is known as %s", policy.Key, o.Ref)
				}
				if (policy.Refused != "") != (o.fault != "") || policy.Refused != "" && policy.Key.Kind != model.NetworkPolicy && len(policy.IngressRules)+len(policy.EgressRules) > 0 {
					t.Fatalf("%s: fault %q, refused %q, %d and %d rules", o.Ref, o.fault, policy.Refused, len(policy.IngressRules), len(policy.EgressRules))
				}
			}
		}
	})
}
