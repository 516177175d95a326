package kube

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/vishvananda/netlink"

	"sluice.dev/sluice/test/lab/control"
	"sluice.dev/sluice/test/machine"
	"sluice.dev/sluice/test/netns"
)

func TestMain(m *testing.M) {
	code := m.Run()
	if err := sharedPlane.made.stop(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		code = 1
	}
	os.Exit(code)
}

// realCluster is a real control plane: etcd and an API server that authorizes by RBAC.
type realCluster struct {
	*control.Plane
	admin *http.Client
	dir   string
}

// sharedPlane is the control plane of all tests, which leave nothing behind in it.
var sharedPlane struct {
	sync.Mutex
	made *realCluster
}

// realAPI returns the control plane that tests share.
func realAPI(t testing.TB) *realCluster {
	t.Helper()
	sharedPlane.Lock()
	defer sharedPlane.Unlock()
	if sharedPlane.made == nil {
		sharedPlane.made = startCluster(t)
	}
	return sharedPlane.made
}

// brokenAPI is realAPI for a test that breaks and mends the control plane, so that no other may use
// it meanwhile. If it fails, the next test has another one.
func brokenAPI(t testing.TB) *realCluster {
	t.Helper()
	c := realAPI(t)
	t.Cleanup(func() {
		if !t.Failed() {
			return
		}
		sharedPlane.Lock()
		defer sharedPlane.Unlock()
		sharedPlane.made = nil
		if err := c.stop(); err != nil {
			t.Error(err)
		}
	})
	return c
}

func startCluster(t testing.TB) *realCluster {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("needs root, to make network namespaces")
	}
	machine.ControlPlane.Keep(t)
	bin, err := control.Build(t.Context(), func(s string) { t.Log(s) })
	if err != nil {
		t.Fatal(err)
	}
	dir, err := os.MkdirTemp("", "sluice-kube-")
	if err != nil {
		t.Fatal(err)
	}
	ns, err := netns.New(fmt.Sprintf("src-kube-%d", os.Getpid()))
	if err != nil {
		t.Fatal(errors.Join(err, os.RemoveAll(dir)))
	}
	c := &realCluster{Plane: &control.Plane{Config: control.Config{NetNS: ns}}, dir: dir}
	if err := c.start(t.Context(), bin); err != nil {
		t.Fatal(errors.Join(err, c.stop()))
	}
	return c
}

func (c *realCluster) start(ctx context.Context, bin string) error {
	ns, addr := c.NetNS, netip.MustParseAddr("192.0.2.1")
	lo, err := ns.LinkByName("lo")
	if err != nil {
		return err
	}
	if err := ns.AddrAdd(lo, &netlink.Addr{IPNet: &net.IPNet{IP: addr.AsSlice(), Mask: net.CIDRMask(32, 32)}}); err != nil {
		return err
	}
	c.Plane, err = control.Start(ctx, control.Config{
		Bin: bin, Dir: c.dir, NetNS: ns, Addr: addr, RBAC: true,
		ClusterCIDRs: []netip.Prefix{netip.MustParsePrefix("10.244.0.0/16")}, ServiceCIDRs: []netip.Prefix{netip.MustParsePrefix("10.96.0.0/12")},
		APIServerArgs: []string{"--enable-priority-and-fairness=false", "--etcd-compaction-interval=0"},
	})
	if err != nil {
		c.Plane = &control.Plane{Config: control.Config{NetNS: ns, Dir: c.dir}}
		return err
	}
	cert, err := tls.LoadX509KeyPair(filepath.Join(c.dir, "admin.crt"), filepath.Join(c.dir, "admin.key"))
	if err != nil {
		return err
	}
	pem, err := os.ReadFile(filepath.Join(c.dir, "ca.crt"))
	if err != nil {
		return err
	}
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(pem)
	c.admin = &http.Client{Transport: &http.Transport{DialContext: c.Dial, ForceAttemptHTTP2: true, MaxIdleConnsPerHost: 32,
		TLSClientConfig: &tls.Config{RootCAs: roots, Certificates: []tls.Certificate{cert}}}}
	return nil
}

// stop ends the control plane and leaves nothing of it.
func (c *realCluster) stop() error {
	if c == nil {
		return nil
	}
	if c.admin != nil {
		c.admin.CloseIdleConnections()
	}
	return errors.Join(c.Stop(), c.NetNS.Delete(), os.RemoveAll(c.dir))
}

// ask sends a request as the administrator, and returns the answer.
func (c *realCluster) ask(t testing.TB, method, path, body string) (code int, answer string) {
	t.Helper()
	media := "application/json"
	if method == http.MethodPatch {
		media = "application/merge-patch+json"
	}
	return c.send(t, method, path, media, body)
}

func (c *realCluster) send(t testing.TB, method, path, media, body string) (code int, answer string) {
	t.Helper()
	request, err := http.NewRequest(method, c.URL()+path, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	request.Header.Set("Content-Type", media)
	response, err := c.admin.Do(request)
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	data, err := io.ReadAll(response.Body)
	if err != nil {
		t.Fatal(err)
	}
	return response.StatusCode, string(data)
}

// put creates an object at a path, or replaces it; it is removed with the test.
func (c *realCluster) put(t testing.TB, path, object string) {
	t.Helper()
	var o struct {
		Metadata struct{ Name, Namespace string } `json:"metadata"`
	}
	if err := json.Unmarshal([]byte(object), &o); err != nil {
		t.Fatalf("%v: %s", err, object)
	}
	if ns := o.Metadata.Namespace; ns != "" {
		path = inNamespace(path, ns)
	}
	code, answer := c.ask(t, http.MethodPost, path, object)
	if code == http.StatusConflict {
		code, answer = c.ask(t, http.MethodPatch, path+"/"+o.Metadata.Name, object)
	} else if path != namespaces { // one that is deleted would never be gone, as no controller empties it
		t.Cleanup(func() { c.remove(t, path+"/"+o.Metadata.Name) })
	}
	if code/100 != 2 {
		t.Fatalf("put %s: %d %s", path, code, answer)
	}
}

// apply creates an object at a path, of which the API tells from then on who wrote what; it is
// removed with the test.
func (c *realCluster) apply(t testing.TB, path, object string) {
	t.Helper()
	t.Cleanup(func() { c.remove(t, path) })
	if code, answer := c.send(t, http.MethodPatch, path+"?fieldManager=kubelet", mediaApplyPatch, object); code/100 != 2 {
		t.Fatalf("apply %s: %d %s", path, code, answer)
	}
}

// inNamespace returns the path of a kind within a namespace.
func inNamespace(path, namespace string) string {
	at := strings.LastIndex(path, "/")
	return path[:at] + "/namespaces/" + namespace + path[at:]
}

// remove deletes the object at a path, if it exists, and waits until it is gone: the definition of
// a kind is deleted after its objects, and an object created meanwhile would go with it.
func (c *realCluster) remove(t testing.TB, path string) {
	t.Helper()
	if code, answer := c.ask(t, http.MethodDelete, path+"?gracePeriodSeconds=0", ""); code/100 != 2 && code != http.StatusNotFound {
		t.Errorf("delete %s: %d %s", path, code, answer)
		return
	}
	waitFor(t, path+" to be gone", func() bool {
		code, _ := c.ask(t, http.MethodGet, path, "")
		return code == http.StatusNotFound
	})
}

// user makes a user who may list and watch these resources ("services",
// "networkpolicies.networking.k8s.io"), and returns a kubeconfig.
func (c *realCluster) user(t testing.TB, server, name string, resources ...string) string {
	t.Helper()
	if _, err := c.Kubeconfig(name); err != nil {
		t.Fatal(err)
	}
	c.allow(t, name, resources...)
	c.put(t, bindings, fmt.Sprintf(`{"metadata":{"name":%q},"roleRef":{"apiGroup":"rbac.authorization.k8s.io","kind":"ClusterRole","name":%[1]q},
		"subjects":[{"kind":"User","apiGroup":"rbac.authorization.k8s.io","name":%[1]q}]}`, name))
	path := filepath.Join(t.TempDir(), "kubeconfig")
	write(t, path, c.config(server, fmt.Sprintf("client-certificate: %q, client-key: %q", filepath.Join(c.dir, name+".crt"), filepath.Join(c.dir, name+".key"))))
	return path
}

// config is a kubeconfig file.
func (c *realCluster) config(server, user string) string {
	return fmt.Sprintf(`apiVersion: v1
kind: Config
current-context: c
contexts: [{name: c, context: {cluster: c, user: u}}]
clusters: [{name: c, cluster: {server: %q, certificate-authority: %q}}]
users: [{name: u, user: {%s}}]
`, server, filepath.Join(c.dir, "ca.crt"), user)
}

// The paths of kinds that only tests use.
const (
	roles       = "/apis/rbac.authorization.k8s.io/v1/clusterroles"
	bindings    = "/apis/rbac.authorization.k8s.io/v1/clusterrolebindings"
	definitions = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
)

// allResources are those that a source follows.
var allResources = []string{"services", "nodes", "namespaces", "pods", "serviceaccounts", "endpointslices.discovery.k8s.io",
	"networkpolicies.networking.k8s.io", "*.policy.networking.k8s.io", "*.projectcalico.org", "*.crd.projectcalico.org"}

// allow sets what a user may list and watch.
func (c *realCluster) allow(t testing.TB, name string, resources ...string) {
	t.Helper()
	var rules []string
	for _, r := range resources {
		plural, group, _ := strings.Cut(r, ".")
		rules = append(rules, fmt.Sprintf(`{"apiGroups":[%q],"resources":[%q],"verbs":["list","watch"]}`, group, plural))
	}
	c.put(t, roles, fmt.Sprintf(`{"metadata":{"name":%q},"rules":[%s]}`, name, strings.Join(rules, ",")))
}

// without returns a list without some elements.
func without(all []string, some ...string) []string {
	return slices.DeleteFunc(slices.Clone(all), func(s string) bool { return slices.Contains(some, s) })
}

// forwarder forwards connections from the test's network to the API server's.
type forwarder struct {
	net.Listener
	t       testing.TB
	cluster *realCluster
	running sync.WaitGroup

	mu      sync.Mutex
	open    map[net.Conn]bool
	blocked bool
	made    int // connections, so far
}

// forward lets a source reach the API server, until the test ends.
func (c *realCluster) forward(t testing.TB) *forwarder {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	f := &forwarder{Listener: l, t: t, cluster: c, open: map[net.Conn]bool{}}
	f.running.Go(f.serve)
	t.Cleanup(func() {
		_ = l.Close()
		f.block(true)
		f.running.Wait()
	})
	return f
}

func (f *forwarder) url() string { return "https://" + f.Addr().String() }

func (f *forwarder) serve() {
	for {
		in, err := f.Accept()
		if err != nil {
			return
		}
		out, err := f.cluster.Dial(context.Background(), "tcp", strings.TrimPrefix(f.cluster.URL(), "https://"))
		if err == nil && f.enter(in, out) {
			f.running.Go(func() { f.copy(in, out) })
			f.running.Go(func() { f.copy(out, in) })
			continue
		}
		for _, conn := range []net.Conn{in, out} {
			if conn != nil {
				reset(conn)
			}
		}
	}
}

// enter accepts a connection, unless connections are blocked.
func (f *forwarder) enter(in, out net.Conn) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.blocked {
		return false
	}
	f.open[in], f.open[out] = true, true
	f.made++
	return true
}

// reset closes a connection as a broken network does.
func reset(conn net.Conn) {
	_ = conn.(*net.TCPConn).SetLinger(0)
	_ = conn.Close()
}

// copy forwards data until either end closes.
func (f *forwarder) copy(to, from net.Conn) {
	_, _ = io.Copy(to, from)
	_, _ = to.Close(), from.Close()
	f.mu.Lock()
	defer f.mu.Unlock()
	delete(f.open, to)
	delete(f.open, from)
}

// cut ends all connections.
func (f *forwarder) cut() {
	f.mu.Lock()
	defer f.mu.Unlock()
	for conn := range f.open {
		reset(conn)
	}
}

// block ends all connections and refuses new ones, or allows them again.
func (f *forwarder) block(on bool) {
	f.mu.Lock()
	f.blocked = on
	f.mu.Unlock()
	f.cut()
}

func (f *forwarder) connections() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.made
}

// followReal starts a source that follows a real API, with a kubeconfig file.
func followReal(t *testing.T, kubeconfig string, tune ...func(*timing)) *fixture {
	t.Helper()
	return followAs(t, nil, Config{Kubeconfig: kubeconfig, Policies: true}, append([]func(*timing){realTiming}, tune...)...)
}

// realTiming has short times, but not too short for a real server.
func realTiming(t *timing) {
	*t = timing{answer: 10 * time.Second, watch: time.Minute, first: 5 * time.Millisecond, last: 100 * time.Millisecond, steady: time.Second,
		refused: 50 * time.Millisecond, discover: 100 * time.Millisecond, doubt: 5 * time.Second, outage: time.Hour, patience: time.Minute}
}

// waitFor waits until a condition holds.
func waitFor(t testing.TB, what string, so func() bool) {
	t.Helper()
	for deadline := time.Now().Add(20 * time.Second); !so(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatal("timed out waiting for " + what)
		}
	}
}

// own returns the objects that a test has created: those in the namespace shop, and others with
// that name.
func (f *fixture) own() (names []string) {
	for _, n := range f.names() {
		if strings.Contains(n, "shop") {
			names = append(names, n)
		}
	}
	return names
}

func (f *fixture) waitOwn(want ...string) {
	f.t.Helper()
	slices.Sort(want)
	f.wait(fmt.Sprint("objects ", want), func() bool { return slices.Equal(f.own(), want) })
}

// quietLog is the log of a proxy that is meant to fail.
var quietLog = log.New(io.Discard, "", 0)

// shop makes a namespace with one object of each kind that every API has.
func (c *realCluster) shop(t testing.TB) (names []string) {
	t.Helper()
	c.put(t, namespaces, `{"metadata":{"name":"shop","labels":{"team":"x"}}}`)
	c.put(t, accounts, `{"metadata":{"name":"default","namespace":"shop","labels":{"role":"r"}}}`)
	c.put(t, services, service("web", 80))
	c.put(t, endpoints, slice("web-1", "web", "10.0.0.1", "10.0.0.2"))
	c.put(t, nodes, `{"metadata":{"name":"shop-n1"},"status":{"addresses":[{"type":"InternalIP","address":"192.0.2.1"}]},"spec":{"podCIDRs":["10.0.0.0/24"]}}`)
	c.put(t, pods, `{"metadata":{"name":"web-a","namespace":"shop","labels":{"app":"web"}},"spec":{"nodeName":"shop-n1","containers":[{"name":"c","image":"x","ports":[{"name":"http","containerPort":8080}]}]}}`)
	c.put(t, policies, policy("deny", denyAll))
	return []string{"EndpointSlice shop/web-1", "Namespace shop", "NetworkPolicy shop/deny", "Node shop-n1", "Pod shop/web-a", "Service shop/web", "ServiceAccount shop/default"}
}

// delivered counts the events for a test's own objects while do runs; the API server has others,
// which it changes by itself.
func (f *fixture) delivered(do func()) int {
	before := f.sink.count(&f.sink.shop)
	do()
	return f.sink.count(&f.sink.shop) - before
}
