package manifest

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strconv"

	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"sluice.dev/sluice/internal/model"
	"sluice.dev/sluice/internal/source/kinds"
	"sluice.dev/sluice/internal/source/kubeobj"
)

// workloads are Kubernetes' own kinds whose objects have a template of pods.
var workloads = []string{"Deployment", "StatefulSet", "DaemonSet", "ReplicaSet", "ReplicationController", "Job", "CronJob"}

// maxReplicas is of how many replicas of a StatefulSet there is a pod.
const maxReplicas = 256

// workload is an object that has a template of pods.
type workload struct {
	metav1.ObjectMeta `json:"metadata"`
	Spec              struct {
		Replicas    *int32                  `json:"replicas"`
		Template    corev1.PodTemplateSpec  `json:"template"`
		JobTemplate batchv1.JobTemplateSpec `json:"jobTemplate"`
	} `json:"spec"`
}

// workload reads the pods of an object that has a template of them, which begins at start, and
// reports whether it does. Other groups have such kinds, too (Rollout, CloneSet).
func (p *parser) workload(kind string, start int) bool {
	defer func() { p.pos = start }()
	var w workload
	err := decodeWorkload(&p.decoder, &w)
	template := &w.Spec.Template
	if kind == "CronJob" {
		template = &w.Spec.JobTemplate.Spec.Template
	}
	if known := slices.Contains(workloads, kind); err != nil || len(template.Spec.Containers) == 0 && !known {
		if known && isField(err) {
			p.refuseWorkload(kind, start, err.Error())
		}
		return known
	}
	unnamed := w.Name == "" // it has a generateName
	meta := metav1.ObjectMeta{
		Name: cmp.Or(w.Name, "x"), Namespace: cmp.Or(w.Namespace, kinds.DefaultNamespace), Labels: template.Labels, Annotations: template.Annotations,
	}
	pod, err := kubeobj.Pod(&corev1.Pod{ObjectMeta: meta, Spec: template.Spec})
	if err != nil {
		p.refuseWorkload(kind, start, "its pods: "+err.Error())
	}
	if pod == nil {
		return true
	}
	name := pod.Name.Name
	if unnamed {
		name = p.source(p.lineAt(start))
	}
	if kind != "StatefulSet" {
		labels := map[string]string{}
		if kind == "Job" {
			labels = map[string]string{batchv1.JobNameLabel: name, "job-name": name}
		}
		p.addPod(*pod, name+" ("+kind+")", labels, start)
		return true
	}
	replicas := 1
	if w.Spec.Replicas != nil {
		replicas = max(1, min(int(*w.Spec.Replicas), maxReplicas))
	}
	for i := range replicas {
		replica := fmt.Sprintf("%s-%d", name, i)
		p.addPod(*pod, replica+" ("+kind+")", map[string]string{appsv1.StatefulSetPodNameLabel: replica, appsv1.PodIndexLabel: strconv.Itoa(i)}, start)
	}
	return true
}

// addPod adds a pod of a workload, to which controllers give labels beside those of the template.
func (p *parser) addPod(pod model.Pod, name string, labels map[string]string, start int) {
	pod.Name.Name = name
	maps.Copy(labels, pod.Labels)
	pod.Labels = labels
	p.add(object{Ref: pod.Ref(), value: &pod}, start)
}

func (p *parser) refuseWorkload(kind string, start int, reason string) {
	name := p.identify(start, true)
	p.pos = start
	p.out.issues = append(p.out.issues, model.Issue{Object: model.Ref{Kind: model.Kind(kind), Name: name}, Source: p.source(p.lineAt(start)), Reason: reason})
}
