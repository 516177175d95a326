package lab

import (
	"context"
	"encoding/json"
	"fmt"
	"io/fs"
	"strings"
	"testing"

	"sluice.dev/sluice/test/lab/plan"
)

// growingAPI serves a workload whose pod the controllers make, ready at once, after some requests.
type growingAPI struct {
	path          string // of the workload's kind
	before, grown string // its status
	requests      int
	after         int
}

func (a *growingAPI) Get(_ context.Context, path string, into any) error {
	grown := a.requests >= a.after
	a.requests++
	items, status := map[string]string{"/api/v1/nodes": `{"metadata": {"name": "node1"}, "status": {"conditions": [{"type": "Ready", "status": "True"}]}}`}, a.before
	if grown {
		items["/api/v1/pods"], status = readyPod("web-1"), a.grown
	}
	items[a.path] = fmt.Sprintf(`{"metadata": {"name": "web", "generation": 1}, "spec": {"replicas": 1}, "status": %s}`, status)
	if strings.Contains(path, "calico") {
		return fs.ErrNotExist
	}
	return json.Unmarshal([]byte(`{"items": [`+items[path]+`]}`), into)
}

func readyPod(name string) string {
	return `{"metadata": {"name": "` + name + `"}, "spec": {"nodeName": "node1"},
		"status": {"podIPs": [{"ip": "10.244.1.2"}], "conditions": [{"type": "Ready", "status": "True"}]}}`
}

// A lab that says that nothing is missing knows all pods, whenever they became ready while it read
// the API.
func TestSettledLabKnowsItsPods(t *testing.T) {
	const scaled, active = `{"observedGeneration": 1, "readyReplicas": 1}`, `{"active": 1, "ready": 1}`
	for _, w := range []growingAPI{
		{path: "/apis/apps/v1/deployments", before: "{}", grown: scaled},
		{path: "/api/v1/replicationcontrollers", before: "{}", grown: scaled},
		{path: "/apis/batch/v1/jobs", before: "{}", grown: active},
		{path: "/apis/batch/v1/jobs", before: `{"conditions": [{"type": "Suspended", "status": "False"}]}`, grown: active},
	} {
		var settled int
		for after := range 40 {
			l := &Lab{Name: "test", Kubernetes: &Kubernetes{}, Cluster: &plan.Cluster{Nodes: []plan.Node{{Name: "node1"}}}}
			api := w
			api.after = after
			waiting, err := l.survey(t.Context(), &api)
			if err != nil {
				t.Fatal(err)
			}
			if len(waiting) > 0 {
				continue
			}
			settled++
			if n := len(l.Cluster.Pods); n != 1 {
				t.Errorf("%s, whose pod is ready after %d requests: nothing is waited for, and %d pods are known", w.path, after, n)
			}
		}
		if settled == 0 {
			t.Errorf("%s: the lab never settles", w.path)
		}
	}
}
