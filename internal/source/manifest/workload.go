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
	corev1.Pod // with the name of the object
	replicas   *int32
}

// workload reads the pods of an object that has a template of them, which begins at start, and
// reports whether it does. Other groups have such kinds, too (Rollout, CloneSet).
func (p *parser) workload(kind string, start int) bool {
	defer func() { p.pos = start }()
	var w workload
	err := p.decodeWorkload(&w)
	if known := slices.Contains(workloads, kind); err != nil || len(w.Spec.Containers) == 0 && !known {
		if known && isField(err) {
			p.refuseWorkload(kind, start, err.Error())
		}
		return known
	}
	unnamed := w.Name == "" // it has a generateName
	w.Name, w.Namespace = cmp.Or(w.Name, "x"), cmp.Or(w.Namespace, kinds.DefaultNamespace)
	pod, err := kubeobj.Pod(&w.Pod)
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
	if w.replicas != nil {
		replicas = max(1, min(int(*w.replicas), maxReplicas))
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

func (d *decoder) decodeWorkload(w *workload) error {
	return d.object(func(key []byte) error {
		switch string(key) {
		case "metadata":
			var m metav1.ObjectMeta
			err := d.meta(&m)
			w.Name, w.Namespace = m.Name, m.Namespace
			return err
		case "spec":
			return d.workloadSpec(w)
		}
		return d.skip()
	})
}

func (d *decoder) workloadSpec(w *workload) error {
	return d.object(func(key []byte) error {
		switch string(key) {
		case "replicas":
			return d.int32Pointer(&w.replicas)
		case "template":
			return d.podTemplate(w)
		case "jobTemplate":
			return d.object(func(key []byte) error {
				if string(key) == "spec" {
					return d.workloadSpec(w)
				}
				return d.skip()
			})
		}
		return d.skip()
	})
}

func (d *decoder) podTemplate(w *workload) error {
	return d.object(func(key []byte) error {
		switch string(key) {
		case "metadata":
			var m metav1.ObjectMeta
			err := d.meta(&m)
			w.Labels, w.Annotations = m.Labels, m.Annotations
			return err
		case "spec":
			return d.podSpec(&w.Spec)
		}
		return d.skip()
	})
}
