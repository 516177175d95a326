package main

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"maps"
	"net/http"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"sluice.dev/sluice/internal/agent"
	"sluice.dev/sluice/internal/cli"
	"sluice.dev/sluice/test/lab/control"
	"sluice.dev/sluice/test/lab/control/controltest"
	"sluice.dev/sluice/test/logtest"
	"sluice.dev/sluice/test/machine"
	"sluice.dev/sluice/test/world"
)

// TestOnRealAPI has agents work on a real API server, with RBAC, one after the other: each finds a
// node and a cluster as the first one did.
func TestOnRealAPI(t *testing.T) {
	t.Parallel()
	host := world.NewHost(t, "plane")
	host.Address("lo", controltest.Addr.String()+"/32")
	machine.ControlPlane.Take(t)
	plane := controltest.Start(t, control.Config{
		NetNS: host.NS, RBAC: true, ClusterCIDRs: controltest.ClusterCIDRs[:1], ServiceCIDRs: []netip.Prefix{netip.MustParsePrefix("10.96.0.0/12")},
	})
	for _, c := range []struct {
		name string
		test func(*testing.T, *proxyNode)
	}{
		{"an agent", agentOnRealAPI}, {"a thief of the API", nobodyTakesTheAPI},
		{"unread pods", unreadPodsOnRealAPI}, {"an odd slice", oddSliceKeepsNothing},
		{"the seat with kubeadm's configuration", seatWithKubeadmsConfig}, {"the seat beside kube-proxy", seatBesideKubeProxy},
		{"addresses", addressesOnRealAPI},
	} {
		t.Run(c.name, func(t *testing.T) { c.test(t, newProxyNode(t, plane)) })
	}
}

// proxyNode is a node with a real API server, which kube-proxy or we serve.
type proxyNode struct {
	*control.Plane
	dir       string
	manifests []string // all that were written
	config    string   // of kube-proxy
	client    *http.Client
}

const seatObjects = `
apiVersion: v1
kind: Node
metadata: {name: node-a}
spec: {podCIDRs: [10.244.0.0/24], podCIDR: 10.244.0.0/24}
---
apiVersion: v1
kind: Service
metadata: {name: web}
spec: {type: NodePort, clusterIP: 10.96.0.80, ports: [{port: 80, targetPort: 8080, nodePort: 30080}]}
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: web-1, labels: {kubernetes.io/service-name: web}}
addressType: IPv4
ports: [{port: 8080, protocol: TCP, name: ""}]
endpoints: [{addresses: [10.244.0.7], nodeName: node-a}]
`

// newProxyNode makes the node, and a service on it. When the test ends, the API and the kernel have
// nothing of it.
func newProxyNode(t *testing.T, plane *control.Plane) *proxyNode {
	t.Helper()
	s := &proxyNode{Plane: plane, dir: t.TempDir()}
	s.client = &http.Client{Transport: &http.Transport{DialContext: s.Dial, DisableKeepAlives: true}}
	t.Cleanup(func() {
		args := []string{"delete", "--ignore-not-found", "--wait=false", "--force", "--grace-period=0"}
		for _, path := range slices.Backward(s.manifests) { // objects before their kinds
			args = append(args, "-f", path)
		}
		s.kubectl(t, args...)
		nft(t, s.NetNS, "flush ruleset")
	})
	s.kubectl(t, "apply", "--server-side", "--force-conflicts", "-f", s.file(t, "objects.yaml", seatObjects))
	s.kubectl(t, "patch", "node", "node-a", "--subresource=status", "--type=merge", "-p", `{"status":{"addresses":[{"type":"InternalIP","address":"192.0.2.1"}]}}`)
	return s
}

// configure writes kubeadm's configuration for kube-proxy, with the given replacements.
func (s *proxyNode) configure(t *testing.T, change ...string) {
	t.Helper()
	kubeconfig, err := s.Kubeconfig("system:kube-proxy")
	if err != nil {
		t.Fatal(err)
	}
	text := read(t, "../../internal/services/kubeproxy/testdata/kubeadm.yaml")
	change = append(change, "/var/lib/kube-proxy/kubeconfig.conf", kubeconfig)
	s.config = filepath.Join(s.dir, "config.conf")
	write(t, s.dir, "config.conf", strings.NewReplacer(change...).Replace(text))
}

// file writes a manifest.
func (s *proxyNode) file(t *testing.T, name, text string) (path string) {
	t.Helper()
	write(t, s.dir, name, text)
	if path = filepath.Join(s.dir, name); !slices.Contains(s.manifests, path) {
		s.manifests = append(s.manifests, path)
	}
	return path
}

func (s *proxyNode) kubectl(t *testing.T, args ...string) {
	t.Helper()
	if out, err := s.Kubectl(args...); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
}

// get sends a request on the node; code is 0 if nothing answers.
func (s *proxyNode) get(url string) (code int, body string) {
	answer, err := s.client.Get("http://" + url)
	if err != nil {
		return 0, err.Error()
	}
	defer func() { _ = answer.Body.Close() }()
	text, err := io.ReadAll(answer.Body)
	if err != nil {
		return 0, err.Error()
	}
	return answer.StatusCode, string(text)
}

// program is a process on the node, with its output.
type program struct {
	cmd   *exec.Cmd
	ended chan error
	said  logtest.Log
}

// start runs a program on the node until the test ends.
func (s *proxyNode) start(t *testing.T, args ...string) *program {
	t.Helper()
	p := &program{cmd: exec.Command(args[0], args[1:]...), ended: make(chan error, 1)}
	p.cmd.Stdout, p.cmd.Stderr = &p.said, &p.said
	if err := s.NetNS.Start(p.cmd); err != nil {
		t.Fatal(err)
	}
	go func() { p.ended <- p.cmd.Wait() }()
	t.Cleanup(func() {
		p.kill()
		if t.Failed() {
			t.Logf("%s:\n%s", filepath.Base(args[0]), p.said.String())
		}
	})
	return p
}

// kill ends the program, if it runs.
func (p *program) kill() {
	_ = p.cmd.Process.Kill() // it may have ended
	p.ended <- <-p.ended
}

func (s *proxyNode) sluice(t *testing.T, flags ...string) (p *program, socket string) {
	t.Helper()
	socket = filepath.Join(t.TempDir(), "s.sock")
	return s.start(t, append([]string{self, "run", "--socket", socket}, flags...)...), socket
}

// The DaemonSet of kubeadm works with our program in it: the same file, the same flags, the same
// rights.
func seatWithKubeadmsConfig(t *testing.T, s *proxyNode) {
	s.configure(t)
	p, socket := s.sluice(t, "--config="+s.config, "--hostname-override=Node-A")
	eventually(t, "the node's services are programmed", func() bool {
		status, err := agent.NewClient(socket).Status(t.Context())
		return err == nil && status.OK && status.LastApply != nil && status.Node == "node-a"
	})
	table := nft(t, s.NetNS, "list table inet sluice")
	for _, want := range []string{"10.96.0.80", "192.0.2.1 . tcp . 30080", "10.244.0.7"} {
		if !strings.Contains(table, want) {
			t.Errorf("nothing of %s in the table", want)
		}
	}
	for url, want := range map[string]string{
		"192.0.2.1:10256/healthz":   `"nodeEligible":true,"healthy":true,"status":{"IPv4":{"lastUpdated":"`,
		"127.0.0.1:10256/livez":     `"healthy":true`,
		"127.0.0.1:10249/healthz":   "ok",
		"127.0.0.1:10249/metrics":   "\nkubeproxy_sync_full_proxy_rules_duration_seconds_count{ip_family=\"IPv4\"} 1\n",
		"127.0.0.1:10249/configz":   `{"kubeproxy.config.k8s.io":{"kind":"KubeProxyConfiguration","apiVersion":"kubeproxy.config.k8s.io/v1alpha1"`,
		"127.0.0.1:10249/proxyMode": "nftables",
	} {
		if code, body := s.get(url); code != http.StatusOK || !strings.Contains(body, want) {
			t.Errorf("%s answers %d %s", url, code, body)
		}
	}
	if out, err := s.NetNS.Run("cat", "/proc/sys/net/netfilter/nf_conntrack_tcp_timeout_close_wait"); err != nil || strings.TrimSpace(string(out)) != "3600" {
		t.Errorf("the time-out of CLOSE_WAIT is %s, %v", out, err)
	}

	now := time.Now().Format(time.RFC3339Nano)
	s.kubectl(t, "patch", "endpointslice", "web-1", "--type=merge", "-p",
		`{"metadata":{"annotations":{"endpoints.kubernetes.io/last-change-trigger-time":"`+now+`"}},"endpoints":[{"addresses":["10.244.0.8"],"nodeName":"node-a"}]}`)
	eventually(t, "the change is programmed and counted", func() bool {
		_, body := s.get("127.0.0.1:10249/metrics")
		return strings.Contains(body, "\nkubeproxy_network_programming_duration_seconds_count{ip_family=\"IPv4\"} 1\n")
	})
	if !strings.Contains(nft(t, s.NetNS, "list table inet sluice"), "10.244.0.8") {
		t.Error("the change is counted, but not programmed")
	}

	s.kubectl(t, "taint", "node", "node-a", "ToBeDeletedByClusterAutoscaler=1:NoSchedule")
	eventually(t, "load balancers are told to leave the node", func() bool {
		code, body := s.get("127.0.0.1:10256/healthz")
		return code == http.StatusServiceUnavailable && strings.Contains(body, `"nodeEligible":false,"healthy":true`)
	})
	if code, body := s.get("127.0.0.1:10256/livez"); code != http.StatusOK || strings.Contains(body, "nodeEligible") {
		t.Errorf("/livez answers %d %s", code, body)
	}

	write(t, s.dir, "config.conf", "another\n")
	var exit *exec.ExitError
	if err := <-p.ended; !errors.As(err, &exit) || exit.ExitCode() != cli.ExitError || !strings.Contains(p.said.String(), "the configuration file has changed") {
		t.Errorf("a changed file ends the agent with %v", err)
	} else {
		p.ended <- err
	}
	if !strings.Contains(nft(t, s.NetNS, "list table inet sluice"), "10.96.0.80") {
		t.Error("the services went with the agent")
	}
	var out bytes.Buffer
	if err := s.NetNS.Do(func() error { execute(t.Context(), []string{"cleanup", "--socket", socket}, &out, &out); return nil }); err != nil {
		t.Fatal(err)
	}
	if want := "net.netfilter.nf_conntrack_tcp_timeout_close_wait = 60 (was 3600)"; !strings.Contains(out.String(), want) {
		t.Errorf("cleanup does not say %q: %s", want, out.String())
	}
}

// A file and flags have the same effect here as in the real kube-proxy, which shows its result with
// --write-config-to.
func TestSameConfigAsKubeProxy(t *testing.T) {
	t.Parallel()
	bin, err := control.Build(t.Context(), func(s string) { t.Log(s) })
	if err != nil {
		t.Fatal(err)
	}
	dir, files := t.TempDir(), "../../internal/services/kubeproxy/testdata/"
	for _, flags := range []string{
		"--config=" + files + "kubeadm.yaml",
		"--config=" + files + "kind.yaml",
		"--config=" + files + "kind.yaml --hostname-override=Foo -v=3 --cluster-cidr=10.0.0.0/8 --oom-score-adj=1 --kubeconfig=/x",
		"--cluster-cidr=10.42.0.0/16 --conntrack-max-per-core=0 --conntrack-tcp-timeout-close-wait=0s --conntrack-tcp-timeout-established=0s --hostname-override=K3s --kubeconfig=/x --proxy-mode=iptables",
		"--proxy-mode=nftables --masquerade-all --iptables-sync-period=1m --nodeport-addresses=primary,10.0.0.0/8",
		"--proxy-mode=nftables --iptables-min-sync-period=5s --detect-local-mode=NodeCIDR",
		"--proxy-mode=ipvs --ipvs-sync-period=2m --ipvs-min-sync-period=1s --ipvs-scheduler=rr --ipvs-exclude-cidrs=10.0.0.0/8,10.1.0.0/16 --masquerade-all --ipvs-strict-arp",
		"--proxy-mode=ipvs --ipvs-tcp-timeout=1s --ipvs-tcpfin-timeout=2s --ipvs-udp-timeout=3s --iptables-sync-period=9m",
		"--proxy-mode=iptables --masquerade-all --bind-address=::1 --metrics-bind-address=127.0.0.1:99 --healthz-bind-address=[::1]:98",
		"--iptables-masquerade-bit=3 --iptables-localhost-nodeports=false --feature-gates=NFTablesProxyMode=true,ContextualLogging=false",
		"--oom-score-adj=5 --profiling --bind-address-hard-fail -v=4 --show-hidden-metrics-for-version=1.36",
		"--conntrack-udp-timeout=5s --conntrack-udp-timeout-stream=9s --conntrack-tcp-be-liberal --conntrack-min=7",
		"--config-sync-period=1m --kube-api-qps=7 --kube-api-burst=3 --kube-api-content-type=application/json",
		"--vmodule=proxier=9,foo=2 --hostname-override=a --log-flush-frequency=9s --nodeport-addresses= --metrics-bind-address=",
		"--logging-format=json --hostname-override=a",
	} {
		ours, theirs := filepath.Join(dir, "ours"), filepath.Join(dir, "theirs")
		if code, _, stderr := sluice(t, append([]string{"run", "--write-config-to", ours}, strings.Fields(flags)...)...); code != cli.ExitOK {
			t.Errorf("%s: %s", flags, stderr)
			continue
		}
		cmd := exec.CommandContext(t.Context(), filepath.Join(bin, "kube-proxy"), append(strings.Fields(flags), "--write-config-to", theirs)...)
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Errorf("%s: kube-proxy: %v: %s", flags, err, out)
			continue
		}
		if diff := cmp.Diff(read(t, theirs), read(t, ours)); diff != "" {
			t.Errorf("%s (-theirs +ours):\n%s", flags, diff)
		}
	}
}

func read(t *testing.T, path string) string {
	t.Helper()
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// absentMetrics are the metrics of kube-proxy that have no meaning here.
var absentMetrics = []string{
	"kubeproxy_sync_proxy_rules_nftables_cleanup_failures_total",
	"kubeproxy_conntrack_reconciler_sync_duration_seconds", "kubeproxy_conntrack_reconciler_deleted_entries_total",
}

// The real kube-proxy holds its addresses when our agent starts. Once it has gone, the same
// questions get the same answers.
func seatBesideKubeProxy(t *testing.T, s *proxyNode) {
	s.configure(t, `mode: ""`, "mode: nftables", "maxPerCore: null", "maxPerCore: 0") // in a namespace it cannot set the limit
	real := s.start(t, filepath.Join(s.Bin, "kube-proxy"), "--config="+s.config, "--hostname-override=node-a")
	synced := "kubeproxy_sync_proxy_rules_last_timestamp_seconds{ip_family="
	eventually(t, "kube-proxy has programmed its rules", func() bool {
		_, text := s.get("127.0.0.1:10249/metrics")
		code, _ := s.get("127.0.0.1:10256/livez")
		return strings.Contains(text, synced) && code == http.StatusOK
	})
	s.get("127.0.0.1:10256/healthz")
	theirs := s.answers(t)

	_, socket := s.sluice(t, "--config="+s.config, "--hostname-override=node-a")
	status := func() agent.Status {
		status, err := agent.NewClient(socket).Status(t.Context())
		if err != nil {
			return agent.Status{}
		}
		return status
	}
	eventually(t, "we work without the addresses", func() bool { now := status(); return now.OK && len(now.Unserved) == 2 })
	real.kill()
	eventually(t, "we have the addresses", func() bool {
		now := status()
		code, _ := s.get("127.0.0.1:10256/healthz")
		return now.OK && len(now.Unserved) == 0 && code == http.StatusOK
	})
	s.get("127.0.0.1:10256/livez")
	ours := s.answers(t)

	if theirs.health != ours.health {
		t.Errorf("/healthz of kube-proxy has %s, ours %s", theirs.health, ours.health)
	}
	if theirs.mode != ours.mode {
		t.Errorf("/proxyMode of kube-proxy is %s, ours %s", theirs.mode, ours.mode)
	}
	if theirs.configz != ours.configz {
		t.Errorf("/configz of kube-proxy is\n%s, ours\n%s", theirs.configz, ours.configz)
	}
	for _, name := range slices.Sorted(maps.Keys(theirs.metrics)) {
		got, want := ours.metrics[name], theirs.metrics[name]
		if absent := slices.Contains(absentMetrics, name); absent != (got == "") || !absent && got != want {
			t.Errorf("%s of kube-proxy is %q, ours %q", name, want, got)
		}
	}
}

// answers is what other programs see of a kube-proxy.
type answers struct {
	health, mode, configz string
	metrics               map[string]string // by name: type and labels
}

func (s *proxyNode) answers(t *testing.T) (a answers) {
	t.Helper()
	_, body := s.get("127.0.0.1:10256/healthz")
	a.health = regexp.MustCompile(`"20[0-9T:.Z-]+"`).ReplaceAllString(strings.TrimSpace(body), "TIME")
	_, a.mode = s.get("127.0.0.1:10249/proxyMode")
	_, body = s.get("127.0.0.1:10249/configz")
	a.configz = canonical(t, body)
	_, body = s.get("127.0.0.1:10249/metrics")
	a.metrics = shapes(body)
	return a
}

// canonical sorts an object's fields.
func canonical(t *testing.T, text string) string {
	t.Helper()
	var value any
	if err := json.Unmarshal([]byte(text), &value); err != nil {
		t.Fatalf("%v: %s", err, text)
	}
	sorted, err := json.MarshalIndent(value, "", " ")
	if err != nil {
		t.Fatal(err)
	}
	return string(sorted)
}

var (
	metricType  = regexp.MustCompile(`^# TYPE (kubeproxy_\S+) (\S+)`)
	metricValue = regexp.MustCompile(`^(kubeproxy_[a-z0-9_]+?)(?:_bucket|_sum|_count)?(?:\{(.*)\})? `)
	metricLabel = regexp.MustCompile(`([a-z_]+)="[^"]*"`)
)

// shapes reads the types and labels of kube-proxy's metrics.
func shapes(text string) map[string]string {
	found, seen := map[string]string{}, map[string]bool{}
	for lines := bufio.NewScanner(strings.NewReader(text)); lines.Scan(); {
		if m := metricType.FindStringSubmatch(lines.Text()); m != nil {
			found[m[1]] = m[2]
		}
		m := metricValue.FindStringSubmatch(lines.Text())
		if m == nil || seen[m[1]] || found[m[1]] == "" {
			continue
		}
		seen[m[1]] = true
		for _, label := range metricLabel.FindAllStringSubmatch(m[2], -1) {
			if label[1] != "le" {
				found[m[1]] += " " + label[1]
			}
		}
	}
	return found
}
