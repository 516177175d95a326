package main

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"sluice.dev/sluice/internal/agent"
)

// poolKinds define MetalLB's kinds, as loosely as can be.
func poolKinds() string {
	text := ""
	for _, k := range []struct{ version, kind string }{{"v1beta1", "IPAddressPool"}, {"v1beta1", "L2Advertisement"}, {"v1beta1", "BFDProfile"}} {
		plural := strings.ToLower(k.kind) + "s"
		text += fmt.Sprintf(`---
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {name: %[1]s.metallb.io}
spec:
  group: metallb.io
  scope: Namespaced
  names: {plural: %[1]s, singular: %[2]s, kind: %[3]s, listKind: %[3]sList}
  versions: [{name: %[4]s, served: true, storage: true, schema: {openAPIV3Schema: {type: object, x-kubernetes-preserve-unknown-fields: true}}}]
`, plural, strings.ToLower(k.kind), k.kind, k.version)
	}
	return text
}

// addressRights are what docs/addresses.md says that the agent needs more.
const addressRights = `
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRole
metadata: {name: sluice-addresses}
rules:
- {apiGroups: [""], resources: [namespaces], verbs: [list, watch]}
- {apiGroups: [metallb.io], resources: [ipaddresspools, l2advertisements, bgpadvertisements, bgppeers, communities, bfdprofiles], verbs: [list, watch]}
- {apiGroups: [""], resources: [services/status], verbs: [patch]}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRoleBinding
metadata: {name: sluice-addresses}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: sluice-addresses}
subjects: [{apiGroup: rbac.authorization.k8s.io, kind: User, name: sluice}]
---
apiVersion: rbac.authorization.k8s.io/v1
kind: Role
metadata: {name: sluice-addresses, namespace: kube-system}
rules: [{apiGroups: [coordination.k8s.io], resources: [leases], verbs: [get, create, update]}]
---
apiVersion: rbac.authorization.k8s.io/v1
kind: RoleBinding
metadata: {name: sluice-addresses, namespace: kube-system}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: Role, name: sluice-addresses}
subjects: [{apiGroup: rbac.authorization.k8s.io, kind: User, name: sluice}]
`

const poolObjects = `
apiVersion: metallb.io/v1beta1
kind: IPAddressPool
metadata: {name: small, namespace: default}
spec: {addresses: [198.51.100.7/32]}
---
apiVersion: metallb.io/v1beta1
kind: L2Advertisement
metadata: {name: small, namespace: default}
---
apiVersion: metallb.io/v1beta1
kind: BFDProfile
metadata: {name: fast, namespace: default}
spec: {receiveInterval: 300}
---
apiVersion: v1
kind: Service
metadata: {name: first}
spec: {type: LoadBalancer, allocateLoadBalancerNodePorts: false, ports: [{port: 80}]}
`

// On a real API server, a Service gets an address with no more than the rights that are documented,
// and the node announces it. What cannot be given is named, and given once it can.
func addressesOnRealAPI(t *testing.T, s *proxyNode) {
	s.kubectl(t, "apply", "--server-side", "--force-conflicts", "-f", s.file(t, "kinds.yaml", poolKinds()), "-f", s.file(t, "role.yaml", role("")), "-f", s.file(t, "rights.yaml", addressRights))
	for _, kind := range []string{"ipaddresspools", "l2advertisements", "bfdprofiles"} {
		s.kubectl(t, "wait", "--for=condition=Established", "crd/"+kind+".metallb.io")
	}
	s.kubectl(t, "apply", "--server-side", "--force-conflicts", "-f", s.file(t, "pools.yaml", poolObjects))
	kubeconfig, err := s.Kubeconfig("sluice")
	if err != nil {
		t.Fatal(err)
	}
	_, socket := s.sluice(t, "--kubeconfig="+kubeconfig, "--node=node-a", "--policy=false", "--set-sysctls=false", "--service-addresses")
	client := agent.NewClient(socket)
	has := func(service, want string) {
		t.Helper()
		eventually(t, service+" has "+want, func() bool {
			out, err := s.Kubectl("get", "service", service, "-o", "jsonpath={.status.loadBalancer.ingress[*].ip} {.status.loadBalancer.ingress[*].ipMode}")
			return err == nil && strings.TrimSpace(string(out)) == want
		})
	}
	has("first", "198.51.100.7 VIP")
	eventually(t, "node-a announces it", func() bool {
		list, _ := client.Addresses(t.Context())
		return len(list) == 1 && list[0].Node == "node-a" && list[0].Here
	})
	says := func(words string) func() bool {
		return func() bool {
			status, _ := client.Status(t.Context())
			return strings.Contains(fmt.Sprint(status.Issues), words)
		}
	}
	eventually(t, "BFD is refused by name", says("BFD is not supported"))
	s.kubectl(t, "apply", "--server-side", "--force-conflicts", "-f", s.file(t, "second.yaml", "apiVersion: v1\nkind: Service\nmetadata: {name: second}\nspec: {type: LoadBalancer, allocateLoadBalancerNodePorts: false, ports: [{port: 81}]}\n"))
	eventually(t, "the second finds none", says("it gets no address: none of default/small (1 given out) has a free IPv4 address"))
	s.kubectl(t, "patch", "service", "first", "-p", `{"spec":{"type":"ClusterIP"}}`)
	has("second", "198.51.100.7 VIP")
	has("first", "")
	eventually(t, "nothing is wrong with it", func() bool { return !says("it gets no address")() })
	// Another controller that goes on putting its own address back is named, and mostly left alone.
	lost := 0
	for begun := time.Now(); time.Since(begun) < 8*time.Second; time.Sleep(20 * time.Millisecond) {
		if out, err := s.Kubectl("get", "service", "second", "-o", "jsonpath={.status.loadBalancer.ingress[*].ip}"); err == nil && string(out) != "10.0.0.5" {
			s.kubectl(t, "patch", "service", "second", "--subresource=status", "--field-manager=rival", "-p", `{"status":{"loadBalancer":{"ingress":[{"ip":"10.0.0.5"}]}}}`)
			lost++
		}
	}
	if lost < 2 || lost > 4 { // at the beginning, and of what is written at once, and after 2 and 6 s
		t.Errorf("the status was written %d times within 8 s", lost)
	}
	eventually(t, "the other is named", says(`another controller gives it addresses, too: field manager "rival" writes 10.0.0.5 into its status in place of 198.51.100.7`))
	has("second", "198.51.100.7 VIP") // once the other has ended
	eventually(t, "nothing is wrong with it any more", func() bool { return !says("another controller")() })
	_, body := s.get("127.0.0.1:10249/metrics")
	for _, want := range []string{"sluice_addresses 1", "sluice_addresses_announced 1", "sluice_addresses_unwritten 0", `sluice_address_nodes{state="silent"} 0`, "sluice_address_announcements_total"} {
		if !strings.Contains(body, "\n"+want) {
			t.Errorf("the metrics lack %s", want)
		}
	}
}
