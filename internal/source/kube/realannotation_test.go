package kube

import (
	"context"
	"encoding/json"
	"net/http"
	"sync"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// With the rights that the chart gives, a real API server takes a node's key for its annotation,
// beside other annotations, and takes it away again.
func TestRealAnnotation(t *testing.T) {
	c := realAPI(t)
	const node, key, value = "annotated", "projectcalico.org/WireguardPublicKey", "iLoWXoUAo06h0MStEIJFttDx+nKtwYth4/kgX0/NHi4="
	c.put(t, nodes, `{"metadata":{"name":"`+node+`","annotations":{"example.com/other":"kept"}}}`)
	user := c.user(t, c.forward(t).url(), "annotator", allResources...)
	c.put(t, roles, `{"metadata":{"name":"write-keys"},"rules":[{"apiGroups":[""],"resources":["nodes"],"verbs":["patch"]}]}`)
	c.put(t, bindings, `{"metadata":{"name":"write-keys"},"roleRef":{"apiGroup":"rbac.authorization.k8s.io","kind":"ClusterRole","name":"write-keys"},
		"subjects":[{"kind":"User","apiGroup":"rbac.authorization.k8s.io","name":"annotator"}]}`)
	says := func() map[string]string {
		code, answer := c.ask(t, http.MethodGet, nodes+"/"+node, "")
		var o metav1.PartialObjectMetadata
		if err := json.Unmarshal([]byte(answer), &o); code != http.StatusOK || err != nil {
			t.Errorf("%d, %v: %s", code, err, answer)
		}
		return o.Annotations
	}
	for _, want := range []string{value, ""} {
		ctx, cancel := context.WithCancel(t.Context())
		a := NewAnnotation(Config{Kubeconfig: user}, node, key, want, silentLog)
		var running sync.WaitGroup
		running.Go(func() { a.Run(ctx, func() bool { return says()[key] != want }) })
		waitFor(t, "the annotation "+want, func() bool { return says()[key] == want })
		cancel()
		running.Wait()
		if got := says(); got["example.com/other"] != "kept" {
			t.Errorf("annotations: %v", got)
		}
	}
}
