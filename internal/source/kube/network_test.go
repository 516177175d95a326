package kube

import (
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"

	corev1 "k8s.io/api/core/v1"
)

// The API is told until it takes it.
func TestNetworkAvailable(t *testing.T) {
	t.Parallel()
	var asked atomic.Int32
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		var patch struct {
			Status struct{ Conditions []corev1.NodeCondition }
		}
		err := json.NewDecoder(r.Body).Decode(&patch)
		if list := patch.Status.Conditions; err != nil || r.Method != http.MethodPatch || r.URL.Path != "/api/v1/nodes/node-a/status" || len(list) != 1 ||
			list[0].Type != corev1.NodeNetworkUnavailable || list[0].Status != corev1.ConditionFalse || list[0].LastTransitionTime.IsZero() {
			t.Errorf("%s %s: %+v, %v", r.Method, r.URL, patch, err)
		}
		if asked.Add(1) == 1 {
			fail(w, http.StatusForbidden, "no rule allows it")
		}
	}))
	defer server.Close()
	api := newFakeAPI(t)
	api.server.URL = server.URL
	NetworkAvailable(t.Context(), Config{Kubeconfig: api.kubeconfig("")}, "node-a", silentLog)
	if n := asked.Load(); n != 2 {
		t.Errorf("asked %d times", n)
	}
}

// With the right that the chart gives, a real API server takes it; other conditions stay.
func TestRealNetworkAvailable(t *testing.T) {
	c := realAPI(t)
	c.put(t, nodes, `{"metadata":{"name":"node-cni"}}`)
	const path = nodes + "/node-cni"
	if code, answer := c.ask(t, http.MethodPatch, path+"/status", `{"status":{"conditions":[{"type":"NetworkUnavailable","status":"True","reason":"NoRouteCreated"},{"type":"Ready","status":"False"}]}}`); code != http.StatusOK {
		t.Fatalf("%d: %s", code, answer)
	}
	user := c.user(t, c.forward(t).url(), "network")
	c.put(t, roles, `{"metadata":{"name":"write-network"},"rules":[{"apiGroups":[""],"resources":["nodes/status"],"verbs":["patch"]}]}`)
	c.put(t, bindings, `{"metadata":{"name":"write-network"},"roleRef":{"apiGroup":"rbac.authorization.k8s.io","kind":"ClusterRole","name":"write-network"},
		"subjects":[{"kind":"User","apiGroup":"rbac.authorization.k8s.io","name":"network"}]}`)
	NetworkAvailable(t.Context(), Config{Kubeconfig: user}, "node-cni", silentLog)
	var node corev1.Node
	if code, answer := c.ask(t, http.MethodGet, path, ""); code != http.StatusOK || json.Unmarshal([]byte(answer), &node) != nil {
		t.Fatalf("%d: %s", code, answer)
	}
	says := map[corev1.NodeConditionType]string{}
	for _, condition := range node.Status.Conditions {
		says[condition.Type] = string(condition.Status) + " " + condition.Reason
	}
	if says[corev1.NodeNetworkUnavailable] != "False SluiceIsUp" || !strings.HasPrefix(says[corev1.NodeReady], "False") {
		t.Errorf("%v", says)
	}
}
