package kube

import (
	"testing"

	"sluice.dev/sluice/internal/model"
)

// Objects of all kinds are created, changed and deleted in a real API server.
func TestRealFollow(t *testing.T) {
	c := realAPI(t)
	names := c.shop(t)
	f := followReal(t, c.user(t, c.forward(t).url(), "follow", allResources...))
	f.waitSynced()
	f.waitOwn(names...)
	f.waitNoIssue()
	eps := f.sink.object("EndpointSlice shop/web-1").(*model.EndpointSlice)
	if eps.Service != "web" || len(eps.Endpoints) != 2 || eps.Endpoints[1].Node != "n1" {
		t.Errorf("slice %+v", eps)
	}
	c.put(t, services, `{"metadata":{"name":"web","namespace":"shop"},"spec":{"ports":[{"name":"http","port":81,"targetPort":8080}]}}`)
	f.wait("a change", func() bool { return f.port("web") == 81 })
	c.remove(t, "/api/v1/namespaces/shop/pods/web-a")
	f.wait("a pod to go", func() bool { return f.sink.object("Pod shop/web-a") == nil })
	if l := f.source.Status().Lacking; l != nil {
		t.Errorf("lacking %q", l)
	}
}
