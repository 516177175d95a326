package main

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/containernetworking/cni/libcni"

	"sluice.dev/sluice/internal/cli"
	"sluice.dev/sluice/internal/pods/attach"
	"sluice.dev/sluice/internal/pods/cni/install"
	"sluice.dev/sluice/test/netns"
	"sluice.dev/sluice/test/programs"
	"sluice.dev/sluice/test/world"
)

// cniNode has pods that nobody has given an address yet: those of shut may talk to nobody, and one
// of shop to whom a policy allows.
const cniNode = `
apiVersion: v1
kind: Node
metadata: {name: node-a}
spec: {podCIDRs: [10.244.1.0/24]}
status: {addresses: [{type: InternalIP, address: 192.0.2.1}]}
---
apiVersion: v1
kind: Pod
metadata: {name: target, namespace: shop, labels: {app: target}}
spec: {nodeName: node-a}
status: {phase: Pending}
---
apiVersion: v1
kind: Pod
metadata: {name: open, namespace: shop, labels: {app: open}}
spec: {nodeName: node-a}
status: {phase: Pending}
---
apiVersion: v1
kind: Pod
metadata: {name: shut, namespace: shut}
spec: {nodeName: node-a}
status: {phase: Pending}
---
apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata: {name: target, namespace: shop}
spec: {podSelector: {matchLabels: {app: open}}, policyTypes: [Egress], egress: [{to: [{podSelector: {matchLabels: {app: target}}}]}]}
`

const denyAll = `
apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata: {name: nobody, namespace: shut}
spec: {podSelector: {}, policyTypes: [Ingress, Egress]}
`

// plugin is a node with sluice-cni and an agent's socket.
type plugin struct {
	*testing.T
	node             *netns.NS
	dir, socket      string
	timeout, program string
}

func newPlugin(t *testing.T) *plugin {
	t.Helper()
	p := &plugin{T: t, node: nodeNS(t), dir: t.TempDir(), timeout: "20s", program: programs.Path(t, "sluice-cni")}
	p.socket = filepath.Join(p.dir, "s.sock")
	return p
}

// call calls the plugin for a pod.
func (p *plugin) call(verb, namespace, pod string, ns *netns.NS) error {
	cmd := exec.Command(p.program)
	cmd.Env = []string{"CNI_COMMAND=" + verb, "CNI_CONTAINERID=c" + pod, "CNI_IFNAME=eth0", "CNI_PATH=" + p.dir, "CNI_NETNS=" + ns.Path(), "CNI_ARGS=K8S_POD_NAMESPACE=" + namespace + ";K8S_POD_NAME=" + pod}
	cmd.Stdin = strings.NewReader(fmt.Sprintf(`{"cniVersion": "1.1.0", "name": "pods", "type": "sluice-cni", "agent": {"socket": %q, "timeout": %q},
		"ipam": {"type": "host-local", "dataDir": %q, "podCIDRs": ["10.244.1.0/24"]}}`, p.socket, p.timeout, filepath.Join(p.dir, "addresses")))
	return p.node.Do(func() error {
		out, err := cmd.Output()
		if err != nil {
			return fmt.Errorf("%s: %w: %s", verb, err, out)
		}
		return nil
	})
}

// flood sends numbered datagrams from a namespace until the test ends, as soon as there is a way.
func (p *plugin) flood(ns *netns.NS, to string) (sent *atomic.Uint64) {
	p.Helper()
	var socket *net.UDPConn
	if err := ns.Do(func() (err error) { socket, err = net.ListenUDP("udp4", nil); return err }); err != nil {
		p.Fatal(err)
	}
	addr, err := net.ResolveUDPAddr("udp4", to)
	if err != nil {
		p.Fatal(err)
	}
	sent = &atomic.Uint64{}
	done := make(chan struct{})
	go func() {
		defer close(done)
		for n := uint64(1); ; {
			_, err := socket.WriteToUDP(binary.BigEndian.AppendUint64(nil, n), addr)
			switch {
			case errors.Is(err, net.ErrClosed):
				return
			case err == nil:
				sent.Store(n)
				n++
			}
			time.Sleep(50 * time.Microsecond)
		}
	}()
	p.Cleanup(func() { _ = socket.Close(); <-done })
	return sent
}

// collect counts the datagrams that arrive in a namespace, and notes the number of the first.
func (p *plugin) collect(ns *netns.NS, at string) (got, first *atomic.Uint64) {
	p.Helper()
	var socket net.PacketConn
	if err := ns.Do(func() (err error) { socket, err = net.ListenPacket("udp4", at); return err }); err != nil {
		p.Fatal(err)
	}
	got, first = &atomic.Uint64{}, &atomic.Uint64{}
	go func() {
		for b := make([]byte, 8); ; {
			if _, _, err := socket.ReadFrom(b); err != nil {
				return
			}
			first.CompareAndSwap(0, binary.BigEndian.Uint64(b))
			got.Add(1)
		}
	}()
	p.Cleanup(func() { _ = socket.Close() })
	return got, first
}

// With an agent, ADD returns once the pod's policy holds: of a pod that may talk to nobody not one
// packet passes, from the moment that it has a namespace, and of one that may talk all do
// (projectcalico/calico#13356).
func TestAddWaitsForPolicy(t *testing.T) {
	t.Parallel()
	p := newPlugin(t)
	dir := folder(t, map[string]string{"node.yaml": cniNode, "deny.yaml": denyAll})
	stop := startAgent(t, dir, p.socket, p.node.Do)
	target, open, shut := world.NewHost(t, "target").NS, world.NewHost(t, "open").NS, world.NewHost(t, "shut").NS
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	must(p.call("ADD", "shop", "target", target)) // 10.244.1.2
	fromShut, _ := p.collect(target, ":7001")
	fromOpen, firstOpen := p.collect(target, ":7002")
	toShut, _ := p.collect(shut, ":7003")

	sentShut, sentTo := p.flood(shut, "10.244.1.2:7001"), p.flood(target, "10.244.1.3:7003")
	must(p.call("ADD", "shut", "shut", shut)) // 10.244.1.3
	had := sentTo.Load()
	eventually(t, "both to send", func() bool { return sentShut.Load() > 200 && sentTo.Load() > had+200 })
	if from, to := fromShut.Load(), toShut.Load(); from > 0 || to > 0 {
		t.Errorf("%d packets came from a pod that may talk to nobody, and %d to it", from, to)
	}

	sentOpen := p.flood(open, "10.244.1.2:7002")
	must(p.call("ADD", "shop", "open", open))
	eventually(t, "it to send", func() bool { return sentOpen.Load() > 200 })
	eventually(t, "its packets to arrive", func() bool { return fromOpen.Load() > 200 })
	if n := firstOpen.Load(); n != 1 {
		t.Errorf("the first packet that passed is number %d", n)
	}

	// A route to a pod that another program removes is put back: systemd-networkd does so when it
	// starts anew, if it has been told to manage the interface.
	// https://github.com/cloudnativelabs/kube-router/issues/1815
	device := attach.HostInterface("ctarget", "eth0")
	for _, removed := range [][]string{{"route", "flush", "dev", device}, {"link", "set", device, "down"}} {
		if out, err := p.node.Run("ip", removed...); err != nil {
			t.Fatalf("%v: %s", err, out)
		}
		_, err := p.node.Run("ip", "link", "set", device, "up")
		must(err)
		had := fromOpen.Load()
		eventually(t, fmt.Sprintf("packets to arrive after %v", removed), func() bool { return fromOpen.Load() > had+200 })
	}

	// Another agent knows from the interfaces what this one was told.
	stop()
	stop = startAgent(t, dir, p.socket, p.node.Do)
	defer stop()
	if code, _, stderr := sluice(t, "sync", "--socket", p.socket); code != cli.ExitOK {
		t.Fatal(stderr)
	}
	lost := fromOpen.Load()
	eventually(t, "packets to arrive after a restart", func() bool { return fromOpen.Load() > lost+200 })
	if from, to := fromShut.Load(), toShut.Load(); from > 0 || to > 0 {
		t.Errorf("after a restart, %d packets came from a pod that may talk to nobody, and %d to it", from, to)
	}

	// What the API says later is the same pod.
	write(t, dir, "node.yaml", strings.Replace(cniNode, "metadata: {name: shut, namespace: shut}\nspec: {nodeName: node-a}\nstatus: {phase: Pending}",
		"metadata: {name: shut, namespace: shut}\nspec: {nodeName: node-a}\nstatus: {phase: Running, podIPs: [{ip: 10.244.1.3}]}", 1))
	must(os.Remove(filepath.Join(dir, "deny.yaml")))
	eventually(t, "the pod to talk once it may", func() bool { return fromShut.Load() > 0 && toShut.Load() > 0 })

	for pod, ns := range map[string]*netns.NS{"target": target, "open": open, "shut": shut} {
		must(p.call("DEL", "shop", pod, ns))
	}
	if left := p.left(); left != "" {
		t.Errorf("left: %s", left)
	}
}

// left lists what is left of pods.
func (p *plugin) left() string {
	out, err := p.node.Run("ip", "-o", "link", "show", "type", "veth")
	files, _ := filepath.Glob(filepath.Join(p.dir, "addresses", "pods", "1*"))
	if err != nil {
		return err.Error()
	}
	return string(bytes.TrimSpace(out)) + strings.Join(files, " ")
}

// Without an answer of the agent within the time, ADD fails and leaves nothing; an agent that comes
// back in time is waited for.
func TestAddWithoutAgent(t *testing.T) {
	t.Parallel()
	p := newPlugin(t)
	ns := world.NewHost(t, "target").NS
	p.timeout = "200ms"
	refused := func(what, pod, says string) {
		t.Helper()
		if err := p.call("ADD", "shop", pod, ns); err == nil || !strings.Contains(err.Error(), says) || !strings.Contains(err.Error(), `"code": 11`) {
			t.Errorf("%s: %v", what, err)
		}
		if left := p.left(); left != "" {
			t.Errorf("%s: left: %s", what, left)
		}
	}
	refused("no agent", "target", "the agent at "+p.socket)
	// A runtime that hears of an error here has the node drained.
	if err := p.call("STATUS", "", "", ns); err != nil {
		t.Errorf("STATUS: %v", err)
	}
	if err := p.call("ADD", "shop", "", ns); err == nil || !strings.Contains(err.Error(), `"code": 4`) || !strings.Contains(err.Error(), "K8S_POD_NAME") {
		t.Errorf("no pod: %v", err)
	}
	listener, err := net.Listen("unix", p.socket)
	if err != nil {
		t.Fatal(err)
	}
	refused("an agent that hangs", "target", "it does not answer")
	if err := listener.Close(); err != nil {
		t.Fatal(err)
	}
	dir := folder(t, map[string]string{"node.yaml": cniNode})
	p.timeout = "20s"
	added := make(chan error, 1)
	go func() { added <- p.call("ADD", "shop", "target", ns) }()
	startAgent(t, dir, p.socket, p.node.Do)
	if err := <-added; err != nil {
		t.Errorf("an agent that comes back: %v", err)
	}
	if err := p.call("STATUS", "", "", ns); err != nil {
		t.Error(err)
	}
	if err := p.call("DEL", "shop", "target", ns); err != nil {
		t.Error(err)
	}
	p.timeout = "4s" // the agent tells before that ends, also on a busy machine
	refused("a pod that nobody knows", "unknown", "does not say that it is on node node-a")
}

// install writes what a runtime needs, with the versions that all plugins have, and remove takes it
// away. Like others that run what they have just written, this test runs alone: a process that
// another test forks meanwhile may still have the file open for writing.
func TestCNIInstall(t *testing.T) {
	p := newPlugin(t)
	bin, conf := filepath.Join(p.dir, "bin"), filepath.Join(p.dir, "net.d")
	install := func(more ...string) (int, string) {
		t.Helper()
		code, out, stderr := sluice(t, append([]string{"cni", "install", "--plugin", p.program, "--bin-dir", bin, "--conf-dir", conf}, more...)...)
		return code, out + stderr
	}
	if code, out := install(); code != cli.ExitUsage || !strings.Contains(out, "--pod-cidr") {
		t.Errorf("without addresses: %d: %s", code, out)
	}
	if code, out := install("--pod-cidr", "10.244.1.0/24,fd00:1::/64", "--mtu", "1400", "--socket", p.socket); code != cli.ExitOK || strings.Count(out, "installed") != 2 {
		t.Fatalf("%d: %s", code, out)
	}
	list, err := libcni.NetworkConfFromFile(filepath.Join(conf, "05-sluice.conflist"))
	if err != nil || list.Name != "sluice" || list.CNIVersion != "1.1.0" || len(list.Plugins) != 1 || list.Plugins[0].Network.Type != "sluice-cni" {
		t.Fatalf("%+v, %v", list, err)
	}
	for _, want := range []string{`"podCIDRs":["10.244.1.0/24","fd00:1::/64"]`, `"mtu":1400`, `"socket":"` + p.socket + `"`} {
		if !strings.Contains(string(list.Plugins[0].Bytes), want) {
			t.Errorf("no %s in %s", want, list.Plugins[0].Bytes)
		}
	}
	// A reference plugin of an old version is chained, and the list has its version.
	write(t, bin, "portmap", "#!/bin/sh\necho '{\"cniVersion\": \"1.0.0\", \"supportedVersions\": [\"0.4.0\", \"1.0.0\"]}'\n")
	if err := os.Chmod(filepath.Join(bin, "portmap"), 0o755); err != nil {
		t.Fatal(err)
	}
	if code, out := install("--pod-cidr", "10.244.1.0/24"); code != cli.ExitOK || strings.Count(out, "installed") != 1 {
		t.Fatalf("%d: %s", code, out)
	}
	if list, err = libcni.NetworkConfFromFile(filepath.Join(conf, "05-sluice.conflist")); err != nil || list.CNIVersion != "1.0.0" || len(list.Plugins) != 2 || list.Plugins[1].Network.Type != "portmap" {
		t.Fatalf("%+v, %v", list, err)
	}
	if code, out := install("--pod-cidr", "10.244.1.0/24"); code != cli.ExitOK || out != "" {
		t.Errorf("a second time: %d: %s", code, out)
	}
	write(t, conf, "00-other.conf", "{}")
	write(t, conf, "99-other.conf", "{}")
	if code, out := install("--pod-cidr", "10.244.1.0/24"); code != cli.ExitOK || !strings.Contains(out, "00-other.conf, which comes first") || strings.Contains(out, "99-other") {
		t.Errorf("beside another network: %d: %s", code, out)
	}
	if code, _, stderr := sluice(t, "cni", "install", "--plugin", "/no/such", "--bin-dir", bin, "--conf-dir", conf, "--pod-cidr", "10.1.0.0/24"); code != cli.ExitError || !strings.Contains(stderr, "name it with --plugin") {
		t.Errorf("without a plugin: %d: %s", code, stderr)
	}
	for range 2 {
		if code, _, stderr := sluice(t, "cni", "remove", "--bin-dir", bin, "--conf-dir", conf); code != cli.ExitOK {
			t.Error(stderr)
		}
	}
	files, _ := filepath.Glob(filepath.Join(p.dir, "*", "*"))
	if len(files) != 3 { // portmap and two other networks
		t.Errorf("left: %v", files)
	}
}

// The agent of another network namespace does not write over the configuration by which pods are
// attached to the first one's, as long as that one is at work.
func TestCNIOfAnotherAgent(t *testing.T) {
	t.Parallel()
	one, other := world.NewHost(t, "one").NS, world.NewHost(t, "other").NS
	dir, run := folder(t, map[string]string{"node.yaml": cniNode}), t.TempDir()
	program := filepath.Join(run, "sluice-cni")
	if err := os.WriteFile(program, []byte("program"), 0o755); err != nil {
		t.Fatal(err)
	}
	flags := []string{"--cni", "--cni-plugin", program, "--cni-bin-dir", filepath.Join(run, "bin"), "--cni-conf-dir", run}
	asks := func(socket string) func() bool { return func() bool { return install.Asks(run) == socket } }

	first, second := filepath.Join(run, "1.sock"), filepath.Join(run, "2.sock")
	stop := startAgent(t, dir, first, one.Do, flags...)
	eventually(t, "the plugin is installed", asks(first))
	log, _ := startAgentLogged(t, dir, second, other.Do, flags...)
	eventually(t, "the second agent says that the plugin is the first one's", func() bool {
		return strings.Contains(log.String(), "that of the agent on "+first)
	})
	if !asks(first)() {
		t.Error("the plugin asks another agent")
	}
	stop()
	eventually(t, "the plugin is the second agent's", asks(second))
}

// An agent with --cni installs the plugin once its node has pod CIDRs, and pods are attached with
// what it wrote.
func TestAgentInstallsCNI(t *testing.T) {
	p := newPlugin(t)
	dir := folder(t, map[string]string{"node.yaml": strings.Replace(cniNode, "spec: {podCIDRs: [10.244.1.0/24]}", "spec: {}", 1)})
	bin, conf := filepath.Join(p.dir, "bin"), filepath.Join(p.dir, "net.d")
	startAgent(t, dir, p.socket, p.node.Do, "--cni", "--cni-plugin", p.program, "--cni-bin-dir", bin, "--cni-conf-dir", conf)
	if code, _, stderr := sluice(t, "sync", "--socket", p.socket); code != cli.ExitOK {
		t.Fatal(stderr)
	}
	list := filepath.Join(conf, "05-sluice.conflist")
	if _, err := os.Stat(list); err == nil {
		t.Error("it is installed without pod CIDRs")
	}
	write(t, dir, "node.yaml", cniNode)
	eventually(t, "it is installed", func() bool { _, err := os.Stat(list); return err == nil })
	network, err := libcni.NetworkConfFromFile(list)
	if err != nil {
		t.Fatal(err)
	}
	ns := world.NewHost(t, "target").NS
	cni := libcni.NewCNIConfigWithCacheDir([]string{bin}, p.dir, nil)
	pod := &libcni.RuntimeConf{ContainerID: "c", NetNS: ns.Path(), IfName: "eth0", Args: [][2]string{{"K8S_POD_NAMESPACE", "shop"}, {"K8S_POD_NAME", "target"}}}
	const addresses = "/var/lib/cni/networks/sluice"
	if _, err := os.Stat(addresses); err != nil { // nobody else's
		t.Cleanup(func() { _ = os.RemoveAll(addresses) })
	}
	err = p.node.Do(func() error {
		_, err := cni.AddNetworkList(t.Context(), network, pod)
		return errors.Join(err, cni.GetStatusNetworkList(t.Context(), network), cni.DelNetworkList(t.Context(), network, pod))
	})
	if err != nil {
		t.Error(err)
	}
}

// What has not been read yet is not missing: an agent that starts says nothing of pod CIDRs. A name
// that no Node has is said as such.
func TestAgentKnowsNodeFirst(t *testing.T) {
	t.Parallel()
	p := newPlugin(t)
	dir := folder(t, map[string]string{"node.yaml": cniNode})
	cni := []string{"--cni", "--cni-plugin", p.program, "--cni-bin-dir", filepath.Join(p.dir, "bin"), "--cni-conf-dir", filepath.Join(p.dir, "net.d")}
	log, stop := startAgentLogged(t, dir, p.socket, p.node.Do, cni...)
	eventually(t, "it is installed", func() bool { return strings.Contains(log.String(), "05-sluice.conflist") })
	if strings.Contains(log.String(), "cannot be attached") {
		t.Errorf("a start with all it takes says\n%s", log)
	}
	stop()
	for says, node := range map[string]string{
		"there is no Node object named node-a, but there are others (node-b): set --node to this node's name": strings.Replace(cniNode, "{name: node-a}", "{name: node-b}", 1),
		"there is no Node object named node-a: it comes when the kubelet registers":                           "",
		"no pod CIDRs are known of Node node-a: see":                                                          strings.Replace(cniNode, "podCIDRs: [10.244.1.0/24]", "podCIDRs: [224.0.0.0/24]", 1),
	} {
		write(t, dir, "node.yaml", node)
		log, stop := startAgentLogged(t, dir, p.socket, p.node.Do, cni...)
		eventually(t, "it says: "+says, func() bool { return strings.Contains(log.String(), says) })
		if n := strings.Count(log.String(), "cannot be attached"); n != 1 {
			t.Errorf("%d warnings:\n%s", n, log)
		}
		stop()
	}
}

// A hundred pods start one by one, and then at once: each can talk as soon as its ADD returns.
func TestManyPodsWithAgent(t *testing.T) {
	t.Parallel()
	p := newPlugin(t)
	const pods = 100
	manifests := cniNode
	for i := range pods {
		manifests += fmt.Sprintf("---\napiVersion: v1\nkind: Pod\nmetadata: {name: p%d, namespace: many, labels: {app: many}}\nspec: {nodeName: node-a}\nstatus: {phase: Pending}\n", i)
	}
	manifests += "---\napiVersion: networking.k8s.io/v1\nkind: NetworkPolicy\nmetadata: {name: many, namespace: many}\n" +
		"spec: {podSelector: {}, policyTypes: [Egress], egress: [{to: [{namespaceSelector: {}, podSelector: {matchLabels: {app: target}}}]}]}\n"
	startAgent(t, folder(t, map[string]string{"all.yaml": manifests}), p.socket, p.node.Do)
	target := world.NewHost(t, "target").NS
	if err := p.call("ADD", "shop", "target", target); err != nil {
		t.Fatal(err)
	}
	var server net.Listener
	if err := target.Do(func() (err error) { server, err = net.Listen("tcp", ":80"); return err }); err != nil {
		t.Fatal(err)
	}
	defer func() { _ = server.Close() }()
	spaces := make([]*netns.NS, pods)
	for i := range spaces {
		spaces[i] = world.NewHost(t, fmt.Sprint("p", i)).NS
	}
	took := make([]time.Duration, pods)
	add := func(i int) {
		begin := time.Now()
		err := p.call("ADD", "many", fmt.Sprint("p", i), spaces[i])
		took[i] = time.Since(begin)
		if err == nil {
			err = connect(spaces[i], "10.244.1.2:80")
		}
		if err != nil {
			t.Errorf("pod %d: %v", i, err)
		}
	}
	for what, run := range map[string]func(){
		"one by one": func() {
			for i := range pods {
				add(i)
			}
		},
		"at once": func() {
			var all sync.WaitGroup
			for i := range pods {
				all.Go(func() { add(i) })
			}
			all.Wait()
		},
	} {
		begin := time.Now()
		run()
		all := time.Since(begin)
		slices.Sort(took)
		t.Logf("%s: all %s, ADD p50 %s, p99 %s", what, all, took[pods/2], took[pods*99/100])
		var gone sync.WaitGroup
		for i := range pods {
			gone.Go(func() {
				if err := p.call("DEL", "many", fmt.Sprint("p", i), spaces[i]); err != nil {
					t.Error(err)
				}
			})
		}
		gone.Wait()
	}
}
