package deploy_test

import (
	"bytes"
	"context"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/yaml"

	"sluice.dev/sluice/internal/agent"
	"sluice.dev/sluice/test/lab/control"
	"sluice.dev/sluice/test/lab/control/controltest"
	"sluice.dev/sluice/test/machine"
	"sluice.dev/sluice/test/programs"
)

// cluster is a real control plane and one node of it, in the same network namespace.
type cluster struct {
	*control.Plane
	*api
	binary string // the sluice binary
}

const apiServer = "192.0.2.1"

const node = `{
  apiVersion: v1, kind: Node, metadata: {name: node1, labels: {kubernetes.io/os: linux}},
  spec: {podCIDR: 10.244.0.0/24, podCIDRs: [10.244.0.0/24]},
  status: {
    addresses: [{type: InternalIP, address: ` + apiServer + `}],
    capacity: {cpu: "1", memory: 1Gi, pods: "10"}, allocatable: {cpu: "1", memory: 1Gi, pods: "10"},
  },
}`

// startCluster starts a control plane whose node is still incomplete: it has a Node object and a
// route, but no kubelet.
func startCluster(t *testing.T) *cluster {
	t.Helper()
	binary := programs.Path(t, "sluice")
	machine.ControlPlane.Take(t)
	plane := controltest.Start(t, control.Config{Controllers: true, RBAC: true, ClusterCIDRs: controltest.ClusterCIDRs[:1], ServiceCIDRs: controltest.ServiceCIDRs[:1]})
	ns := plane.NetNS
	lo, err := ns.LinkByName("lo")
	if err == nil {
		err = ns.Sysctl("net.ipv4.ip_forward", "1")
	}
	if err == nil { // a default route, so that the node reaches ClusterIPs
		err = ns.RouteAdd(&netlink.Route{LinkIndex: lo.Attrs().Index, Dst: &net.IPNet{IP: net.IPv4zero, Mask: net.CIDRMask(0, 32)}, Src: plane.Addr.AsSlice()})
	}
	if err != nil {
		t.Fatal(err)
	}
	a := newAPI(t, plane.Admin(), func(config *rest.Config) { config.Dial = plane.Dial })
	a.apply(t, node, "")
	a.apply(t, node, "/status")
	return &cluster{plane, a, binary}
}

func (c *cluster) kubectl(t *testing.T, args ...string) string {
	t.Helper()
	out, err := c.Kubectl(args...)
	if err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	return string(out)
}

// account writes the credentials of the agent's service account as the kubelet does for a pod.
func (c *cluster) account(t *testing.T) (folder string) {
	t.Helper()
	folder = t.TempDir()
	ca, err := os.ReadFile(filepath.Join(c.Dir, "ca.crt"))
	if err != nil {
		t.Fatal(err)
	}
	for name, content := range map[string][]byte{"ca.crt": ca, "token": c.token(t), "namespace": []byte(namespace)} {
		if err := os.WriteFile(filepath.Join(folder, name), content, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return folder
}

// run starts the agent from the DaemonSet of a text, in a container on the node.
func (c *cluster) run(t *testing.T, text string) *agent.Client {
	t.Helper()
	d, _ := daemon(t, text)
	host := t.TempDir()
	c.box(t, &d.Spec.Template.Spec, host).start(t, c.NetNS)
	return agent.NewClient(filepath.Join(host, "sluice.sock"))
}

// box is a container for a pod on the node; host stands for the host's /run/sluice, and folders in
// it for those of CNI.
func (c *cluster) box(t *testing.T, pod *corev1.PodSpec, host string) *box {
	t.Helper()
	volumes := map[string]string{"run": host, "token": c.account(t), "kube-proxy": c.proxyConfig(t)}
	for _, v := range pod.Volumes {
		if v.Projected != nil { // the API server's way to give a pod its token
			volumes[v.Name] = volumes["token"]
		}
		if !strings.HasPrefix(v.Name, "cni-") {
			continue
		}
		volumes[v.Name] = filepath.Join(host, v.Name)
		if err := os.MkdirAll(volumes[v.Name], 0o755); err != nil {
			t.Fatal(err)
		}
	}
	return newBox(t, pod, "node1", c.binary, volumes)
}

// testUnset applies kustomize's manifests unchanged: the agent is alive, is not ready, and names
// what has to be set.
func (c *cluster) testUnset(t *testing.T) {
	text := kustomize(t, "kustomize")
	c.apply(t, text, "")
	a := c.run(t, text)
	await(t, a, func(s agent.Status) string {
		for _, i := range s.Source.Issues {
			if strings.Contains(i.Source+i.Reason, placeholder) {
				return ""
			}
		}
		return fmt.Sprintf("it says %+v", s.Source)
	})
	c.get(t, "http://127.0.0.1:10256/livez")
	if status, err := c.ask("http://127.0.0.1:10256/readyz"); err != nil || status != http.StatusServiceUnavailable {
		t.Errorf("/readyz answers %d, %v", status, err)
	}
}

// testCapabilities shows that the container's only capability is enough for each useful command,
// and is needed.
func (c *cluster) testCapabilities(t *testing.T) {
	text := render(t, "--set", "kubernetes.host="+apiServer)
	c.apply(t, text, "")
	d, _ := daemon(t, text)
	host := t.TempDir()
	b := c.box(t, &d.Spec.Template.Spec, host)
	agentArgs := b.Args
	for _, args := range [][]string{{"preflight"}, {"plan", "--in-cluster", "--node=node1"}, {"takeover", "--from", "kube-proxy"}, {"cleanup"}} {
		b.Root, b.Args = t.TempDir(), args
		if out, err := b.run(t, c.NetNS); err != nil {
			t.Errorf("sluice %s: %v\n%s", strings.Join(args, " "), err, out)
		}
	}
	b.Root, b.Args, b.Capabilities = t.TempDir(), agentArgs, nil
	if out, err := b.run(t, c.NetNS); err == nil || !strings.Contains(out, "CAP_NET_ADMIN") {
		t.Errorf("without capabilities: %v\n%s", err, out)
	}
}

// testTakeOver follows docs/install.md from a real kube-proxy to Sluice, with the container's
// commands.
func (c *cluster) testTakeOver(t *testing.T) {
	text := render(t, "--set", "kubernetes.host="+apiServer, "--set", "clusterCIDRs={10.244.0.0/16}")
	c.apply(t, text, "")
	d, _ := daemon(t, text)
	for _, mode := range []string{"nftables", "iptables"} {
		t.Run(mode, func(t *testing.T) {
			stopProxy := c.startProxy(t, mode)
			host := t.TempDir()
			b := c.box(t, &d.Spec.Template.Spec, host)
			b.start(t, c.NetNS)
			await(t, agent.NewClient(filepath.Join(host, "sluice.sock")), well)
			stopProxy()
			if mode == "iptables" { // in one of them the port is the agent's before
				c.get(t, "http://127.0.0.1:10256/readyz")
			}
			b.Root, b.Args = t.TempDir(), []string{"takeover", "--from", "kube-proxy", "--node=node1"}
			if out, err := b.run(t, c.NetNS); err != nil {
				t.Errorf("sluice takeover: %v\n%s", err, out)
			}
			if rules, err := c.NetNS.Run("nft", "list", "ruleset"); err != nil || ofProxy(rules) {
				t.Errorf("%v, what is left:\n%s", err, rules)
			}
			c.get(t, "http://127.0.0.1:10256/readyz") // the port is the agent's now
		})
	}
}

// ofProxy reports whether kube-proxy's rules serve the service "kubernetes".
func ofProxy(rules []byte) bool {
	return bytes.Contains(rules, []byte("chain KUBE-SVC-")) || bytes.Contains(rules, []byte("default/kubernetes/tcp/https"))
}

// startProxy starts the real kube-proxy, waits until it has programmed something, and returns a
// function that ends it.
func (c *cluster) startProxy(t *testing.T, mode string) (stop func()) {
	t.Helper()
	kubeconfig, err := c.Kubeconfig("system:kube-proxy")
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(filepath.Join(c.Bin, "kube-proxy"), "--kubeconfig", kubeconfig, "--proxy-mode", mode, "--hostname-override", "node1", "--cluster-cidr", "10.244.0.0/16", "--conntrack-max-per-core=0")
	if err := c.NetNS.Start(cmd); err != nil {
		t.Fatal(err)
	}
	stop = sync.OnceFunc(func() {
		_ = cmd.Process.Kill() // it may have ended
		_ = cmd.Wait()         // it was killed
	})
	t.Cleanup(stop)
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	for {
		rules, err := c.NetNS.Run("nft", "list", "ruleset")
		if err == nil && ofProxy(rules) {
			return stop
		}
		select {
		case <-ctx.Done():
			t.Fatalf("kube-proxy does nothing: %v\n%s", err, rules)
		case <-time.After(50 * time.Millisecond):
		}
	}
}

// await waits until the agent's status is as wanted; wrong returns the difference.
func await(t *testing.T, a *agent.Client, wrong func(agent.Status) string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	for {
		s, err := a.Status(ctx)
		why := ""
		if err != nil {
			why = err.Error()
		} else {
			why = wrong(s)
		}
		if why == "" {
			return
		}
		select {
		case <-ctx.Done():
			t.Fatalf("timed out: %s", why)
		case <-time.After(20 * time.Millisecond):
		}
	}
}

// well returns "" for a healthy agent that has read everything and has it in the kernel.
func well(s agent.Status) string {
	switch {
	case !s.Source.Synced:
		return "it has not read the API yet"
	case len(s.Source.Issues) > 0:
		return fmt.Sprintf("it says %+v", s.Source.Issues)
	case len(s.Source.Lacking) > 0:
		return fmt.Sprintf("it lacks %q", s.Source.Lacking)
	case !s.OK:
		return fmt.Sprintf("it has problems: %q, issues: %+v", s.Problems, s.Issues)
	case s.Frontends == 0:
		return "it serves nothing"
	}
	return ""
}

// TestCluster gives a real API server what users give theirs, and runs the agent accordingly.
func TestCluster(t *testing.T) {
	t.Parallel()
	c := startCluster(t)
	t.Run("server takes the manifests", c.testManifests)
	t.Run("install", c.testInstall)
	t.Run("upgrade", c.testUpgrade)
	t.Run("agent", c.testAgent)
	t.Run("faults", c.testFaults)
	t.Run("cni", c.testCNI)
	t.Run("taint", c.testTaint)
	t.Run("fabric", c.testFabric)
	t.Run("kube-proxy's configuration", c.testKubeProxyConfig)
	t.Run("unset", c.testUnset)
	t.Run("privileged", c.testPrivileged)
	t.Run("capabilities", c.testCapabilities)
	t.Run("take over", c.testTakeOver)
	t.Run("remove", c.testRemove)
	t.Run("unit", c.testUnit)
	t.Run("least", c.testLeast)
}

// testManifests has the server accept the manifests of kustomize and the chart, with its own strict
// validation and defaults.
func (c *cluster) testManifests(t *testing.T) {
	for _, text := range []string{
		kustomize(t, "kustomize"),
		render(t, "--set", "kubernetes.host="+apiServer, "--set", "policy=false", "--set", "clusterCIDRs={10.244.0.0/16}", "--set", "log.format=json"),
		render(t, "--set", "kubernetes.host=fd00::10", "--set", "privileged=true", "--set", "metricsAddress=", "--set", "healthzAddress=", "--set", "maxUnavailable=10%"),
		render(t, "--set", "kubeProxy.configMap=kube-proxy", "--set", "podAnnotations.a=b", "--set", "imagePullSecrets[0].name=secret"),
		render(t, "--set", "kubernetes.host="+apiServer+",updateStrategy.type=OnDelete,terminationGracePeriodSeconds=30,notReadyTaint=sluice.dev/agent-not-ready,metricsAddress=:10249",
			"--set", "extraEnv[0].name=A,extraEnv[0].value=b,extraVolumes[0].name=more,extraVolumes[0].hostPath.path=/opt,extraVolumeMounts[0].name=more,extraVolumeMounts[0].mountPath=/opt"),
	} {
		c.apply(t, text, "")
	}
	// The DaemonSet makes a pod: it passes the server's admission, and tolerates that its node is
	// not ready.
	poll(t, func() string {
		pods := c.pods(t)
		scheduled := func(p corev1.Pod) bool { return p.Spec.NodeName == "node1" }
		if len(pods) > 0 && !slices.ContainsFunc(pods, func(p corev1.Pod) bool { return !scheduled(p) }) {
			return ""
		}
		return fmt.Sprintf("%d pods, not all scheduled", len(pods))
	})
	c.kubectl(t, "delete", "--wait", "-k", "kustomize")
}

// testInstall does what users do with Helm.
func (c *cluster) testInstall(t *testing.T) {
	with := func(args ...string) string {
		t.Helper()
		out, err := c.helm(t, append(args, "--kubeconfig", c.Admin(), "--namespace", namespace)...)
		if err != nil {
			t.Fatal(err)
		}
		return out
	}
	out := with("install", "sluice", chart, "--set", "kubernetes.host="+apiServer)
	if !strings.Contains(out, "STATUS: deployed") || !strings.Contains(out, "exec daemonset/sluice -- sluice status") {
		t.Errorf("helm install says\n%s", out)
	}
	with("upgrade", "sluice", chart, "--reuse-values", "--set", "policy=false")
	if out := c.kubectl(t, "get", "clusterrole", "sluice", "-o", "yaml"); strings.Contains(out, "pods") {
		t.Errorf("the role without policy is\n%s", out)
	}
	if out := with("upgrade", "sluice", chart, "--reuse-values", "--set", "remove=cleanup"); !strings.Contains(out, "logs POD -c remove") || strings.Contains(out, "sluice status") {
		t.Errorf("helm upgrade, to remove it, says\n%s", out)
	}
	if out := c.kubectl(t, "get", "-n", namespace, "daemonset/sluice", "-o", "jsonpath={.spec.template.spec.initContainers[*].args}{.spec.template.spec.containers[*].args}"); out != `["cleanup"]["cleanup","--stay"]` {
		t.Errorf("the pods that are to remove it run %s", out)
	}
	with("uninstall", "sluice", "--wait")
	if out := c.kubectl(t, "get", "--ignore-not-found", "-n", namespace, "clusterrole/sluice", "clusterrolebinding/sluice", "serviceaccount/sluice", "daemonset/sluice"); out != "" {
		t.Errorf("helm uninstall leaves\n%s", out)
	}
}

// testAgent runs the agent in a container like the chart's, with the rights that the chart grants.
func (c *cluster) testAgent(t *testing.T) {
	for _, policy := range []string{"true", "false"} {
		t.Run("policy="+policy, func(t *testing.T) {
			text := render(t, "--set", "kubernetes.host="+apiServer, "--set", "policy="+policy,
				"--set", "clusterCIDRs={10.244.0.0/16}", "--set", "serviceCIDRs={10.96.0.0/16}")
			c.apply(t, text, "")
			a := c.run(t, text)
			await(t, a, well)
			_, container := daemon(t, text)
			for _, path := range []string{container.StartupProbe.HTTPGet.Path, container.ReadinessProbe.HTTPGet.Path, container.LivenessProbe.HTTPGet.Path} {
				c.get(t, "http://127.0.0.1:10256"+path)
			}
			// The service "kubernetes" works: the API server answers on its ClusterIP.
			conn, err := c.Dial(t.Context(), "tcp", "10.96.0.1:443")
			if err != nil {
				t.Fatal(err)
			}
			if err := conn.Close(); err != nil {
				t.Error(err)
			}
		})
	}
}

// testFaults shows a fault as an Event and as a condition of the object, with the rights that the
// chart grants for each, and only on request.
func (c *cluster) testFaults(t *testing.T) {
	for _, name := range []string{"first", "second"} {
		c.apply(t, fmt.Sprintf(`{apiVersion: v1, kind: Service, metadata: {name: %s, namespace: default}, spec: {ports: [{port: 80}], externalIPs: [203.0.113.5]}}`, name), "")
		defer c.do(t, http.MethodDelete, "/api/v1/namespaces/default/services/"+name, "", "", nil)
	}
	for _, asked := range [][]string{nil, {"events"}, {"conditions"}} {
		t.Run(strings.Join(asked, " "), func(t *testing.T) {
			c.testFault(t, slices.Contains(asked, "events"), slices.Contains(asked, "conditions"))
		})
	}
}

func (c *cluster) testFault(t *testing.T, events, conditions bool) {
	text := render(t, "--set", "kubernetes.host="+apiServer, "--set", fmt.Sprintf("events.enabled=%v,conditions.enabled=%v", events, conditions))
	c.apply(t, text, "")
	c.awaitMay(t, "create", "events.events.k8s.io", events)
	c.awaitMay(t, "patch", "events.events.k8s.io", events)
	c.awaitMay(t, "patch", "services/status", conditions)
	await(t, c.run(t, text), func(s agent.Status) string {
		if len(s.Issues) == 1 && s.Issues[0].Object.String() == "Service default/second" {
			return ""
		}
		return fmt.Sprintf("it says %+v", s.Issues)
	})
	const says = "belongs to Service default/first"
	if events {
		poll(t, func() string {
			var list corev1.EventList
			c.read(t, "/api/v1/namespaces/default/events?fieldSelector=involvedObject.name=second", &list)
			if slices.ContainsFunc(list.Items, func(e corev1.Event) bool { return strings.Contains(e.Message, says) }) {
				return ""
			}
			return "no Event"
		})
		out := c.kubectl(t, "describe", "service/second", "--namespace", "default")
		if _, list, _ := strings.Cut(out, "Events:"); !strings.Contains(list, says) {
			t.Errorf("kubectl describe shows no Event:\n%s", out)
		}
	}
	if conditions {
		poll(t, func() string {
			var service corev1.Service
			c.read(t, "/api/v1/namespaces/default/services/second", &service)
			is := meta.FindStatusCondition(service.Status.Conditions, "sluice.dev/Accepted")
			if is != nil && is.Status == metav1.ConditionFalse && strings.Contains(is.Message, says) {
				return ""
			}
			return fmt.Sprintf("the conditions are %+v", service.Status.Conditions)
		})
	}
}

// testCNI has the agent install the CNI plugin on the host: the node's taint goes, and the way to
// remove Sluice removes it.
func (c *cluster) testCNI(t *testing.T) {
	taint := func(want bool) {
		t.Helper()
		poll(t, func() string {
			if taints := c.taints(t); slices.Contains(taints, corev1.TaintNodeNetworkUnavailable) != want {
				return fmt.Sprintf("the node has the taints %q", taints)
			}
			return ""
		})
	}
	c.do(t, http.MethodPatch, "/api/v1/nodes/node1/status", strategic, `{"status":{"conditions":[{"type":"NetworkUnavailable","status":"True","reason":"NoNetwork"}]}}`, nil)
	taint(true)
	text := render(t, "--set", "kubernetes.host="+apiServer, "--set", "cni.enabled=true")
	c.apply(t, text, "")
	c.awaitMay(t, "patch", "nodes/status", true)
	d, _ := daemon(t, text)
	host := t.TempDir()
	c.box(t, &d.Spec.Template.Spec, host).start(t, c.NetNS)
	taint(false)
	installed := func(want bool) {
		t.Helper()
		for _, file := range []string{"cni-bin/sluice-cni", "cni-conf/05-sluice.conflist"} {
			if text, err := os.ReadFile(filepath.Join(host, file)); (err == nil) != want || want && strings.HasSuffix(file, "conflist") && !strings.Contains(string(text), "10.244.0.0/24") {
				t.Errorf("%s: %v: %.300s", file, err, text)
			}
		}
	}
	installed(true)
	d, _ = daemon(t, render(t, "--set", "remove=cleanup", "--set", "cni.enabled=true"))
	pod := d.Spec.Template.Spec
	if len(pod.InitContainers) != 2 {
		t.Fatalf("%d containers come first", len(pod.InitContainers))
	}
	pod.Containers = pod.InitContainers[1:]
	if out, err := c.box(t, &pod, host).run(t, c.NetNS); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	installed(false)
}

// taints are the keys of the node's.
func (c *cluster) taints(t *testing.T) (keys []string) {
	t.Helper()
	var n corev1.Node
	c.read(t, "/api/v1/nodes/node1", &n)
	for _, taint := range n.Spec.Taints {
		keys = append(keys, taint.Key)
	}
	return keys
}

// testTaint has the agent take its taint away from the node, with the right that the chart grants:
// once it is ready and not before; other taints stay.
func (c *cluster) testTaint(t *testing.T) {
	const key, other = "sluice.dev/agent-not-ready", "example.com/other"
	c.kubectl(t, "taint", "nodes", "node1", key+"=:NoSchedule", key+"=:NoExecute", other+"=:NoSchedule")
	defer c.kubectl(t, "taint", "nodes", "node1", other+"-")
	text := render(t, "--set", "kubernetes.host="+apiServer, "--set", "notReadyTaint="+key)
	c.apply(t, text, "")
	role := object[rbacv1.ClusterRole](t, text, "ClusterRole sluice")
	poor := role.DeepCopy() // may not read pods: the agent programs services, and is not ready
	poor.Rules = slices.DeleteFunc(poor.Rules, func(r rbacv1.PolicyRule) bool { return slices.Contains(r.Resources, "pods") })
	c.applyRole(t, poor)
	c.awaitMay(t, "list", "pods", false)
	a := c.run(t, text)
	await(t, a, func(s agent.Status) string {
		if s.Frontends > 0 && slices.Contains(s.Source.Unread, "Pod") && s.Uptime.Seconds() > 3 { // it looks every second
			return ""
		}
		return fmt.Sprintf("after %v, it says %+v", s.Uptime, s.Source)
	})
	if got := c.taints(t); !slices.Contains(got, key) {
		t.Errorf("an agent that is not ready left the taints %q", got)
	}
	c.applyRole(t, role)
	poll(t, func() string {
		got := c.taints(t)
		if !slices.Contains(got, key) {
			return ""
		}
		_ = a.Sync(t.Context()) // so that pods are read at once
		return fmt.Sprintf("the node has the taints %q", got)
	})
	await(t, a, well)
	if got := c.taints(t); !slices.Contains(got, other) {
		t.Errorf("the node has the taints %q", got)
	}
}

// testFabric has the agent make tunnels with the rights and the capability that the chart gives.
func (c *cluster) testFabric(t *testing.T) {
	text := render(t, "--set", "kubernetes.host="+apiServer, "--set", "fabric.mode=vxlan")
	c.apply(t, text, "")
	await(t, c.run(t, text), func(s agent.Status) string {
		if len(s.Followers) == 1 && s.Followers[0].Fabric && s.Followers[0].InStep && len(s.Source.Unread) == 0 && s.Source.Synced {
			return ""
		}
		return fmt.Sprintf("it says %+v, %+v", s.Followers, s.Problems)
	})
	c.apply(t, render(t, "--set", "kubernetes.host="+apiServer), "")
}

// proxyConfig writes the content of the ConfigMap that kubeadm makes for kube-proxy.
func (c *cluster) proxyConfig(t *testing.T) (folder string) {
	t.Helper()
	folder = t.TempDir()
	for name, content := range map[string]string{
		"config.conf": `
apiVersion: kubeproxy.config.k8s.io/v1alpha1
kind: KubeProxyConfiguration
bindAddress: 0.0.0.0
clientConnection: {acceptContentTypes: "", burst: 0, contentType: "", kubeconfig: /var/lib/kube-proxy/kubeconfig.conf, qps: 0}
clusterCIDR: 10.244.0.0/16
configSyncPeriod: 0s
conntrack: {maxPerCore: null, min: null, tcpCloseWaitTimeout: null, tcpEstablishedTimeout: null}
healthzBindAddress: ""
metricsBindAddress: 127.0.0.1:9249
mode: ""
nodePortAddresses: null
`,
		"kubeconfig.conf": `
apiVersion: v1
kind: Config
clusters: [{name: default, cluster: {certificate-authority: ` + accountFolder + `/ca.crt, server: ` + c.URL() + `}}]
users: [{name: default, user: {tokenFile: ` + accountFolder + `/token}}]
contexts: [{name: default, context: {cluster: default, namespace: default, user: default}}]
current-context: default
`} {
		if err := os.WriteFile(filepath.Join(folder, name), []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return folder
}

// testKubeProxyConfig keeps the configuration of the earlier kube-proxy.
func (c *cluster) testKubeProxyConfig(t *testing.T) {
	text := render(t, "--set", "kubeProxy.configMap=kube-proxy")
	c.apply(t, text, "")
	await(t, c.run(t, text), well)
	c.get(t, "http://127.0.0.1:10256/healthz")
	c.get(t, "http://127.0.0.1:9249/metrics")
}

// get sends a request like a kubelet's probe to an agent that is well, or soon will be.
func (c *cluster) get(t *testing.T, url string) {
	t.Helper()
	for deadline := time.Now().Add(30 * time.Second); ; time.Sleep(50 * time.Millisecond) {
		status, err := c.ask(url)
		if err == nil && status == http.StatusOK {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("GET %s: %d, %v", url, status, err)
		}
	}
}

func (c *cluster) ask(url string) (status int, err error) {
	client := &http.Client{Timeout: time.Second, Transport: &http.Transport{DialContext: c.Dial, DisableKeepAlives: true}}
	resp, err := client.Get(url)
	if err != nil {
		return 0, err
	}
	return resp.StatusCode, resp.Body.Close()
}

// testPrivileged shows what a container can do if forwarding is off: report it or, if it is
// privileged, turn it on.
func (c *cluster) testPrivileged(t *testing.T) {
	forward := func() string {
		out, err := c.NetNS.Run("cat", "/proc/sys/net/ipv4/ip_forward")
		if err != nil {
			t.Fatal(err)
		}
		return strings.TrimSpace(string(out))
	}
	for privileged, want := range map[string]string{"false": "0", "true": "1"} {
		t.Run("privileged="+privileged, func(t *testing.T) {
			if err := c.NetNS.Sysctl("net.ipv4.ip_forward", "0"); err != nil {
				t.Fatal(err)
			}
			text := render(t, "--set", "kubernetes.host="+apiServer, "--set", "privileged="+privileged)
			c.apply(t, text, "")
			await(t, c.run(t, text), well)
			if got := forward(); got != want {
				t.Errorf("net.ipv4.ip_forward is %s, want %s", got, want)
			}
		})
	}
	if err := c.NetNS.Sysctl("net.ipv4.ip_forward", "1"); err != nil {
		t.Fatal(err)
	}
}

// right is a right that a role grants.
type right struct{ group, resource, verb string }

func (r right) String() string {
	return fmt.Sprintf("%s %s in API group %q", r.verb, r.resource, r.group)
}

func rights(role *rbacv1.ClusterRole) map[right]bool {
	all := map[right]bool{}
	for _, rule := range role.Rules {
		for _, g := range rule.APIGroups {
			for _, resource := range rule.Resources {
				for _, verb := range rule.Verbs {
					all[right{g, resource, verb}] = true
				}
			}
		}
	}
	return all
}

// testLeast removes each right from the agent's role, and checks that the agent reports it missing.
func (c *cluster) testLeast(t *testing.T) {
	text := render(t, "--set", "kubernetes.host="+apiServer)
	role := object[rbacv1.ClusterRole](t, text, "ClusterRole sluice")
	missed := map[right]bool{
		// Only Calico's own API server asks for these, and this cluster has none.
		{"projectcalico.org", "tiers", "get"}:                        true,
		{"projectcalico.org", "tier.networkpolicies", "list"}:        true,
		{"projectcalico.org", "tier.networkpolicies", "watch"}:       true,
		{"projectcalico.org", "tier.globalnetworkpolicies", "list"}:  true,
		{"projectcalico.org", "tier.globalnetworkpolicies", "watch"}: true,
	}
	for _, groups := range [][]string{{"policy.networking.k8s.io", "crd.projectcalico.org"}, {"projectcalico.org"}} {
		t.Run(groups[len(groups)-1], func(t *testing.T) {
			for _, g := range groups { // one of Calico's groups hides the other
				c.serve(t, g)
			}
			c.apply(t, text, "")
			a := c.run(t, text)
			await(t, a, well)
			for _, verb := range []string{"list", "watch"} {
				c.applyRole(t, without(role, verb))
				await(t, a, func(s agent.Status) string {
					for r := range rights(role) {
						if served := slices.Contains(groups, r.group) || !strings.HasSuffix(r.group, "projectcalico.org"); r.verb != verb || !served || missed[r] {
							continue
						}
						if missed[r] = reports(s, r); !missed[r] {
							_ = a.Sync(t.Context()) // so that everything is asked again; the status says what is wrong
							return fmt.Sprintf("without the right to %s, it says %+v", r, s.Source.Issues)
						}
					}
					return ""
				})
				c.applyRole(t, role)
				await(t, a, func(s agent.Status) string {
					_ = a.Sync(t.Context())
					return well(s)
				})
			}
		})
	}
	for r := range rights(role) {
		if !missed[r] {
			t.Errorf("nothing shows that the agent needs the right to %s", r)
		}
	}
}

// without returns a role that lacks a verb.
func without(role *rbacv1.ClusterRole, verb string) *rbacv1.ClusterRole {
	poor := role.DeepCopy()
	for i := range poor.Rules {
		poor.Rules[i].Verbs = slices.DeleteFunc(poor.Rules[i].Verbs, func(v string) bool { return v == verb })
	}
	poor.Rules = slices.DeleteFunc(poor.Rules, func(r rbacv1.PolicyRule) bool { return len(r.Verbs) == 0 })
	return poor
}

// reports reports whether an agent names a missing right, and what to do.
func reports(s agent.Status, r right) bool {
	for _, i := range s.Source.Issues {
		if strings.Contains(i.Reason, fmt.Sprintf("cannot %s resource %q in API group %q", r.verb, r.resource, r.group)) &&
			strings.Contains(i.Reason, "ClusterRole") {
			return true
		}
	}
	return false
}

func (c *cluster) applyRole(t *testing.T, role *rbacv1.ClusterRole) {
	t.Helper()
	data, err := yaml.Marshal(role)
	if err != nil {
		t.Fatal(err)
	}
	c.apply(t, string(data), "")
}

// serve makes the API serve the kinds of a group that not every cluster has.
func (c *cluster) serve(t *testing.T, group string) {
	t.Helper()
	type kind struct{ name, plural, scope string }
	version, kinds := "v1", []kind{
		{"Tier", "tiers", "Cluster"}, {"GlobalNetworkPolicy", "globalnetworkpolicies", "Cluster"}, {"NetworkPolicy", "networkpolicies", "Namespaced"},
		{"GlobalNetworkSet", "globalnetworksets", "Cluster"}, {"NetworkSet", "networksets", "Namespaced"}, {"HostEndpoint", "hostendpoints", "Cluster"},
	}
	switch group {
	case "projectcalico.org":
		version = "v3"
	case "policy.networking.k8s.io":
		version, kinds = "v1beta1", []kind{{"ClusterNetworkPolicy", "clusternetworkpolicies", "Cluster"}}
	}
	var names []string
	var text strings.Builder
	for _, k := range kinds {
		name := k.plural + "." + group
		names = append(names, name)
		fmt.Fprintf(&text, `---
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata:
  name: %s
  annotations: {api-approved.kubernetes.io: "https://github.com/kubernetes-sigs/network-policy-api"}
spec:
  group: %s
  scope: %s
  names: {kind: %s, plural: %s}
  versions:
    - name: %s
      served: true
      storage: true
      schema: {openAPIV3Schema: {type: object, x-kubernetes-preserve-unknown-fields: true}}
`, name, group, k.scope, k.name, k.plural, version)
	}
	c.apply(t, text.String(), "")
	for _, name := range names {
		poll(t, func() string {
			var crd struct {
				Status struct{ Conditions []metav1.Condition }
			}
			c.read(t, "/apis/apiextensions.k8s.io/v1/customresourcedefinitions/"+name, &crd)
			if meta.IsStatusConditionTrue(crd.Status.Conditions, "Established") {
				return ""
			}
			return fmt.Sprintf("%s has the conditions %+v", name, crd.Status.Conditions)
		})
	}
}

// helm runs Helm where it can reach the API server.
func (c *cluster) helm(t *testing.T, args ...string) (out string, err error) {
	t.Helper()
	doErr := c.NetNS.Do(func() error {
		out, err = helm(t, args...)
		return nil
	})
	if doErr != nil {
		t.Fatal(doErr)
	}
	return out, err
}
