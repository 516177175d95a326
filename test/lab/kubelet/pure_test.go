package kubelet

import (
	"encoding/json"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	"sluice.dev/sluice/test/lab/echo"
)

func TestCommands(t *testing.T) {
	second := time.Second
	for line, want := range map[string]command{
		"true":                    {known: true},
		"/bin/true":               {known: true},
		"/usr/bin/false":          {code: 1, known: true},
		"sleep 5":                 {takes: 5 * second, known: true},
		"/bin/sleep 1.5":          {takes: 1500 * time.Millisecond, known: true},
		"sleep 2m":                {takes: 120 * second, known: true},
		"sleep forever":           {},
		"sleep -1":                {},
		"exit 3":                  {code: 3, known: true},
		"exit 256":                {known: false},
		"redis-cli ping":          {},
		"true story":              {},
		"":                        {},
		"sh -c|exit 7":            {code: 7, known: true},
		"/bin/bash -c|exit":       {known: true},
		"sh -c|sleep 1; exit 2":   {code: 2, takes: second, known: true},
		"sh -c|sleep 1 && false":  {code: 1, takes: second, known: true},
		"sh -c|false && sleep 9":  {code: 1, known: true},
		"sh -c|false; sleep 1":    {takes: second, known: true},
		"sh -c|exit 1; sleep 9":   {code: 1, known: true},
		"sh -c|nginx -s quit":     {},
		"sh -c|sleep 3; nginx -s": {takes: 3 * second},
		"sh -c|sleep 1\nsleep 2":  {takes: 3 * second, known: true},
		"sh -c|":                  {known: true},
		"sh script":               {},
	} {
		head, script, isScript := strings.Cut(line, "|")
		args := strings.Fields(head)
		if isScript {
			args = append(args, script)
		}
		got := readCommand(args)
		if got != want {
			t.Errorf("%q: %+v, want %+v", line, got, want)
		}
	}
}

func TestResultCount(t *testing.T) {
	for _, tt := range []struct {
		success, failure int32
		results          string // + and -
		reached          string // each result that reaches its threshold: + or -; a dot for the others
	}{
		{0, 0, "+-+", "+-+"}, // the API fills them in; 1 is the least
		{1, 3, "+--+---+", "+..+..-+"},
		{3, 1, "+++-++-+++", "..+-..-..+"},
		{1, 1, "---+", "---+"},
		{2, 2, "+-+-+-++--", ".......+.-"},
	} {
		count := newResultCount(&corev1.Probe{SuccessThreshold: tt.success, FailureThreshold: tt.failure})
		got := ""
		for _, r := range tt.results {
			mark := "."
			if count.add(r == '+') {
				mark = string(r)
			}
			got += mark
		}
		if got != tt.reached {
			t.Errorf("thresholds %d/%d, %s: %s, want %s", tt.success, tt.failure, tt.results, got, tt.reached)
		}
	}
}

func TestSchedule(t *testing.T) {
	delay, period, timeout := schedule(&corev1.Probe{InitialDelaySeconds: 3, PeriodSeconds: 10, TimeoutSeconds: 2})
	if delay != 3*time.Second || period != 10*time.Second || timeout != 2*time.Second {
		t.Error(delay, period, timeout)
	}
	if delay, period, timeout = schedule(&corev1.Probe{}); delay != 0 || period != time.Second || timeout != time.Second {
		t.Error(delay, period, timeout)
	}
}

func TestEnding(t *testing.T) {
	deletedAt := time.Date(2026, 1, 1, 12, 0, 0, 0, time.UTC)
	hook := func(command ...string) *corev1.Lifecycle {
		return &corev1.Lifecycle{PreStop: &corev1.LifecycleHandler{Exec: &corev1.ExecAction{Command: command}}}
	}
	for _, tt := range []struct {
		name      string
		grace     int64
		since     time.Duration // how long ago it was deleted when the node learnt of it
		drain     string
		hooks     []*corev1.Lifecycle
		term, end time.Duration // afterwards
	}{
		{"default", 30, 0, "", nil, 0, 2 * time.Second},
		{"short grace", 1, 0, "", nil, 0, time.Second},
		{"drain at once", 30, 0, "0s", nil, 0, 0},
		{"long drain", 30, 0, "10s", nil, 0, 10 * time.Second},
		{"drain beyond the grace", 5, 0, "10s", nil, 0, 5 * time.Second},
		{"odd drain", 30, 0, "soon", nil, 0, 2 * time.Second},
		{"hook", 30, 0, "", []*corev1.Lifecycle{hook("sleep", "5")}, 5 * time.Second, 7 * time.Second},
		{"the longest of hooks", 30, 0, "", []*corev1.Lifecycle{hook("sleep", "5"), hook("sh", "-c", "sleep 9"), nil}, 9 * time.Second, 11 * time.Second},
		{"a hook that is not run", 30, 0, "", []*corev1.Lifecycle{hook("nginx", "-s", "quit")}, 0, 2 * time.Second},
		{"a hook takes most", 6, 0, "", []*corev1.Lifecycle{hook("sleep", "5")}, 5 * time.Second, 6 * time.Second},
		{"a hook takes all", 5, 0, "", []*corev1.Lifecycle{hook("sleep", "5")}, 5 * time.Second, 7 * time.Second},
		{"a hook takes more", 3, 0, "", []*corev1.Lifecycle{hook("sleep", "60")}, 3 * time.Second, 5 * time.Second},
		{"heard late", 10, 9 * time.Second, "5s", nil, 0, 2 * time.Second},
		{"heard too late", 10, time.Minute, "", nil, 0, -49 * time.Second},
	} {
		p := &corev1.Pod{}
		p.DeletionGracePeriodSeconds = &tt.grace
		p.DeletionTimestamp = &metav1.Time{Time: deletedAt.Add(time.Duration(tt.grace)*time.Second - tt.since)}
		if tt.drain != "" {
			p.Annotations = map[string]string{DrainAnnotation: tt.drain}
		}
		for _, h := range tt.hooks {
			p.Spec.Containers = append(p.Spec.Containers, corev1.Container{Lifecycle: h})
		}
		term, end := ending(p, deletedAt)
		if term.Sub(deletedAt) != tt.term || end.Sub(deletedAt) != tt.end {
			t.Errorf("%s: stop signal after %s, end after %s; want %s, %s", tt.name, term.Sub(deletedAt), end.Sub(deletedAt), tt.term, tt.end)
		}
	}
}

func TestListens(t *testing.T) {
	spec := &corev1.Container{
		Ports: []corev1.ContainerPort{
			{Name: "http", ContainerPort: 80}, {ContainerPort: 53, Protocol: corev1.ProtocolUDP}, {ContainerPort: 99, Protocol: corev1.ProtocolSCTP},
		},
		ReadinessProbe: &corev1.Probe{ProbeHandler: corev1.ProbeHandler{HTTPGet: &corev1.HTTPGetAction{Port: intstr.FromString("http")}}},
		LivenessProbe:  &corev1.Probe{ProbeHandler: corev1.ProbeHandler{TCPSocket: &corev1.TCPSocketAction{Port: intstr.FromInt32(8080)}}},
		StartupProbe: &corev1.Probe{ProbeHandler: corev1.ProbeHandler{
			TCPSocket: &corev1.TCPSocketAction{Host: "192.0.2.1", Port: intstr.FromInt32(5432)}}}, // of another writer
	}
	got := listens(spec, []echo.Port{{Protocol: "TCP", Port: 80}, {Protocol: "TCP", Port: 9000}})
	want := []echo.Port{{Protocol: "UDP", Port: 53}, {Protocol: "TCP", Port: 80}, {Protocol: "TCP", Port: 8080}, {Protocol: "TCP", Port: 9000}}
	if !slices.Equal(got, want) {
		t.Errorf("%v, want %v", got, want)
	}
}

func TestExtraPorts(t *testing.T) {
	for text, want := range map[string]struct {
		ports []echo.Port
		fault bool
	}{
		"":                  {},
		"80":                {ports: []echo.Port{{Protocol: "TCP", Port: 80}}},
		" 80/tcp, 53/UDP ,": {ports: []echo.Port{{Protocol: "TCP", Port: 80}, {Protocol: "UDP", Port: 53}}},
		"0":                 {fault: true},
		"65536":             {fault: true},
		"http":              {fault: true},
		"80/SCTP,81":        {ports: []echo.Port{{Protocol: "TCP", Port: 81}}, fault: true},
	} {
		got, err := extraPorts(&corev1.Pod{ObjectMeta: metav1.ObjectMeta{Annotations: map[string]string{PortsAnnotation: text}}})
		if !slices.Equal(got, want.ports) || (err != nil) != want.fault {
			t.Errorf("%q: %v %v, want %v", text, got, err, want)
		}
	}
}

func TestCompletes(t *testing.T) {
	yes := true
	job := []metav1.OwnerReference{{Kind: "Job", Controller: &yes}}
	for _, tt := range []struct {
		policy corev1.RestartPolicy
		owners []metav1.OwnerReference
		ports  int
		want   bool
	}{
		{corev1.RestartPolicyAlways, nil, 0, false},
		{corev1.RestartPolicyNever, nil, 0, true},
		{corev1.RestartPolicyNever, nil, 1, false}, // `kubectl run --restart=Never --port=80`
		{corev1.RestartPolicyOnFailure, job, 0, true},
		{corev1.RestartPolicyNever, job, 1, true},
	} {
		p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{OwnerReferences: tt.owners}}
		p.Spec.RestartPolicy = tt.policy
		p.Spec.Containers = []corev1.Container{{Ports: make([]corev1.ContainerPort, tt.ports)}}
		if got := completes(p); got != tt.want {
			t.Errorf("%+v: %v", tt, got)
		}
	}
}

// The containers' status in the API applies in the next run of the kubelet.
func TestContainersKeepTheirStatusOverRestarts(t *testing.T) {
	yes, begun := true, time.Date(2026, 1, 1, 12, 0, 0, 0, time.UTC)
	running := corev1.ContainerState{Running: &corev1.ContainerStateRunning{StartedAt: metav1.NewTime(begun)}}
	probed := corev1.Container{Name: "c", ReadinessProbe: &corev1.Probe{}, StartupProbe: &corev1.Probe{}}
	for _, tt := range []struct {
		name           string
		spec           corev1.Container
		known          []corev1.ContainerStatus
		begun          time.Time
		restarts       int32
		started, ready bool
		ended          bool
	}{
		{"new", corev1.Container{Name: "c"}, nil, begun.Add(time.Hour), 0, true, true, false},
		{"new, with probes", probed, nil, begun.Add(time.Hour), 0, false, false, false},
		{"ready", probed, []corev1.ContainerStatus{{Name: "other"}, {Name: "c", State: running, Started: &yes, Ready: true, RestartCount: 2}},
			begun, 2, true, true, false},
		{"not ready", probed, []corev1.ContainerStatus{{Name: "c", State: running, Started: &yes}}, begun, 0, true, false, false},
		{"waiting", probed, []corev1.ContainerStatus{{Name: "c", RestartCount: 3}}, begun.Add(time.Hour), 3, false, false, false},
		{"ended", corev1.Container{Name: "c"}, []corev1.ContainerStatus{{Name: "c", State: corev1.ContainerState{
			Terminated: &corev1.ContainerStateTerminated{ExitCode: 1}}}}, begun.Add(time.Hour), 0, true, true, true},
	} {
		p := &corev1.Pod{Spec: corev1.PodSpec{Containers: []corev1.Container{tt.spec}}}
		p.Status.ContainerStatuses = tt.known
		c := newContainers(p, begun.Add(time.Hour))[0]
		if c.startTime != tt.begun || c.restarts != tt.restarts || c.started != tt.started || c.ready != tt.ready || (c.exit != nil) != tt.ended {
			t.Errorf("%s: %+v", tt.name, c)
		}
	}
}

func TestBackOff(t *testing.T) {
	now := time.Now()
	c := &container{startTime: now}
	var got []time.Duration
	for range 12 {
		got = append(got, c.backOff(now)/time.Second)
	}
	if want := []time.Duration{0, 1, 2, 4, 8, 16, 32, 64, 128, 256, 256, 256}; !slices.Equal(got, want) {
		t.Errorf("%d, want %d", got, want)
	}
	if d := c.backOff(now.Add(failureMemory + time.Second)); d != 0 {
		t.Errorf("after a long life: %s", d)
	}
}

// The status of a pod is checked in each state, with its conditions and its first container.
func TestStatus(t *testing.T) {
	now := apiTime(time.Date(2026, 1, 1, 12, 0, 0, 0, time.UTC))
	before := metav1.NewTime(now.Add(-time.Hour))
	addrs := []netip.Addr{netip.MustParseAddr("10.0.0.1"), netip.MustParseAddr("fd00::1")}
	running := func() *container { return &container{open: true, started: true, ready: true, startTime: before.Time} }
	for _, tt := range []struct {
		name   string
		change func(p *corev1.Pod, l *life)
		want   string // Ready, ContainersReady, Initialized; the first container's state
	}{
		{"runs", func(*corev1.Pod, *life) {}, "True True True Running"},
		{"is held", func(p *corev1.Pod, _ *life) { p.Annotations = map[string]string{ReadyAnnotation: "false"} }, "False False True Running"},
		{"probe fails", func(_ *corev1.Pod, l *life) { l.containers[0].ready = false }, "False False True Running"},
		{"starts", func(_ *corev1.Pod, l *life) { l.containers[0].started = false }, "False False True Running"},
		{"cannot listen", func(_ *corev1.Pod, l *life) { l.containers[0].open, l.containers[0].listenError = false, "in use" }, "False False True Waiting"},
		{"waits", func(_ *corev1.Pod, l *life) { l.containers[0].open = false }, "False False True Waiting"},
		{"gate", func(p *corev1.Pod, _ *life) {
			p.Spec.ReadinessGates = []corev1.PodReadinessGate{{ConditionType: "gate"}}
		}, "False True True Running"},
		{"open gate", func(p *corev1.Pod, _ *life) {
			p.Spec.ReadinessGates = []corev1.PodReadinessGate{{ConditionType: "gate"}}
			p.Status.Conditions = []corev1.PodCondition{{Type: "gate", Status: corev1.ConditionTrue}}
		}, "True True True Running"},
		{"second container", func(_ *corev1.Pod, l *life) {
			l.containers = append(l.containers, &container{open: true, started: true})
		}, "False False True Running"},
		{"sidecar", func(_ *corev1.Pod, l *life) {
			l.containers = append(l.containers, &container{sidecar: true, open: true, started: true})
		}, "False False True Running"},
		{"completed", func(_ *corev1.Pod, l *life) {
			l.phase, l.containers[0].open, l.containers[0].exit = corev1.PodSucceeded, false, &corev1.ContainerStateTerminated{}
		}, "False False True Terminated"},
		{"cannot start", func(_ *corev1.Pod, l *life) {
			l.phase, l.addrs, l.containers, l.problem = corev1.PodPending, nil, nil, "no address"
		}, "False False False none"},
	} {
		p := &corev1.Pod{}
		l := &life{phase: corev1.PodRunning, hosts: addrs, addrs: addrs, start: before, containers: []*container{running()}}
		tt.change(p, l)
		s := l.status(p, now)
		got := strings.Join([]string{
			condition(s, corev1.PodReady), condition(s, corev1.ContainersReady), condition(s, corev1.PodInitialized), state(s),
		}, " ")
		if got != tt.want {
			t.Errorf("%s: %s, want %s", tt.name, got, tt.want)
		}
		if !covers(&s, &s) {
			t.Errorf("%s: it does not cover itself", tt.name)
		}
	}
}

func condition(s corev1.PodStatus, kind corev1.PodConditionType) string {
	for _, c := range s.Conditions {
		if c.Type == kind {
			return string(c.Status)
		}
	}
	return "none"
}

func state(s corev1.PodStatus) string {
	if len(s.ContainerStatuses) == 0 {
		return "none"
	}
	switch st := s.ContainerStatuses[0].State; {
	case st.Running != nil:
		return "Running"
	case st.Waiting != nil:
		return "Waiting"
	case st.Terminated != nil:
		return "Terminated"
	}
	return "none"
}

// Conditions keep the time of their last change, and those of other writers are neither lost nor
// overwritten.
func TestStatusKeeps(t *testing.T) {
	now, before := apiTime(time.Now()), metav1.NewTime(time.Now().Add(-time.Hour).Truncate(time.Second))
	l := &life{phase: corev1.PodRunning, start: before, addrs: []netip.Addr{netip.MustParseAddr("10.0.0.1")},
		containers: []*container{{open: true, started: true, ready: true}}}
	p := &corev1.Pod{}
	p.Status = l.status(p, before)
	p.Status.Conditions = append(p.Status.Conditions, corev1.PodCondition{Type: corev1.DisruptionTarget, Status: corev1.ConditionTrue})
	p.Status.QOSClass = corev1.PodQOSBurstable
	same := l.status(p, now)
	if !covers(&p.Status, &same) {
		t.Error("the same status an hour later is another")
	}
	l.containers[0].ready = false
	other := l.status(p, now)
	if covers(&p.Status, &other) {
		t.Error("another status is the same")
	}
	for _, c := range other.Conditions {
		changed := c.Type == corev1.PodReady || c.Type == corev1.ContainersReady
		if c.LastTransitionTime.Equal(&now) != changed {
			t.Errorf("%s changed last at %s", c.Type, c.LastTransitionTime)
		}
	}
	patch, err := statusPatch("uid", &same)
	if err != nil {
		t.Fatal(err)
	}
	var read struct {
		Metadata struct{ UID string }
		Status   struct {
			Conditions []map[string]any
			Message    *string
		}
	}
	if err := json.Unmarshal(patch, &read); err != nil {
		t.Fatal(err)
	}
	reason, named := read.Status.Conditions[0]["reason"]
	if read.Metadata.UID != "uid" || !named || reason != nil || !strings.Contains(string(patch), `"message":null`) {
		t.Errorf("patch: %s", patch)
	}
}

// A node's status is changed only if something in it is wrong, or its times are old.
func TestNodeStatus(t *testing.T) {
	k := &kubelet{Config: Config{Node: "node1", IPs: []netip.Addr{netip.MustParseAddr("192.0.2.1"), netip.MustParseAddr("2001:db8::1")}}}
	at := func(minutes int) metav1.Time {
		return metav1.NewTime(time.Date(2026, 1, 1, 12, minutes, 0, 0, time.UTC))
	}
	node := &corev1.Node{}
	node.Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeNetworkUnavailable, Status: corev1.ConditionFalse}}
	node.Status = k.nodeStatus(node, at(0))
	if len(node.Status.Addresses) != 3 || len(node.Status.Conditions) != 5 {
		t.Errorf("status: %+v", node.Status)
	}
	ready := func(s corev1.NodeStatus) corev1.NodeCondition {
		i := slices.IndexFunc(s.Conditions, func(c corev1.NodeCondition) bool { return c.Type == corev1.NodeReady })
		return s.Conditions[i]
	}
	if got := ready(k.nodeStatus(node, at(4))); got != ready(node.Status) {
		t.Errorf("after four minutes: %+v", got)
	}
	if got := ready(k.nodeStatus(node, at(6))); got.LastHeartbeatTime != at(6) || got.LastTransitionTime != at(0) {
		t.Errorf("after six minutes: %+v", got)
	}
	for i, c := range node.Status.Conditions {
		if c.Type == corev1.NodeReady {
			node.Status.Conditions[i].Status = corev1.ConditionUnknown // as when the node was lost
		}
	}
	if got := ready(k.nodeStatus(node, at(1))); got.Status != corev1.ConditionTrue || got.LastTransitionTime != at(1) {
		t.Errorf("after it was lost: %+v", got)
	}
}
