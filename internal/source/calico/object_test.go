package calico_test

import (
	"errors"
	"math"
	"net/netip"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"sluice.dev/sluice/internal/model"
	"sluice.dev/sluice/internal/source/calico"
)

func TestOtherKinds(t *testing.T) {
	for _, c := range []struct {
		name, kind, text string
		want             model.Object
		errs             []string
	}{
		{
			name: "tier", kind: "Tier", text: "{metadata: {name: security}, spec: {order: 100}}",
			want: &model.Tier{Name: "security", Order: 100},
		},
		{
			name: "tier without order", kind: "Tier", text: "{metadata: {name: last, labels: {a: b}}}",
			want: &model.Tier{Name: "last", Order: math.Inf(1)},
		},
		{
			name: "tier that passes", kind: "Tier", text: "{metadata: {name: soft}, spec: {order: 7, defaultAction: Pass}}",
			want: &model.Tier{Name: "soft", Order: 7, DefaultPass: true},
		},
		{
			name: "default tier", kind: "Tier", text: "{metadata: {name: default}, spec: {order: 1000000, defaultAction: Deny}}",
			want: &model.DefaultTier,
		},
		{
			name: "admin tier", kind: "Tier", text: "{metadata: {name: kube-admin}, spec: {order: 1000}}",
			want: &model.AdminTier,
		},
		{
			name: "tier with another order than its own", kind: "Tier", text: "{metadata: {name: default}, spec: {order: 5}}",
			errs: []string{"spec.order: the order of tier default is 1000000"},
		},
		{
			name: "tier with another action than its own", kind: "Tier", text: "{metadata: {name: kube-baseline}, spec: {order: 10000000, defaultAction: Deny}}",
			errs: []string{"spec.defaultAction: that of tier kube-baseline can't be changed"},
		},
		{
			name: "tier at fault", kind: "Tier", text: "{metadata: {name: a.b}, spec: {defaultAction: Allow, x: 1}}",
			errs: []string{"metadata.name: \"a.b\"", "spec.defaultAction: \"Allow\"", "spec.x: is not supported"},
		},
		{
			name: "tier of an action that is none", kind: "Tier", text: "{metadata: {name: own}, spec: {order: 7, defaultAction: deny}}",
			errs: []string{"spec.defaultAction: \"deny\" is neither Deny nor Pass"}, want: &model.Tier{Name: "own"},
		},
		{
			name: "tier of a field that is not known", kind: "Tier", text: "{metadata: {name: own}, x: 1, spec: {order: 7}}",
			errs: []string{"x: is not supported"}, want: &model.Tier{Name: "own"},
		},
		{
			name: "tier that cannot be read", kind: "Tier", text: "{metadata: {name: own, labels: 1}, spec: [1]}",
			errs: []string{"metadata.labels: number found", "spec: list found"}, want: &model.Tier{Name: "own"},
		},
		{
			name: "global set", kind: "GlobalNetworkSet",
			text: "{metadata: {name: bad, labels: {a: b}}, spec: {nets: [192.0.2.9/24, 'fd00::1', 10.0.0.0/8, 192.0.2.0/24, '::ffff:10.1.0.0/112', 10.0.0.0/16]}}",
			want: &model.NetworkSet{
				Key:    model.NetworkSetKey{Kind: model.GlobalNetworkSet, Name: model.Name{Name: "bad"}},
				Labels: map[string]string{"a": "b"},
				Nets:   nets("10.0.0.0/8", "10.0.0.0/16", "10.1.0.0/16", "192.0.2.0/24", "fd00::1/128"),
			},
		},
		{
			name: "set", kind: "NetworkSet", text: "{metadata: {name: s, namespace: shop}}",
			want: &model.NetworkSet{
				Key: model.NetworkSetKey{Kind: model.NamespacedNetworkSet, Name: model.Name{Namespace: "shop", Name: "s"}}},
		},
		{
			name: "stored set", kind: "NetworkSet",
			text: `{metadata: {name: s, labels: {a: old, c: d}, annotations: {projectcalico.org/metadata: '{"name":"","labels":{"a":"b"}}'}}}`,
			want: &model.NetworkSet{
				Key:    model.NetworkSetKey{Kind: model.NamespacedNetworkSet, Name: model.Name{Namespace: "default", Name: "s"}},
				Labels: map[string]string{"a": "b", "c": "d"},
			},
		},
		{
			name: "set at fault", kind: "GlobalNetworkSet", text: "{metadata: {name: s}, spec: {nets: [10.0.0.0/8, 10.0.0.300, 'fe80::1%eth0'], allowedEgressDomains: [x]}}",
			errs: []string{`spec.nets[1]: "10.0.0.300" is no address range`, "spec.nets[2]", "spec.allowedEgressDomains: is not supported"},
			want: &model.NetworkSet{Key: model.NetworkSetKey{Kind: model.GlobalNetworkSet, Name: model.Name{Name: "s"}}},
		},
		{
			name: "set without a list", kind: "NetworkSet", text: "{metadata: {name: s, namespace: shop, labels: {a: b}}, spec: {nets: 10.0.0.0/8}}",
			errs: []string{"spec.nets: string found where a list belongs"},
			want: &model.NetworkSet{
				Key: model.NetworkSetKey{Kind: model.NamespacedNetworkSet, Name: model.Name{Namespace: "shop", Name: "s"}}, Labels: map[string]string{"a": "b"},
			},
		},
		{
			name: "set without a spec", kind: "GlobalNetworkSet", text: "{metadata: {name: s}, spec: [10.0.0.0/8]}",
			errs: []string{"spec: list found where an object belongs"},
			want: &model.NetworkSet{Key: model.NetworkSetKey{Kind: model.GlobalNetworkSet, Name: model.Name{Name: "s"}}},
		},
		{
			name: "set of unknown labels", kind: "GlobalNetworkSet", text: "{metadata: {name: s, labels: {a: 1}}, spec: {nets: [10.0.0.0/8]}}",
			errs: []string{"metadata.labels"},
		},
		{
			name: "host endpoint", kind: "HostEndpoint",
			text: "{metadata: {name: n1-eth0, labels: {role: edge}, creationTimestamp: '2026-01-02T03:04:05Z'}, spec: {node: n1, interfaceName: eth0, expectedIPs: [192.0.2.1, 'fd00::1'], profiles: [projectcalico-default-allow]}}",
			want: &model.HostEndpoint{
				Name: "n1-eth0", Created: time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC), Node: "n1", Interface: "eth0", Labels: map[string]string{"role": "edge"}, DefaultAllow: true,
				Addresses: []netip.Addr{netip.MustParseAddr("192.0.2.1"), netip.MustParseAddr("fd00::1")},
			},
		},
		{
			name: "host endpoint of all interfaces", kind: "HostEndpoint", text: "{metadata: {name: h}, spec: {node: n1, interfaceName: '*', ports: []}}",
			want: &model.HostEndpoint{Name: "h", Node: "n1", Interface: "*"},
		},
		{
			name: "host endpoint at fault", kind: "HostEndpoint",
			text: "{metadata: {name: h}, spec: {interfaceName: eth/0, expectedIPs: [x], profiles: [projectcalico-default-allow, mine], ports: [{name: a, protocol: TCP, port: 1}]}}",
			errs: []string{
				"spec.node: is missing", `spec.interfaceName: "eth/0" is no name`, `spec.expectedIPs[0]: "x" is no IP address`,
				`spec.profiles[1]: profile "mine" is not supported`, "spec.ports: named ports of host endpoints are not supported",
			},
		},
		{
			name: "host endpoint with an address that cannot be read", kind: "HostEndpoint",
			text: "{metadata: {name: h}, spec: {node: n1, expectedIPs: [192.0.2.x, fd00::1]}}", // by which it has its interface, perhaps
			errs: []string{`spec.expectedIPs[0]: "192.0.2.x" is no IP address`},
		},
		{
			name: "host endpoint with ports", kind: "HostEndpoint",
			text: "{metadata: {name: h}, spec: {node: n1, interfaceName: eth0, ports: [{name: a, protocol: TCP, port: 1}]}}",
			errs: []string{"spec.ports: named ports of host endpoints are not supported"},
		},
		{
			name: "host endpoint of an interface with such an address", kind: "HostEndpoint",
			text: "{metadata: {name: h}, spec: {node: n1, interfaceName: eth0, expectedIPs: [192.0.2.1, x]}}", // rules that select it would lack one
			errs: []string{`spec.expectedIPs[1]: "x" is no IP address`},
		},
		{
			name: "host endpoint of nothing", kind: "HostEndpoint", text: "{metadata: {name: h}, spec: {node: n}}",
			errs: []string{"spec.interfaceName: is missing"},
		},
	} {
		t.Run(c.name, func(t *testing.T) {
			got, err := decode(t, c.kind, c.text)
			checkError(t, err, c.errs)
			if stand, ok := c.want.(model.StandIn); ok && err != nil {
				stand.Refuse(err)
			}
			if diff := cmp.Diff(c.want, got, equal); diff != "" {
				t.Errorf("wrong object (-want +got):\n%s", diff)
			}
		})
	}
}

// Which of two lists of networks is meant nobody knows, wherever that they are two was found.
func TestSetDeclaredTwice(t *testing.T) {
	const spec = `"spec":{"nets":["0.0.0.0/0"]}}`
	for text, also := range map[string]error{
		`{"metadata":{"name":"s"},` + spec:                                              errors.New("spec is there twice"),
		`{"metadata":{"name":"s"},"spec":{"nets":["10.0.0.0/8"],"nets":["0.0.0.0/0"]}}`: nil,
		`{"metadata":{"name":"s"},"spec":{},` + spec:                                    nil,
	} {
		for _, translate := range []func([]byte, error) (*model.NetworkSet, error){calico.GlobalNetworkSet, calico.NetworkSet} {
			if s, err := translate([]byte(text), also); err == nil || s != nil && (s.Refused == "" || len(s.Nets) > 0) {
				t.Errorf("%s: %+v, %v", text, s, err)
			}
		}
	}
}

// TestManyFaults holds that an error stays readable.
func TestManyFaults(t *testing.T) {
	_, err := decode(t, "GlobalNetworkSet", "{metadata: {name: s}, spec: {nets: [a, a, a, a, a, a, a, a, a, a, a, a]}}")
	checkError(t, err, []string{"spec.nets[9]", "; and 2 more"})
}

// FuzzDecode holds that no object, however broken, makes the translation panic,
// and that what it returns beside an error denies at the most.
func FuzzDecode(f *testing.F) {
	for _, text := range []string{
		`{"metadata":{"name":"p","namespace":"n"},"spec":{"selector":"has(a)","ingress":[{"action":"Allow","protocol":"TCP","source":{"nets":["10.0.0.0/8"],"notSelector":"b"},"destination":{"ports":[1,"2:3","x"]}}]}}`,
		`{"metadata":{"name":"t"},"spec":{"order":1}}`,
		`{"metadata":{"name":"s","annotations":{"projectcalico.org/metadata":"{\"labels\":{}}"}},"spec":{"nets":["::/0"]}}`,
		`{"metadata":{"name":"h"},"spec":{"node":"n","interfaceName":"*"}}`, `null`, `{"spec":{"ingress":[null]}}`,
	} {
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text string) {
		for _, kind := range []string{"Tier", "GlobalNetworkPolicy", "NetworkPolicy", "GlobalNetworkSet", "NetworkSet", "HostEndpoint"} {
			o, err := decoders[kind]([]byte(text))
			p := policyOf(o)
			stand, ok := o.(model.StandIn)
			if err == nil {
				if ok && stand.StandIn() != "" {
					t.Errorf("%s %q is refused without an error", kind, text)
				}
				continue
			}
			if ok && (stand.StandIn() == "" || o.Ref().Name.Name == "") || o != nil && !ok && kind != "HostEndpoint" ||
				p != nil && (p.Refused == "" || p.IngressRules != nil || p.EgressRules != nil || p.Subject.IsZero()) {
				t.Errorf("%s %q: %+v beside error %v", kind, text, o, err)
			}
		}
	})
}
