package lab

import (
	"context"
	"encoding/json"
	"fmt"
	"io/fs"
	"strings"
	"testing"

	"sluice.dev/sluice/internal/lab/plan"
)

// growingAPI serves a Deployment, a ReplicationController and a resumed Job whose pods the
// controllers make, all at once and ready, after some requests.
type growingAPI struct{ requests, after int }

func (a *growingAPI) Get(_ context.Context, path string, into any) error {
	grown := a.requests >= a.after
	a.requests++
	items := map[string]string{"/api/v1/nodes": `{"metadata": {"name": "node1"}, "status": {"conditions": [{"type": "Ready", "status": "True"}]}}`}
	deployment, job := `{"metadata": {"name": "web", "generation": 1}, "spec": {"replicas": 1}, "status": %s}`, `{"metadata": {"name": "task"}, "status": %s}`
	if grown {
		items["/apis/apps/v1/deployments"] = fmt.Sprintf(deployment, `{"observedGeneration": 1, "readyReplicas": 1}`)
		items["/apis/batch/v1/jobs"] = fmt.Sprintf(job, `{"active": 1, "ready": 1}`)
		items["/api/v1/replicationcontrollers"] = fmt.Sprintf(deployment, `{"observedGeneration": 1, "readyReplicas": 1}`)
		items["/api/v1/pods"] = readyPod("web-1") + "," + readyPod("task-1") + "," + readyPod("old-1")
	} else {
		items["/apis/apps/v1/deployments"] = fmt.Sprintf(deployment, `{}`)
		items["/apis/batch/v1/jobs"] = fmt.Sprintf(job, `{"conditions": [{"type": "Suspended", "status": "False"}]}`)
		items["/api/v1/replicationcontrollers"] = fmt.Sprintf(deployment, `{}`)
	}
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
	var settled int
	for after := range 40 {
		l := &Lab{Name: "test", Kubernetes: &Kubernetes{}, Cluster: &plan.Cluster{Nodes: []plan.Node{{Name: "node1"}}}}
		waiting, err := l.survey(t.Context(), &growingAPI{after: after})
		if err != nil {
			t.Fatal(err)
		}
		if len(waiting) > 0 {
			continue
		}
		settled++
		if n := len(l.Cluster.Pods); n != 3 {
			t.Errorf("pods that are ready after %d requests: nothing is waited for, and %d pods are known", after, n)
		}
	}
	if settled == 0 {
		t.Error("the lab never settles")
	}
}
