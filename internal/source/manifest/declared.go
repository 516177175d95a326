package manifest

import (
	"cmp"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"hash/maphash"
	"net/netip"
	"slices"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"sluice.dev/sluice/internal/model"
	"sluice.dev/sluice/internal/source/kubeobj"
)

// Declared is an object of a file, and where it is declared.
type Declared struct {
	Object model.Object
	Source string // "web.yaml:12"
}

// Declarations reads files as users give them to a Kubernetes API, before it has added anything:
// for a Service without an address one is made up that no other has, and the pods of a Deployment
// or another workload are one Pod without an address, of the name "web (Deployment)".
type Declarations struct {
	parser parser
}

// NewDeclarations returns a reader of files that belong together.
func NewDeclarations() *Declarations {
	return &Declarations{parser{seed: maphash.MakeSeed(), declared: new(uint32)}}
}

// Read reads a file: JSON if its name ends in .json, and otherwise YAML. What is at fault is among
// the issues, with its place; an object may be there all the same, as what a source delivers.
func (d *Declarations) Read(name string, data []byte) ([]Declared, []model.Issue, error) {
	c, err := d.parser.parseSafely(name, data, nil)
	if err != nil {
		return nil, nil, err
	}
	var objects []Declared
	for _, o := range c.objects {
		if o.value != nil {
			objects = append(objects, Declared{o.value.(model.Object), fmt.Sprintf("%s:%d", name, o.line)})
		}
	}
	return objects, c.issues, nil
}

// assign gives a Service the address that the API server would choose.
func (p *parser) assign(o *corev1.Service) {
	if o.Spec.ClusterIP != "" || len(o.Spec.ClusterIPs) > 0 || o.Spec.Type == corev1.ServiceTypeExternalName {
		return
	}
	*p.declared++
	var a [4]byte
	binary.BigEndian.PutUint32(a[:], 198<<24|18<<16+*p.declared) // 198.18.0.0/15, which no network has
	o.Spec.ClusterIP = netip.AddrFrom4(a).String()
}

// workloads are the kinds whose objects have a template of pods.
var workloads = []string{"Deployment", "StatefulSet", "DaemonSet", "ReplicaSet", "ReplicationController", "Job", "CronJob"}

// workload reads the pods of an object of one of the workloads, which begins at start.
func (p *parser) workload(kind string, start int) {
	if p.declared == nil || !slices.Contains(workloads, kind) {
		return
	}
	defer func() { p.pos = start }()
	if p.skip() != nil {
		return
	}
	type template struct {
		Template corev1.PodTemplateSpec `json:"template"`
	}
	var o struct {
		Metadata metav1.ObjectMeta `json:"metadata"`
		Spec     struct {
			template
			JobTemplate struct {
				Spec template `json:"spec"`
			} `json:"jobTemplate"`
		} `json:"spec"`
	}
	if json.Unmarshal(p.data[start:p.pos], &o) != nil {
		return // it is for the API server to say so
	}
	pods := o.Spec.Template
	if kind == "CronJob" {
		pods = o.Spec.JobTemplate.Spec.Template
	}
	pod, _ := kubeobj.Pod(&corev1.Pod{ObjectMeta: metav1.ObjectMeta{
		Name: o.Metadata.Name, Namespace: cmp.Or(o.Metadata.Namespace, "default"), Labels: pods.Labels,
	}, Spec: pods.Spec})
	if pod == nil {
		return
	}
	pod.Name.Name += " (" + kind + ")"
	p.add(object{Ref: pod.Ref(), value: pod}, start)
}
