package lab

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"time"

	rbacv1 "k8s.io/api/rbac/v1"
	"sigs.k8s.io/yaml"

	"sluice.dev/sluice/deploy"
	"sluice.dev/sluice/internal/model"
	"sluice.dev/sluice/internal/source/kinds"
	"sluice.dev/sluice/test/lab/control"
	"sluice.dev/sluice/test/lab/plan"
	"sluice.dev/sluice/test/netns"
)

// Kubernetes makes a lab run a real control plane, on the host plan.Control, and what its API
// contains: each node runs the real kubelet and containerd, and pods are containers.
type Kubernetes struct {
	Bin string // the folder of the programs, as from control.Build
	// Kube-proxy's mode, if kube-proxy is to serve services instead of the agent: "nftables" or
	// "iptables".
	Proxy string `json:",omitempty"`

	// CRDs is a folder of CustomResourceDefinitions to apply to the API first; "" for none.
	CRDs string `json:"-"`

	// Files and folders to apply to the API once the nodes are ready, after the namespaces of
	// Config.Objects.
	Manifests []string `json:"-"`

	// Containerd is the folder of the nodes' containerd; "": that of PATH.
	Containerd string `json:",omitempty"`
	// Images is an archive of images that the nodes have from the start, as from image.Build.
	Images string
	// Load are further archives, whose images nodes pull when a pod wants them.
	Load []string `json:"-"`
	// AgentImage is the image from which the agents run as a DaemonSet of the lab's cluster: one of
	// Load, or AgentImage for one of the lab's own programs. "": they are processes beside the
	// nodes.
	AgentImage string `json:",omitempty"`
	// Helm is the program that installs the agents, with the chart. "": kubectl does, with
	// kustomize.
	Helm string `json:",omitempty"`
	// NoBalancer: the lab gives Services no addresses, as a program in the cluster does.
	NoBalancer bool `json:",omitempty"`

	// Tested has the cluster be as Kubernetes' own tests look for it: nodes run commands by SSH,
	// for who has SSHKey, and the agents' pods have the label of kube-proxy's.
	Tested bool `json:",omitempty"`

	HostAddr netip.AddrPort // the API's address on the machine's own network; set by Up
	Disk     string         `json:",omitempty"` // what the disks of nodes begin with; set by Up
}

// These are the users for whom the lab makes kubeconfigs, beside its nodes.
const (
	agentUser = "sluice"
	labUser   = "lab"               // the lab's own processes
	proxyUser = "system:kube-proxy" // the API server grants its rights
	masters   = "system:masters"
)

// buildKubernetes starts the control plane, and on each node a kubelet and the service proxy.
func (l *Lab) buildKubernetes(ctx context.Context, exe string) error {
	l.report("starting the control plane")
	if err := l.startPlane(ctx); err != nil {
		return err
	}
	if err := l.defineResources(); err != nil {
		return err
	}
	if err := l.applyFabric(); err != nil {
		return err
	}
	release, err := l.prepareNodes(ctx, exe)
	if err != nil {
		return err
	}
	defer func() { _ = release() }() // which only read
	if err := l.serveImages(ctx, exe); err != nil {
		return err
	}
	l.report("starting %s", model.Count(len(l.Cluster.Nodes), "kubelet"))
	for i := range l.Cluster.Nodes {
		if err := l.startMachine(&l.Cluster.Nodes[i], exe); err != nil {
			return err
		}
	}
	if err := l.save(); err != nil { // the balancer opens the lab
		return err
	}
	if err := l.startBalancer(exe); err != nil {
		return err
	}
	if err := l.startRelay(exe); err != nil {
		return err
	}
	if l.installed() {
		l.report("installing the agents")
		if err := l.install(ctx); err != nil {
			return err
		}
	}
	served := l.agent != nil || l.Kubernetes.Proxy != ""
	if served {
		if err := l.installDNS(); err != nil {
			return err
		}
	}
	if err := l.awaitNodes(); err != nil {
		return err
	}
	for i := range l.Cluster.Nodes {
		if err := l.StartProxy(l.Cluster.Nodes[i].Name); err != nil {
			return err
		}
	}
	if err := l.applyAll(); err != nil {
		return err
	}
	if err := l.Settle(ctx); err != nil || served {
		return err
	}
	return l.installDNS() // it gets ready once somebody serves the API's address
}

// defineResources applies the CustomResourceDefinitions, and waits until the API serves them.
func (l *Lab) defineResources() error {
	if l.Kubernetes.CRDs == "" {
		return nil
	}
	return l.Plane(func(p *control.Plane) error {
		for _, args := range [][]string{{"apply", "--server-side"}, {"wait", "--for=condition=Established", "--timeout=" + settleTimeout.String()}} {
			if out, err := p.Kubectl(append(args, "-f", l.Kubernetes.CRDs)...); err != nil {
				return fmt.Errorf("define the kinds of --crds: %w: %s", err, out)
			}
		}
		return nil
	})
}

// applyFabric applies the objects of the pod network's mode.
func (l *Lab) applyFabric() error {
	files := map[string]any{}
	for _, o := range l.Cluster.Fabric.Objects() {
		files[o.Kind+"."+o.Name+".json"] = o.Object
	}
	if len(files) == 0 {
		return nil
	}
	dir := l.path("fabric")
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return fmt.Errorf("create folder: %w", err)
	}
	if err := l.writeFolder(dir, files); err != nil {
		return err
	}
	return l.Apply(dir)
}

// nodesTimeout is the time-out for kubelets to come up: on a busy machine they take a minute.
const nodesTimeout = 3 * time.Minute

// awaitNodes waits until the kubelets have said what their nodes have. A kubelet refuses pods that
// name its node before that, and kube-proxy ends when its node's addresses change.
func (l *Lab) awaitNodes() error {
	return l.Plane(func(p *control.Plane) error {
		if out, err := p.Kubectl("wait", "nodes", "--all", "--for=jsonpath={.status.allocatable.pods}", "--timeout="+nodesTimeout.String()); err != nil {
			return fmt.Errorf("wait for the nodes: %w: %s", err, out)
		}
		return nil
	})
}

// applyAll applies the lab's first objects to the API.
func (l *Lab) applyAll() error {
	if len(l.Kubernetes.Manifests) == 0 {
		return nil
	}
	l.report("applying the manifests")
	files := map[string]any{}
	for _, ns := range l.namespaces {
		files[ns.Name+".json"] = ns
	}
	dir := l.path("namespaces")
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return fmt.Errorf("create folder: %w", err)
	}
	if err := l.writeFolder(dir, files); err != nil {
		return err
	}
	return l.Apply(append([]string{dir}, l.Kubernetes.Manifests...)...)
}

func (l *Lab) planeConfig(ns *netns.NS) control.Config {
	return control.Config{
		Bin: l.Kubernetes.Bin, Dir: l.path(plan.Control), NetNS: ns, Addr: plan.ControlIPs[0],
		ClusterCIDRs: plan.ClusterCIDRs, ServiceCIDRs: plan.ServiceCIDRs, Controllers: true, RBAC: true,
	}
}

func (l *Lab) startPlane(ctx context.Context) error {
	ns, err := netns.Open(l.NodeNS(plan.Control))
	if err != nil {
		return err
	}
	defer ns.Close()
	p, err := control.Start(ctx, l.planeConfig(ns))
	if err != nil {
		return err
	}
	for user, groups := range map[string][]string{agentUser: nil, labUser: {masters}, proxyUser: nil} {
		if _, err := p.Kubeconfig(user, groups...); err != nil {
			return err
		}
	}
	return l.authorize(p)
}

// authorize gives the agents exactly the rights that an installation gives them, with the pod
// network and BGP.
func (l *Lab) authorize(p *control.Plane) error {
	for doc := range bytes.SplitSeq(deploy.Manifests, []byte("\n---\n")) {
		var role rbacv1.ClusterRole
		if err := yaml.Unmarshal(doc, &role); err != nil {
			return fmt.Errorf("read the agent's role: %w", err)
		}
		if role.Kind != "ClusterRole" {
			continue
		}
		role.Rules = append(role.Rules, fabricRules()...)
		role.Name = "sluice-lab" // it must not be in the way of an installation in the lab
		data, err := json.Marshal(role)
		if err != nil {
			return fmt.Errorf("write the agent's role: %w", err)
		}
		path := l.path(plan.Control, "role.json")
		if err := l.write(path, data); err != nil {
			return err
		}
		for _, args := range [][]string{
			{"create", "-f", path},
			{"create", "clusterrolebinding", role.Name, "--clusterrole=" + role.Name, "--user=" + agentUser},
		} {
			if out, err := p.Kubectl(args...); err != nil {
				return fmt.Errorf("authorize agents: %w: %s", err, out)
			}
		}
		return nil
	}
	return errors.New("authorize agents: there is no ClusterRole among what installs them")
}

// fabricRules let the agents read the objects of the pod network.
func fabricRules() (rules []rbacv1.PolicyRule) {
	for _, k := range kinds.All {
		for _, at := range k.Places {
			if k.ForFabric || k.ForBGP {
				rules = append(rules, rbacv1.PolicyRule{APIGroups: []string{at.Group}, Resources: []string{at.Plural}, Verbs: []string{"list", "watch"}})
			}
		}
	}
	return rules
}

// Plane calls f with the lab's control plane, or returns an error if there is none.
func (l *Lab) Plane(f func(*control.Plane) error) error {
	if l.Kubernetes == nil {
		return fmt.Errorf("lab %s has no control plane; 'sluice lab up --kubernetes' starts one that has", l.Name)
	}
	ns, err := netns.Open(l.NodeNS(plan.Control))
	if err != nil {
		return err
	}
	defer ns.Close()
	return f(control.Open(l.planeConfig(ns)))
}

func (l *Lab) userConfig(user string) string {
	return l.path(plan.Control, strings.ReplaceAll(user, ":", "-")+".kubeconfig")
}

// selfCommand returns the beginning of a command line of this program itself.
func selfCommand(exe, part string) []string { return []string{exe, "lab", part} }

// startBalancer starts the load balancer for LoadBalancer services on the outside host, whose
// routes it sets. Agents that give Services addresses, or another program, are in its place.
func (l *Lab) startBalancer(exe string) error {
	if l.givesAddresses() || l.Kubernetes.NoBalancer {
		return nil
	}
	return l.start(plan.Outside, "balancer", append(selfCommand(exe, "balancer"), "--lab", l.Name, "--kubeconfig", l.userConfig(labUser)))
}

// startRelay makes the API reachable on the machine's own network, at a loopback address. The relay
// inherits a socket that listens there, and runs in the lab.
func (l *Lab) startRelay(exe string) error {
	listener, err := net.ListenTCP("tcp", net.TCPAddrFromAddrPort(netip.AddrPortFrom(netip.AddrFrom4([4]byte{127, 0, 0, 1}), 0)))
	if err != nil {
		return fmt.Errorf("listen for kubectl: %w", err)
	}
	defer func() { _ = listener.Close() }() // the relay has its own descriptor
	f, err := listener.File()
	if err != nil {
		return fmt.Errorf("listen for kubectl: %w", err)
	}
	defer f.Close()
	l.Kubernetes.HostAddr = listener.Addr().(*net.TCPAddr).AddrPort()
	inside := netip.AddrPortFrom(plan.ControlIPs[0], control.Port)
	if err := l.start(plan.Control, "relay", append(selfCommand(exe, "relay"), "--to", inside.String()), f); err != nil {
		return err
	}
	admin, err := os.ReadFile(l.userConfig("admin"))
	if err != nil {
		return fmt.Errorf("write kubeconfig: %w", err)
	}
	text := strings.ReplaceAll(string(admin), "https://"+inside.String(), "https://"+l.Kubernetes.HostAddr.String())
	if err := os.WriteFile(l.HostKubeconfig(), []byte(text), 0o600); err != nil {
		return fmt.Errorf("write kubeconfig: %w", err)
	}
	return nil
}

// HostKubeconfig is the path of the administrator's kubeconfig for the machine's own network.
func (l *Lab) HostKubeconfig() string { return l.path("kubeconfig") }

// StartProxy starts the service proxy of a node: the agent, or kube-proxy, or nothing in a lab
// without either.
func (l *Lab) StartProxy(node string) error {
	n := l.Cluster.Node(node)
	if l.Kubernetes == nil || l.Kubernetes.Proxy == "" {
		if l.agent == nil || l.installed() {
			return nil
		}
		return l.startAgent(n)
	}
	return l.startKubeProxy(n)
}

func (l *Lab) startKubeProxy(n *plan.Node) error {
	config := l.path(n.Name, kubeProxy+".yaml")
	text := fmt.Sprintf(proxyConfig, l.Kubernetes.Proxy, n.Name, l.userConfig(proxyUser), model.Join(plan.ClusterCIDRs, ","))
	if err := os.MkdirAll(filepath.Dir(config), 0o755); err != nil {
		return fmt.Errorf("configure kube-proxy: %w", err)
	}
	if err := l.write(config, []byte(text)); err != nil {
		return err
	}
	return l.start(n.Name, kubeProxy, []string{filepath.Join(l.Kubernetes.Bin, kubeProxy), "--config", config})
}

// proxyConfig lets kube-proxy follow changes at once (by default it waits for a second), and leaves
// alone what cannot be set in a namespace.
const proxyConfig = `apiVersion: kubeproxy.config.k8s.io/v1alpha1
kind: KubeProxyConfiguration
mode: %s
hostnameOverride: %s
clientConnection: {kubeconfig: %q}
clusterCIDR: %s
conntrack: {maxPerCore: 0, min: 0}
iptables: {minSyncPeriod: 10ms}
nftables: {minSyncPeriod: 10ms}
`

const kubeProxy = "kube-proxy"

// Restart restarts a host in a lab with a control plane: it switches a node off and on, with the
// service proxy beside it; elsewhere, it starts the processes that have died.
func (l *Lab) Restart(ctx context.Context, host, exe string) error {
	dead := func(what string) bool { p := l.process(host, what); return p.PID != 0 && !p.Alive() }
	switch {
	case l.Kubernetes == nil:
		return fmt.Errorf("restart %s: lab %s has no control plane and no kubelets; for the agent of a node, for example: sluice lab restart node1 --agent-only", host, l.Name)
	case host == plan.Outside && dead("balancer"):
		return l.startBalancer(exe)
	case host == plan.Outside:
		return nil
	case host == plan.Control:
		return l.restartControl(ctx, exe, dead)
	}
	n := l.Cluster.Node(host)
	if n == nil {
		return fmt.Errorf("restart %s: lab %s has no node of that name; choose from %s, %s, %s", host, l.Name, l.nodeNames(), plan.Control, plan.Outside)
	}
	err := errors.Join(l.stopMachine(host), l.KillProxy(host))
	if err == nil {
		err = l.joinNode(ctx, n)
	}
	if err != nil {
		return err
	}
	if err := l.startMachine(n, exe); err != nil {
		return err
	}
	return l.StartProxy(host)
}

// restartControl restarts the dead processes of the control host. A new relay listens on another
// port.
func (l *Lab) restartControl(ctx context.Context, exe string, dead func(string) bool) error {
	err := l.Plane(func(p *control.Plane) error {
		for _, c := range control.Components {
			if dead(c) {
				if err := p.Restart(ctx, c); err != nil {
					return err
				}
			}
		}
		return nil
	})
	if err == nil && dead(imagesName) {
		err = l.startImages(exe)
	}
	if err != nil || !dead("relay") {
		return err
	}
	if err := l.startRelay(exe); err != nil {
		return err
	}
	return l.save()
}

// KillProxy kills the service proxy of a node, as a crash would. StartProxy starts it again.
func (l *Lab) KillProxy(node string) error {
	return errors.Join(l.KillAgent(node), l.KillKubeProxy(node))
}

// settleTimeout is the time-out for pods to become ready.
const settleTimeout = time.Minute

// progressInterval is the time between two messages while waiting.
const progressInterval = 10 * time.Second

// Settle returns once all nodes and pods are ready, terminating pods are gone, and all agents have
// programmed what the API contains. Pods that are not ready within a minute become warnings.
func (l *Lab) Settle(ctx context.Context) error {
	deadline, reported := time.Now().Add(settleTimeout), time.Now()
	for {
		if err := l.died(); err != nil {
			return err
		}
		var waiting []string
		err := l.Plane(func(p *control.Plane) (err error) { waiting, err = l.survey(ctx, p); return err })
		if err != nil {
			return fmt.Errorf("look at lab %s: %w", l.Name, err)
		}
		if len(waiting) == 0 {
			break
		}
		if time.Now().After(deadline) {
			l.warn("not ready: %s", strings.Join(waiting, ", "))
			break
		}
		if time.Since(reported) > progressInterval {
			l.report("waiting for %s", strings.Join(waiting, ", "))
			reported = time.Now()
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("wait until %s are ready: %w", strings.Join(waiting, ", "), ctx.Err())
		case <-time.After(50 * time.Millisecond):
		}
	}
	if err := l.refresh(ctx); err != nil { // where the pods are
		return err
	}
	settled := l.Sync
	if l.Kubernetes.Proxy != "" {
		settled = l.awaitProxies
	}
	if err := settled(ctx); err != nil {
		return err
	}
	return l.save()
}

// awaitProxies waits until each kube-proxy reports that it has programmed its node. kube-proxy does
// not say whether that covers everything in the API now.
func (l *Lab) awaitProxies(ctx context.Context) error {
	ctx, cancel := within(ctx, syncTimeout)
	defer cancel()
	for _, n := range l.Cluster.Nodes {
		if err := l.awaitPage(ctx, n.Name, kubeProxy, proxyHealth); err != nil {
			return err
		}
	}
	return nil
}

// awaitPage waits until a program of a host answers there with status 200.
func (l *Lab) awaitPage(ctx context.Context, host, what, url string) error {
	ns, err := netns.Open(l.NodeNS(host))
	if err != nil {
		return err
	}
	client := http.Client{Timeout: time.Second, Transport: &http.Transport{DisableKeepAlives: true,
		DialContext: func(ctx context.Context, network, address string) (conn net.Conn, err error) {
			err = ns.Do(func() error { conn, err = new(net.Dialer).DialContext(ctx, network, address); return err })
			return conn, err
		}}}
	err = l.await(ctx, host, what, func() (bool, error) {
		resp, err := client.Get(url)
		if err != nil {
			return false, err
		}
		return resp.StatusCode == http.StatusOK, resp.Body.Close()
	})
	return firstError(err, ns.Close())
}

// proxyHealth answers with status 200 once kube-proxy has programmed its node.
const proxyHealth = "http://127.0.0.1:10256/healthz"

// Apply applies manifests, files or folders, to the API like `kubectl apply`. Refused objects
// become warnings.
func (l *Lab) Apply(paths ...string) error {
	return l.Plane(func(p *control.Plane) error {
		for _, path := range paths {
			abs, err := filepath.Abs(path)
			if err != nil {
				return fmt.Errorf("apply %s: %w", path, err)
			}
			if out, err := p.Kubectl("apply", "--server-side", "-f", abs); err != nil {
				l.warn("kubectl apply -f %s: %s", path, lastLines(string(out), err))
			}
		}
		return nil
	})
}

// lastLines returns kubectl's complaints.
func lastLines(out string, err error) string {
	var bad []string
	for line := range strings.Lines(out) {
		if line = strings.TrimSpace(line); line != "" && !strings.HasSuffix(line, " serverside-applied") {
			bad = append(bad, line)
		}
	}
	if len(bad) == 0 {
		return err.Error()
	}
	return strings.Join(bad, "; ")
}
