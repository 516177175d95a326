package kube

import (
	"encoding/json"
	"fmt"
	"net/http"
	"testing"
	"time"

	eventsv1 "k8s.io/api/events/v1"

	"sluice.dev/sluice/internal/model"
)

// With the rights that the chart gives, a real API server accepts an Event of an object with a
// namespace, of one without, and an update of it.
func TestRealRecorder(t *testing.T) {
	c := realAPI(t)
	c.shop(t)
	user := c.user(t, c.forward(t).url(), "recorder", allResources...)
	c.put(t, roles, `{"metadata":{"name":"record"},"rules":[{"apiGroups":["events.k8s.io"],"resources":["events"],"verbs":["create","patch"]}]}`)
	c.put(t, bindings, `{"metadata":{"name":"record"},"roleRef":{"apiGroup":"rbac.authorization.k8s.io","kind":"ClusterRole","name":"record"},
		"subjects":[{"kind":"User","apiGroup":"rbac.authorization.k8s.io","name":"recorder"}]}`)
	for ref, namespace := range map[model.Ref]string{
		{Kind: "Service", Name: model.Name{Namespace: "shop", Name: "web"}}:        "shop",
		{Kind: "NetworkPolicy", Name: model.Name{Namespace: "shop", Name: "deny"}}: "shop",
		{Kind: "Node", Name: model.Name{Name: "shop-n1"}}:                          "default",
	} {
		t.Run(string(ref.Kind), func(t *testing.T) {
			startRecorder(t, user, "n1", func(p *pace) { p.again = 10 * time.Millisecond }, silentLog).Report([]model.Issue{ref.Issue("is bad")})
			path := fmt.Sprintf("/apis/events.k8s.io/v1/namespaces/%s/events", namespace)
			waitFor(t, "an Event that lasts", func() bool {
				code, answer := c.ask(t, http.MethodGet, path, "")
				var list eventsv1.EventList
				if err := json.Unmarshal([]byte(answer), &list); code != http.StatusOK || err != nil {
					t.Fatalf("%d, %v: %s", code, err, answer)
				}
				for _, e := range list.Items {
					if e.Regarding.Kind == string(ref.Kind) && e.Regarding.Name == ref.Name.Name && e.Regarding.UID != "" && e.Series != nil && e.Series.Count > 2 {
						t.Cleanup(func() { c.remove(t, path+"/"+e.Name) })
						return true
					}
				}
				return false
			})
		})
	}
}
