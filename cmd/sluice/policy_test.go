package main

import (
	"context"
	"encoding/json"
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"sluice.dev/sluice/internal/agent"
	"sluice.dev/sluice/internal/cli"
	"sluice.dev/sluice/internal/driver"
	"sluice.dev/sluice/internal/kernel/nflog"
	"sluice.dev/sluice/internal/model"
	"sluice.dev/sluice/internal/policy/verdict"
	"sluice.dev/sluice/internal/state"
	"sluice.dev/sluice/test/logtest"
	"sluice.dev/sluice/test/netns"
)

// shop has the pods web and db on node-a; db admits app=api only.
const shop = `
apiVersion: v1
kind: Node
metadata: {name: node-a}
spec: {podCIDRs: [10.1.0.0/24]}
status: {addresses: [{type: InternalIP, address: 192.0.2.1}]}
---
apiVersion: v1
kind: Pod
metadata: {name: web, namespace: shop, labels: {app: web}}
spec: {nodeName: node-a}
status: {phase: Running, podIPs: [{ip: 10.1.0.1}]}
---
apiVersion: v1
kind: Pod
metadata: {name: db, namespace: shop, labels: {app: db}}
spec: {nodeName: node-a}
status: {phase: Running, podIPs: [{ip: 10.1.0.2}]}
---
apiVersion: v1
kind: Pod
metadata: {name: far, namespace: shop, labels: {app: far}}
spec: {nodeName: node-b}
status: {phase: Running, podIPs: [{ip: 10.2.0.2}]}
---
apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata: {name: db, namespace: shop}
spec:
  podSelector: {matchLabels: {app: db}}
  policyTypes: [Ingress]
  ingress: [{from: [{podSelector: {matchLabels: {app: api}}}], ports: [{port: 5432}]}]
`

// shopAgent runs an agent for the shop on a fake kernel.
func shopAgent(t *testing.T, more ...string) (socket string) {
	t.Helper()
	useKernel(t)
	socket = filepath.Join(t.TempDir(), "s.sock")
	startAgent(t, folder(t, map[string]string{"shop.yaml": shop, "web.yaml": web}), socket, here, more...)
	if code, _, stderr := sluice(t, "sync", "--socket", socket); code != cli.ExitOK {
		t.Fatal(stderr)
	}
	return socket
}

func TestWhy(t *testing.T) {
	socket := shopAgent(t, "--set-sysctls=true")
	for _, c := range []struct {
		from, to string
		code     int
		says     string
	}{
		{"203.0.113.1", "shop/db:5432", int(statusDenied), "isolated by NetworkPolicy shop/db"},
		{"203.0.113.1", "shop/web:80", cli.ExitOK, "no policy applies"},
		{"203.0.113.1", "203.0.113.2:80/udp", cli.ExitOK, "allowed"},
		{"shop/far", "203.0.113.2:80", cli.ExitOK, "what is beyond node node-b is not judged"},
		{"shop/far", "shop/db:5432", int(statusDenied), "isolated by NetworkPolicy shop/db"},
		{"shop/web", "x/a:80/tpc", cli.ExitUsage, "is not a known protocol"},
		{"shop/wep", "shop/db:5432", cli.ExitError, "did you mean shop/web"},
		{"shop/web", "shop/db", cli.ExitUsage, "TO:PORT"},
		{"shop/web", "shop/db:http", cli.ExitError, "has no named ports"},
	} {
		code, stdout, stderr := sluice(t, "why", "--socket", socket, c.from, c.to)
		if code != c.code || !strings.Contains(stdout+stderr, c.says) {
			t.Errorf("why %s %s exits with %d and does not say %q:\n%s%s", c.from, c.to, code, c.says, stdout, stderr)
		}
		if (code == int(statusDenied) || code == int(statusUnknown)) && stderr != "" {
			t.Errorf("why %s %s complains of its answer: %s", c.from, c.to, stderr)
		}
	}
	code, stdout, _ := sluice(t, "why", "--socket", socket, "-o", "json", "203.0.113.1", "shop/db:5432")
	var e agent.Explanation
	if err := json.Unmarshal([]byte(stdout), &e); code != int(statusDenied) || err != nil || e.Outcome != verdict.Denied || len(e.Connections) != 1 {
		t.Errorf("why -o json exits with %d: %v\n%s", code, err, stdout)
	}
}

func TestPoliciesTable(t *testing.T) {
	socket := shopAgent(t)
	code, stdout, _ := sluice(t, "policies", "--socket", socket)
	want := "TIER     ORDER  KIND           NAMESPACE  NAME  PODS  HOSTS  ALLOWED  DENIED  NOTE\n" +
		"default  1000   NetworkPolicy  shop       db    1     0      -        -       \n"
	if diff := cmp.Diff(want, stdout); code != cli.ExitOK || diff != "" {
		t.Errorf("policies exits with %d (-want +got):\n%s", code, diff)
	}
	_, stdout, _ = sluice(t, "status", "--socket", socket)
	if !strings.Contains(stdout, "1 known; they apply to 1 of 2 pods of this node, as 1 set of rules") {
		t.Errorf("status does not tell of policy:\n%s", stdout)
	}
	var b strings.Builder
	order, n := 7.5, uint64(12)
	calico := agent.PolicyReport{Allowed: &n, Denied: &n, Issues: []string{"odd"}}
	calico.Tier, calico.Kind, calico.Name, calico.Order, calico.Refused = "security", "GlobalNetworkPolicy", "all", &order, "bad selector"
	missing := agent.PolicyReport{Issues: []string{"odd; in force: nothing of it"}}
	missing.Kind, missing.Name = "GlobalNetworkPolicy", "none"
	policiesTable(&b, []agent.PolicyReport{calico, missing})
	if !strings.HasSuffix(b.String(), "security\t7.5\tGlobalNetworkPolicy\t-\tall\t0\t0\t12\t12\tdenies all that it selects: bad selector; odd\n"+
		"-\t-\tGlobalNetworkPolicy\t-\tnone\t0\t0\t-\t-\todd; in force: nothing of it\n") {
		t.Error(b.String())
	}
	b.Reset()
	if policiesTable(&b, nil); b.String() != "no policies\n" {
		t.Error(b.String())
	}
}

// A policy at fault is reported once, with what is wrong and what is in force of it meanwhile.
func TestPoliciesAtFault(t *testing.T) {
	useKernel(t)
	policy := func(name, port string) string {
		return "apiVersion: networking.k8s.io/v1\nkind: NetworkPolicy\nmetadata: {name: " + name + ", namespace: shop}\n" +
			"spec: {podSelector: {}, policyTypes: [Ingress], ingress: [{ports: [{port: " + port + "}]}]}\n"
	}
	dir := folder(t, map[string]string{"good.yaml": policy("good", "80"), "bad.yaml": policy("bad", "99999")})
	socket := filepath.Join(t.TempDir(), "s.sock")
	startAgent(t, dir, socket, here)
	if code, _, stderr := sluice(t, "sync", "--socket", socket); code != cli.ExitOK || !strings.Contains(stderr, "99999") {
		t.Fatalf("sync exits with %d: %s", code, stderr)
	}
	write(t, dir, "good.yaml", policy("good", "77777"))
	if code, _, stderr := sluice(t, "sync", "--socket", socket); code != cli.ExitOK || !strings.Contains(stderr, "77777") {
		t.Fatalf("sync exits with %d: %s", code, stderr)
	}
	_, stdout, _ := sluice(t, "policies", "--socket", socket)
	for fault, says := range map[string]string{"99999": "isolates what it selects, and allows at most what could be read of its rules: ", "77777": "; in force: its last good version"} {
		if strings.Count(stdout, fault) != 1 || strings.Count(stdout, says) != 1 {
			t.Errorf("policies do not say once %q and %q:\n%s", fault, says, stdout)
		}
	}
	_, stdout, _ = sluice(t, "status", "--socket", socket)
	for _, says := range []string{"; in force: it isolates what it selects, and allows nothing", "; in force: its last good version", "each says what is in force of its object"} {
		if strings.Count(stdout, says) != 1 {
			t.Errorf("status does not say %q once:\n%s", says, stdout)
		}
	}
}

// With --unsupported=ignore-policy, what cannot be carried out has no effect, and is named at the
// start and as long as it is there.
func TestIgnoringUnsupported(t *testing.T) {
	useKernel(t)
	dir := folder(t, map[string]string{"http.yaml": httpPolicy})
	for choice, says := range map[string][]string{
		"deny": {"refused NetworkPolicy.projectcalico.org shop/http: allows nothing to what it selects", "; in force: it denies all that it selects"},
		"ignore-policy": {"ignored NetworkPolicy.projectcalico.org shop/http: has no effect, as it cannot be carried out as it is written",
			"NetworkPolicy.projectcalico.org shop/http (http.yaml:1): ignored: spec.ingress[0].http: is not supported", "; in force: nothing of it"},
	} {
		socket := filepath.Join(t.TempDir(), "s.sock")
		stop := startAgent(t, dir, socket, here, "--unsupported", choice)
		if code, _, stderr := sluice(t, "sync", "--socket", socket); code != cli.ExitOK {
			t.Fatalf("sync exits with %d: %s", code, stderr)
		}
		_, stdout, _ := sluice(t, "status", "--socket", socket)
		words := strings.Join(strings.Fields(stdout), " ")
		for _, want := range says {
			if !strings.Contains(words, want) {
				t.Errorf("%s: status does not say %q:\n%s", choice, want, stdout)
			}
		}
		stop()
	}
}

func TestWithoutPolicy(t *testing.T) {
	p := nflog.Packet{Prefix: driver.DropPrefix + string(state.DropStray)}
	p.Source, p.Destination, p.Protocol = netip.MustParseAddr("10.1.0.2"), netip.MustParseAddr("203.0.113.9"), uint8(model.TCP)
	useDrops(t, p)
	socket := shopAgent(t, "--policy=false")
	if code, _, stderr := sluice(t, "policies", "--socket", socket); code != cli.ExitError || !strings.Contains(stderr, "--policy=false") {
		t.Errorf("policies exits with %d: %s", code, stderr)
	}
	if code, stdout, stderr := sluice(t, "drops", "--socket", socket, "--count", "1"); code != cli.ExitOK || !strings.Contains(stdout, " stray ") || !strings.Contains(stdout, "no connection that this node knows") {
		t.Errorf("drops exits with %d: %s%s", code, stdout, stderr)
	}
	if _, stdout, _ := sluice(t, "status", "--socket", socket); !strings.Contains(stdout, "not carried out (--policy=false, or a mode without it)") {
		t.Errorf("status:\n%s", stdout)
	}
	if code, stdout, _ := sluice(t, "why", "--socket", socket, "shop/web", "shop/db:5432"); code != cli.ExitOK || !strings.Contains(stdout, "warning: this agent does not carry out policy") {
		t.Errorf("why exits with %d:\n%s", code, stdout)
	}
}

// fakeDrops is a log that delivers the same packet again and again.
type fakeDrops struct{ packet nflog.Packet }

func (f fakeDrops) Next(ctx context.Context) (nflog.Packet, error) {
	select {
	case <-time.After(time.Millisecond):
		return f.packet, nil
	case <-ctx.Done():
		return nflog.Packet{}, ctx.Err()
	}
}

func (f fakeDrops) Close() error { return nil }

// useDrops replaces the kernel's log with one that delivers the packet.
func useDrops(t *testing.T, packet nflog.Packet) {
	real := openDrops
	openDrops = func() (dropConn, error) { return fakeDrops{packet}, nil }
	t.Cleanup(func() { openDrops = real })
}

func TestDrops(t *testing.T) {
	p := nflog.Packet{Prefix: driver.DropPrefix + string(state.DropPolicy), In: 11, Out: 12, Time: time.Date(2026, 1, 2, 3, 4, 5, 678e6, time.Local)}
	p.Source, p.Destination, p.Protocol = netip.MustParseAddr("203.0.113.9"), netip.MustParseAddr("10.1.0.2"), uint8(model.TCP)
	p.SourcePort, p.DestinationPort = 40000, 5432
	useDrops(t, p)
	socket := shopAgent(t)
	code, stdout, stderr := sluice(t, "drops", "--socket", socket, "--count", "1")
	if code != cli.ExitOK || !strings.HasPrefix(stdout, "03:04:05.678 policy         203.0.113.9:40000 -> shop/db:5432 TCP: ") || strings.Count(stdout, "\n") != 1 {
		t.Errorf("drops exits with %d: %s%s", code, stdout, stderr)
	}
	code, stdout, _ = sluice(t, "drops", "--socket", socket, "--count", "2", "-o", "json")
	var d agent.Drop
	if err := json.NewDecoder(strings.NewReader(stdout)).Decode(&d); code != cli.ExitOK || err != nil || d.To.Object != podNamed("db") || d.Reason != state.DropPolicy {
		t.Errorf("drops -o json exits with %d: %v: %s", code, err, stdout)
	}
	if code, stdout, stderr := sluice(t, "drops", "--socket", socket, "--for", "10ms"); code != cli.ExitOK || !strings.Contains(stderr, "watching") {
		t.Errorf("drops --for exits with %d: %s%s", code, stdout, stderr)
	}
}

func TestFailsafes(t *testing.T) {
	in, out := defaultInbound(), defaultOutbound()
	if in.String() != "udp:68,tcp:22,tcp:179,tcp:2379,tcp:2380,tcp:5473,tcp:6443,tcp:6666,tcp:6667" ||
		out.String() != "udp:53,udp:67,tcp:179,tcp:2379,tcp:2380,tcp:5473,tcp:6443,tcp:6666,tcp:6667" {
		t.Errorf("defaults: %s and %s", &in, &out)
	}
	for text, want := range map[string]string{
		"none": "none", "tcp:22": "tcp:22", "TCP:22, udp:100-200": "tcp:22,udp:100-200", "sctp:1-65535": "sctp:1-65535",
		"": "", "tcp": "", "tcp:0": "", "tcp:9-8": "", "icmp:1": "", "tcp:65536": "", "tcp:22,": "",
	} {
		f := defaultInbound()
		err := f.Set(text)
		if (err == nil) != (want != "") || err == nil && f.String() != want {
			t.Errorf("%q becomes %s, want %q: %v", text, &f, want, err)
		}
	}
}

func TestPolicyFlags(t *testing.T) {
	useKernel(t)
	file := filepath.Join(t.TempDir(), "bad.txt")
	if err := os.WriteFile(file, []byte("198.51.100.0/24\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		args, say string
	}{
		{"--deny-list bad", "--address-list bad=FILE"},
		{"--deny-device eth0", "--deny-list"},
		{"--policy=false --address-list bad=" + file + " --deny-list bad", "--policy=false"},
		{"--address-list bad", "NAME=FILE"},
		{"--failsafe-inbound 22", "tcp:22"},
		{"--unsupported allow", "choose deny or ignore-policy"},
		{"--failsafe-outbound icmp:8", "tcp:22"},
	} {
		code, _, stderr := sluice(t, append([]string{"run", "--manifests", t.TempDir()}, strings.Fields(c.args)...)...)
		if code != cli.ExitUsage || !strings.Contains(stderr, c.say) {
			t.Errorf("run %s exits with %d: %s", c.args, code, stderr)
		}
	}
	for args, say := range map[string]string{
		"why a": "needs FROM TO:PORT", "why a b:80 --family 5": "--family", "why a b:0": "out of range", "why a b:80 -o xml": "xml",
		"drops -o yaml": "choose text or json", "drops --count -1": "--count", "policies -o xml": "xml",
	} {
		if code, _, stderr := sluice(t, strings.Fields(args)...); code != cli.ExitUsage || !strings.Contains(stderr, say) {
			t.Errorf("%s exits with %d: %s", args, code, stderr)
		}
	}
}

func podNamed(name string) model.Ref {
	return model.Ref{Kind: model.PodKind, Name: model.Name{Namespace: "shop", Name: name}}
}

// Names do not show the address family of what was dropped.
func TestDropsOfIPv6(t *testing.T) {
	for from, want := range map[verdict.Party]string{
		{Object: podNamed("web"), Address: netip.MustParseAddr("fd00::1"), Port: 4}: "shop/web:4 -> shop/db:5 TCP (IPv6): no",
		{Address: netip.MustParseAddr("fd00::1"), Port: 4}:                          "[fd00::1]:4 -> shop/db:5 TCP: no",
		{Object: podNamed("web"), Address: netip.MustParseAddr("10.1.0.1")}:         "shop/web -> shop/db:5 TCP: no",
	} {
		var b strings.Builder
		d := agent.Drop{From: from, To: verdict.Party{Object: podNamed("db"), Address: from.Address.Next(), Port: 5}, Protocol: "TCP", Says: "no"}
		if err := printDrop(&b, "text", d); err != nil || !strings.HasSuffix(b.String(), want+"\n") {
			t.Errorf("%s, want %s: %v", b.String(), want, err)
		}
	}
}

// A list that is read from a file is counted. A list whose file is broken is at fault.
func TestAddressListFlag(t *testing.T) {
	useKernel(t)
	dir := t.TempDir()
	write(t, dir, "good.txt", "198.51.100.0/24\n203.0.113.7\n")
	socket := filepath.Join(t.TempDir(), "s.sock")
	startAgent(t, folder(t, map[string]string{"web.yaml": web}), socket, here,
		"--address-list", "good="+filepath.Join(dir, "good.txt"), "--deny-list", "good", "--deny-device", "lo")
	if code, _, stderr := sluice(t, "sync", "--socket", socket); code != cli.ExitOK {
		t.Fatal(stderr)
	}
	if _, stdout, _ := sluice(t, "status", "--socket", socket); !strings.Contains(stdout, "good 2") || !strings.Contains(stdout, "2 in 1 list of networks") {
		t.Errorf("status does not count the list:\n%s", stdout)
	}
	write(t, dir, "good.txt", "\n")
	if code, _, stderr := sluice(t, "sync", "--socket", socket); code != cli.ExitOK {
		t.Fatal(stderr)
	}
	if _, stdout, _ := sluice(t, "status", "--socket", socket); !strings.Contains(stdout, "good 0") {
		t.Errorf("status does not count the empty list:\n%s", stdout)
	}
	write(t, dir, "good.txt", "198.51.100.0/24\nnonsense\n")
	if code, _, stderr := sluice(t, "sync", "--socket", socket); code != cli.ExitOK || !strings.Contains(stderr, "nonsense") {
		t.Errorf("sync with a broken list exits with %d: %s", code, stderr)
	}
}

// A packet that the kernel drops is shown with the name of the policy, and `why` says the same.
func TestKernelDrops(t *testing.T) {
	ns := nodeNS(t)
	pods := attachPods(t, ns, 2)
	real := openDrops
	openDrops = func() (conn dropConn, err error) {
		err = ns.Do(func() (err error) { conn, err = real(); return err })
		return conn, err
	}
	t.Cleanup(func() { openDrops = real })
	socket := filepath.Join(t.TempDir(), "s.sock")
	startAgent(t, folder(t, map[string]string{"shop.yaml": shop}), socket, ns.Do)
	if code, _, stderr := sluice(t, "sync", "--socket", socket); code != cli.ExitOK {
		t.Fatal(stderr)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	var out, notes logtest.Log
	ended := make(chan int, 1)
	go func() { ended <- execute(ctx, []string{"drops", "--socket", socket, "--count", "1"}, &out, &notes) }()
	eventually(t, "drops are watched", func() bool { return strings.Contains(notes.String(), "watching") })
	if err := connect(pods[0], "10.1.0.2:5432"); err == nil {
		t.Error("the policy lets the connection pass")
	}
	if code := <-ended; code != cli.ExitOK || !strings.Contains(out.String(), "-> shop/db:5432 TCP: shop/db, ingress: isolated by NetworkPolicy shop/db") {
		t.Errorf("drops exits with %d: %s%s", code, &out, &notes)
	}
	if code, stdout, _ := sluice(t, "why", "--socket", socket, "shop/web", "shop/db:5432"); code != int(statusDenied) || !strings.Contains(stdout, "isolated by NetworkPolicy shop/db") {
		t.Errorf("why exits with %d: %s", code, stdout)
	}
	if err := connect(pods[1], "10.1.0.1:80"); err == nil || !strings.Contains(err.Error(), "refused") {
		t.Errorf("a connection that no policy forbids does not pass: %v", err)
	}
	groups, err := ns.Run("cat", "/proc/thread-self/net/netfilter/nfnetlink_log")
	if err != nil || strings.Contains(string(groups), fmt.Sprint(driver.DropGroup)) {
		t.Errorf("the log is open though nobody watches: %s %v", groups, err)
	}
}

// While the kernel keeps a policy that cannot be read, every answer about the wanted state carries
// a warning.
func TestKeptPolicyIsWarnedOf(t *testing.T) {
	t.Parallel()
	ns := nodeNS(t)
	pods := attachPods(t, ns, 2)
	at := strings.LastIndex(shop, "---")
	dir := folder(t, map[string]string{"pods.yaml": shop[:at], "policy.yaml": shop[at:]})
	socket := filepath.Join(t.TempDir(), "s.sock")
	stop := startAgent(t, dir, socket, ns.Do)
	if code, _, stderr := sluice(t, "sync", "--socket", socket); code != cli.ExitOK {
		t.Fatal(stderr)
	}
	stop()
	write(t, dir, "policy.yaml", "kind: [")
	startAgent(t, dir, socket, ns.Do)
	if code, _, stderr := sluice(t, "sync", "--socket", socket); code != cli.ExitError {
		t.Fatalf("sync exits with %d: %s", code, stderr)
	}
	if err := connect(pods[0], "10.1.0.2:5432"); err == nil || strings.Contains(err.Error(), "refused") {
		t.Errorf("the policy that was kept lets the connection pass: %v", err)
	}
	for command, want := range map[string]int{"why shop/web shop/db:5432": int(statusUnknown), "policies": cli.ExitOK, "status": cli.ExitOK} {
		code, stdout, stderr := sluice(t, append(strings.Fields(command), "--socket", socket)...)
		if out := stdout + stderr; code != want || !strings.Contains(out, "policies did not change since the start are still judged by what ") || !strings.Contains(out, "policy.yaml: ") {
			t.Errorf("%s exits with %d and does not warn of what is kept, and why:\n%s", command, code, out)
		}
	}
}

// A Tier that goes, or comes after its policies, shuts no pod and opens none, also while agents
// come and go.
func TestMissingTier(t *testing.T) {
	t.Parallel()
	const tier = "apiVersion: projectcalico.org/v3\nkind: Tier\nmetadata: {name: own}\nspec: {order: 10, defaultAction: Pass}\n"
	denies := func(from, to string) string {
		return "apiVersion: projectcalico.org/v3\nkind: NetworkPolicy\nmetadata: {name: to-" + to + ", namespace: shop}\n" +
			"spec: {tier: own, selector: app == '" + to + "', types: [Ingress], ingress: [{action: Deny, source: {selector: app == '" + from + "'}}]}\n"
	}
	for _, mode := range []string{"nftables", "iptables"} {
		t.Run(mode, func(t *testing.T) {
			t.Parallel()
			ns := nodeNS(t)
			pods := attachPods(t, ns, 2)
			dir := folder(t, map[string]string{"pods.yaml": shop[:strings.LastIndex(shop, "---")], "tier.yaml": tier, "to-db.yaml": denies("web", "db")})
			socket := filepath.Join(t.TempDir(), "s.sock")
			look := func(when string, toDB, toWeb bool, says string) {
				t.Helper()
				_, _, stderr := sluice(t, "sync", "--socket", socket)
				for i, want := range []bool{toDB, toWeb} {
					err := connect(pods[i], []string{"10.1.0.2:5432", "10.1.0.1:80"}[i])
					if passes := err == nil || strings.Contains(err.Error(), "refused"); passes != want {
						t.Errorf("%s: from pod %d: %v, want that it passes %t", when, i, err, want)
					}
				}
				if says != "" && !strings.Contains(stderr, says) || says == "" && stderr != "" {
					t.Errorf("%s: sync says %q, want %q", when, stderr, says)
				}
			}
			stop := startAgent(t, dir, socket, ns.Do, "--mode", mode)
			look("before", false, true, "")
			if err := os.Remove(filepath.Join(dir, "tier.yaml")); err != nil {
				t.Fatal(err)
			}
			look("after the tier", false, true, "Tier own: it is deleted, and stays as it was")
			write(t, dir, "to-web.yaml", denies("db", "web"))
			look("without the tier", false, true, "NetworkPolicy.projectcalico.org shop/to-web: spec.tier: there is no Tier own, for which it waits")
			for question, want := range map[string]string{
				"shop/db shop/web:80":   "warning: NetworkPolicy.projectcalico.org shop/to-web is about this connection and not in force: it waits for Tier own\n",
				"shop/web shop/db:5432": "",
			} {
				_, out, _ := sluice(t, append([]string{"why", "--socket", socket}, strings.Fields(question)...)...)
				if want == "" && strings.Contains(out, "waits for") || !strings.Contains(out, want) {
					t.Errorf("why %s does not say %q:\n%s", question, want, out)
				}
			}
			stop()
			startAgent(t, dir, socket, ns.Do, "--mode", mode)
			look("after a restart", false, true, "NetworkPolicy.projectcalico.org shop/to-db waits for Tier own")
			_, out, _ := sluice(t, "status", "--socket", socket)
			if want := ", read in full; NetworkPolicy.projectcalico.org shop/to-db waits for Tier own, NetworkPolicy.projectcalico.org shop/to-web waits for Tier own\n"; !strings.Contains(out, want) {
				t.Errorf("status does not say %q:\n%s", want, out)
			}
			write(t, dir, "tier.yaml", tier)
			look("with the tier", false, false, "")
		})
	}
}

// brokenPolicy is a policy whose selector cannot be read.
const brokenPolicy = `
apiVersion: projectcalico.org/v3
kind: GlobalNetworkPolicy
metadata: {name: broken}
spec: {selector: "app = 'far'", types: [Ingress], ingress: [{action: Allow, protocol: TCP, destination: {ports: [5432]}}]}
`

const cachePod = `---
apiVersion: v1
kind: Pod
metadata: {name: cache, namespace: shop, labels: {app: cache}}
spec: {nodeName: node-a}
status: {phase: Running, podIPs: [{ip: 10.1.0.3}]}
`

// A policy whose selector cannot be read delays no other. What another policy came to forbid while
// no agent ran is closed and cut at once. Pods that the broken policy selected keep its last good
// version.
func TestBrokenPolicyHoldsUpNoOther(t *testing.T) {
	t.Parallel()
	sound := func(app string) string { return strings.Replace(brokenPolicy, "app = 'far'", "app == '"+app+"'", 1) }
	for name, before := range map[string]string{"on a first start": "", "broken ever since": brokenPolicy, "it was about another pod": sound("cache"), "it was about nobody here": sound("far")} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			ns := nodeNS(t)
			pods := attachPods(t, ns, 3)
			at := strings.LastIndex(shop, "---")
			allow := func(app string) string { return strings.Replace(shop[at:], "app: api", "app: "+app, 1) }
			dir := folder(t, map[string]string{"pods.yaml": shop[:at] + cachePod, "policy.yaml": allow("web")})
			socket := filepath.Join(t.TempDir(), "s.sock")
			first := before == ""
			if first {
				before = brokenPolicy
			}
			write(t, dir, "broken.yaml", before)
			stop := startAgent(t, dir, socket, ns.Do)
			programmed := func() {
				t.Helper()
				eventually(t, "it is programmed", func() bool {
					status, err := agent.NewClient(socket).Status(t.Context())
					return err == nil && status.LastApply != nil
				})
			}
			programmed()
			talk := openTalk(t, pods[0], pods[1], "10.1.0.2:5432")
			if !talk(time.Second) {
				t.Fatal("the connection that is allowed does not work")
			}
			if !first {
				stop()
				write(t, dir, "broken.yaml", brokenPolicy)
			}
			write(t, dir, "policy.yaml", allow("api"))
			if !first {
				startAgent(t, dir, socket, ns.Do)
				programmed()
			}
			for begun := time.Now(); talk(100 * time.Millisecond); {
				if time.Since(begun) > 2*time.Second {
					t.Fatal("a connection that a policy forbids goes on")
				}
			}
			if err := connect(pods[0], "10.1.0.2:5432"); err == nil {
				t.Error("a new connection that a policy forbids passes")
			}
			kept := before == sound("cache")
			if closed := errClosed(connect(pods[0], "10.1.0.3:80")); closed != kept {
				t.Errorf("what the broken policy did not allow is closed: %v, want %v", closed, kept)
			}
			if status, err := agent.NewClient(socket).Status(t.Context()); err != nil || (status.Kept > 0) != kept {
				t.Errorf("kept %d, want some: %v, %v", status.Kept, kept, err)
			}
		})
	}
}

// errClosed marks a connection that was dropped, as opposed to refused because nothing listens.
func errClosed(err error) bool { return err != nil && !strings.Contains(err.Error(), "refused") }

// openTalk connects two pods and returns a function that reports whether what the client sends
// arrives in time.
func openTalk(t *testing.T, from, to *netns.NS, address string) func(time.Duration) bool {
	t.Helper()
	var client, server net.Conn
	var listener net.Listener
	err := to.Do(func() (err error) {
		listener, err = net.Listen("tcp", address)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = listener.Close() })
	err = from.Do(func() (err error) {
		client, err = net.DialTimeout("tcp", address, 2*time.Second)
		return err
	})
	if err == nil {
		server, err = listener.Accept()
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _, _ = client.Close(), server.Close() })
	return func(patience time.Duration) bool {
		if _, err := client.Write([]byte("x")); err != nil {
			return false
		}
		_ = server.SetReadDeadline(time.Now().Add(patience))
		_, err := server.Read(make([]byte, 64))
		return err == nil
	}
}
