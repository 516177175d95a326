package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"sluice.dev/sluice/internal/agent"
	"sluice.dev/sluice/internal/agent/nslock"
	"sluice.dev/sluice/internal/cli"
	"sluice.dev/sluice/internal/driver"
	"sluice.dev/sluice/internal/reconcile"
	"sluice.dev/sluice/internal/source"
	"sluice.dev/sluice/internal/state"
	"sluice.dev/sluice/test/logtest"
)

const web = `
apiVersion: v1
kind: Service
metadata: {name: web, namespace: shop}
spec:
  clusterIP: 10.0.0.1
  clusterIPs: [10.0.0.1]
  ports: [{name: http, port: 80, targetPort: 8080, protocol: TCP}]
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: web-1, namespace: shop, labels: {kubernetes.io/service-name: web}}
addressType: IPv4
ports: [{name: http, port: 8080, protocol: TCP}]
endpoints: [{addresses: [10.1.0.1]}, {addresses: [10.1.0.2]}]
`

const bad = `
apiVersion: v1
kind: Service
metadata: {name: bad, namespace: shop}
spec:
  clusterIP: 10.0.0.2
  clusterIPs: [10.0.0.2]
  ports: [{name: http, port: 70000}]
`

// kernel stands in for everything that the drivers of one network namespace program. It outlives
// them.
type kernel struct {
	mu     sync.Mutex
	holds  map[state.FrontendKey]*state.Frontend
	openOK error // error of opening a driver
	fail   error // error of applying and purging
}

// useKernel makes the commands work on a kernel in memory until the test ends.
func useKernel(t *testing.T) *kernel {
	k := &kernel{holds: map[state.FrontendKey]*state.Frontend{}}
	real := openNFTables
	openNFTables = func(driver.Options) (driver.Driver, error) { return kernelDriver{k}, k.openOK }
	locking := lockNamespace
	lockNamespace = func(context.Context, *slog.Logger) (*nslock.Lock, error) { return nil, nil }
	t.Cleanup(func() { openNFTables, lockNamespace = real, locking })
	return k
}

func (k *kernel) len() int {
	k.mu.Lock()
	defer k.mu.Unlock()
	return len(k.holds)
}

func (k *kernel) breaks(err error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.fail = err
}

type kernelDriver struct{ *kernel }

var _ driver.Driver = kernelDriver{}

func (d kernelDriver) Capabilities() driver.Capabilities {
	return driver.Capabilities{Name: "fake", Can: driver.All &^ (driver.Fabric | driver.Farms)} // as nftables
}
func (d kernelDriver) Held(func(*state.State))                {}
func (d kernelDriver) SetAside() []driver.SetAside            { return nil }
func (d kernelDriver) Tampered(context.Context) (bool, error) { return false, nil }

func (d kernelDriver) Probe(context.Context) error { return nil }
func (d kernelDriver) Close() error                { return nil }

func (d kernelDriver) Adopt(_ context.Context, want *state.State, keep driver.Keep) (driver.Plan, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	p := kernelPlan{d.kernel, map[state.FrontendKey]*state.Frontend{}, 0}
	if want.Services == nil {
		return p, nil
	}
	for k, f := range want.Services.Frontends {
		if !f.Equal(d.holds[k]) {
			p.set[k] = f
		}
	}
	for k := range d.holds {
		switch {
		case want.Services.Frontends[k] != nil:
		case keep.Services:
			p.kept++
		default:
			p.set[k] = nil
		}
	}
	return p, nil
}

func (d kernelDriver) Update(_ context.Context, delta state.Delta) (driver.Plan, error) {
	return kernelPlan{d.kernel, maps.Clone(delta.Services.Frontends), 0}, nil
}

func (d kernelDriver) Purge(context.Context) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.fail != nil {
		return d.fail
	}
	clear(d.holds)
	return nil
}

type kernelPlan struct {
	*kernel
	set  map[state.FrontendKey]*state.Frontend
	kept int
}

func (p kernelPlan) Kept() driver.Kept { return driver.Kept{Services: p.kept} }

func (p kernelPlan) Len() int { return len(p.set) }

func (p kernelPlan) String() string {
	var lines []string
	for _, k := range slices.SortedFunc(maps.Keys(p.set), state.FrontendKey.Compare) {
		lines = append(lines, "set "+k.String())
	}
	return strings.Join(lines, "\n")
}

func (p kernelPlan) Apply(context.Context) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.fail != nil {
		return p.fail
	}
	for k, f := range p.set {
		if f == nil {
			delete(p.holds, k)
		} else {
			p.holds[k] = f
		}
	}
	return nil
}

// sluice runs a command line and returns its exit status and what it printed.
func sluice(t *testing.T, args ...string) (code int, stdout, stderr string) {
	t.Helper()
	var out, errs bytes.Buffer
	code = execute(t.Context(), args, &out, &errs)
	return code, out.String(), errs.String()
}

// folder makes a folder of manifests.
func folder(t *testing.T, files map[string]string) string {
	t.Helper()
	dir := t.TempDir()
	for name, text := range files {
		write(t, dir, name, text)
	}
	return dir
}

func write(t *testing.T, dir, name, text string) {
	t.Helper()
	if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}

// startAgent runs `sluice run` with more flags, through the given starter, until stop is called or
// the test ends.
func startAgent(t *testing.T, dir, socket string, in func(func() error) error, more ...string) (stop func()) {
	t.Helper()
	_, stop = startAgentLogged(t, dir, socket, in, more...)
	return stop
}

// startAgentLogged is startAgent, and also returns what the agent logs.
func startAgentLogged(t *testing.T, dir, socket string, in func(func() error) error, more ...string) (log *logtest.Log, stop func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan int, 1)
	log = &logtest.Log{}
	go func() {
		var code int
		err := in(func() error {
			code = execute(ctx, append([]string{"run", "--manifests", dir, "--node", "node-a", "--socket", socket,
				"--metrics-address", "", "--healthz-address", "", "--set-sysctls=false"}, more...), log, log)
			return nil
		})
		if err != nil {
			t.Error(err)
		}
		ended <- code
	}()
	stop = sync.OnceFunc(func() {
		cancel()
		if code := <-ended; code != cli.ExitOK {
			t.Errorf("run exits with %d", code)
		}
		if t.Failed() {
			t.Logf("log of the agent:\n%s", log.String())
		}
	})
	t.Cleanup(stop)
	eventually(t, "the agent answers", func() bool { return agent.Alive(socket) })
	return log, stop
}

// here runs f directly: a starter for agents on a fake kernel.
func here(f func() error) error { return f() }

// eventually fails the test if f does not become true in a minute: machines may be busy.
func eventually(t *testing.T, what string, f func() bool) {
	t.Helper()
	for end := time.Now().Add(time.Minute); !f(); time.Sleep(10 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("does not happen: %s", what)
		}
	}
}

func TestAgentLife(t *testing.T) {
	k := useKernel(t)
	dir := folder(t, map[string]string{"web.yaml": web})
	socket := filepath.Join(t.TempDir(), "s.sock")
	stop := startAgent(t, dir, socket, here)

	if code, _, stderr := sluice(t, "sync", "--socket", socket); code != cli.ExitOK || k.len() != 1 {
		t.Fatalf("sync exits with %d and %d frontends in the kernel: %s", code, k.len(), stderr)
	}
	code, stdout, _ := sluice(t, "status", "--check", "--socket", socket)
	for _, want := range []string{"OK: the kernel has all", "node-a", "EndpointSlice 1, Service 1", "1 frontend, 2 backends", "read in full"} {
		if code != cli.ExitOK || !strings.Contains(stdout, want) {
			t.Errorf("status exits with %d and does not say %q:\n%s", code, want, stdout)
		}
	}
	code, stdout, _ = sluice(t, "services", "--socket", socket)
	if fields := strings.Fields(lastLine(stdout)); code != cli.ExitOK || strings.Join(fields, " ") != "shop web ClusterIP 10.0.0.1:80 TCP http 2 -" {
		t.Errorf("services exits with %d:\n%s", code, stdout)
	}
	if code, stdout, _ := sluice(t, "plan", "--socket", socket); code != cli.ExitOK || stdout != "nothing to do\n" {
		t.Errorf("plan exits with %d: %s", code, stdout)
	}
	if code, _, stderr := sluice(t, "cleanup", "--socket", socket); code != cli.ExitError || !strings.Contains(stderr, "stop it first") || k.len() != 1 {
		t.Errorf("cleanup under an agent exits with %d: %s", code, stderr)
	}

	write(t, dir, "bad.yaml", bad)
	code, _, stderr := sluice(t, "sync", "--socket", socket)
	if code != cli.ExitOK || !strings.HasPrefix(stderr, "warning: Service shop/bad (bad.yaml:") || k.len() != 1 {
		t.Errorf("sync with an object at fault exits with %d: %s", code, stderr)
	}
	for check, want := range map[string]int{"--check=false": cli.ExitOK, "--check": cli.ExitFound} {
		if code, stdout, _ := sluice(t, "status", check, "--socket", socket); code != want || !strings.Contains(stdout, "PROBLEM") || !strings.Contains(stdout, "Service shop/bad") {
			t.Errorf("status %s exits with %d, want %d, of an object at fault:\n%s", check, code, want, stdout)
		}
	}

	stop()
	if k.len() != 1 {
		t.Errorf("%d frontends in the kernel after the agent has stopped", k.len())
	}
	if code, _, stderr := sluice(t, "status", "--check", "--socket", socket); code != cli.ExitError || !strings.Contains(stderr, "sluice run") {
		t.Errorf("status without an agent exits with %d: %s", code, stderr)
	}
	k.breaks(fmt.Errorf("claim table: %w", driver.ErrBusy))
	if code, _, stderr := sluice(t, "cleanup", "--socket", socket); code != cli.ExitError || !strings.Contains(stderr, "another --socket") || !strings.Contains(stderr, "tunnels and farms are left, too") || k.len() != 1 {
		t.Errorf("cleanup of what another agent owns exits with %d: %s", code, stderr)
	}
	k.breaks(nil)
	if code, stdout, stderr := sluice(t, "cleanup", "--socket", socket); code != cli.ExitOK || k.len() != 0 {
		t.Errorf("cleanup exits with %d and leaves %d frontends: %s%s", code, k.len(), stdout, stderr)
	}
}

func lastLine(s string) string {
	lines := strings.Split(strings.TrimSpace(s), "\n")
	return lines[len(lines)-1]
}

func TestStatusFormats(t *testing.T) {
	useKernel(t)
	socket := filepath.Join(t.TempDir(), "s.sock")
	startAgent(t, folder(t, map[string]string{"web.yaml": web}), socket, here)
	if code, _, stderr := sluice(t, "sync", "--socket", socket); code != cli.ExitOK {
		t.Fatal(stderr)
	}
	_, stdout, _ := sluice(t, "status", "--socket", socket, "-o", "json")
	var s agent.Status
	if err := json.Unmarshal([]byte(stdout), &s); err != nil || !s.OK || s.Node != "node-a" {
		t.Errorf("status -o json: %v\n%s", err, stdout)
	}
	_, stdout, _ = sluice(t, "services", "--socket", socket, "-o", "yaml")
	if !strings.Contains(stdout, "address: 10.0.0.1\n") {
		t.Errorf("services -o yaml:\n%s", stdout)
	}
}

func TestPlanWithoutAgent(t *testing.T) {
	k := useKernel(t)
	dir := folder(t, map[string]string{"web.yaml": web, "bad.yaml": bad})
	code, stdout, stderr := sluice(t, "plan", "--manifests", dir, "--node", "node-a")
	if code != cli.ExitOK || stdout != "set TCP 10.0.0.1:80\n1 operation\n" || k.len() != 0 {
		t.Errorf("plan exits with %d, kernel holds %d:\n%s", code, k.len(), stdout)
	}
	if !strings.Contains(stderr, "Service shop/bad") {
		t.Errorf("plan does not warn of the object at fault: %s", stderr)
	}
	if code, _, stderr := sluice(t, "plan", "--manifests", filepath.Join(dir, "absent")); code != cli.ExitError || !strings.Contains(stderr, "absent") {
		t.Errorf("plan of an absent folder exits with %d: %s", code, stderr)
	}
}

// An agent that finds a broken or empty folder removes nothing from the kernel, reports it, and
// goes on as soon as the folder is mended.
func TestRestartOnBrokenFolder(t *testing.T) {
	for name, breaks := range map[string]func(*testing.T, string){
		"it is malformed": func(t *testing.T, dir string) { write(t, dir, "web.yaml", web[:len(web)/2]+"]]") },
		"it is empty": func(t *testing.T, dir string) {
			if err := os.Remove(filepath.Join(dir, "web.yaml")); err != nil {
				t.Fatal(err)
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			k := useKernel(t)
			dir := folder(t, map[string]string{"web.yaml": web})
			socket := filepath.Join(t.TempDir(), "s.sock")
			stop := startAgent(t, dir, socket, here)
			if code, _, stderr := sluice(t, "sync", "--socket", socket); code != cli.ExitOK {
				t.Fatal(stderr)
			}
			stop()
			breaks(t, dir)
			if code, stdout, stderr := sluice(t, "plan", "--manifests", dir, "--node", "node-a"); code != cli.ExitOK || stdout != "nothing to do\n" || !strings.Contains(stderr, "1 element of services or policies in the kernel may belong to") {
				t.Errorf("plan exits with %d: %s%s", code, stdout, stderr)
			}
			startAgent(t, dir, socket, here)
			if code, _, stderr := sluice(t, "sync", "--socket", socket); code != cli.ExitError || k.len() != 1 {
				t.Errorf("sync exits with %d, the kernel holds %d: %s", code, k.len(), stderr)
			}
			if _, stdout, _ := sluice(t, "status", "--socket", socket); !strings.Contains(stdout, "PROBLEM: 1 element of services or policies in the kernel may belong to") || !strings.Contains(stdout, "sluice cleanup") {
				t.Errorf("status does not say what is kept:\n%s", stdout)
			}
			write(t, dir, "web.yaml", strings.ReplaceAll(web, "10.0.0.1", "10.0.0.9"))
			eventually(t, "the old frontend makes room for the new one", func() bool {
				code, _, _ := sluice(t, "sync", "--socket", socket)
				return code == cli.ExitOK && k.len() == 1
			})
		})
	}
}

// A file that is still being written is named.
func TestSyncNamesWhoIsWriting(t *testing.T) {
	useKernel(t)
	dir := folder(t, map[string]string{"web.yaml": web})
	socket := filepath.Join(t.TempDir(), "s.sock")
	startAgent(t, dir, socket, here)
	w, err := os.Create(filepath.Join(dir, "late.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = w.Close() }()
	for _, command := range [][]string{{"sync", "--socket", socket}, {"plan", "--manifests", dir, "--node", "node-a"}} {
		eventually(t, command[0]+" names it", func() bool { // once the agent has tried to read it
			code, _, stderr := sluice(t, append(command, "--timeout", "300ms")...)
			if code != cli.ExitError || !strings.Contains(stderr, "not done after 300ms") && !strings.Contains(stderr, "still writing") {
				t.Fatalf("%s exits with %d: %s", command[0], code, stderr)
			}
			return strings.Contains(stderr, "still writing late.yaml")
		})
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	if code, _, stderr := sluice(t, "sync", "--socket", socket); code != cli.ExitOK {
		t.Errorf("sync once it is closed exits with %d: %s", code, stderr)
	}
}

func TestStatusCounts(t *testing.T) {
	for n, want := range map[int][]string{
		1: {"1 frontend, 1 backend\n", "1 operation in", "1 attempt:", "healed\t1 time\n"},
		2: {"2 frontends, 2 backends\n", "2 operations in", "2 attempts:", "healed\t2 times\n"},
	} {
		var b strings.Builder
		statusTable(&b, agent.Status{
			Mode: "iptables", Frontends: n, Backends: n, Heals: n, LastApply: &agent.Applied{Operations: n}, Failures: []reconcile.Failure{{Attempts: n}},
		})
		for _, text := range append(want, "mode\tiptables\n") {
			if !strings.Contains(b.String(), text) {
				t.Errorf("no %q in\n%s", text, &b)
			}
		}
	}
}

// A count of zero is not said: there is none of it, or nothing about it.
func TestStatusSaysNoZeros(t *testing.T) {
	zero := regexp.MustCompile(`\b0 (of )?[a-z]|[a-z] 0\b`)
	for _, s := range []agent.Status{
		{Policy: &agent.PolicyStatus{}, LastApply: &agent.Applied{Time: time.Now().Add(-time.Hour), Path: "adopt"}, BGP: &agent.BGPStatus{Peers: 2, Down: []string{"a", "b"}}, Source: source.Status{Skipped: map[string]int{"Secret": 0}}},
		{Policy: &agent.PolicyStatus{Policies: 1, Sets: 1}, Farms: &agent.FarmsStatus{Farms: 1, Backends: 2}, Affinity: &driver.Remembered{IPv4: 1}},
	} {
		var b strings.Builder
		statusTable(&b, s)
		for _, line := range strings.Split(b.String(), "\n") {
			if zero.MatchString(line) && !strings.HasPrefix(line, "agent") && !strings.Contains(line, "affinity\t1 client remembered of IPv4 and none of IPv6, at most 0 each") {
				t.Errorf("it says %q", line)
			}
		}
	}
}

func TestPlanWhileFailing(t *testing.T) {
	k := useKernel(t)
	k.breaks(fmt.Errorf("kernel says no"))
	socket := filepath.Join(t.TempDir(), "s.sock")
	startAgent(t, folder(t, map[string]string{"web.yaml": web}), socket, here)
	if code, _, stderr := sluice(t, "sync", "--socket", socket); code != cli.ExitError || !strings.Contains(stderr, "kernel says no") {
		t.Errorf("sync exits with %d: %s", code, stderr)
	}
	if code, stdout, _ := sluice(t, "plan", "--socket", socket); code != cli.ExitOK || stdout != "set TCP 10.0.0.1:80\n1 operation\n" {
		t.Errorf("plan exits with %d: %s", code, stdout)
	}
	k.breaks(nil)
}

func TestMissingPrivilege(t *testing.T) {
	k := useKernel(t)
	k.openOK = fmt.Errorf("open netlink: %w", syscall.EPERM)
	dir := folder(t, nil)
	socket := filepath.Join(t.TempDir(), "s.sock")
	for _, args := range [][]string{{"run", "--manifests", dir}, {"cleanup"}, {"plan", "--manifests", dir}} {
		code, _, stderr := sluice(t, append(args, "--socket", socket)...)
		if code != cli.ExitError || !strings.Contains(stderr, "open netlink: operation not permitted: this process") || !strings.Contains(stderr, "CAP_NET_ADMIN") {
			t.Errorf("%s exits with %d: %s", args[0], code, stderr)
		}
	}
}

func TestUsageErrors(t *testing.T) {
	useKernel(t)
	for _, c := range []struct {
		args []string
		say  string
	}{
		{[]string{"fly"}, "fly"},
		{[]string{"fly"}, "Run 'sluice --help'"},
		{[]string{"status", "-o", "xml"}, "Run 'sluice status --help'"},
		{[]string{"run"}, "--manifests"},
		{[]string{"run", "--manifests", ".", "extra"}, "extra"},
		{[]string{"run", "--manifests", ".", "--cluster-cidr", "10.0.0.0/99"}, "10.0.0.0/99"},
		{[]string{"run", "--manifests", ".", "--log-format", "xml"}, "xml"},
		{[]string{"run", "--manifests", ".", "--log-level", "loud"}, "loud"},
		{[]string{"run", "--manifests", ".", "--metrics-address", "nope"}, "--metrics-address nope: give ADDRESS:PORT"},
		{[]string{"run", "--manifests", ".", "--audit-interval", "0s"}, "--audit-interval"},
		{[]string{"run", "--manifests", ".", "--mode", "fast"}, "--mode fast: choose iptables, ipvs, nftables, userspace or auto"},
		{[]string{"run", "--manifests", ".", "--ipvs-scheduler", "fair"}, "--ipvs-scheduler fair: choose one of rr, wrr"},
		{[]string{"plan", "--manifests", ".", "--node", "n", "--iptables-variant", "new"}, "--iptables-variant new: choose one of legacy, nft"},
		{[]string{"preflight", "--userspace-client-address", "all"}, "--userspace-client-address all: choose one of proxy-protocol, transparent"},
		{[]string{"preflight", "--userspace-connections", "-1"}, "--userspace-connections -1: must not be negative"},
		{[]string{"status", "-o", "xml"}, "xml"},
		{[]string{"services", "--nonsense"}, "--nonsense"},
	} {
		code, stdout, stderr := sluice(t, c.args...)
		if code != cli.ExitUsage || !strings.Contains(stderr, c.say) || stdout != "" {
			t.Errorf("sluice %s exits with %d: %s%s", strings.Join(c.args, " "), code, stdout, stderr)
		}
	}
}

func TestVersionAndCompletion(t *testing.T) {
	if code, stdout, _ := sluice(t, "version"); code != cli.ExitOK || !strings.HasPrefix(stdout, "sluice ") {
		t.Errorf("version exits with %d: %s", code, stdout)
	}
	if code, stdout, _ := sluice(t, "completion", "bash"); code != cli.ExitOK || !strings.Contains(stdout, "__start_sluice") {
		t.Errorf("completion exits with %d", code)
	}
}
