package standin

import (
	"bytes"
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"

	admissionv1 "k8s.io/api/admission/v1"
	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/yaml"
)

// shop is a pod of which one image is known.
const shop = `
metadata: {name: shop, annotations: {lab.sluice.dev/ports: "9090, 53/UDP", lab.sluice.dev/drain: 6s, own: "1"}}
spec:
  initContainers:
  - {name: migrate, image: shop/migrate, command: [migrate], ports: [{containerPort: 1}]}
  - {name: proxy, image: shop/proxy, restartPolicy: Always, ports: [{containerPort: 15000}]}
  containers:
  - name: web
    image: shop/web:1
    imagePullPolicy: Always
    command: [web]
    args: [--fast]
    env: [{name: OWN, value: "1"}, {name: LAB_POD, value: forged}]
    ports: [{containerPort: 80}, {containerPort: 81, protocol: UDP}]
    readinessProbe: {exec: {command: [web, ready]}}
    startupProbe: {tcpSocket: {port: 80}}
    livenessProbe: {grpc: {port: 82}}
    lifecycle: {preStop: {exec: {command: [web, stop]}}}
  - {name: cache, image: redis, command: [redis-server], ports: [{containerPort: 6379}]}
  - {name: idle, image: shop/idle}
`

func known(image string) bool { return image == "redis" }

func read(t *testing.T, text string) *corev1.Pod {
	t.Helper()
	var pod corev1.Pod
	if err := yaml.UnmarshalStrict([]byte(text), &pod); err != nil {
		t.Fatal(err)
	}
	return &pod
}

func TestReplace(t *testing.T) {
	pod := read(t, shop)
	want := []Replaced{{"migrate", "shop/migrate"}, {"proxy", "shop/proxy"}, {"web", "shop/web:1"}, {"idle", "shop/idle"}}
	if got := Replace(pod, known); !slices.Equal(got, want) {
		t.Fatalf("replaced %v, want %v", got, want)
	}
	if noted := Of(pod); !slices.Equal(noted, want) || pod.Annotations["own"] != "1" {
		t.Errorf("annotations: %v", pod.Annotations)
	}
	for _, want := range []struct{ name, args string }{{"migrate", "--once"}, {"proxy", "--ports=15000 --drain=6s"}, {"web", "--ports=9090,53/UDP,80,81/UDP,82 --drain=6s"}, {"idle", "--drain=6s"}} {
		for _, c := range slices.Concat(pod.Spec.InitContainers, pod.Spec.Containers) {
			if c.Name == want.name && (c.Image != Image || strings.Join(c.Command, " ") != Program+" lab answer" || strings.Join(c.Args, " ") != want.args) {
				t.Errorf("%s: %s %v %v, want %v", c.Name, c.Image, c.Command, c.Args, want.args)
			}
		}
	}
	web, cache := pod.Spec.Containers[0], pod.Spec.Containers[1]
	if cache.Image != "redis" || cache.Command[0] != "redis-server" || cache.Env != nil {
		t.Errorf("a container whose image is known: %+v", cache)
	}
	var env []string
	for _, e := range web.Env {
		from := e.Value
		if e.ValueFrom != nil {
			from = e.ValueFrom.FieldRef.FieldPath
		}
		env = append(env, e.Name+"="+from)
	}
	if want := []string{"LAB_ADDRESSES=status.podIPs", "LAB_NAMESPACE=metadata.namespace", "LAB_NODE=spec.nodeName", "LAB_POD=metadata.name", "OWN=1"}; !slices.Equal(env, want) {
		t.Errorf("environment: %v, want %v", env, want)
	}
	if web.ReadinessProbe.Exec.Command[0] != Program || web.LivenessProbe.GRPC.Port != 82 || web.Lifecycle.PreStop.Exec.Command[0] != Program {
		t.Errorf("probes and hooks: %+v %+v %+v", web.ReadinessProbe, web.LivenessProbe, web.Lifecycle)
	}
	if pod := read(t, "{spec: {containers: [{name: a, image: redis}]}}"); Replace(pod, known) != nil || pod.Annotations != nil {
		t.Errorf("a pod of known images is changed: %+v", pod)
	}
}

// ask sends a body to the webhook.
func ask(body []byte) *httptest.ResponseRecorder {
	w := httptest.NewRecorder()
	Handler(known).ServeHTTP(w, httptest.NewRequest(http.MethodPost, "/", bytes.NewReader(body)))
	return w
}

func TestHandler(t *testing.T) {
	raw, err := json.Marshal(read(t, shop))
	if err != nil {
		t.Fatal(err)
	}
	question := admissionv1.AdmissionReview{Request: &admissionv1.AdmissionRequest{UID: "7"}}
	question.Kind, question.APIVersion = "AdmissionReview", "admission.k8s.io/v1"
	question.Request.Object.Raw = raw
	body, err := json.Marshal(question)
	if err != nil {
		t.Fatal(err)
	}
	var answer admissionv1.AdmissionReview
	if w := ask(body); w.Code != http.StatusOK || json.Unmarshal(w.Body.Bytes(), &answer) != nil {
		t.Fatalf("%d %s", w.Code, w.Body)
	}
	r := answer.Response
	if answer.Kind != "AdmissionReview" || r == nil || r.UID != "7" || !r.Allowed || len(r.Warnings) != 4 || !strings.Contains(r.Warnings[2], "container web: the lab does not have the image shop/web:1") {
		t.Fatalf("answer: %+v", r)
	}
	var paths []string
	var patch []struct{ Op, Path string }
	if err := json.Unmarshal(r.Patch, &patch); err != nil {
		t.Fatal(err)
	}
	for _, p := range patch {
		paths = append(paths, p.Op+" "+p.Path)
	}
	if want := []string{"add /metadata/annotations", "replace /spec/containers", "replace /spec/initContainers"}; !slices.Equal(paths, want) {
		t.Errorf("patch: %v, want %v", paths, want)
	}
	for _, bad := range []string{"", "{}", `{"request": {"object": 1}}`, "hello"} {
		if w := ask([]byte(bad)); w.Code != http.StatusBadRequest {
			t.Errorf("%q: %d", bad, w.Code)
		}
	}
}
