package deploy_test

import (
	"bufio"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"net/http"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"sluice.dev/sluice/internal/agent"
)

// kubelet runs the pods of the agent's DaemonSet in boxes, as long as the API has them, and tells
// the API when they are ready.
type kubelet struct {
	*cluster
	host string // its folder /run/sluice
	pods map[types.UID]*runningPod
}

type runningPod struct {
	args  []string
	end   func()
	ready bool // and the API knows it
}

const podsPath = "/api/v1/namespaces/" + namespace + "/pods"

// pods are those of the agent's DaemonSet.
func (c *cluster) pods(t *testing.T) []corev1.Pod {
	t.Helper()
	var list corev1.PodList
	c.read(t, podsPath+"?labelSelector=app.kubernetes.io/name=sluice", &list)
	return list.Items
}

// step does what is to be done for the pods that there are now.
func (k *kubelet) step(t *testing.T) {
	t.Helper()
	for _, pod := range k.cluster.pods(t) {
		running := k.pods[pod.UID]
		switch {
		case pod.DeletionTimestamp != nil:
			if running != nil {
				running.end()
				delete(k.pods, pod.UID)
			}
			err := k.try(t.Context(), http.MethodDelete, podsPath+"/"+pod.Name, "application/json", `{"gracePeriodSeconds": 0}`, nil)
			if err != nil && !errors.Is(err, fs.ErrNotExist) {
				t.Fatal(err)
			}
		case pod.Spec.NodeName == "":
		case running == nil:
			b := k.box(t, &pod.Spec, k.host)
			_, end := b.begin(t, k.NetNS)
			k.pods[pod.UID] = &runningPod{args: b.Args, end: end}
		case !running.ready:
			if status, err := k.ask("http://127.0.0.1:10256/readyz"); err == nil && status == http.StatusOK {
				k.do(t, http.MethodPatch, podsPath+"/"+pod.Name+"/status", strategic, `{"status":{"phase":"Running","conditions":[{"type":"Ready","status":"True"}]}}`, nil)
				running.ready = true
			}
		}
	}
}

// until takes steps until the DaemonSet is as wanted; missing says what is missing.
func (k *kubelet) until(t *testing.T, missing func(*appsv1.DaemonSet) string) {
	t.Helper()
	poll(t, func() string {
		k.step(t)
		var d appsv1.DaemonSet
		k.read(t, "/apis/apps/v1/namespaces/"+namespace+"/daemonsets/sluice", &d)
		return missing(&d)
	})
}

// rolledOut says what a rollout lacks: each pod is of the last revision, has an argument, and is
// ready.
func (k *kubelet) rolledOut(argument string) func(*appsv1.DaemonSet) string {
	return func(d *appsv1.DaemonSet) string {
		s := d.Status
		if s.ObservedGeneration < d.Generation || s.UpdatedNumberScheduled != 1 || s.NumberAvailable != 1 || len(k.pods) != 1 {
			return fmt.Sprintf("the DaemonSet of generation %d has %+v", d.Generation, s)
		}
		for _, p := range k.pods {
			if !slices.Contains(p.args, argument) {
				return fmt.Sprintf("the agent runs with %q, and not with %s", p.args, argument)
			}
		}
		return ""
	}
}

// traffic sends requests to the API server's ClusterIP, which the agent serves: one after the other
// on new connections, and between them one on a connection that stays.
type traffic struct {
	mu       sync.Mutex
	requests int
	faults   []string
}

// send sends until ctx ends, with a pause after each pair of requests.
func (f *traffic) send(ctx context.Context, dial dialer) {
	kept := &connection{dial: dial}
	defer func() { kept.close() }()
	for ctx.Err() == nil {
		f.note(ctx, "a new connection", dial.ask(ctx))
		f.note(ctx, "the connection that stays", kept.ask(ctx))
		select {
		case <-ctx.Done():
		case <-time.After(20 * time.Millisecond):
		}
	}
}

// note counts a request.
func (f *traffic) note(ctx context.Context, of string, err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.requests++
	if err != nil && ctx.Err() == nil {
		f.faults = append(f.faults, fmt.Sprintf("%s %s: %v", time.Now().Format("15:04:05.000"), of, err))
	}
}

const apiClusterIP = "10.96.0.1:443"

type dialer func(ctx context.Context, network, address string) (net.Conn, error)

// ask asks the API server by a new connection. It does so without TLS, which the server refuses: a
// handshake would cost both milliseconds, and the refusal says as well that the server was reached.
func (d dialer) ask(ctx context.Context) error {
	c, err := d(ctx, "tcp", apiClusterIP)
	if err != nil {
		return err
	}
	defer func() { _ = c.Close() }()
	if err := c.SetDeadline(time.Now().Add(5 * time.Second)); err != nil {
		return err
	}
	if _, err := io.WriteString(c, "GET /livez HTTP/1.1\r\nHost: kubernetes\r\n\r\n"); err != nil {
		return err
	}
	response, err := http.ReadResponse(bufio.NewReader(c), nil)
	if err != nil {
		return err
	}
	defer func() { _ = response.Body.Close() }()
	if response.StatusCode != http.StatusBadRequest {
		return fmt.Errorf("without TLS, it answers %s", response.Status)
	}
	return nil
}

// connection is one with the API server, which opens at the first request, and again only after an
// error. Go's own client may open another one though the first is well, if its goroutines have to
// wait for a processor.
type connection struct {
	dial dialer
	*tls.Conn
	answers *bufio.Reader
}

// ask sends a request and reads its answer.
func (c *connection) ask(ctx context.Context) (err error) {
	if c.Conn == nil {
		raw, err := c.dial(ctx, "tcp", apiClusterIP)
		if err != nil {
			return err
		}
		c.Conn = tls.Client(raw, &tls.Config{InsecureSkipVerify: true}) // whose certificate it is says nothing here
		c.answers = bufio.NewReader(c.Conn)
	}
	defer func() {
		if err != nil {
			c.close()
		}
	}()
	if err := c.SetDeadline(time.Now().Add(5 * time.Second)); err != nil {
		return err
	}
	if _, err := io.WriteString(c, "GET /livez HTTP/1.1\r\nHost: kubernetes\r\n\r\n"); err != nil {
		return err
	}
	response, err := http.ReadResponse(c.answers, nil)
	if err != nil {
		return err
	}
	defer func() { _ = response.Body.Close() }()
	if text, err := io.ReadAll(response.Body); err != nil || string(text) != "ok" {
		return fmt.Errorf("it answers %s: %q, %w", response.Status, text, err)
	}
	return nil
}

func (c *connection) close() {
	if c.Conn != nil {
		_ = c.Conn.Close()
		c.Conn = nil
	}
}

// passes waits until more requests have passed, and fails the test if one did not.
func (f *traffic) passes(t *testing.T) {
	t.Helper()
	count := func() (int, []string) {
		f.mu.Lock()
		defer f.mu.Unlock()
		return f.requests, f.faults
	}
	begun, _ := count()
	for deadline := time.Now().Add(time.Minute); ; time.Sleep(20 * time.Millisecond) {
		n, faults := count()
		if len(faults) > 0 {
			t.Fatalf("of %d requests %d failed: %s", n, len(faults), faults[:min(len(faults), 5)])
		}
		if n >= begun+20 {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("%d requests in a minute", n-begun)
		}
	}
}

// testUpgrade upgrades the release to other values, then to values with which it cannot work, and
// rolls back twice, while requests pass.
func (c *cluster) testUpgrade(t *testing.T) {
	k := &kubelet{cluster: c, host: t.TempDir(), pods: map[types.UID]*runningPod{}}
	with := func(args ...string) {
		t.Helper()
		if out, err := c.helm(t, append(args, "--kubeconfig", c.Admin(), "--namespace", namespace)...); err != nil {
			t.Fatalf("%v\n%s", err, out)
		}
	}
	a := agent.NewClient(filepath.Join(k.host, "sluice.sock"))

	with("install", "sluice", chart, "--set", "kubernetes.host="+apiServer, "--set", "policy=false", "--set", "podLabels.team=net")
	k.until(t, k.rolledOut("--policy=false"))
	ctx, cancel := context.WithCancel(t.Context())
	var f traffic
	var sending sync.WaitGroup
	sending.Go(func() { f.send(ctx, c.Dial) })
	defer func() { cancel(); sending.Wait() }()
	f.passes(t)

	with("upgrade", "sluice", chart, "--reset-then-reuse-values", "--set", "policy=true", "--set", "clusterCIDRs={10.244.0.0/16}", "--set", "serviceCIDRs={10.96.0.0/16}", "--set", "metricsAddress=:10249")
	k.until(t, k.rolledOut("--policy=true"))
	await(t, a, well)
	c.get(t, "http://"+apiServer+":10249/metrics") // as Prometheus does
	f.passes(t)

	with("upgrade", "sluice", chart, "--reset-then-reuse-values", "--set", "kubernetes.port=1") // which refuses at once
	k.until(t, func(d *appsv1.DaemonSet) string {
		if d.Status.UpdatedNumberScheduled == 1 && d.Status.NumberUnavailable == 1 {
			for _, p := range k.pods {
				if s, err := a.Status(t.Context()); err == nil && !p.ready && len(s.Source.Issues) > 0 {
					return ""
				}
			}
		}
		return fmt.Sprintf("the new agent does not say that it reaches no API: %+v", d.Status)
	})
	f.passes(t)
	with("rollback", "sluice") // to the revision before
	k.until(t, k.rolledOut("--policy=true"))
	await(t, a, well)
	f.passes(t)

	with("rollback", "sluice", "1")
	k.until(t, k.rolledOut("--policy=false"))
	await(t, a, well)
	f.passes(t)
	if out := c.kubectl(t, "get", "clusterrole", "sluice", "-o", "yaml"); strings.Contains(out, "networkpolicies") {
		t.Errorf("the role of the first revision is\n%s", out)
	}
	if out := c.kubectl(t, "get", "pods", "--namespace", namespace, "-l", "team=net", "-o", "name"); strings.Count(out, "pod/") != 1 {
		t.Errorf("pods with the first revision's labels: %s", out)
	}
	cancel()
	sending.Wait()
	t.Logf("%d requests, none failed", f.requests)
	with("uninstall", "sluice")
	for deadline := time.Now().Add(time.Minute); len(k.pods) > 0 && time.Now().Before(deadline); {
		k.step(t)
	}
}
