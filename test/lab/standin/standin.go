// Package standin has containers whose image nobody has run a small server in its place, on the
// ports that they declare, or that their probes ask: so manifests of applications run in a lab
// without their images. What is changed is said in an annotation of the pod, and in an Event.
//
// It is an admission webhook: what the kubelet then runs is in the pod's spec, for all to see.
package standin

import (
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"strings"

	admissionv1 "k8s.io/api/admission/v1"
	corev1 "k8s.io/api/core/v1"
)

const (
	// Annotation names the containers of a pod that a stand-in runs in place of, with the images
	// that they wanted: "web=shop/web:1,cache=shop/cache".
	Annotation = "lab.sluice.dev/stand-in"
	// PortsAnnotation lists ports that the first container of a pod serves besides its declared
	// ones: "8080,53/UDP".
	PortsAnnotation = "lab.sluice.dev/ports"
	// DrainAnnotation is how long a stand-in goes on after the signal to end, as a Go duration; the
	// default is 2s. The kubelet's limit is the pod's grace period.
	DrainAnnotation = "lab.sluice.dev/drain"
	// Image is that of the stand-in.
	Image = "sluice.dev/lab/stand-in:latest"
	// Program is the lab's program in it.
	Program = "/usr/local/bin/sluice-lab"
)

// Of the container's environment, for Program.
const (
	PodEnv, NamespaceEnv, NodeEnv, AddrsEnv = "LAB_POD", "LAB_NAMESPACE", "LAB_NODE", "LAB_ADDRESSES"
)

// Replace has stand-ins run in place of the containers of a pod whose image is not known, and
// returns what it has noted of them. An init container's stand-in ends at once, with success. What
// probes and hooks would run in a container succeeds.
func Replace(pod *corev1.Pod, known func(image string) bool) (all []Replaced) {
	for i := range pod.Spec.InitContainers {
		if c := &pod.Spec.InitContainers[i]; !known(c.Image) {
			sidecar := c.RestartPolicy != nil && *c.RestartPolicy == corev1.ContainerRestartPolicyAlways
			all = append(all, Replaced{c.Name, c.Image})
			replace(c, nil, sidecar, pod.Annotations)
		}
	}
	for i := range pod.Spec.Containers {
		if c := &pod.Spec.Containers[i]; !known(c.Image) {
			var more []string
			if i == 0 {
				more = strings.FieldsFunc(pod.Annotations[PortsAnnotation], func(r rune) bool { return r == ',' || r == ' ' })
			}
			all = append(all, Replaced{c.Name, c.Image})
			replace(c, more, true, pod.Annotations)
		}
	}
	if len(all) > 0 {
		var noted []string
		for _, r := range all {
			noted = append(noted, r.Container+"="+r.Image)
		}
		if pod.Annotations == nil {
			pod.Annotations = map[string]string{}
		}
		pod.Annotations[Annotation] = strings.Join(noted, ",")
	}
	return all
}

// Replaced is a container that a stand-in runs in place of.
type Replaced struct{ Container, Image string }

// String says so to people.
func (r Replaced) String() string {
	return fmt.Sprintf("container %s: the lab does not have the image %s, so a small server answers on its ports; 'sluice lab load' brings images", r.Container, r.Image)
}

// Of returns what Replace has noted of a pod.
func Of(pod *corev1.Pod) (all []Replaced) {
	for noted := range strings.SplitSeq(pod.Annotations[Annotation], ",") {
		if container, image, ok := strings.Cut(noted, "="); ok {
			all = append(all, Replaced{container, image})
		}
	}
	return all
}

func replace(c *corev1.Container, ports []string, stays bool, annotations map[string]string) {
	c.Image, c.ImagePullPolicy = Image, corev1.PullIfNotPresent
	c.Command, c.Args = []string{Program, "lab", "answer"}, nil
	if !stays {
		c.Args = []string{"--once"}
		return
	}
	for _, p := range c.Ports {
		port := fmt.Sprint(p.ContainerPort)
		if p.Protocol != "" && p.Protocol != corev1.ProtocolTCP {
			port += "/" + string(p.Protocol)
		}
		ports = append(ports, port)
	}
	for _, p := range []*corev1.Probe{c.StartupProbe, c.ReadinessProbe, c.LivenessProbe} {
		if port := probed(p); port != "" && !slices.Contains(ports, port) {
			ports = append(ports, port) // it need not be declared
		}
	}
	if len(ports) > 0 {
		c.Args = append(c.Args, "--ports="+strings.Join(ports, ","))
	}
	if drain := annotations[DrainAnnotation]; drain != "" {
		c.Args = append(c.Args, "--drain="+drain)
	}
	c.Env = slices.DeleteFunc(slices.Clone(c.Env), func(e corev1.EnvVar) bool { return strings.HasPrefix(e.Name, "LAB_") })
	for name, field := range map[string]string{PodEnv: "metadata.name", NamespaceEnv: "metadata.namespace", NodeEnv: "spec.nodeName", AddrsEnv: "status.podIPs"} {
		c.Env = append(c.Env, corev1.EnvVar{Name: name, ValueFrom: &corev1.EnvVarSource{FieldRef: &corev1.ObjectFieldSelector{FieldPath: field}}})
	}
	slices.SortFunc(c.Env, func(a, b corev1.EnvVar) int { return strings.Compare(a.Name, b.Name) })
	for _, p := range []*corev1.Probe{c.StartupProbe, c.ReadinessProbe, c.LivenessProbe} {
		if p != nil {
			succeed(p.Exec)
		}
	}
	if c.Lifecycle != nil {
		for _, h := range []*corev1.LifecycleHandler{c.Lifecycle.PostStart, c.Lifecycle.PreStop} {
			if h != nil {
				succeed(h.Exec)
			}
		}
	}
}

// probed returns the port that a probe asks by its number; "" for none.
func probed(p *corev1.Probe) string {
	switch {
	case p == nil:
	case p.GRPC != nil:
		return fmt.Sprint(p.GRPC.Port)
	case p.HTTPGet != nil && p.HTTPGet.Host == "" && p.HTTPGet.Port.IntVal > 0:
		return p.HTTPGet.Port.String()
	case p.TCPSocket != nil && p.TCPSocket.Host == "" && p.TCPSocket.Port.IntVal > 0:
		return p.TCPSocket.Port.String()
	}
	return ""
}

// succeed has a command that the container is to run be one that succeeds.
func succeed(exec *corev1.ExecAction) {
	if exec != nil {
		exec.Command = []string{Program, "lab", "answer", "--once"}
	}
}

// Handler answers an API server that asks about pods that are to be made. It changes nothing else.
func Handler(known func(image string) bool) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		var review admissionv1.AdmissionReview
		if err := json.NewDecoder(http.MaxBytesReader(w, r.Body, 8<<20)).Decode(&review); err != nil || review.Request == nil {
			http.Error(w, "this is for the API server's questions, an AdmissionReview in JSON", http.StatusBadRequest)
			return
		}
		review.Response = &admissionv1.AdmissionResponse{UID: review.Request.UID, Allowed: true}
		if err := answer(&review, known); err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		review.Request = nil
		w.Header().Set("Content-Type", "application/json")
		_ = json.NewEncoder(w).Encode(&review) // the API server has gone
	})
}

func answer(review *admissionv1.AdmissionReview, known func(image string) bool) error {
	var pod corev1.Pod
	if err := json.Unmarshal(review.Request.Object.Raw, &pod); err != nil {
		return fmt.Errorf("read the pod: %w", err)
	}
	for _, r := range Replace(&pod, known) {
		review.Response.Warnings = append(review.Response.Warnings, r.String())
	}
	if len(review.Response.Warnings) == 0 {
		return nil
	}
	patch := []map[string]any{
		{"op": "add", "path": "/metadata/annotations", "value": pod.Annotations},
		{"op": "replace", "path": "/spec/containers", "value": pod.Spec.Containers},
	}
	if len(pod.Spec.InitContainers) > 0 {
		patch = append(patch, map[string]any{"op": "replace", "path": "/spec/initContainers", "value": pod.Spec.InitContainers})
	}
	text, err := json.Marshal(patch)
	if err != nil {
		return err
	}
	kind := admissionv1.PatchTypeJSONPatch
	review.Response.Patch, review.Response.PatchType = text, &kind
	return nil
}
