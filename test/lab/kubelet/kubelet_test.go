package kubelet

import (
	"context"
	"log/slog"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"k8s.io/client-go/tools/clientcmd"

	"sluice.dev/sluice/test/lab/control"
	"sluice.dev/sluice/test/lab/control/controltest"
	"sluice.dev/sluice/test/lab/echo"
	"sluice.dev/sluice/test/lab/kubeapi"
	"sluice.dev/sluice/test/lab/sandbox"
	"sluice.dev/sluice/test/netns"
	"sluice.dev/sluice/test/programs"
	packets "sluice.dev/sluice/test/world"
)

// world is a control plane and a node. Subtests share it, each with a copy for its own T.
type world struct {
	*testing.T
	plane *control.Plane
	node  *packets.Host
	cfg   Config
	api   *kubeapi.Client
	stop  func() // the kubelet
}

// run runs a subtest.
func (w *world) run(name string, f func(w *world)) {
	w.Run(name, func(t *testing.T) {
		sub := *w
		sub.T = t
		f(&sub)
		w.stop = sub.stop
	})
}

// newWorld starts a control plane and a node, without its kubelet.
func newWorld(t *testing.T) *world {
	t.Helper()
	w := &world{T: t, node: packets.NewHost(t, "node"), stop: func() {}}
	w.node.Address("lo", "192.0.2.11/32", "2001:db8::11/128")
	w.plane = controltest.Start(t, control.Config{Controllers: true, RBAC: true})
	api, err := clientcmd.BuildConfigFromFlags("", w.plane.Admin())
	if err != nil {
		t.Fatal(err)
	}
	api.Dial = w.plane.Dial
	w.cfg = Config{
		Node: "node1", NodeNS: w.node.Name, NSPrefix: w.node.Name + "-", Zone: "zone-a", API: api,
		IPs:      []netip.Addr{netip.MustParseAddr("192.0.2.11"), netip.MustParseAddr("2001:db8::11")},
		PodCIDRs: []netip.Prefix{netip.MustParsePrefix("10.244.1.0/24"), netip.MustParsePrefix("fd00:10:244:1::/64")},
		Network:  sandbox.Config{Dir: filepath.Join(t.TempDir(), "cni"), Path: []string{filepath.Dir(programs.Path(t, "sluice-cni"))}},
		Log:      slog.New(slog.NewTextHandler(t.Output(), nil)),
	}
	if w.api, err = kubeapi.New(api); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(w.removePods)
	t.Cleanup(func() { w.stop() })
	return w
}

// removePods removes the pods that a stopped kubelet rightly left.
func (w *world) removePods() {
	left, err := filepath.Glob(filepath.Join(netns.Dir, w.cfg.NSPrefix+"*.*"))
	if err != nil {
		w.Error(err)
	}
	for _, path := range left {
		if err := netns.Delete(filepath.Base(path)); err != nil {
			w.Error(err)
		}
	}
}

// start runs the kubelet until stop is called.
func (w *world) start() {
	ctx, cancel := context.WithCancel(context.WithoutCancel(w.Context()))
	done := make(chan error, 1)
	go func() { done <- Run(ctx, w.cfg) }()
	w.stop = sync.OnceFunc(func() {
		cancel()
		if err := <-done; err != nil && ctx.Err() == nil {
			w.Errorf("kubelet: %v", err)
		}
	})
}

// kubectl runs kubectl and returns what it prints.
func (w *world) kubectl(args ...string) string {
	w.Helper()
	out, err := w.plane.Kubectl(args...)
	if err != nil {
		w.Fatal(err)
	}
	return strings.TrimSpace(string(out))
}

// apply applies a manifest.
func (w *world) apply(manifest string) {
	w.Helper()
	file := filepath.Join(w.TempDir(), "manifest.yaml")
	if err := os.WriteFile(file, []byte(manifest), 0o600); err != nil {
		w.Fatal(err)
	}
	w.kubectl("apply", "--server-side", "--force-conflicts", "-f", file)
}

// ask asks a pod from the node and returns the name of the answering pod.
func (w *world) ask(protocol, addr string, port uint16) (string, error) {
	var a echo.Answer
	err := w.node.Do(func() (err error) {
		a, err = echo.Ask(protocol, netip.AddrPortFrom(netip.MustParseAddr(addr), port), time.Second)
		return err
	})
	return a.Pod, err
}

// eventually waits until a condition holds.
func (w *world) eventually(what string, ok func() bool) {
	w.Helper()
	for deadline := time.Now().Add(30 * time.Second); !ok(); time.Sleep(20 * time.Millisecond) {
		if time.Now().After(deadline) {
			w.Fatalf("timed out: %s\n%s", what, w.kubectl("get", "pods,nodes", "-A", "-o", "wide"))
		}
	}
}
