package manifest

import (
	"fmt"
	"reflect"
	"slices"
	"strings"
	"testing"

	"sluice.dev/sluice/internal/model"
)

// Files are read as users write them: the API server has not given the Services addresses, and
// there are workloads in place of pods.
func TestDeclarations(t *testing.T) {
	d := NewDeclarations()
	c, err := d.Read("shop.yaml", []byte(`apiVersion: v1
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
	for _, o := range c.Objects {
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
		"shop.yaml:15 Pod shop/db-0 (StatefulSet) map[app:db apps.kubernetes.io/pod-index:0 statefulset.kubernetes.io/pod-name:db-0] [{sql TCP 5432}] false", "shop.yaml:16 Pod default/night (CronJob) map[app:night] [] true",
		"shop.yaml:20 NetworkPolicy default/p",
	}
	if !slices.Equal(got, want) {
		t.Errorf("got\n%q\nwant\n%q", got, want)
	}
	if got := fmt.Sprint(c.Issues); got != "[Deployment default/odd (shop.yaml:17): spec.template: is a number, should be an object"+
		" NetworkPolicy default/p (shop.yaml:20): spec.ingress[0].ports[0].endPort: 80 is below port 443; in force: it isolates what it selects, and allows nothing]" {
		t.Errorf("issues: %s", got)
	}
	if c, _ := d.Read("more.json", []byte(`{"apiVersion":"v1","kind":"Service","metadata":{"name":"e"},"spec":{"ports":[{"port":80}]}}`)); len(c.Objects) != 1 || c.Objects[0].Object.(*model.Service).ClusterIPs[0].String() != "198.18.0.2" {
		t.Errorf("another file: %+v", c.Objects)
	}
}

// Every object is counted once: what lists hold, JSON values that follow each other, workloads for
// their pods, of whatever group. What is not read is named, and what is nothing to Sluice is not.
func TestDeclarationsCount(t *testing.T) {
	const pods = `template: {metadata: {labels: {app: x}}, spec: {containers: [{name: c, resources: {limits: {cpu: "{{ cpu }}"}}}]}}`
	d := NewDeclarations()
	for _, c := range []struct {
		file, text    string
		objects       string
		issues, hints string
	}{
		{"empty.yaml", "", "", "", ""},
		{"comments.yaml", "# nothing\n---\n---\n# here\n---\n", "", "", ""},
		{"empty.json", "", "", "", ""},
		{"list.yaml", "kind: List\napiVersion: v1\nitems: []\n", "", "", ""},
		{"two.json", `{"apiVersion":"v1","kind":"Namespace","metadata":{"name":"a"}} {"apiVersion":"v1","kind":"Secret","metadata":{"name":"x"}}`, "two.json:1 Namespace a", "", ""},
		{"three.yaml", `{"apiVersion":"v1","kind":"Secret","metadata":{"name":"x"}}` + "\n\n" + `{"apiVersion":"v1","kind":"Namespace","metadata":{"name":"b"}}` + "\n" + `{"apiVersion":"v1","kind":"Namespace","metadata":{"name":"c"}}`,
			"three.yaml:3 Namespace b, three.yaml:4 Namespace c", "", ""},
		{"lists.yaml", "apiVersion: apps/v1\nkind: DeploymentList\nitems:\n- {metadata: {name: a, namespace: shop}, spec: {" + pods + "}}\n- {metadata: {name: b, namespace: shop}, spec: {" + pods + "}}\n" +
			"---\napiVersion: v1\nkind: SecretList\nitems: [{metadata: {name: x}}, {metadata: {name: y}}]\n---\napiVersion: shop.example/v1\nkind: PriceList\nmetadata: {name: x}\n",
			"lists.yaml:4 Pod shop/a (Deployment), lists.yaml:5 Pod shop/b (Deployment)", "", ""},
		{"sets.yaml", "{apiVersion: apps/v1, kind: StatefulSet, metadata: {name: db}, spec: {replicas: 2, " + pods + "}}\n---\n{apiVersion: apps/v1, kind: StatefulSet, metadata: {name: idle}, spec: {replicas: 0, " + pods + "}}",
			"sets.yaml:1 Pod default/db-0 (StatefulSet), sets.yaml:1 Pod default/db-1 (StatefulSet), sets.yaml:3 Pod default/idle-0 (StatefulSet)", "", ""},
		{"jobs.yaml", "{apiVersion: batch/v1, kind: Job, metadata: {generateName: a-}, spec: {" + pods + "}}\n---\n{apiVersion: batch/v1, kind: Job, metadata: {generateName: a-}, spec: {" + pods + "}}",
			"jobs.yaml:1 Pod default/jobs.yaml:1 (Job), jobs.yaml:3 Pod default/jobs.yaml:3 (Job)", "", ""},
		{"other.yaml", "{apiVersion: argoproj.io/v1alpha1, kind: Rollout, metadata: {name: r}, spec: {" + pods + "}}\n---\n{apiVersion: x/v1, kind: Page, metadata: {name: p}, spec: {template: page.html}}",
			"other.yaml:1 Pod default/r (Rollout)", "", ""},
		{"port.yaml", "{apiVersion: apps/v1, kind: DaemonSet, metadata: {name: d}, spec: {template: {spec: {containers: [{name: c, ports: [{containerPort: 65536}]}]}}}}",
			"", "DaemonSet default/d (port.yaml:1): its pods: spec.containers[0].ports[0].containerPort: 65536 is not in 1-65535", ""},
		{"calico.yaml", "{apiVersion: crd.projectcalico.org/v1, kind: FelixConfiguration, metadata: {name: default}}\n---\n{apiVersion: projectcalico.org/v3, kind: IPAMBlock, metadata: {name: x}}\n---\n" +
			"{apiVersion: projectcalico.org/v3, kind: StagedNetworkPolicy, metadata: {name: s, namespace: shop}}\n---\n{apiVersion: v1, kind: Sevice, metadata: {name: s}}\n---\n{apiVersion: metallb.io/v1beta1, kind: AddressPool, metadata: {name: p, namespace: lb}}", "",
			"metallb.io/v1beta1 AddressPool lb/p (calico.yaml:9): is not in force, as Sluice does not read it; write it as an IPAddressPool of metallb.io/v1beta1, and an L2Advertisement or BGPAdvertisement; in force: nothing of it",
			"crd.projectcalico.org/v1 FelixConfiguration default (calico.yaml:1): has no effect, as Sluice does not read it: its settings are flags of 'sluice run'; in force: nothing of it, " +
				"projectcalico.org/v3 StagedNetworkPolicy shop/s (calico.yaml:5): decides nothing, as in Calico; 'sluice preflight --policies' says what a policy would do; in force: nothing of it, " +
				"v1 Sevice s (calico.yaml:7): has no effect, as Sluice does not read this kind; in force: nothing of it"},
	} {
		got, err := d.Read(c.file, []byte(c.text))
		if err != nil {
			t.Fatal(err)
		}
		var objects []string
		for _, o := range got.Objects {
			objects = append(objects, o.Source+" "+o.Object.Ref().String())
		}
		for what, pair := range map[string][2]string{"objects": {strings.Join(objects, ", "), c.objects}, "issues": {texts(got.Issues), c.issues}, "hints": {texts(got.Hints), c.hints}} {
			if pair[0] != pair[1] {
				t.Errorf("%s: %s\n%s\nwant\n%s", c.file, what, pair[0], pair[1])
			}
		}
	}
	want := Counts{Read: 11, Unread: 4, Nothing: map[string]int{"Secret": 4, "PriceList": 1, "Page": 1, "IPAMBlock": 1}}
	if got := d.Counts(); !reflect.DeepEqual(got, want) {
		t.Errorf("counts %+v, want %+v", got, want)
	}
}

func texts(issues []model.Issue) string {
	var all []string
	for _, i := range issues {
		all = append(all, i.String())
	}
	return strings.Join(all, ", ")
}
