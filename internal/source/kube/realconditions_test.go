package kube

import (
	"encoding/json"
	"net/http"
	"testing"

	apimeta "k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"sluice.dev/sluice/internal/model"
)

// With the rights that the chart gives, a real API server accepts conditions of a Service and of a
// ClusterNetworkPolicy as published, beside those of others; and the next agent finds what was
// mended meanwhile.
func TestRealConditions(t *testing.T) {
	c := realAPI(t)
	c.shop(t)
	c.define(t, clusterPolicies(t), cluster)
	c.put(t, cluster, clusterPolicy("shop-conditions", 7))
	user := c.user(t, c.forward(t).url(), "conditions", allResources...)
	c.put(t, roles, `{"metadata":{"name":"write-conditions"},"rules":[{"apiGroups":[""],"resources":["services/status"],"verbs":["patch"]},
		{"apiGroups":["policy.networking.k8s.io"],"resources":["clusternetworkpolicies/status"],"verbs":["patch"]}]}`)
	c.put(t, bindings, `{"metadata":{"name":"write-conditions"},"roleRef":{"apiGroup":"rbac.authorization.k8s.io","kind":"ClusterRole","name":"write-conditions"},
		"subjects":[{"kind":"User","apiGroup":"rbac.authorization.k8s.io","name":"conditions"}]}`)
	says := func(path string) (is *metav1.Condition, others int) {
		code, answer := c.ask(t, http.MethodGet, path, "")
		var o conditioned
		if err := json.Unmarshal([]byte(answer), &o); code != http.StatusOK || err != nil {
			t.Fatalf("%d, %v: %s", code, err, answer)
		}
		is = apimeta.FindStatusCondition(o.Status.Conditions, acceptedCondition)
		return is, len(o.Status.Conditions)
	}
	objects := map[string]model.Ref{
		"/api/v1/namespaces/shop/services/web": {Kind: model.ServiceKind, Name: model.Name{Namespace: "shop", Name: "web"}},
		cluster + "/shop-conditions":           {Kind: model.ClusterPolicy, Name: model.Name{Name: "shop-conditions"}},
	}
	var faults []model.Issue
	for path, ref := range objects {
		other := `{"status":{"conditions":[{"type":"example.com/Other","status":"True","reason":"R","message":"","lastTransitionTime":"2026-01-02T03:04:05Z"}]}}`
		if code, answer := c.ask(t, http.MethodPatch, path+"/status", other); code != http.StatusOK {
			t.Fatalf("%d: %s", code, answer)
		}
		faults = append(faults, everywhere(ref, "spec.x: is bad"))
	}
	t.Run("faults", func(t *testing.T) {
		startConditions(t, user, silentLog).Report(faults)
		for path := range objects {
			waitFor(t, "the condition of "+path, func() bool {
				is, all := says(path)
				return all == 2 && is != nil && is.Status == metav1.ConditionFalse && is.Message == "spec.x: is bad"
			})
		}
	})
	t.Run("mended", func(t *testing.T) {
		startConditions(t, user, silentLog).Report(nil)
		for path := range objects {
			waitFor(t, "it is mended: "+path, func() bool {
				is, all := says(path)
				return all == 2 && is != nil && is.Status == metav1.ConditionTrue
			})
		}
	})
}
