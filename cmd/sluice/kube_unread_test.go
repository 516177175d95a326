package main

import (
	"net/http"
	"path/filepath"
	"strings"
	"testing"

	"sluice.dev/sluice/internal/agent"
)

// readers is the role of an agent that enforces policy, without the right to read pods; the second
// role may read them.
const readers = `
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRole
metadata: {name: reader}
rules:
- {apiGroups: [""], resources: [services, nodes, namespaces, serviceaccounts], verbs: [list, watch]}
- {apiGroups: [discovery.k8s.io], resources: [endpointslices], verbs: [list, watch]}
- {apiGroups: [networking.k8s.io], resources: [networkpolicies], verbs: [list, watch]}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRole
metadata: {name: pods}
rules: [{apiGroups: [""], resources: [pods], verbs: [list, watch]}]
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRoleBinding
metadata: {name: reader}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: reader}
subjects: [{apiGroup: rbac.authorization.k8s.io, kind: User, name: sluice}]
---
apiVersion: v1
kind: Node
metadata: {name: pods-of}
spec: {podCIDRs: [10.1.0.0/24], podCIDR: 10.1.0.0/24}
---
apiVersion: v1
kind: ServiceAccount
metadata: {name: default}
---
apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata: {name: closed}
spec: {podSelector: {}, policyTypes: [Ingress]}
`

const mayReadPods = `
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRoleBinding
metadata: {name: pods}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: pods}
subjects: [{apiGroup: rbac.authorization.k8s.io, kind: User, name: sluice}]
`

const somePods = `
apiVersion: v1
kind: Pod
metadata: {name: a}
spec: {nodeName: pods-of, containers: [{name: c, image: none}]}
---
apiVersion: v1
kind: Pod
metadata: {name: b}
spec: {nodeName: pods-of, containers: [{name: c, image: none}]}
`

// An agent that may not read Pods cuts off no pod, reports that it is not ready, and enforces
// policy once it may. Pods that an earlier agent knew keep the policies of that agent.
func unreadPodsOnRealAPI(t *testing.T, s *proxyNode) {
	pods := attachPods(t, s.NetNS, 3)
	s.kubectl(t, "apply", "--server-side", "--force-conflicts", "-f", s.file(t, "readers.yaml", readers), "-f", s.file(t, "pods.yaml", somePods))
	for name, ip := range map[string]string{"a": "10.1.0.1", "b": "10.1.0.2"} {
		s.kubectl(t, "patch", "pod", name, "--subresource=status", "--type=merge", "-p", `{"status":{"phase":"Running","podIP":"`+ip+`","podIPs":[{"ip":"`+ip+`"}]}}`)
	}
	kubeconfig, err := s.Kubeconfig("sluice")
	if err != nil {
		t.Fatal(err)
	}
	var socket string
	run := func() (p *program) {
		p, socket = s.sluice(t, "--kubeconfig="+kubeconfig, "--node=pods-of", "--set-sysctls=false")
		eventually(t, "it is programmed", func() bool {
			status, err := agent.NewClient(socket).Status(t.Context())
			return err == nil && status.LastApply != nil
		})
		return p
	}
	ready := func() (int, string) { return s.get("127.0.0.1:10256/readyz") }
	passes := func(from int, to string) bool {
		err := connect(pods[from], to+":80")
		return err != nil && strings.Contains(err.Error(), "refused") // nothing listens there
	}
	p := run()
	if code, text := ready(); code != http.StatusServiceUnavailable || !strings.Contains(text, "Pod: none could be read") {
		t.Errorf("/readyz without the right to read pods: %d %s", code, text)
	}
	if !passes(0, "10.1.0.2") {
		t.Error("a pod is cut off as no pods could be read")
	}
	s.kubectl(t, "apply", "--server-side", "--force-conflicts", "-f", s.file(t, "may.yaml", mayReadPods))
	if err := agent.NewClient(socket).Sync(t.Context()); err != nil && strings.Contains(err.Error(), "Pod:") {
		t.Error(err)
	}
	eventually(t, "it is ready", func() bool { code, _ := ready(); return code == http.StatusOK })
	if passes(0, "10.1.0.2") || passes(2, "10.1.0.1") {
		t.Error("policy is not in force though pods were read")
	}
	p.kill()

	s.kubectl(t, "delete", "-f", filepath.Join(s.dir, "may.yaml"))
	run()
	if code, _ := ready(); code != http.StatusServiceUnavailable {
		t.Errorf("/readyz after a restart without the right: %d", code)
	}
	if passes(0, "10.1.0.2") {
		t.Error("a policy that was in force before the restart no longer is")
	}
	if !passes(0, "10.1.0.3") {
		t.Error("a pod that nobody knows is cut off")
	}
}

// An odd EndpointSlice that belongs to no service does not keep services that were deleted while no
// agent ran.
func oddSliceKeepsNothing(t *testing.T, s *proxyNode) {
	s.kubectl(t, "apply", "--server-side", "--force-conflicts", "-f", s.file(t, "role.yaml", role("")), "-f", s.file(t, "odd.yaml", `
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: odd, labels: {kubernetes.io/service-name: nosuch}}
addressType: IPv4
ports: [{port: 70000}]
endpoints: [{addresses: [10.244.0.9]}]
`))
	kubeconfig, err := s.Kubeconfig("sluice")
	if err != nil {
		t.Fatal(err)
	}
	p, socket := s.sluice(t, "--kubeconfig="+kubeconfig, "--node=node-a", "--policy=false", "--set-sysctls=false")
	has := func() bool { return strings.Contains(nft(t, s.NetNS, "list table inet sluice"), "10.96.0.80") }
	programmed := func() bool {
		status, err := agent.NewClient(socket).Status(t.Context())
		return err == nil && status.LastApply != nil
	}
	eventually(t, "it is programmed", programmed)
	if !has() {
		t.Fatal("the service is not there")
	}
	p.kill()
	s.kubectl(t, "delete", "service", "web")
	_, socket = s.sluice(t, "--kubeconfig="+kubeconfig, "--node=node-a", "--policy=false", "--set-sysctls=false")
	eventually(t, "it is programmed", programmed)
	if has() {
		t.Error("a deleted service stays")
	}
	status, err := agent.NewClient(socket).Status(t.Context())
	if err != nil || status.Kept != 0 || len(status.Source.Issues) != 1 || !strings.Contains(status.Source.Issues[0].Reason, "70000") {
		t.Errorf("kept %d, issues %v, %v", status.Kept, status.Source.Issues, err)
	}
}
