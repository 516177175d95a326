package main

import (
	"bytes"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"unicode/utf8"

	"sluice.dev/sluice/internal/cli"
	"sluice.dev/sluice/test/lab"
	"sluice.dev/sluice/test/machine"
	"sluice.dev/sluice/test/netns"
)

// tellDemo runs a demo in a lab of its own, and checks that it succeeds, keeps to 100 columns, and
// leaves nothing behind. It returns what it prints.
func tellDemo(t *testing.T, name string, args ...string) string {
	t.Helper()
	needRoot(t)
	name = named(name)
	t.Cleanup(func() { _ = lab.Down(name) })
	var stdout, stderr bytes.Buffer
	if got := execute(t.Context(), append([]string{"lab", "demo", "--name", name}, args...), &stdout, &stderr); got != cli.ExitOK {
		t.Fatalf("exit status %d\n%s\n%s", got, stdout.String(), stderr.String())
	}
	left, err := filepath.Glob(filepath.Join(netns.Dir, "sluice-lab-"+name+"-*"))
	if err != nil || len(left) > 0 {
		t.Errorf("left behind: %v %v", left, err)
	}
	for line := range strings.Lines(stdout.String()) {
		if n := utf8.RuneCountInString(strings.TrimSpace(line)); n > 100 && !slices.Contains(args, "--verbose") && !strings.Contains(line, " lab up ") {
			t.Errorf("%d columns: %s", n, line)
		}
		if strings.Contains(line, "\x1b") {
			t.Errorf("colour in a file: %q", line)
		}
	}
	return stdout.String()
}

// mustSay checks that a text matches each of the patterns, in their order.
func mustSay(t *testing.T, text string, patterns ...string) {
	t.Helper()
	rest := text
	for _, p := range patterns {
		at := regexp.MustCompile(p).FindStringIndex(rest)
		if at == nil {
			t.Fatalf("no %q after the others in:\n%s", p, text)
		}
		rest = rest[at[1]:]
	}
}

// The demo of the shop tells the whole story, in some thirty lines.
func TestLabDemo(t *testing.T) {
	t.Parallel()
	out := tellDemo(t, "testdemo", "../../examples/shop")
	mustSay(t, out,
		`cluster +3 nodes, 15 pods, 11 services, 7 policies: up after [0-9.]+ m?s\n`,
		`request +client +shop/front-1 on node1 +10\.244\.1\.4\n +service +shop/cart +10\.96\.0\.1:7070\n +backend +shop/cart-\d on node\d +10\.244\.\d\.\d:7070 +answers after .*\n +client +as the backend sees it +10\.244\.1\.4 +its own address\n`,
		`policy +cart +cart-callback`, `11 of 33 pairs of client and service pass, as the policies say`,
		`denied +shop/cart-1 asks shop/search:9200: no answer\n +\$ sluice drops\n +\d\d:.* policy +shop/cart-1:\d+ -> shop/search-\d:9200 TCP`,
		`\$ sluice why shop/cart-1 shop/search-\d:9200\n(.*\n)*?.*NetworkPolicy`,
		`label +shop/cart-1 gets the label search-client=true, which policy shop/search lets in\n +in the kernel after [0-9.]+ \S+ \(node\d\).*\n.* answered by shop/search-\d\n`,
		`crash +all 3 agents killed .*\n +0 of \d,\d\d\d requests failed, and what is denied stayed denied\n.* with no changes\n`,
		`check +1,422 requests .*\n +all as they should be \([\d.]+ s\)\n +11 of 33 pairs of client and service pass`,
		`next .* lab up ../../examples/shop`,
	)
	if n := strings.Count(out, "\n"); n > 55 {
		t.Errorf("%d lines", n)
	}
}

// Without policies, what is about policies is left out. --verbose shows where each request went,
// and --check leaves out all but the check.
func TestLabDemoOfPlainServices(t *testing.T) {
	t.Parallel()
	const app = "../../examples/shop/"
	out := tellDemo(t, "testplain", app+"00-namespace.yaml", app+"cart.yaml", app+"front.yaml")
	mustSay(t, out, `cluster +3 nodes, 5 pods, 5 services, 0 policies`, `request +client`, `crash .*\n +0 of .* requests failed\n`, `check .* requests .*\n +all as they should be \(`)
	for _, absent := range []string{"policy  ", "denied", "label"} {
		if strings.Contains(out, "\n"+absent) {
			t.Errorf("%s without policies:\n%s", absent, out)
		}
	}
	out = tellDemo(t, "testplain", "--check", "--verbose", app+"cart.yaml")
	mustSay(t, out, `cluster +3 nodes, 3 pods, 3 services, 0 policies`, `check .* requests`, `all as they should be`, `NODE +ZONE`, `SERVICE +FROM`)
	if strings.Contains(out, "request  ") || strings.Contains(out, "crash") {
		t.Errorf("not only a check:\n%s", out)
	}
}

// Every wrong outcome is shown, and the exit status tells.
func TestLabDemoShowsFailures(t *testing.T) {
	t.Parallel()
	needRoot(t)
	name := named("testfails")
	t.Cleanup(func() { _ = lab.Down(name) })
	var out bytes.Buffer
	if got := execute(t.Context(), []string{"lab", "demo", "--name", name, "--check", "--no-agent", "../../examples/shop/cart.yaml"}, &out, &out); got != cli.ExitError {
		t.Errorf("exit status %d without anything that serves services", got)
	}
	mustSay(t, out.String(), `check +FAILED: shop/cart via ClusterIP: shop/cart-1 → 10\.96\.0\.1:7070: no answer`,
		`FAILED: shop/cart via NodePort: outside → 10\.10\.0\.13:30000: refused`, `80 requests in .*: 80 FAILED`, `not everything is as it should be: see \["check"\]`)
}

// Policies take effect one after the other.
func TestLabDemoPolicy(t *testing.T) {
	t.Parallel()
	out := tellDemo(t, "testpolicy", "policy")
	mustSay(t, out,
		`open .*\n +front +api +db\n +front +○ +● +●\n`, `6 of 6 pairs of client and service pass`,
		`deny +apiVersion(.*\n)+? +applied: in the kernel after [\d.]+ \S+ \(node\d\).*\n(.*\n)? +front +api +db\n +front +○ +· +·\n`, `0 of 6 pairs of client and service pass`,
		`denied +default/api-1 asks default/db:5432: no answer\n +\$ sluice drops\n.* default/api-1:\d+ -> default/db-1:5432`, `\$ sluice why default/api-1 default/db-1:5432`,
		`allow +\$ sluice why default/api-1 default/db-1:5432 --suggest\n(.*\n)*? +kind: NetworkPolicy\n(.*\n)+? +api +· +○ +●\n`, `1 of 6 pairs of client and service pass`, `answered by default/db-1`,
		`clean up +policies deleted`, `6 of 6 pairs of client and service pass`, `next .* lab up`,
	)
}

// A node is taken over from the real kube-proxy and given back, and no request fails.
func TestLabDemoTakeover(t *testing.T) {
	t.Parallel()
	machine.ControlPlane.Take(t)
	out := tellDemo(t, "testtakeover", "takeover")
	mustSay(t, out,
		`cluster +3 nodes, 7 pods, 3 services`, `takeover +the agent of node1 has programmed everything`,
		`\$ sluice takeover --from kube-proxy`, `removed nftables: table ip kube-proxy`, `node1 is Sluice's after`,
		`back +kube-proxy runs again`, `\$ sluice takeover --to kube-proxy`, `removed what sluice has programmed`, `node1 is kube-proxy's after`,
		`requests +0 of [\d,]+ failed`, `next .* lab up --kubernetes --kube-proxy nftables`,
	)
}

// A whole cluster moves to Sluice and back: kube-proxy, MetalLB and the pod network are others'
// before and after.
func TestLabDemoMigrate(t *testing.T) {
	t.Parallel()
	machine.ControlPlane.Take(t)
	out := tellDemo(t, "testmigrate", "migrate")
	const sent = `0\s+of\s+[\d,]+\s+requests\s+failed`
	mustSay(t, out,
		`cluster +2 nodes, 6 pods`, `before +addresses of Services: fixed 10\.10\.0\.115, reserved 10\.10\.0\.130`,
		`now: policies nobody, services kube-proxy, pod network ptp, addresses\s+MetalLB`,
		`policies +\$ helm install sluice`, sent, `services Sluice beside kube-proxy`,
		`services +\$ kubectl .* patch daemonset kube-proxy`, `sluice serves all`, `removed nftables: table ip kube-proxy`, sent, `now: policies Sluice, services Sluice, pod network ptp`,
		`network +\$ helm upgrade`, `\$ kubectl drain node1`, `pods of node1 moved`, sent, `the same for node2`, sent, `pod network sluice-cni`,
		`addresses \$ kubectl -n metallb-system get l2advertisements`, `it has 10\.10\.0\.10\d`, `MetalLB is gone`, sent, `addresses\s+Sluice`,
		`back +\$ kubectl -n metallb-system delete l2advertisements`, `MetalLB is back`, sent, `back +\$ helm upgrade`, `pods of node1 moved`, sent, `pod network ptp`,
		`back +\$ kubectl`, `kube-proxy is back`, sent, `now: policies nobody, services kube-proxy, pod network ptp, addresses\s+MetalLB`,
		`requests +0 of [\d,]+ failed`, `next `,
	)
}

// A balancer without Kubernetes: only requests to a dead server fail, until its check says so.
func TestLabDemoBalancer(t *testing.T) {
	t.Parallel()
	out := tellDemo(t, "testbalancer", "../../examples/balancer")
	mustSay(t, out,
		`balancer +a client, the balancer and 3 servers: up after`,
		`web +192\.0\.2\.80:80 +rr +100 +100 +100\n`, `cache +192\.0\.2\.80:6379 +maglev +(300 +0 +0|0 +300 +0|0 +0 +300)\n`,
		`crash +green is killed`, `its check says so after [\d.]+ m?s: [\d,]+ of [\d,]+ requests failed until then`,
		`\$ sluice farms web`, `red .* serving`, `green .* down +0 `, `0 of [\d,]+ requests failed since`, `green is started again, and serves after .*\n? *.*0 of`,
		`drain +the API has blue drain`, `blue .* draining +0 `, `0 of [\d,]+ requests failed, and blue got no new connection`,
		`restart +the balancer is killed`, `0 of [\d,]+ requests failed\n`, `next .* balance --config`,
	)
}

// Farms that the lab can't show are refused with the reason, and nothing is left.
func TestLabDemoRefusesFarms(t *testing.T) {
	t.Parallel()
	needRoot(t)
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "farms.json"), []byte(`{"farms": [{"name": "a", "virtual-addr": "192.0.2.1"}]}`), 0o600); err != nil {
		t.Fatal(err)
	}
	var out bytes.Buffer
	if got := execute(t.Context(), []string{"lab", "demo", "--name", named("testrefuses"), dir}, &out, &out); got != cli.ExitError {
		t.Errorf("exit status %d", got)
	}
	mustSay(t, out.String(), `farm a: the lab shows farms with one IPv4 address and port`)
}
