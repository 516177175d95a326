package kubelet

import (
	"encoding/json"
	"fmt"
	"net/netip"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"

	"sluice.dev/sluice/test/lab/control"
	"sluice.dev/sluice/test/machine"
	"sluice.dev/sluice/test/netns"
)

// pod makes a pod with one container and a port, bound to the node, and applies changes before it
// is created.
func (w *world) pod(name string, changes ...func(*corev1.Pod)) *corev1.Pod {
	w.Helper()
	no := false
	p := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: "default", Annotations: map[string]string{}},
		Spec: corev1.PodSpec{NodeName: w.cfg.Node, AutomountServiceAccountToken: &no, Containers: []corev1.Container{{
			Name: "main", Image: "server:1", Ports: []corev1.ContainerPort{{ContainerPort: 80}},
		}}},
	}
	for _, change := range changes {
		change(p)
	}
	w.eventually("the service account is there", func() bool {
		made, err := w.api.Pods("default").Create(w.Context(), p)
		if err == nil {
			p = made
		} else if !apierrors.IsForbidden(err) {
			w.Fatal(err)
		}
		return err == nil
	})
	return p
}

// get reads a pod; nil if there is none.
func (w *world) get(name string) *corev1.Pod {
	w.Helper()
	p, err := w.api.Pods("default").Get(w.Context(), name)
	if apierrors.IsNotFound(err) {
		return nil
	}
	if err != nil {
		w.Fatal(err)
	}
	return p
}

// until waits until a pod meets a condition, and returns it then.
func (w *world) until(name, what string, ok func(*corev1.Pod) bool) *corev1.Pod {
	w.Helper()
	var p *corev1.Pod
	w.eventually(name+" "+what, func() bool {
		p = w.get(name)
		return p != nil && ok(p)
	})
	return p
}

func ready(p *corev1.Pod) bool { return hasCondition(p, corev1.PodReady) }

func unready(p *corev1.Pod) bool { return p.Status.Phase == corev1.PodRunning && !ready(p) }

func (w *world) ready(name string) *corev1.Pod {
	w.Helper()
	return w.until(name, "is ready", ready)
}

func (w *world) isGone(name string) {
	w.Helper()
	w.eventually(name+" is gone", func() bool { return w.get(name) == nil })
	w.eventually("the namespace of "+name+" is gone", func() bool { return !exists(w.cfg.NSPrefix + name + ".default") })
}

func (w *world) remove(name string, options metav1.DeleteOptions) {
	w.Helper()
	if err := w.api.Pods("default").Delete(w.Context(), name, options); err != nil {
		w.Fatal(err)
	}
}

func (w *world) annotate(name, key, value string) {
	w.Helper()
	patch, err := json.Marshal(map[string]any{"metadata": map[string]any{"annotations": map[string]any{key: value}}})
	if err != nil {
		w.Fatal(err)
	}
	if _, err := w.api.Pods("default").Patch(w.Context(), name, types.MergePatchType, patch); err != nil {
		w.Fatal(err)
	}
}

// answers reports whether the pod at the address answers under its name.
func (w *world) answers(p *corev1.Pod) bool {
	got, err := w.ask("TCP", p.Status.PodIP, 80)
	return err == nil && got == p.Name
}

func execAction(command ...string) corev1.ProbeHandler {
	return corev1.ProbeHandler{Exec: &corev1.ExecAction{Command: command}}
}

func graceful(seconds int64) func(*corev1.Pod) {
	return func(p *corev1.Pod) { p.Spec.TerminationGracePeriodSeconds = &seconds }
}

func annotated(key, value string) func(*corev1.Pod) {
	return func(p *corev1.Pod) { p.Annotations[key] = value }
}

const web = `
apiVersion: apps/v1
kind: Deployment
metadata: {name: web}
spec:
  replicas: 2
  selector: {matchLabels: {app: web}}
  template:
    metadata: {labels: {app: web}}
    spec:
      containers:
      - name: web
        image: web:1
        ports: [{containerPort: 80}, {containerPort: 53, protocol: UDP}]
        readinessProbe: {httpGet: {path: /, port: 80}, periodSeconds: 1}
`

// TestKubelet takes pods of a real control plane through their lives.
func TestKubelet(t *testing.T) {
	machine.ControlPlane.Take(t)
	w := newWorld(t)
	w.start()
	w.run("deployment", testDeployment)
	w.run("readiness", testReadiness)
	w.run("probes", testProbes)
	w.run("containers", testContainers)
	w.run("services", testServices)
	w.run("completion", testCompletion)
	w.run("termination", testTermination)
	w.run("host network", testHostNetwork)
	w.run("undeclared host port", testUndeclaredHostPort)
	w.run("long name", testLongName)
	w.run("node", testNode)
	w.run("restart", testRestart)
	w.run("many pods", testManyPods)
	w.run("API server away", testAPIServerAway)
}

// What kubectl does to a Deployment moves pods.
func testDeployment(w *world) {
	w.apply(web)
	w.kubectl("rollout", "status", "deployment/web", "--timeout=30s")
	names := func() []string {
		return strings.Fields(w.kubectl("get", "pods", "-l", "app=web", "-o", "jsonpath={.items[*].metadata.name}"))
	}
	first := names()
	for _, name := range first {
		p := w.get(name)
		for _, ip := range p.Status.PodIPs {
			for protocol, port := range map[string]uint16{"TCP": 80, "UDP": 53} {
				if got, err := w.ask(protocol, ip.IP, port); got != name {
					w.Errorf("%s at %s by %s: answered by %q: %v", name, ip.IP, protocol, got, err)
				}
			}
		}
		if len(p.Status.PodIPs) != 2 || len(p.Status.HostIPs) != 2 || p.Status.StartTime == nil || p.Status.ContainerStatuses[0].ContainerID == "" {
			w.Errorf("status of %s: %+v", name, p.Status)
		}
	}
	w.kubectl("scale", "deployment/web", "--replicas=4")
	w.kubectl("rollout", "restart", "deployment/web")
	w.kubectl("rollout", "status", "deployment/web", "--timeout=30s")
	for _, name := range first {
		w.isGone(name)
	}
	w.eventually("there are 4 pods", func() bool { return len(names()) == 4 })
	w.kubectl("delete", "deployment", "web")
	w.eventually("all pods are gone", func() bool { return len(names()) == 0 })
}

// An annotation controls readiness, and the API has the effect at once.
func testReadiness(w *world) {
	w.pod("steered", graceful(0))
	before := w.ready("steered")
	for _, tt := range []struct {
		value string
		want  func(*corev1.Pod) bool
	}{{"false", unready}, {"true", ready}, {"false", unready}, {"", ready}} {
		begin := time.Now()
		w.annotate("steered", ReadyAnnotation, tt.value)
		p := w.until("steered", "follows its annotation "+tt.value, tt.want)
		if took := time.Since(begin); took > 2*time.Second { // milliseconds, where the machine is not busy
			w.Errorf("readiness %q took %s", tt.value, took)
		}
		if !w.answers(p) {
			w.Error("it does not answer any more")
		}
	}
	// Controllers delete pods in this way if a node is lost.
	lost := []byte(`{"status":{"conditions":[{"type":"Ready","status":"False"}]}}`)
	if _, err := w.api.Pods("default").Patch(w.Context(), "steered", types.StrategicMergePatchType, lost, "status"); err != nil {
		w.Fatal(err)
	}
	w.ready("steered")
	if after := w.get("steered"); after.Status.ContainerStatuses[0].RestartCount != 0 || after.Status.PodIP != before.Status.PodIP {
		w.Errorf("it became another: %+v", after.Status)
	}
	w.remove("steered", metav1.DeleteOptions{})
	w.isGone("steered")
}

func testProbes(w *world) {
	w.pod("failing", func(p *corev1.Pod) {
		p.Spec.Containers[0].ReadinessProbe = &corev1.Probe{ProbeHandler: execAction("false"), PeriodSeconds: 1}
	}, graceful(0))
	w.pod("unknown", func(p *corev1.Pod) {
		p.Spec.Containers[0].ReadinessProbe = &corev1.Probe{ProbeHandler: execAction("redis-cli", "ping"), PeriodSeconds: 1}
	}, graceful(0))
	w.pod("dying", func(p *corev1.Pod) {
		p.Spec.Containers[0].LivenessProbe = &corev1.Probe{ProbeHandler: execAction("sh", "-c", "exit 3"), PeriodSeconds: 1, FailureThreshold: 1}
	}, graceful(0))
	w.pod("starting", func(p *corev1.Pod) {
		p.Spec.Containers[0].StartupProbe = &corev1.Probe{ProbeHandler: execAction("false"), PeriodSeconds: 1, FailureThreshold: 1000}
	}, graceful(0))
	w.pod("slow", func(p *corev1.Pod) {
		p.Spec.Containers[0].StartupProbe = &corev1.Probe{ProbeHandler: execAction("true"), InitialDelaySeconds: 1, PeriodSeconds: 1}
	}, graceful(0))
	handlers := []corev1.ProbeHandler{
		{HTTPGet: &corev1.HTTPGetAction{Path: "/healthz?deep=1", Port: intstr.FromInt32(8080)}}, // not declared
		{TCPSocket: &corev1.TCPSocketAction{Port: intstr.FromInt32(80)}},
		{GRPC: &corev1.GRPCAction{Port: 9090}},
		{HTTPGet: &corev1.HTTPGetAction{Path: "/", Port: intstr.FromInt32(8443), Scheme: corev1.URISchemeHTTPS}},
	}
	for i, h := range handlers {
		w.pod(fmt.Sprintf("by-%d", i), func(p *corev1.Pod) {
			p.Spec.Containers[0].ReadinessProbe = &corev1.Probe{ProbeHandler: h, PeriodSeconds: 1}
		}, graceful(0))
	}
	for i := range handlers {
		w.ready(fmt.Sprintf("by-%d", i))
	}
	w.until("starting", "waits to be started", func(p *corev1.Pod) bool {
		return unready(p) && !*p.Status.ContainerStatuses[0].Started
	})
	w.ready("slow")
	w.ready("unknown")
	w.until("dying", "is restarted", func(p *corev1.Pod) bool {
		c := p.Status.ContainerStatuses[0]
		return c.RestartCount >= 2 && c.LastTerminationState.Terminated != nil && c.LastTerminationState.Terminated.ExitCode == 137
	})
	if p := w.get("failing"); !unready(p) || !w.answers(p) {
		w.Errorf("a pod whose readiness probe fails: %+v", p.Status)
	}
	for pod, want := range map[string]string{"failing": "exit status 1", "unknown": "counts as success", "dying": "will be restarted"} {
		w.eventually("an event says "+want, func() bool {
			return strings.Contains(w.kubectl("get", "events", "--field-selector", "involvedObject.name="+pod, "-o", "jsonpath={.items[*].message}"), want)
		})
	}
	w.kubectl("delete", "pods", "--all", "--force", "--wait=false")
	for _, name := range []string{"failing", "unknown", "dying", "starting", "slow", "by-0"} {
		w.isGone(name)
	}
}

// Init containers have completed, sidecars run, readiness gates count, ports can be added, images
// can change.
func testContainers(w *world) {
	always := corev1.ContainerRestartPolicyAlways
	w.pod("several", func(p *corev1.Pod) {
		p.Spec.InitContainers = []corev1.Container{
			{Name: "init", Image: "init:1"},
			{Name: "sidecar", Image: "sidecar:1", RestartPolicy: &always, Ports: []corev1.ContainerPort{{ContainerPort: 81}}},
		}
		p.Spec.Containers = append(p.Spec.Containers, corev1.Container{
			Name: "second", Image: "second:1", Ports: []corev1.ContainerPort{{ContainerPort: 82, Protocol: corev1.ProtocolUDP}},
		})
		p.Spec.ReadinessGates = []corev1.PodReadinessGate{{ConditionType: "lab.sluice.dev/gate"}}
	}, annotated(PortsAnnotation, "83, 84/udp, nonsense"), graceful(0))
	p := w.until("several", "has ready containers", func(p *corev1.Pod) bool { return hasCondition(p, corev1.ContainersReady) })
	if ready(p) {
		w.Error("ready in spite of its readiness gate")
	}
	if init := p.Status.InitContainerStatuses; len(init) != 2 || init[0].State.Terminated == nil || init[1].State.Running == nil {
		w.Errorf("init containers: %+v", init)
	}
	for _, at := range []struct {
		protocol string
		port     uint16
	}{{"TCP", 80}, {"TCP", 81}, {"UDP", 82}, {"TCP", 83}, {"UDP", 84}} {
		if got, err := w.ask(at.protocol, p.Status.PodIP, at.port); got != p.Name {
			w.Errorf("%v: %q %v", at, got, err)
		}
	}
	if _, err := w.ask("TCP", p.Status.PodIP, 82); err == nil {
		w.Error("a port answers that nothing listens on")
	}
	gate := []byte(`{"status":{"conditions":[{"type":"lab.sluice.dev/gate","status":"True"}]}}`)
	if _, err := w.api.Pods("default").Patch(w.Context(), "several", types.StrategicMergePatchType, gate, "status"); err != nil {
		w.Fatal(err)
	}
	w.ready("several")
	w.kubectl("set", "image", "pod/several", "second=second:2")
	w.until("several", "runs the new image", func(p *corev1.Pod) bool {
		i := slices.IndexFunc(p.Status.ContainerStatuses, func(c corev1.ContainerStatus) bool { return c.Name == "second" })
		return p.Status.ContainerStatuses[i].Image == "second:2" && p.Status.ContainerStatuses[i].RestartCount == 1 && ready(p)
	})
	w.remove("several", metav1.DeleteOptions{})
	w.isGone("several")
}

// A pod listens where Services send, whether they are older or newer than the pod, and still
// listens after they are gone.
func testServices(w *world) {
	service := func(name string, port int32) {
		_, err := w.api.Services("default").Create(w.Context(), &corev1.Service{
			ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: "default"},
			Spec: corev1.ServiceSpec{Selector: map[string]string{"app": "served"}, Ports: []corev1.ServicePort{
				{Name: "extra", Port: port, TargetPort: intstr.FromInt32(port)}, {Name: "known", Port: 80},
			}},
		})
		if err != nil {
			w.Fatal(err)
		}
	}
	service("before", 8001)
	w.pod("served", func(p *corev1.Pod) { p.Labels = map[string]string{"app": "served"} }, graceful(0))
	p := w.ready("served")
	answers := func(port uint16) bool {
		got, err := w.ask("TCP", p.Status.PodIP, port)
		return err == nil && got == p.Name
	}
	w.eventually("it listens for a service that was there before", func() bool { return answers(8001) })
	service("after", 8002)
	w.eventually("it listens for a service that came later", func() bool { return answers(8002) })
	w.kubectl("delete", "service", "before", "after")
	if !answers(8001) || !answers(8002) || !answers(80) {
		w.Error("it does not listen any more")
	}
	w.remove("served", metav1.DeleteOptions{})
	w.isGone("served")
}

func testCompletion(w *world) {
	command := func(policy corev1.RestartPolicy, command ...string) func(*corev1.Pod) {
		return func(p *corev1.Pod) {
			p.Spec.RestartPolicy = policy
			p.Spec.Containers[0].Command, p.Spec.Containers[0].Ports = command, nil
		}
	}
	w.pod("good", command(corev1.RestartPolicyNever, "pg_dump"))
	w.pod("bad", command(corev1.RestartPolicyNever, "sh", "-c", "sleep 1; exit 4"))
	w.pod("stubborn", command(corev1.RestartPolicyOnFailure, "false"), graceful(0))
	w.pod("server", func(p *corev1.Pod) { p.Spec.RestartPolicy = corev1.RestartPolicyNever }, graceful(0))
	w.kubectl("create", "job", "job", "--image=job")
	w.kubectl("wait", "--for=condition=complete", "job/job", "--timeout=30s")
	w.until("good", "succeeds", func(p *corev1.Pod) bool { return p.Status.Phase == corev1.PodSucceeded })
	p := w.until("bad", "fails", func(p *corev1.Pod) bool { return p.Status.Phase == corev1.PodFailed })
	if got := p.Status.ContainerStatuses[0].State.Terminated; got == nil || got.ExitCode != 4 {
		w.Errorf("how it ended: %+v", got)
	}
	w.until("stubborn", "is tried again", func(p *corev1.Pod) bool { return p.Status.ContainerStatuses[0].RestartCount > 0 })
	if !w.answers(w.ready("server")) {
		w.Error("a server that is not to be restarted does not run")
	}
	w.eventually("the network of what completed is gone", func() bool { return !exists(w.cfg.NSPrefix + "good.default") })
	w.kubectl("delete", "jobs,pods", "--all", "--wait=false")
	for _, name := range []string{"good", "bad", "stubborn", "server"} {
		w.isGone(name)
	}
}

// testTermination compares the steps after a pod's deletion with the clock, leniently, as the
// machine may be busy.
func testTermination(w *world) {
	sleep := func(seconds int64) func(*corev1.Pod) {
		return func(p *corev1.Pod) {
			p.Spec.Containers[0].Lifecycle = &corev1.Lifecycle{PreStop: &corev1.LifecycleHandler{Sleep: &corev1.SleepAction{Seconds: seconds}}}
		}
	}
	var wg sync.WaitGroup
	for _, tt := range []struct {
		name    string
		changes []func(*corev1.Pod)
		serves  time.Duration
	}{
		{"plain", []func(*corev1.Pod){graceful(30)}, 2 * time.Second},
		{"short", []func(*corev1.Pod){graceful(1)}, time.Second},
		{"hook", []func(*corev1.Pod){graceful(30), sleep(1)}, 3 * time.Second},
		{"at-once", []func(*corev1.Pod){graceful(30), annotated(DrainAnnotation, "0s")}, 0},
		{"long", []func(*corev1.Pod){graceful(3), annotated(DrainAnnotation, "1h")}, 3 * time.Second},
	} {
		w.pod(tt.name, tt.changes...)
		p := w.ready(tt.name)
		begin := time.Now()
		w.remove(tt.name, metav1.DeleteOptions{})
		wg.Go(func() {
			for w.answers(p) {
				if time.Since(begin) > tt.serves+10*time.Second {
					break
				}
			}
			if took := time.Since(begin); took < tt.serves-100*time.Millisecond || took > tt.serves+2*time.Second {
				w.Errorf("%s served for %s after it was deleted, want %s", tt.name, took, tt.serves)
			}
		})
	}
	if p := w.get("plain"); p == nil || !ready(p) || p.DeletionTimestamp == nil {
		w.Errorf("while it finishes it is ready: %+v", p)
	}
	wg.Wait()
	for _, name := range []string{"plain", "short", "hook", "at-once", "long"} {
		w.isGone(name)
	}
	first := w.pod("forced")
	w.ready("forced")
	w.kubectl("delete", "pod", "forced", "--force", "--grace-period=0")
	w.isGone("forced")
	w.pod("forced", graceful(0))
	if second := w.ready("forced"); second.Status.PodIP == first.Status.PodIP || !w.answers(second) {
		w.Errorf("its successor: %+v", second.Status)
	}
	w.remove("forced", metav1.DeleteOptions{})
	w.isGone("forced")
}

func testHostNetwork(w *world) {
	host := func(p *corev1.Pod) { p.Spec.HostNetwork = true }
	w.pod("host", host, graceful(0))
	p := w.ready("host")
	if p.Status.PodIP != w.cfg.IPs[0].String() || !w.answers(p) {
		w.Errorf("status: %+v", p.Status)
	}
	w.pod("rival", host, graceful(0))
	w.until("rival", "cannot have the same port", func(p *corev1.Pod) bool {
		cs := p.Status.ContainerStatuses
		return len(cs) == 1 && cs[0].State.Waiting != nil && !ready(p)
	})
	w.remove("host", metav1.DeleteOptions{})
	if p := w.ready("rival"); !w.answers(p) {
		w.Error("it does not answer on the port that is free now")
	}
	w.remove("rival", metav1.DeleteOptions{})
	w.eventually("both are gone", func() bool { return w.get("host") == nil && w.get("rival") == nil })
}

// A pod on its node's network gets an undeclared port that a Service sends to as soon as the
// previous pod has given it up.
func testUndeclaredHostPort(w *world) {
	_, err := w.api.Services("default").Create(w.Context(), &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Name: "undeclared", Namespace: "default"},
		Spec: corev1.ServiceSpec{Selector: map[string]string{"app": "undeclared"}, Ports: []corev1.ServicePort{
			{Name: "tcp", Port: 9090}, {Name: "udp", Port: 9091, Protocol: corev1.ProtocolUDP},
		}},
	})
	if err != nil {
		w.Fatal(err)
	}
	host := func(p *corev1.Pod) {
		p.Spec.HostNetwork, p.Labels, p.Spec.Containers[0].Ports = true, map[string]string{"app": "undeclared"}, nil
	}
	answers := func(name string) bool {
		tcp, _ := w.ask("TCP", w.cfg.IPs[0].String(), 9090)
		udp, _ := w.ask("UDP", w.cfg.IPs[1].String(), 9091)
		return tcp == name && udp == name
	}
	w.pod("older", host, graceful(0))
	w.eventually("the older one answers", func() bool { return answers("older") })
	w.pod("newer", host, graceful(0))
	refusals := func() int {
		return strings.Count(w.kubectl("get", "events", "--field-selector", "involvedObject.name=newer", "-o", "jsonpath={.items[*].reason}"), "CannotListen")
	}
	w.eventually("the newer one cannot listen", func() bool { return refusals() == 2 })
	w.remove("older", metav1.DeleteOptions{})
	w.eventually("the newer one answers", func() bool { return answers("newer") })
	if n := refusals(); n != 2 {
		w.Errorf("%d events say that it cannot listen, want one for each port", n)
	}
	w.remove("newer", metav1.DeleteOptions{})
	w.kubectl("delete", "service", "undeclared")
	w.eventually("both are gone", func() bool { return w.get("older") == nil && w.get("newer") == nil })
	if answers("newer") {
		w.Error("it answers though it is gone")
	}
}

// A pod whose name is too long for a network namespace is rejected for good, with a reason.
func testLongName(w *world) {
	longest := 255 - len(w.cfg.NSPrefix+".default")
	fits, long := strings.Repeat("a", longest), strings.Repeat("b", longest+1)
	w.pod(fits, graceful(0))
	if !w.answers(w.ready(fits)) {
		w.Error("the longest name that there is room for does not answer")
	}
	w.remove(fits, metav1.DeleteOptions{})
	w.isGone(fits)
	w.pod(long, graceful(0))
	p := w.until(long, "is rejected", func(p *corev1.Pod) bool { return p.Status.Phase == corev1.PodFailed })
	if p.Status.Reason != "NameTooLong" || !strings.Contains(p.Status.Message, "at most") || p.Status.PodIP != "" {
		w.Errorf("status: %s", mustJSON(p.Status))
	}
	w.eventually("an event says so", func() bool {
		return w.kubectl("get", "events", "--field-selector", "involvedObject.name="+long, "-o", "jsonpath={.items[*].reason}") == "NameTooLong"
	})
	w.stop()
	w.start()
	w.pod("after", graceful(0)) // by then the next run has seen the other
	w.ready("after")
	if again := w.get(long); again.ResourceVersion != p.ResourceVersion {
		w.Errorf("it changed: %s\n%s", mustJSON(p.Status), mustJSON(again.Status))
	}
	host := strings.Repeat("c", longest+1) // which needs no namespace
	w.pod(host, func(p *corev1.Pod) { p.Spec.HostNetwork = true }, graceful(0))
	w.ready(host)
	for _, name := range []string{long, host, "after"} {
		w.remove(name, metav1.DeleteOptions{})
		w.isGone(name)
	}
}

// The Node has the right content, and cordoning it is respected.
func testNode(w *world) {
	w.kubectl("cordon", w.cfg.Node)
	w.kubectl("label", "node", w.cfg.Node, "mine=stays", "topology.kubernetes.io/zone=wrong", "--overwrite")
	w.stop()
	w.cfg.PodCIDRs = nil // the Node has some
	w.start()
	w.eventually("the zone is right again", func() bool {
		n, err := w.api.Nodes().Get(w.Context(), w.cfg.Node)
		return err == nil && n.Labels[corev1.LabelTopologyZone] == w.cfg.Zone
	})
	n, err := w.api.Nodes().Get(w.Context(), w.cfg.Node)
	if err != nil {
		w.Fatal(err)
	}
	if !n.Spec.Unschedulable || n.Labels["mine"] != "stays" {
		w.Errorf("settings of others are lost: %+v %+v", n.Spec, n.Labels)
	}
	w.kubectl("uncordon", w.cfg.Node)
	if n.Status.Addresses[0].Address != w.cfg.IPs[0].String() || len(n.Spec.PodCIDRs) != 2 {
		w.Errorf("node: %+v", n)
	}
}

// Pods outlive the kubelet; what is left of pods deleted meanwhile is removed.
func testRestart(w *world) {
	w.pod("stays", func(p *corev1.Pod) {
		p.Spec.Containers[0].ReadinessProbe = &corev1.Probe{ProbeHandler: execAction("true"), InitialDelaySeconds: 2, PeriodSeconds: 1}
	}, graceful(0))
	w.pod("goes", graceful(0))
	w.pod("is-deleted", graceful(30))
	w.pod("lost", graceful(0))
	lost := w.ready("lost")
	before := w.ready("stays")
	w.ready("goes")
	deleted := w.ready("is-deleted")
	w.stop()
	if _, err := w.ask("TCP", before.Status.PodIP, 80); err == nil {
		w.Error("it is served without a kubelet")
	}
	w.remove("goes", metav1.DeleteOptions{})
	w.remove("is-deleted", metav1.DeleteOptions{})
	link, err := w.node.LinkByAlias("default/lost")
	if err == nil {
		err = w.node.LinkDel(link) // as somebody's mistake
	}
	if err != nil {
		w.Fatal(err)
	}
	begin := time.Now()
	w.start()
	w.eventually("it is served again", func() bool { return w.answers(before) })
	w.Logf("served again %s after the start", time.Since(begin).Round(time.Millisecond))
	w.eventually("a pod that is deleted still answers", func() bool { return w.answers(deleted) })
	w.eventually("what lost its network has it again", func() bool { return w.answers(lost) })
	w.isGone("goes")
	w.isGone("is-deleted")
	after := w.get("stays")
	if after.ResourceVersion != before.ResourceVersion {
		w.Errorf("it changed: %s\n%s", mustJSON(before.Status), mustJSON(after.Status))
	}
	w.pod("new", graceful(0))
	if p := w.ready("new"); p.Status.PodIP == after.Status.PodIP {
		w.Errorf("two pods have the address %s", p.Status.PodIP)
	}
	for _, name := range []string{"stays", "lost", "new"} {
		w.remove(name, metav1.DeleteOptions{})
		w.isGone(name)
	}
}

func mustJSON(v any) string {
	data, err := json.MarshalIndent(v, "", " ")
	if err != nil {
		panic(err)
	}
	return string(data)
}

// Without an API server pods go on; changes are followed when it is back.
func testAPIServerAway(w *world) {
	w.pod("patient", graceful(1))
	p := w.ready("patient")
	if err := w.plane.Kill(control.APIServer); err != nil {
		w.Fatal(err)
	}
	if !w.answers(p) {
		w.Error("it does not answer without an API server")
	}
	if err := w.plane.Restart(w.Context(), control.APIServer); err != nil {
		w.Fatal(err)
	}
	w.annotate("patient", ReadyAnnotation, "false")
	p = w.until("patient", "follows again", unready)
	if !w.answers(p) {
		w.Error("it does not answer after the API server came back")
	}
	w.remove("patient", metav1.DeleteOptions{})
	w.isGone("patient")
}

// testManyPods runs as many pods as Kubernetes gives a node where nobody says otherwise.
func testManyPods(w *world) {
	const n = 110
	begin := time.Now()
	for i := range n {
		w.pod(fmt.Sprintf("many-%d", i), graceful(0))
	}
	created := time.Since(begin).Round(time.Millisecond)
	addrs := map[netip.Addr]bool{}
	for i := range n {
		p := w.ready(fmt.Sprintf("many-%d", i))
		for _, a := range addresses(p) {
			addrs[a] = true
		}
	}
	if len(addrs) != 2*n {
		w.Errorf("%d addresses for %d pods", len(addrs), n)
	}
	w.Logf("%d pods created in %s, all ready after %s", n, created, time.Since(begin).Round(time.Millisecond))
	w.kubectl("delete", "pods", "--all", "--wait=false")
	w.eventually("all are gone", func() bool {
		left, err := filepath.Glob(filepath.Join(netns.Dir, w.cfg.NSPrefix+"*.*"))
		return err == nil && len(left) == 0
	})
	w.eventually("no interface is left but the loopback", func() bool {
		links, err := w.node.LinkList()
		return err == nil && len(links) == 1
	})
}
