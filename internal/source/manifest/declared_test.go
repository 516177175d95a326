package manifest

import (
	"fmt"
	"slices"
	"testing"

	"sluice.dev/sluice/internal/model"
)

// Files are read as users write them: the API server has not given the Services addresses, and
// there are workloads in place of pods.
func TestDeclarations(t *testing.T) {
	d := NewDeclarations()
	objects, issues, err := d.Read("shop.yaml", []byte(`apiVersion: v1
kind: Service
metadata: {name: a}
spec: {ports: [{port: 80}]}
---
{apiVersion: v1, kind: Service, metadata: {name: b}, spec: {ports: [{port: 80}], clusterIP: 10.96.0.1}}
---
{apiVersion: v1, kind: Service, metadata: {name: c}, spec: {ports: [{port: 80}], clusterIP: None}}
---
{apiVersion: v1, kind: Service, metadata: {name: d}, spec: {type: ExternalName, externalName: x}}
---
apiVersion: v1
kind: List
items:
- {apiVersion: apps/v1, kind: StatefulSet, metadata: {name: db, namespace: shop}, spec: {template: {metadata: {labels: {app: db}}, spec: {containers: [{name: c, ports: [{name: sql, containerPort: 5432}]}]}}}}
- {apiVersion: batch/v1, kind: CronJob, metadata: {name: night}, spec: {jobTemplate: {spec: {template: {metadata: {labels: {app: night}}, spec: {hostNetwork: true, containers: [{name: c}]}}}}}}
- {apiVersion: apps/v1, kind: Deployment, metadata: {name: odd}, spec: {template: 5}}
- {apiVersion: v1, kind: ConfigMap, metadata: {name: x}}
---
{apiVersion: networking.k8s.io/v1, kind: NetworkPolicy, metadata: {name: p}, spec: {podSelector: {}, ingress: [{ports: [{port: 443, endPort: 80}]}]}}
`))
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, o := range objects {
		text := fmt.Sprintf("%s %v", o.Source, o.Object.Ref())
		switch o := o.Object.(type) {
		case *model.Service:
			text += fmt.Sprint(" ", o.ClusterIPs)
		case *model.Pod:
			text += fmt.Sprintf(" %v %v %t", o.Labels, o.Ports, o.HostNetwork)
		}
		got = append(got, text)
	}
	want := []string{
		"shop.yaml:1 Service default/a [198.18.0.1]", "shop.yaml:6 Service default/b [10.96.0.1]", "shop.yaml:8 Service default/c []", "shop.yaml:10 Service default/d []",
		"shop.yaml:15 Pod shop/db (StatefulSet) map[app:db] [{sql TCP 5432}] false", "shop.yaml:16 Pod default/night (CronJob) map[app:night] [] true",
		"shop.yaml:20 NetworkPolicy default/p",
	}
	if !slices.Equal(got, want) {
		t.Errorf("got\n%q\nwant\n%q", got, want)
	}
	if len(issues) != 1 || issues[0].Source != "shop.yaml:20" || issues[0].Reason != "spec.ingress[0].ports[0].endPort: 80 is below port 443" {
		t.Errorf("issues: %v", issues)
	}
	if objects, _, _ := d.Read("more.json", []byte(`{"apiVersion":"v1","kind":"Service","metadata":{"name":"e"},"spec":{"ports":[{"port":80}]}}`)); len(objects) != 1 || objects[0].Object.(*model.Service).ClusterIPs[0].String() != "198.18.0.2" {
		t.Errorf("another file: %+v", objects)
	}
}
