package kube

import (
	"encoding/json"
	"net/http"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
)

// With the right that the chart gives, a real API server takes it; other conditions stay. Who
// writes True again and again is named.
func TestRealNetworkAvailable(t *testing.T) {
	c := realAPI(t)
	c.apply(t, nodes+"/node-cni", `{"apiVersion":"v1","kind":"Node","metadata":{"name":"node-cni","labels":{"a":"b"}}}`)
	const path = nodes + "/node-cni"
	if code, answer := c.ask(t, http.MethodPatch, path+"/status", `{"status":{"conditions":[{"type":"NetworkUnavailable","status":"True","reason":"NoRouteCreated"},{"type":"Ready","status":"False"}]}}`); code != http.StatusOK {
		t.Fatalf("%d: %s", code, answer)
	}
	user := c.user(t, c.forward(t).url(), "network", allResources...)
	c.put(t, roles, `{"metadata":{"name":"write-network"},"rules":[{"apiGroups":[""],"resources":["nodes/status"],"verbs":["patch"]}]}`)
	c.put(t, bindings, `{"metadata":{"name":"write-network"},"roleRef":{"apiGroup":"rbac.authorization.k8s.io","kind":"ClusterRole","name":"write-network"},
		"subjects":[{"kind":"User","apiGroup":"rbac.authorization.k8s.io","name":"network"}]}`)
	says := func() map[corev1.NodeConditionType]string {
		var node corev1.Node
		if code, answer := c.ask(t, http.MethodGet, path, ""); code != http.StatusOK || json.Unmarshal([]byte(answer), &node) != nil {
			t.Errorf("%d: %s", code, answer)
		}
		all := map[corev1.NodeConditionType]string{}
		for _, condition := range node.Status.Conditions {
			all[condition.Type] = string(condition.Status) + " " + condition.Reason
		}
		return all
	}
	contested(t, NewNetworkAvailable(Config{Kubeconfig: user}, "node-cni", silentLog),
		func() bool { return !strings.HasPrefix(says()[corev1.NodeNetworkUnavailable], "False") },
		func() {
			if code, answer := c.ask(t, http.MethodPatch, path+"/status?fieldManager=route-controller", `{"status":{"conditions":[{"type":"NetworkUnavailable","status":"True","reason":"NoRouteCreated"},{"type":"Ready","status":"False"}]}}`); code != http.StatusOK {
				t.Errorf("%d: %s", code, answer)
			}
		}, "route-controller")
	if says := says(); says[corev1.NodeNetworkUnavailable] != "False SluiceIsUp" || !strings.HasPrefix(says[corev1.NodeReady], "False") {
		t.Errorf("%v", says)
	}
}
