package takeover_test

import (
	"bytes"
	"context"
	"fmt"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"sluice.dev/sluice/internal/lab/control"
	"sluice.dev/sluice/internal/lab/control/controltest"
	"sluice.dev/sluice/internal/netns"
)

const (
	nodeName    = "node1"
	clusterCIDR = "10.244.0.0/16,fd00:10:244::/48"
	serviceCIDR = "10.96.0.0/16,fd00:10:96::/112"
)

// cluster is a node, pods on it, a client outside, and the API server.
type cluster struct {
	t                           *testing.T
	bin                         string // folder of Kubernetes' programs
	sluice                      string // the program
	dir                         string
	plane                       *control.Plane
	node, pod, outside, control *netns.NS
	backends                    map[string]*netns.NS // by name
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

func newCluster(t *testing.T, controllers bool) *cluster {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("needs root, to make network namespaces")
	}
	c := &cluster{t: t, dir: t.TempDir(), backends: map[string]*netns.NS{}}
	c.sluice = filepath.Join(c.dir, "sluice")
	if out, err := exec.CommandContext(t.Context(), "go", "build", "-o", c.sluice, "sluice.dev/sluice/cmd/sluice").CombinedOutput(); err != nil {
		t.Fatalf("build sluice: %v\n%s", err, out)
	}
	c.node = c.namespace("node")
	for _, s := range []string{"net.ipv4.ip_forward", "net.ipv6.conf.all.forwarding"} {
		c.must(c.node.Sysctl(s, "1"))
	}
	// kube-proxy refuses by ICMP, of which the kernel sends one client six at once and then one a
	// second: more go unanswered.
	c.must(c.node.Sysctl("net.ipv4.icmp_ratelimit", "0"))
	c.control = c.join("control", controlAddr)
	c.outside = c.join("outside", outsideAddr)
	c.must(c.node.RouteAdd(&netlink.Route{Gw: outsideAddr.AsSlice()}))
	c.must(c.node.RouteAdd(&netlink.Route{Gw: addr6(outsideAddr).AsSlice()}))
	for name, addr := range podAddrs {
		ns := c.join(name, addr)
		if name == "client" {
			c.pod = ns
		} else {
			c.backends[name] = ns
		}
	}
	c.plane = controltest.Start(t, control.Config{
		NetNS: c.control, Addr: controlAddr, Controllers: controllers,
		ClusterCIDRs: prefixes(clusterCIDR), ServiceCIDRs: prefixes(serviceCIDR),
	})
	c.bin = c.plane.Bin
	c.apply(objects)
	c.kubectl("patch", "node", nodeName, "--subresource=status", "-p", fmt.Sprintf(`{"status":{"addresses":[{"type":"InternalIP","address":"%s"},{"type":"InternalIP","address":"%s"}]}}`, nodeAddr, addr6(nodeAddr)))
	c.kubectl("patch", "service", "balanced", "--subresource=status", "-p", `{"status":{"loadBalancer":{"ingress":[{"ip":"203.0.113.20"}]}}}`)
	return c
}

func (c *cluster) must(err error) {
	c.t.Helper()
	if err != nil {
		c.t.Fatal(err)
	}
}

func (c *cluster) namespace(name string) *netns.NS {
	c.t.Helper()
	ns, err := netns.New(fmt.Sprintf("sluice-takeover-%d-%s", os.Getpid(), name))
	c.must(err)
	c.t.Cleanup(func() {
		if err := ns.Delete(); err != nil {
			c.t.Error(err)
		}
	})
	return ns
}

// join makes a namespace with an address, behind the node.
func (c *cluster) join(name string, addr netip.Addr) *netns.NS {
	c.t.Helper()
	ns := c.namespace(name)
	device := "to-" + name
	c.must(netns.Veth(c.node, device, ns, "eth0"))
	router := addr.Prev()
	for _, family := range []func(netip.Addr) netip.Addr{func(a netip.Addr) netip.Addr { return a }, addr6} {
		c.address(c.node, device, family(router))
		c.address(ns, "eth0", family(addr))
		c.must(ns.RouteAdd(&netlink.Route{Gw: family(router).AsSlice()}))
	}
	return ns
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

func (c *cluster) address(ns *netns.NS, device string, addr netip.Addr) {
	c.t.Helper()
	link, err := ns.LinkByName(device)
	c.must(err)
	bits := 24
	if addr.Is6() {
		bits = 64
	}
	c.must(ns.AddrAdd(link, &netlink.Addr{
		IPNet: &net.IPNet{IP: addr.AsSlice(), Mask: net.CIDRMask(bits, addr.BitLen())}, Flags: unix.IFA_F_NODAD,
	}))
}

func (c *cluster) kubectl(args ...string) string {
	c.t.Helper()
	out, err := c.plane.Kubectl(args...)
	if err != nil {
		c.t.Fatalf("kubectl %s: %v\n%s", strings.Join(args, " "), err, out)
	}
	return string(out)
}

func (c *cluster) apply(manifest string) {
	c.t.Helper()
	path := filepath.Join(c.dir, "manifest.yaml")
	c.must(os.WriteFile(path, []byte(manifest), 0o600))
	c.kubectl("apply", "-f", path)
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
	d := c.start(nil, c.sluice, append([]string{"run", "--kubeconfig", c.plane.Admin(), "--node", nodeName, "--policy=false", "--socket", c.socket(),
		"--cluster-cidr", clusterCIDR, "--service-cidr", serviceCIDR, "--metrics-address", "", "--healthz-address", ""}, flags...)...)
	eventually(c.t, "agent", func() string {
		out, err := c.runOnNode(c.sluice, "sync", "--socket", c.socket())
		if err != nil && !strings.Contains(out, "at fault") { // the health check's node port is still kube-proxy's
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
	return c.start(env, filepath.Join(c.bin, "kube-proxy"), "--kubeconfig", c.plane.Admin(), "--proxy-mode", mode, "--hostname-override", nodeName,
		"--cluster-cidr", clusterCIDR, "--conntrack-max-per-core=0", "--conntrack-min=0", "--iptables-min-sync-period=0s", "--v=2")
}

// takeover runs the command; the error is that of its exit status.
func (c *cluster) takeover(args ...string) (string, error) {
	return c.runOnNode(c.sluice, append([]string{"takeover", "--socket", c.socket(), "--node", nodeName}, args...)...)
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
