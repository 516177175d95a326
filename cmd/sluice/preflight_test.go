package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"strings"
	"testing"

	"sluice.dev/sluice/internal/cli"
	"sluice.dev/sluice/internal/driver"
	"sluice.dev/sluice/internal/model"
	"sluice.dev/sluice/internal/preflight"
	"sluice.dev/sluice/test/world"
)

// preflightIn runs the command in an empty namespace. It fails, as there is no route.
func preflightIn(t *testing.T, args ...string) (status int, out, errs string) {
	t.Helper()
	useKernel(t)
	var stdout, stderr bytes.Buffer
	world.NewHost(t, "node").In(func() error {
		status = execute(t.Context(), append([]string{"preflight", "--socket", t.TempDir() + "/s"}, args...), &stdout, &stderr)
		return nil
	})
	return status, stdout.String(), stderr.String()
}

func TestPreflightTable(t *testing.T) {
	status, out, errs := preflightIn(t, "--service-cidr", "10.96.0.0/12,fd00::/108")
	if status != cli.ExitFound || !strings.Contains(errs, "cannot carry services and policy yet") {
		t.Errorf("status %d, %q", status, errs)
	}
	words := strings.Join(strings.Fields(out), " ")
	for _, want := range []string{"fail route IPv4", "fail route IPv6", "> add a default route", "ok kernel Linux", "ok program"} {
		if !strings.Contains(words, want) {
			t.Errorf("%q is not in\n%s", want, out)
		}
	}
	if strings.Contains(words, "cannot do") {
		t.Errorf("a driver that does all that an agent may ask for lacks something:\n%s", out)
	}
}

func TestPreflightFabric(t *testing.T) {
	_, out, _ := preflightIn(t, "--fabric", "vxlan")
	if words := strings.Join(strings.Fields(out), " "); !strings.Contains(words, "ok fabric can do: VXLAN") || strings.Contains(words, "offloads cannot tell") {
		t.Error(out)
	}
}

// Who may not make network namespaces, as in a container, can still have tunnels.
func TestPreflightFabricWithoutNamespaces(t *testing.T) {
	t.Parallel()
	ns := nodeNS(t)
	out, _ := ns.Run("setpriv", "--bounding-set=-sys_admin", self, "preflight", "--fabric", "vxlan") // it lacks a route
	if !strings.Contains(strings.Join(strings.Fields(string(out)), " "), "ok fabric can do: VXLAN") {
		t.Errorf("%s", out)
	}
}

func TestPreflightJSON(t *testing.T) {
	status, out, _ := preflightIn(t, "-o", "json")
	if strings.Contains(out, "fabric") {
		t.Errorf("nobody asked for the fabric: %s", out)
	}
	var results []preflight.Result
	if err := json.Unmarshal([]byte(out), &results); err != nil {
		t.Fatal(err)
	}
	if status != cli.ExitFound || !preflight.Failed(results) {
		t.Errorf("status %d of %+v", status, results)
	}
}

func TestPreflightRefusesUnknownFormats(t *testing.T) {
	if status, _, errs := preflightIn(t, "-o", "xml"); status != cli.ExitUsage || !strings.Contains(errs, "choose table, json or yaml") {
		t.Errorf("status %d, %q", status, errs)
	}
}

// Who may not list Pods is not told that a policy selects none.
func TestPreflightUnreadPods(t *testing.T) {
	t.Parallel()
	ns := nodeNS(t)
	api := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		items := map[string]string{
			"/api/v1/nodes": `{"metadata":{"name":"node-a"}}`,
			"/apis/networking.k8s.io/v1/networkpolicies": `{"metadata":{"name":"db","namespace":"shop"},"spec":{"podSelector":{"matchLabels":{"app":"db"}}}}`,
		}
		switch {
		case r.URL.Path == "/api/v1/pods":
			w.WriteHeader(http.StatusForbidden)
		case r.URL.Query().Has("watch"):
			w.(http.Flusher).Flush()
			<-r.Context().Done()
		case r.URL.Path == "/apis" || strings.HasPrefix(r.URL.Path, "/api/v1/") || items[r.URL.Path] != "" || strings.HasSuffix(r.URL.Path, "/endpointslices"):
			_, _ = fmt.Fprintf(w, `{"metadata":{"resourceVersion":"7"},"items":[%s]}`, items[r.URL.Path])
		default:
			w.WriteHeader(http.StatusNotFound)
		}
	}))
	t.Cleanup(func() { api.CloseClientConnections(); api.Close() })
	dir := folder(t, map[string]string{"kubeconfig": fmt.Sprintf(`{"current-context":"c","contexts":[{"name":"c","context":{"cluster":"c"}}],"clusters":[{"name":"c","cluster":{"server":%q}}]}`, api.URL)})
	var b bytes.Buffer
	if err := ns.Do(func() error {
		execute(t.Context(), []string{"preflight", "--policies", "--kubeconfig", filepath.Join(dir, "kubeconfig"), "--node", "node-a"}, &b, &b)
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	if words := strings.Join(strings.Fields(b.String()), " "); !strings.Contains(words, "policies 1 known") || !strings.Contains(words, "warn no effect not judged") || strings.Contains(words, "selects") {
		t.Error(b.String())
	}
}

// Before policies are enforced, the node's connections tell what they would deny: here web asks db
// and db asks web, and only the one is allowed. Nothing is programmed for it.
func TestPreflightPolicies(t *testing.T) {
	t.Parallel()
	ns := nodeNS(t)
	pods := attachPods(t, ns, 2)
	nft(t, ns, "add chain inet other track { type filter hook forward priority 0 ; }")
	nft(t, ns, "add rule inet other track ct state established accept")
	for _, pod := range pods {
		err := pod.Do(func() error {
			l, err := net.Listen("tcp", ":5432")
			if err == nil {
				t.Cleanup(func() { _ = l.Close() })
			}
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	for from, to := range map[int]string{0: "10.1.0.2:5432", 1: "10.1.0.1:5432"} {
		if err := connect(pods[from], to); err != nil {
			t.Fatal(err)
		}
	}
	typo := strings.NewReplacer("name: db, namespace: shop}\nspec:\n  podSelector", "name: typo, namespace: shop}\nspec:\n  podSelektor").Replace(shop[strings.LastIndex(shop, "---"):])
	late := "---\n{apiVersion: policy.networking.k8s.io/v1alpha1, kind: AdminNetworkPolicy, metadata: {name: late}}\n"
	for name, c := range map[string]struct {
		text   string
		status int
		says   []string
		silent string // on what it says nothing
	}{
		"as they are": {shop, cli.ExitOK, []string{
			"ok policies 1 known; they apply to 1 of 2 pods of this node",
			"ok refused every policy is taken as it is written", "ok driver it can carry out all of them", "ok kernel it takes all of them: ",
			"warn connections 1 of 2 would be denied: shop/web -> shop/db:5432, TCP: isolated by NetworkPolicy shop/db, tier default, and no rule allows it",
			"warn no effect NetworkPolicy shop/db: spec.ingress[0].from[0]: selects no pod of namespace shop",
		}, "shop/db -> "},
		"allowed": {strings.ReplaceAll(shop, "app: api", "app: web"), cli.ExitOK, []string{
			"ok connections none would be denied of the 2 that are open or ended lately", "ok no effect every policy selects something",
		}, "would be denied:"},
		"refused": {shop + typo + late, cli.ExitFound, []string{
			"fail refused NetworkPolicy shop/typo (shop.yaml:34): spec.podSelektor: there is no such field",
			"fail refused policy.networking.k8s.io/v1alpha1 AdminNetworkPolicy late (shop.yaml:42): is not in force, as Sluice does not read it",
			"not all policies can be carried out as they are written",
		}, "\x00"},
		"another node": {strings.ReplaceAll(shop, "nodeName: node-a", "nodeName: node-b"), cli.ExitOK, []string{
			"warn policies 1 known; they apply to no pod of this node", "> if this node has pods, name its Node object with --node",
		}, "would be denied:"},
	} {
		t.Run(name, func(t *testing.T) {
			dir := folder(t, map[string]string{"shop.yaml": c.text})
			var b bytes.Buffer
			var status int
			if err := ns.Do(func() error {
				status = execute(t.Context(), []string{"preflight", "--policies", "--manifests", dir, "--node", "node-a"}, &b, &b)
				return nil
			}); err != nil {
				t.Fatal(err)
			}
			words := strings.Join(strings.Fields(b.String()), " ")
			for _, want := range c.says {
				if !strings.Contains(words, want) {
					t.Errorf("it does not say %q", want)
				}
			}
			if status != c.status || strings.Contains(words, c.silent) || t.Failed() {
				t.Errorf("status %d, want %d:\n%s", status, c.status, b.String())
			}
		})
	}
	dir := folder(t, map[string]string{"shop.yaml": shop})
	out, err := ns.Run("setpriv", "--bounding-set=-sys_admin", self, "preflight", "--policies", "--manifests="+dir, "--node=node-a") // as in a container
	words := strings.Join(strings.Fields(string(out)), " ")
	if err != nil || !strings.Contains(words, "warn kernel cannot tell whether it takes them: this process may not make a network namespace") || !strings.Contains(words, "1 of 2 would be denied") {
		t.Errorf("without CAP_SYS_ADMIN: %v\n%s", err, out)
	}
	if tables := nft(t, ns, "list tables"); tables != "table inet other\n" {
		t.Errorf("tables afterwards:\n%s", tables)
	}
	if status, _, stderr := sluice(t, "preflight", "--manifests", dir); status != cli.ExitUsage || !strings.Contains(stderr, "give --policies or --fabric, too") {
		t.Errorf("objects alone: status %d, %s", status, stderr)
	}
	if status, _, stderr := sluice(t, "preflight", "--policies"); status != cli.ExitUsage || !strings.Contains(stderr, "name the source of the objects") {
		t.Errorf("without objects: status %d, %s", status, stderr)
	}
}

// httpPolicy asks for what no rule here can, of the pod db.
const httpPolicy = `apiVersion: projectcalico.org/v3
kind: NetworkPolicy
metadata: {name: http, namespace: shop}
spec: {selector: app == 'db', ingress: [{action: Allow, http: {methods: [GET]}}]}
`

// Of each policy that cannot be carried out, preflight says what either choice would come to.
func TestPreflightUnsupported(t *testing.T) {
	t.Parallel()
	ns := nodeNS(t)
	pods := attachPods(t, ns, 2)
	nft(t, ns, "add chain inet other track { type filter hook forward priority 0 ; }")
	nft(t, ns, "add rule inet other track ct state established accept")
	err := pods[1].Do(func() error {
		l, err := net.Listen("tcp", ":5432")
		if err == nil {
			t.Cleanup(func() { _ = l.Close() })
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	if err := connect(pods[0], "10.1.0.2:5432"); err != nil {
		t.Fatal(err)
	}
	const before = "NetworkPolicy.projectcalico.org shop/http: selects 1 pod of this node: shop/db. --unsupported=deny, the default, denies them all ingress, and would deny 1 of 1 connection. --unsupported=ignore-policy leaves "
	for name, c := range map[string]struct{ text, want string }{
		"another policy":  {shop, "warn unsupported " + before + "the decision to NetworkPolicy shop/db"},
		"no other policy": {shop[:strings.LastIndex(shop, "---")], "warn unsupported " + before + "1 pod without any policy in ingress, so that everything passes there"},
		"no pod":          {strings.ReplaceAll(shop, "app: db", "app: bd"), "ok unsupported NetworkPolicy.projectcalico.org shop/http: selects no pod of this node"},
	} {
		dir := folder(t, map[string]string{"shop.yaml": c.text, "http.yaml": httpPolicy})
		for _, choice := range []string{"deny", "ignore-policy"} {
			var b bytes.Buffer
			if err := ns.Do(func() error {
				execute(t.Context(), []string{"preflight", "--policies", "--manifests", dir, "--node", "node-a", "--unsupported", choice}, &b, &b)
				return nil
			}); err != nil {
				t.Fatal(err)
			}
			refused := map[string]string{"deny": ": spec.ingress[0].http: is not supported", "ignore-policy": ": ignored: spec.ingress[0].http: is not supported"}[choice]
			words := strings.Join(strings.Fields(b.String()), " ")
			for _, want := range []string{c.want, "fail refused NetworkPolicy.projectcalico.org shop/http (http.yaml:1)" + refused} {
				if !strings.Contains(words, want) {
					t.Errorf("%s, %s: it does not say %q:\n%s", name, choice, want, b.String())
				}
			}
		}
	}
}

// refusing is a kernel that refuses what a policy becomes.
type refusing struct{ driver.Driver }

func (refusing) SetAside() []driver.SetAside {
	return []driver.SetAside{{Kind: "NetworkPolicy", Name: model.Name{Namespace: "shop", Name: "db"}, Reason: "its rules are too long for the kernel", InForce: model.InForceIsolate}}
}

// What the kernel refuses of the policies when they are tried is a failure.
func TestPreflightPoliciesRefusedByKernel(t *testing.T) {
	ns := nodeNS(t)
	open := openNFTables
	openNFTables = func(o driver.Options) (driver.Driver, error) {
		d, err := open(o)
		return refusing{d}, err
	}
	t.Cleanup(func() { openNFTables = open })
	dir := folder(t, map[string]string{"shop.yaml": shop})
	var b bytes.Buffer
	var status int
	if err := ns.Do(func() error {
		status = execute(t.Context(), []string{"preflight", "--policies", "--manifests", dir, "--node", "node-a", "-o", "json"}, &b, &b)
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	if want := `"seen": "NetworkPolicy shop/db: its rules are too long for the kernel; in force: it isolates what it selects, and allows nothing"`; status != cli.ExitFound || !strings.Contains(b.String(), want) {
		t.Errorf("status %d:\n%s", status, b.String())
	}
}
