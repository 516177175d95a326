package kinds

import (
	"fmt"
	"strings"
	"testing"

	"sluice.dev/sluice/internal/model"
)

// TestAll decodes the least of each kind, under each name that an API or a manifest can give it.
func TestAll(t *testing.T) {
	specs := map[model.Kind]string{
		model.ServiceKind:       `"clusterIP":"10.96.0.1","ports":[{"port":80}]`,
		model.NetworkPolicy:     `"podSelector":{}`,
		model.ClusterPolicy:     `"subject":{"namespaces":{}},"tier":"Admin","priority":1`,
		model.HostEndpointKind:  `"node":"n1","interfaceName":"*"`,
		model.IPPoolKind:        `"cidr":"10.244.0.0/16"`,
		model.BlockAffinityKind: `"cidr":"10.244.0.64/26"`,

		model.BGPPeerKind: `"peerIP":"192.0.2.1","asNumber":64500`,

		model.IPAddressPoolKind: `"addresses":["192.0.2.0/28"]`,
		model.MetalLBPeerKind:   `"myASN":64500,"peerASN":64501,"peerAddress":"192.0.2.1"`,
	}
	known := map[string]model.Kind{}
	for _, k := range All {
		for _, p := range k.Places {
			name := model.Name{Name: "a"}
			if k.Namespaced {
				name.Namespace = "shop"
			}
			if k.Kind == model.BGPConfigurationKind {
				name.Name = model.BGPDefault
			}
			text := fmt.Sprintf(`{"apiVersion":%q,"kind":%q,"metadata":{"name":%q,"namespace":%q},"spec":{%s}}`, p.APIVersion(), k.Name, name.Name, name.Namespace, specs[k.Kind])
			if k.Kind == model.EndpointSliceKind {
				text = `{"metadata":{"name":"a","namespace":"shop"},"addressType":"IPv4"}`
			}
			o, err := k.Decode(Text{Data: []byte(text)})
			if k.Kind == model.BFDProfileKind {
				if o != nil || err == nil || !strings.Contains(err.Error(), "BFD is not supported") {
					t.Errorf("%s %s: %+v, %v", p, k.Kind, o, err)
				}
				continue
			}
			if want := (model.Ref{Kind: k.Kind, Name: name}); err != nil || o.Ref() != want {
				t.Errorf("%s %s: %+v, %v", p, k.Kind, o, err)
			}
			if at := p.APIVersion() + " " + k.Name; known[at] != "" {
				t.Errorf("%s is %s and %s", at, known[at], k.Kind)
			} else {
				known[at] = k.Kind
			}
		}
	}
	for _, name := range []string{"Tier", "GlobalNetworkPolicy", "NetworkPolicy", "GlobalNetworkSet", "NetworkSet", "HostEndpoint", "IPPool", "BGPConfiguration", "BGPPeer", "BGPFilter"} {
		for _, version := range []string{"projectcalico.org/v3", "crd.projectcalico.org/v1"} {
			if known[version+" "+name] == "" {
				t.Errorf("%s %s is not known", version, name)
			}
		}
		if kind := known["networking.k8s.io/v1 "+name]; kind != "" && kind != model.NetworkPolicy {
			t.Errorf("networking.k8s.io/v1 %s is known", name)
		}
	}
	for _, name := range []string{"Profile", "FelixConfiguration", "StagedNetworkPolicy", "IPReservation", ""} {
		if known["projectcalico.org/v3 "+name] != "" {
			t.Errorf("%s is known", name)
		}
	}
}
