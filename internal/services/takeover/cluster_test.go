package takeover_test

import (
	"bytes"
	"cmp"
	"context"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"sluice.dev/sluice/test/lab/control"
	"sluice.dev/sluice/test/lab/control/controltest"
	"sluice.dev/sluice/test/machine"
	"sluice.dev/sluice/test/programs"
	"sluice.dev/sluice/test/world"
)

const (
	nodeName    = "node1"
	clusterCIDR = "10.244.0.0/16,fd00:10:244::/48"
	serviceCIDR = "10.96.0.0/16,fd00:10:96::/112"
)

// api is the API server, with its controllers. Whatever nodes there are, all of them are "node1" to
// it, and have what objects says to serve.
type api struct {
	host *world.Host
	*control.Plane
	nodes atomic.Int64
}

// cluster is a node, pods on it, a client outside, and the API server.
type cluster struct {
	t                  *testing.T
	sluice             string // the program
	dir                string
	api                *api
	link               netip.Addr // the node's, towards the API server
	node, pod, outside *world.Host
	backends           map[string]*world.Host // by name
}

// The addresses of the cluster. The node is .1 of each network.
var (
	controlAddr = netip.MustParseAddr("172.31.10.2")
	nodeAddr    = netip.MustParseAddr("172.31.11.1") // towards the outside
	outsideAddr = netip.MustParseAddr("172.31.11.2")
	podAddrs    = map[string]netip.Addr{
		"one": netip.MustParseAddr("10.244.1.2"), "two": netip.MustParseAddr("10.244.2.2"), "client": netip.MustParseAddr("10.244.3.2"),
	}
)

// newAPI starts it, for all clusters of a test.
func newAPI(t *testing.T) *api {
	t.Helper()
	a := &api{host: world.NewHost(t, "control")}
	machine.ControlPlane.Take(t)
	a.host.Address("lo", controlAddr.String()+"/32")
	a.Plane = controltest.Start(t, control.Config{
		NetNS: a.host.NS, Addr: controlAddr, Controllers: true,
		ClusterCIDRs: prefixes(clusterCIDR), ServiceCIDRs: prefixes(serviceCIDR),
	})
	a.apply(t, objects)
	a.kubectl(t, "patch", "node", nodeName, "--subresource=status", "-p", fmt.Sprintf(`{"status":{"addresses":[{"type":"InternalIP","address":"%s"},{"type":"InternalIP","address":"%s"}]}}`, nodeAddr, addr6(nodeAddr)))
	a.kubectl(t, "patch", "service", "balanced", "--subresource=status", "-p", `{"status":{"loadBalancer":{"ingress":[{"ip":"203.0.113.20"}]}}}`)
	return a
}

// newCluster makes one whose node is joined with the API server.
func newCluster(t *testing.T, a *api) *cluster {
	t.Helper()
	c := &cluster{t: t, sluice: programs.Path(t, "sluice"), dir: t.TempDir(), api: a, backends: map[string]*world.Host{}}
	c.node = world.NewHost(t, "node")
	c.node.Forward()
	// kube-proxy refuses by ICMP, of which the kernel sends one client six at once and then one a
	// second: more go unanswered.
	c.node.Set("net.ipv4.icmp_ratelimit", "0")
	n := a.nodes.Add(1)
	c.link = netip.AddrFrom4([4]byte{172, 31, byte(64 + n), 1})
	c.joinTo(a.host, fmt.Sprint("node", n), "to-control", c.link.Next())
	c.node.Route(controlAddr.String()+"/32", c.link.Next().String())
	c.outside = c.join("outside", outsideAddr)
	c.node.Gateway(outsideAddr.String(), addr6(outsideAddr).String())
	for name, addr := range podAddrs {
		host := c.join(name, addr)
		if name == "client" {
			c.pod = host
		} else {
			c.backends[name] = host
		}
	}
	return c
}

// join makes a host with an address, behind the node.
func (c *cluster) join(name string, addr netip.Addr) *world.Host {
	c.t.Helper()
	host := world.NewHost(c.t, name)
	c.joinTo(host, "eth0", "to-"+name, addr)
	host.Gateway(addr.Prev().String(), addr6(addr.Prev()).String())
	return host
}

// joinTo joins the node with a host, which gets an address; the node's is the one before.
func (c *cluster) joinTo(host *world.Host, hostDevice, device string, addr netip.Addr) {
	c.t.Helper()
	c.node.Join(device, host, hostDevice)
	c.node.Address(device, networks(addr.Prev())...)
	host.Address(hostDevice, networks(addr)...)
}

// networks are an IPv4 address and the one of IPv6 that goes with it, with their networks.
func networks(addr netip.Addr) []string {
	return []string{addr.String() + "/24", addr6(addr).String() + "/64"}
}

// addr6 is the IPv6 address that goes with an IPv4 address: fd00:10:244:1::2 with 10.244.1.2.
func addr6(a netip.Addr) netip.Addr {
	b := a.As4()
	return netip.MustParseAddr(fmt.Sprintf("fd00:%d:%d:%d::%d", b[0], b[1], b[2], b[3]))
}

func prefixes(list string) []netip.Prefix {
	var all []netip.Prefix
	for s := range strings.SplitSeq(list, ",") {
		all = append(all, netip.MustParsePrefix(s))
	}
	return all
}

func (c *cluster) must(err error) {
	c.t.Helper()
	if err != nil {
		c.t.Fatal(err)
	}
}

func (a *api) kubectl(t *testing.T, args ...string) string {
	t.Helper()
	out, err := a.Kubectl(args...)
	if err != nil {
		t.Fatalf("kubectl %s: %v\n%s", strings.Join(args, " "), err, out)
	}
	return string(out)
}

func (a *api) apply(t *testing.T, manifest string) {
	t.Helper()
	path := filepath.Join(t.TempDir(), "manifest.yaml")
	if err := os.WriteFile(path, []byte(manifest), 0o600); err != nil {
		t.Fatal(err)
	}
	a.kubectl(t, "apply", "--server-side", "--force-conflicts", "-f", path)
}

// daemon is a program that runs in the node's namespace.
type daemon struct {
	cmd *exec.Cmd
	log *os.File
}

// start runs a program in the node's namespace until it is stopped.
func (c *cluster) start(env []string, path string, args ...string) *daemon {
	c.t.Helper()
	log, err := os.CreateTemp(c.dir, filepath.Base(path)+"-*.log")
	c.must(err)
	d := &daemon{exec.Command(path, args...), log}
	d.cmd.Env = append(os.Environ(), env...)
	d.cmd.Stdout, d.cmd.Stderr = log, log
	c.must(c.node.Start(d.cmd))
	c.t.Cleanup(func() {
		d.stop()
		if c.t.Failed() {
			b, _ := os.ReadFile(log.Name())
			c.t.Logf("%s:\n%s", filepath.Base(path), b[max(0, len(b)-3000):])
		}
		_ = log.Close()
	})
	return d
}

// stop ends the program and waits for it.
func (d *daemon) stop() {
	if d.cmd.ProcessState != nil {
		return
	}
	_ = d.cmd.Process.Signal(syscall.SIGTERM)
	force := time.AfterFunc(5*time.Second, func() { _ = d.cmd.Process.Kill() })
	defer force.Stop()
	_ = d.cmd.Wait()
}

// runOnNode runs a command in the node's namespace to its end.
func (c *cluster) runOnNode(name string, args ...string) (string, error) {
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, name, args...)
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	if err := c.node.Start(cmd); err != nil {
		return "", err
	}
	err := cmd.Wait()
	return out.String(), err
}

// onNode is runOnNode for what must succeed.
func (c *cluster) onNode(name string, args ...string) string {
	c.t.Helper()
	out, err := c.runOnNode(name, args...)
	if err != nil {
		c.t.Fatalf("%s %s: %v\n%s", name, strings.Join(args, " "), err, out)
	}
	return out
}

// eventually waits until f returns "".
func eventually(t *testing.T, what string, f func() string) {
	t.Helper()
	end := time.Now().Add(30 * time.Second)
	for {
		why := f()
		if why == "" {
			return
		}
		if time.Now().After(end) {
			t.Fatalf("%s: not within 30 s: %s", what, why)
		}
		time.Sleep(50 * time.Millisecond)
	}
}

func (c *cluster) socket() string { return filepath.Join(c.dir, "agent.sock") }

// startAgent starts the agent beside whatever runs, with further flags, and waits until it has
// programmed everything.
func (c *cluster) startAgent(flags ...string) *daemon {
	c.t.Helper()
	d := c.start(nil, c.sluice, append([]string{"run", "--kubeconfig", c.api.Admin(), "--node", nodeName, "--policy=false", "--socket", c.socket(),
		"--cluster-cidr", clusterCIDR, "--service-cidr", serviceCIDR, "--metrics-address", "", "--healthz-address", ""}, flags...)...)
	eventually(c.t, "agent", func() string {
		out, err := c.runOnNode(c.sluice, "sync", "--socket", c.socket())
		if err != nil {
			return out
		}
		return ""
	})
	return d
}

// startProxy starts kube-proxy with the iptables of a back end ("legacy", "nft", or "" where the
// mode has no use for it).
func (c *cluster) startProxy(mode, backend string) *daemon {
	c.t.Helper()
	var env []string
	if backend != "" {
		dir := filepath.Join(c.dir, "iptables-"+backend)
		c.must(os.MkdirAll(dir, 0o755))
		for _, name := range []string{"iptables", "iptables-save", "iptables-restore", "ip6tables", "ip6tables-save", "ip6tables-restore"} {
			if err := os.Symlink("/usr/sbin/xtables-"+backend+"-multi", filepath.Join(dir, name)); err != nil && !os.IsExist(err) {
				c.t.Fatal(err)
			}
		}
		env = []string{"PATH=" + dir + ":/usr/sbin:/usr/bin:/sbin:/bin"}
	}
	return c.start(env, filepath.Join(c.api.Bin, "kube-proxy"), "--kubeconfig", c.api.Admin(), "--proxy-mode", mode, "--hostname-override", nodeName,
		"--cluster-cidr", clusterCIDR, "--conntrack-max-per-core=0", "--conntrack-min=0", "--iptables-min-sync-period=0s", "--v=2")
}

// takeover runs the command; the error is that of its exit status.
func (c *cluster) takeover(args ...string) (string, error) {
	return c.runOnNode(c.sluice, append([]string{"takeover", "--socket", c.socket(), "--node", nodeName}, args...)...)
}

// giveUp is the argument by which the command that printed out goes on.
func giveUp(out string) string {
	_, list, _ := strings.Cut(out, "of the node: --give-up ")
	list, _, _ = strings.Cut(list, "\n")
	return "--give-up=" + cmp.Or(list, "127.0.0.0/8")
}

// objects are the cluster's: a service of every kind, on two pods.
const objects = `
apiVersion: v1
kind: Node
metadata: {name: node1}
---
apiVersion: v1
kind: Service
metadata: {name: web}
spec:
  type: NodePort
  clusterIP: 10.96.1.1
  externalIPs: [203.0.113.10]
  ports: [{name: tcp, port: 80, targetPort: 8080, nodePort: 30080}, {name: udp, port: 53, protocol: UDP, targetPort: 8053, nodePort: 30053}]
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: web-1, labels: {kubernetes.io/service-name: web}}
addressType: IPv4
ports: [{name: tcp, port: 8080, protocol: TCP}, {name: udp, port: 8053, protocol: UDP}]
endpoints: [{addresses: [10.244.1.2], nodeName: node1}, {addresses: [10.244.2.2], nodeName: node1}]
---
apiVersion: v1
kind: Service
metadata: {name: balanced}
spec:
  type: LoadBalancer
  clusterIP: 10.96.1.2
  externalTrafficPolicy: Local
  healthCheckNodePort: 30999
  loadBalancerSourceRanges: [172.31.0.0/16, 10.244.0.0/16]
  ports: [{name: tcp, port: 80, targetPort: 8080, nodePort: 30081}]
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: balanced-1, labels: {kubernetes.io/service-name: balanced}}
addressType: IPv4
ports: [{name: tcp, port: 8080, protocol: TCP}]
endpoints: [{addresses: [10.244.1.2], nodeName: node1}, {addresses: [10.244.2.2], nodeName: node1}]
---
apiVersion: v1
kind: Service
metadata: {name: sticky}
spec:
  clusterIP: 10.96.1.3
  sessionAffinity: ClientIP
  ports: [{name: tcp, port: 80, targetPort: 8080}]
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: sticky-1, labels: {kubernetes.io/service-name: sticky}}
addressType: IPv4
ports: [{name: tcp, port: 8080, protocol: TCP}]
endpoints: [{addresses: [10.244.1.2], nodeName: node1}, {addresses: [10.244.2.2], nodeName: node1}]
---
apiVersion: v1
kind: Service
metadata: {name: empty}
spec:
  type: NodePort
  clusterIP: 10.96.1.4
  ports: [{name: tcp, port: 80, targetPort: 8080, nodePort: 30084}]
---
apiVersion: v1
kind: Service
metadata: {name: six}
spec:
  type: NodePort
  ipFamilies: [IPv6]
  clusterIP: "fd00:10:96::101"
  ports: [{name: tcp, port: 80, targetPort: 8080, nodePort: 30086}, {name: udp, port: 53, protocol: UDP, targetPort: 8053, nodePort: 30056}]
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: six-1, labels: {kubernetes.io/service-name: six}}
addressType: IPv6
ports: [{name: tcp, port: 8080, protocol: TCP}, {name: udp, port: 8053, protocol: UDP}]
endpoints: [{addresses: ["fd00:10:244:1::2"], nodeName: node1}, {addresses: ["fd00:10:244:2::2"], nodeName: node1}]
`
