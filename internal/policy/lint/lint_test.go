package lint_test

import (
	"slices"
	"strings"
	"testing"

	"sluice.dev/sluice/internal/policy/lint"
	"sluice.dev/sluice/internal/source/manifest"
	"sluice.dev/sluice/internal/store"
)

// shop has pods of its own, those of a Deployment, and one on its node's network; dev is a
// namespace without pods.
const shop = `
{apiVersion: v1, kind: Namespace, metadata: {name: shop, labels: {team: sales}}}
---
{apiVersion: v1, kind: Namespace, metadata: {name: dev}}
---
{apiVersion: v1, kind: Pod, metadata: {name: db, namespace: shop, labels: {app: db}}, spec: {containers: [{name: c, ports: [{name: sql, containerPort: 5432}]}]}}
---
{apiVersion: v1, kind: Pod, metadata: {name: agent, namespace: shop, labels: {app: agent}}, spec: {hostNetwork: true, containers: [{name: c}]}}
---
{apiVersion: v1, kind: Pod, metadata: {name: once, namespace: shop, labels: {app: once}}, spec: {containers: [{name: c}]}, status: {phase: Succeeded}}
---
{apiVersion: v1, kind: ServiceAccount, metadata: {name: seller, namespace: shop, labels: {role: seller}}}
---
apiVersion: apps/v1
kind: Deployment
metadata: {name: web, namespace: shop, labels: {app: not-the-pods}}
spec:
  selector: {matchLabels: {app: web}}
  template:
    metadata: {labels: {app: web}}
    spec: {serviceAccountName: seller, containers: [{name: c, ports: [{name: http, containerPort: 8080}, {name: dns, containerPort: 53, protocol: UDP}]}]}
---
{apiVersion: projectcalico.org/v3, kind: NetworkSet, metadata: {name: partners, namespace: shop, labels: {set: partners}}, spec: {nets: [192.0.2.0/24]}}
---
{apiVersion: projectcalico.org/v3, kind: HostEndpoint, metadata: {name: n1, labels: {host: n1}}, spec: {node: n1, interfaceName: eth0, expectedIPs: [192.0.2.1]}}
---
`

func TestHints(t *testing.T) {
	const (
		inShop  = "{apiVersion: networking.k8s.io/v1, kind: NetworkPolicy, metadata: {name: p, namespace: shop}, spec: "
		inDev   = "{apiVersion: networking.k8s.io/v1, kind: NetworkPolicy, metadata: {name: p, namespace: dev}, spec: "
		cluster = "{apiVersion: policy.networking.k8s.io/v1beta1, kind: ClusterNetworkPolicy, metadata: {name: p}, spec: {tier: Admin, priority: 1, "
		calico  = "{apiVersion: projectcalico.org/v3, kind: NetworkPolicy, metadata: {name: p, namespace: shop}, spec: "
		global  = "{apiVersion: projectcalico.org/v3, kind: GlobalNetworkPolicy, metadata: {name: p}, spec: "
		service = "{apiVersion: v1, kind: Service, metadata: {name: s, namespace: shop}, spec: "
		web     = "podSelector: {matchLabels: {app: web}}"
		open    = service + "{type: LoadBalancer, selector: {app: web}, ports: [{port: 80, targetPort: http}]}"
		node    = "{apiVersion: v1, kind: Node, metadata: {name: n1}, status: {addresses: [{type: InternalIP, address: "
		office  = "{from: [{ipBlock: {cidr: 192.0.2.0/24}}]}"
		hidden  = "Service shop/s: spec.externalTrafficPolicy: is Cluster, so policies see a node in place of the client where it comes in by another node than the pod's, and what is for clients by their addresses does not hold then "
	)
	for _, c := range []struct {
		object string
		some   []string // where the cluster may have more
		more   []string // beside, where it has not
	}{
		// Whom a policy selects.
		{inShop + "{podSelector: {}, ingress: [{}]}}", nil, nil},
		{inShop + "{" + web + "}}", nil, nil},
		{inShop + "{podSelector: {matchLabels: {app: wbe}}}}", []string{"NetworkPolicy shop/p: spec.podSelector: selects no pod of namespace shop, so the policy does nothing"}, nil},
		{inShop + "{podSelector: {matchLabels: {app: once}}}}", []string{"NetworkPolicy shop/p: spec.podSelector: selects no pod of namespace shop, so the policy does nothing"}, nil},
		{inShop + "{podSelector: {matchLabels: {app: not-the-pods}}}}", []string{"NetworkPolicy shop/p: spec.podSelector: selects no pod of namespace shop, so the policy does nothing"}, nil},
		{inShop + "{podSelector: {matchLabels: {app: agent}}}}", []string{"NetworkPolicy shop/p: spec.podSelector: selects only pods on the network of their node (hostNetwork), to which no policy applies"}, nil},
		{inDev + "{podSelector: {}}}", nil, []string{"NetworkPolicy dev/p: spec.podSelector: selects no pod of namespace dev, so the policy does nothing"}},
		{cluster + "subject: {namespaces: {matchLabels: {team: sales}}}}}", nil, nil},
		{cluster + "subject: {namespaces: {matchLabels: {team: seals}}}}}", nil, []string{"ClusterNetworkPolicy p: spec.subject: selects no pod, so the policy does nothing"}},
		{calico + "{selector: app == 'wbe'}}", []string{"NetworkPolicy.projectcalico.org shop/p: spec.selector: selects no pod of namespace shop, so the policy does nothing"}, nil},
		{calico + "{serviceAccountSelector: role == 'seller'}}", nil, nil},
		{global + "{selector: host == 'n1'}}", nil, nil},
		{global + "{selector: host == 'n2'}}", nil, []string{"GlobalNetworkPolicy p: spec.selector: selects no pod, so the policy does nothing"}},
		// Peers.
		{inShop + "{" + web + ", ingress: [{from: [{podSelector: {}}, {podSelector: {matchLabels: {app: bd}}}, {ipBlock: {cidr: 10.0.0.0/8}}]}]}}",
			[]string{"NetworkPolicy shop/p: spec.ingress[0].from[1]: selects no pod of namespace shop"}, nil},
		{inShop + "{" + web + ", egress: [{to: [{namespaceSelector: {matchLabels: {team: seals}}}]}]}}", nil, []string{"NetworkPolicy shop/p: spec.egress[0].to[0]: selects no pod"}},
		{inShop + "{" + web + ", egress: [{to: [{namespaceSelector: {matchLabels: {kubernetes.io/metadata.name: monitorng}}}]}]}}",
			nil, []string{"NetworkPolicy shop/p: spec.egress[0].to[0]: selects no pod of namespace monitorng, which does not exist"}},
		{calico + "{selector: app == 'web', ingress: [{action: Allow, source: {selector: set == 'partners'}}, {action: Deny, source: {selector: set == 'partner'}}]}}",
			[]string{"NetworkPolicy.projectcalico.org shop/p: spec.ingress[1].source.selector: selects no pod of namespace shop"}, nil},
		// Services that rules name.
		{calico + "{selector: app == 'web', ingress: [{action: Allow, source: {services: {name: web}}}]}}", nil, []string{"NetworkPolicy.projectcalico.org shop/p: spec.ingress[0].source.services: there is no Service shop/web"}},
		{calico + "{selector: app == 'web', egress: [{action: Allow, destination: {services: {name: s}}}]}}\n---\n" + service + "{selector: {app: db}, ports: [{port: 80}]}}",
			[]string{"NetworkPolicy.projectcalico.org shop/p: spec.egress[0].destination.services: Service shop/s has no endpoints"}, nil},
		// Directions.
		{inShop + "{" + web + ", policyTypes: [Ingress], egress: [{}]}}", []string{"NetworkPolicy shop/p: spec.egress: has rules, and spec.policyTypes does not name Egress, so they do nothing"}, nil},
		{calico + "{selector: app == 'web', types: [Egress], ingress: [{action: Allow}]}}",
			[]string{"NetworkPolicy.projectcalico.org shop/p: spec.ingress: has rules, and spec.types does not name Ingress, so they do nothing"}, nil},
		// Names.
		{inShop + "{" + web + ", egress: [{to: [{podSelector: {matchLabels: {app: db}}}]}]}}", nil, nil},
		{inShop + "{" + web + ", egress: [{to: [{podSelector: {matchLabels: {app: db}}}], ports: [{port: 5432}]}]}}",
			nil, []string{"NetworkPolicy shop/p: spec.egress: lets its pods reach others, but no policy lets shop/web (Deployment) ask a name server (UDP port 53), so it finds none by name"}},
		{inShop + "{" + web + ", egress: [{to: [{podSelector: {matchLabels: {app: db}}}], ports: [{port: 5432}]}, {ports: [{port: 53, protocol: UDP}]}]}}", nil, nil},
		{inShop + "{" + web + ", egress: [{to: [{ipBlock: {cidr: 192.0.2.0/24}}], ports: [{port: 5432}]}]}}", nil, nil},
		{inShop + "{" + web + ", egress: [{to: [{podSelector: {matchLabels: {app: db}}}], ports: [{port: 5432}]}]}}\n---\n" +
			strings.Replace(inShop, "name: p", "name: names", 1) + "{podSelector: {}, egress: [{ports: [{port: 53, protocol: UDP}]}]}}", nil, nil},
		// Ports by name.
		{inShop + "{" + web + ", ingress: [{ports: [{port: http}, {port: 80}, {port: htpp}]}]}}",
			[]string{`NetworkPolicy shop/p: spec.ingress[0].ports[2].port: none of the pods that it is about has a port named "htpp" of TCP (they have dns of UDP, http)`}, nil},
		{inShop + "{" + web + ", ingress: [{ports: [{port: dns, protocol: UDP}]}]}}", nil, nil},
		{inShop + "{" + web + ", ingress: [{ports: [{port: dns}]}]}}",
			[]string{`NetworkPolicy shop/p: spec.ingress[0].ports[0].port: none of the pods that it is about has a port named "dns" of TCP (they have dns of UDP, http)`}, nil},
		{inShop + "{" + web + ", egress: [{to: [{podSelector: {matchLabels: {app: db}}}], ports: [{port: sql}, {port: http}, {port: 53, protocol: UDP}]}]}}",
			[]string{`NetworkPolicy shop/p: spec.egress[0].ports[1].port: none of the pods that it is about has a port named "http" of TCP (they have sql)`}, nil},
		{inShop + "{" + web + ", egress: [{ports: [{port: sql}, {port: slq}, {port: 53, protocol: UDP}]}]}}",
			nil, []string{`NetworkPolicy shop/p: spec.egress[0].ports[1].port: none of the pods that it is about has a port named "slq" of TCP (they have dns of UDP, http, sql)`}},
		{cluster + "subject: {pods: {podSelector: {matchLabels: {app: web}}, namespaceSelector: {matchLabels: {kubernetes.io/metadata.name: shop}}}}, ingress: [{action: Accept, from: [{namespaces: {}}], protocols: [{destinationNamedPort: htpp}]}]}}",
			[]string{`ClusterNetworkPolicy p: spec.ingress[0].protocols[0].destinationNamedPort: none of the pods that it is about has a port named "htpp" (they have dns, http)`}, nil},
		// Services.
		{service + "{selector: {app: web}, ports: [{port: 80, targetPort: http}]}}", nil, nil},
		{service + "{selector: {app: web}, ports: [{port: 80}, {name: b, port: 81, targetPort: htpp}]}}",
			[]string{`Service shop/s: spec.ports[1].targetPort: none of the pods that it selects has a port named "htpp" of TCP (they have dns of UDP, http), so it has no endpoints`}, nil},
		{service + "{selector: {app: wbe}, ports: [{port: 80}]}}", []string{"Service shop/s: spec.selector: selects no pod of namespace shop, so the service has no endpoints"}, nil},
		{service + "{ports: [{port: 80}]}}", nil, nil},
		// Clients that policies do not see.
		{open + "}\n---\n" + inShop + "{" + web + ", ingress: [{}, " + office + "]}}", []string{hidden + "(ingress[1] of NetworkPolicy shop/p): set Local"}, nil},
		{strings.Replace(open, "type:", "externalTrafficPolicy: Local, type:", 1) + "}\n---\n" + inShop + "{" + web + ", ingress: [" + office + "]}}", nil, nil},
		{service + "{selector: {app: web}, ports: [{port: 80, targetPort: http}]}}\n---\n" + inShop + "{" + web + ", ingress: [" + office + "]}}", nil, nil},
		{open + "}\n---\n" + inShop + "{podSelector: {matchLabels: {app: db}}, ingress: [" + office + "]}}", nil, nil},
		{open + "}\n---\n" + inShop + "{" + web + ", ingress: [{from: [{ipBlock: {cidr: 0.0.0.0/0}}, {podSelector: {}}]}]}}", nil, nil},
		{open + "}\n---\n" + inShop + "{" + web + ", ingress: [{from: [{ipBlock: {cidr: 0.0.0.0/0, except: [192.0.2.0/24]}}]}]}}", []string{hidden + "(ingress[0] of NetworkPolicy shop/p): set Local"}, nil},
		{open + "}\n---\n" + inShop + "{" + web + ", ingress: [{from: [{ipBlock: {cidr: 192.0.2.0/24}}], ports: [{port: 9090}]}]}}", nil, nil},
		{open + "}\n---\n" + inShop + "{" + web + ", ingress: [{from: [{ipBlock: {cidr: 192.0.2.0/24}}], ports: [{port: http}]}]}}", []string{hidden + "(ingress[0] of NetworkPolicy shop/p): set Local"}, nil},
		{open + "}\n---\n" + inShop + "{" + web + ", ingress: [{from: [{ipBlock: {cidr: 10.0.0.0/24, except: [10.0.0.8/29]}}]}]}}", nil, nil},
		{open + "}\n---\n" + node + "10.0.0.1}]}}\n---\n" + inShop + "{" + web + ", ingress: [{from: [{ipBlock: {cidr: 10.0.0.0/24, except: [10.0.0.8/29]}}]}]}}", []string{hidden + "(ingress[0] of NetworkPolicy shop/p): set Local"}, nil},
		{open + "}\n---\n" + node + "192.0.2.9}]}}\n---\n" + inShop + "{" + web + ", ingress: [" + office + "]}}", nil, nil},
		{open + "}\n---\n" + global + "{selector: app == 'web', ingress: [{action: Deny, source: {selector: set == 'partners'}}, {action: Deny, source: {notNets: [198.51.100.0/24]}}, {action: Allow}]}}",
			[]string{hidden + "(ingress[0] of GlobalNetworkPolicy p, ingress[1] of GlobalNetworkPolicy p): set Local"}, nil},
		// What is refused has no effect, and that was said.
		{inShop + "{podSelector: {matchLabels: {app: wbe}}, ingress: [{ports: [{port: 0}]}]}}", nil, nil},
	} {
		read, err := manifest.NewDeclarations().Read("shop.yaml", []byte(shop+c.object))
		if err != nil {
			t.Fatal(err)
		}
		s := store.New()
		for _, o := range read.Objects {
			ref := o.Object.Ref()
			s.Apply([]store.Event{{Kind: ref.Kind, Name: ref.Name, Object: o.Object}})
		}
		for complete, want := range map[bool][]string{false: c.some, true: slices.Concat(c.some, c.more)} {
			var got []string
			s.Read(func(v *store.View) {
				for _, i := range lint.Hints(v, complete) {
					got = append(got, i.String())
				}
			})
			if !slices.Equal(got, want) {
				t.Errorf("%s, complete %t:\n%q\nwant\n%q", c.object, complete, got, want)
			}
		}
	}
}
