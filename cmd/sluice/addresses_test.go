package main

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	address "sluice.dev/sluice/internal/addresses/compile"
	"sluice.dev/sluice/internal/agent"
	"sluice.dev/sluice/internal/cli"
	"sluice.dev/sluice/internal/model"
	"sluice.dev/sluice/test/world"
)

// subnet is a bridge with nodes n1 to n3 and a client, in namespaces. Each node has a server at its
// own address that answers with the node's name.
type subnet struct {
	t      *testing.T
	dir    string // of manifests, which all nodes read
	bridge *world.Host
	client *world.Host
	nodes  map[string]*subnetNode
	flags  []string // of the agents, beside those of start
}

type subnetNode struct {
	*world.Host
	name   string
	socket string
	by     []string  // the command that becomes the agent, before its arguments
	agent  *exec.Cmd // nil: none runs
	log    bytes.Buffer
}

const subnetObjects = `
apiVersion: metallb.io/v1beta1
kind: IPAddressPool
metadata: {name: outside, namespace: metallb-system}
spec: {addresses: [172.30.0.100-172.30.0.120, "fd00:30::100-fd00:30::120"]}
---
apiVersion: metallb.io/v1beta1
kind: L2Advertisement
metadata: {name: outside, namespace: metallb-system}
spec: {ipAddressPools: [outside]}
`

// newSubnet makes it, with an agent on each node.
func newSubnet(t *testing.T) *subnet {
	t.Helper()
	s := &subnet{t: t, dir: t.TempDir(), bridge: world.NewHost(t, "bridge"), client: world.NewHost(t, "client"), nodes: map[string]*subnetNode{}}
	s.bridge.Bridge("br0")
	s.join(s.client, "client", "172.30.0.200", "fd00:30::200")
	objects := subnetObjects
	for i, name := range []string{"n1", "n2", "n3"} {
		v4, v6 := fmt.Sprintf("172.30.0.%d", i+1), fmt.Sprintf("fd00:30::%d", i+1)
		n := &subnetNode{Host: world.NewHost(t, name), name: name, socket: filepath.Join(t.TempDir(), name), by: []string{self}}
		s.nodes[name] = n
		t.Cleanup(func() {
			if s.kill(name); t.Failed() {
				t.Logf("the agent of %s:\n%s", name, &n.log)
			}
		})
		s.join(n.Host, name, v4, v6)
		n.Forward()
		s.serve(n)
		objects += fmt.Sprintf("---\napiVersion: v1\nkind: Node\nmetadata: {name: %[1]s}\nspec: {podCIDRs: [10.244.%[4]d.0/24, \"fd00:244:%[4]d::/64\"]}\nstatus: {addresses: [{type: InternalIP, address: %[2]s}, {type: InternalIP, address: %[3]q}]}\n", name, v4, v6, i+1)
	}
	s.write("cluster.yaml", objects)
	return s
}

func (s *subnet) must(err error) {
	s.t.Helper()
	if err != nil {
		s.t.Fatal(err)
	}
}

// join puts a host on the bridge.
func (s *subnet) join(host *world.Host, name, v4, v6 string) {
	s.t.Helper()
	host.Join("eth0", s.bridge, name)
	s.bridge.IP("link set " + name + " master br0")
	host.Address("eth0", v4+"/24", v6+"/64")
}

// write writes a manifest in one step.
func (s *subnet) write(name, text string) {
	s.t.Helper()
	temporary := filepath.Join(s.t.TempDir(), name)
	s.must(os.WriteFile(temporary, []byte(text), 0o600))
	s.must(os.Rename(temporary, filepath.Join(s.dir, name)))
}

// serve has a node answer with its name on port 8080, until the test ends.
func (s *subnet) serve(n *subnetNode) {
	s.t.Helper()
	var l net.Listener
	n.In(func() (err error) {
		l, err = net.Listen("tcp", ":8080")
		return err
	})
	s.t.Cleanup(func() { _ = l.Close() })
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			_, _ = io.WriteString(c, n.name)
			_ = c.Close()
		}
	}()
}

// start starts a node's agent.
func (s *subnet) start(name string) {
	s.t.Helper()
	n := s.nodes[name]
	args := []string{"run", "--manifests", s.dir, "--node", name, "--socket", n.socket, "--metrics-address", "", "--healthz-address", "",
		"--set-sysctls=false", "--policy=false", "--service-addresses"}
	args = slices.Concat(n.by[1:], args, s.flags)
	n.agent = exec.Command(n.by[0], args...)
	n.agent.Env = withSpeaker(s.t)
	n.agent.Stdout, n.agent.Stderr = &n.log, &n.log
	s.must(n.Start(n.agent))
}

// kill kills a node's agent.
func (s *subnet) kill(name string) {
	if n := s.nodes[name]; n.agent != nil {
		_ = n.agent.Process.Kill()
		_ = n.agent.Wait()
		n.agent = nil
	}
}

// link sets the port of a node on the bridge up or down.
func (s *subnet) link(name, to string) {
	s.t.Helper()
	s.bridge.IP("link set " + name + " " + to)
}

// service is a Service with addresses and an endpoint of each family on a node.
func service(name string, i int, policy string, nodes ...string) string {
	text := fmt.Sprintf(`
apiVersion: v1
kind: Service
metadata: {name: %[1]s, namespace: shop}
spec: {type: LoadBalancer, externalTrafficPolicy: %[3]s, clusterIPs: [10.96.0.%[2]d, "fd00:96::%[2]d"], ports: [{port: 80, targetPort: 8080}]}
status: {loadBalancer: {ingress: [{ip: 172.30.0.%[2]d}, {ip: "fd00:30::%[2]d"}]}}
`, name, i, policy)
	for family, prefix := range map[string]string{"IPv4": "172.30.0.", "IPv6": "fd00:30::"} {
		text += fmt.Sprintf("---\napiVersion: discovery.k8s.io/v1\nkind: EndpointSlice\nmetadata: {name: %[1]s-%[2]s, namespace: shop, labels: {kubernetes.io/service-name: %[1]s}}\naddressType: %[3]s\nports: [{port: 8080}]\nendpoints:\n",
			name, strings.ToLower(family), family)
		for _, n := range nodes {
			text += fmt.Sprintf("- {addresses: [%q], nodeName: %s, conditions: {ready: true}}\n", prefix+n[1:], n)
		}
	}
	return text
}

// addresses are what a node's agent says, by the address.
func (s *subnet) addresses(on string) map[string]address.Address {
	ctx, cancel := context.WithTimeout(s.t.Context(), time.Second)
	defer cancel()
	all := map[string]address.Address{}
	list, _ := agent.NewClient(s.nodes[on].socket).Addresses(ctx) // not yet
	for _, a := range list {
		all[a.Address.String()] = a
	}
	return all
}

// agree waits until the agents that run say the same of who announces an address, and returns that.
func (s *subnet) agree(addr string) (node string) {
	s.t.Helper()
	eventually(s.t, "all agents agree on "+addr, func() bool {
		said := map[string]bool{}
		for name, n := range s.nodes {
			if n.agent != nil {
				node = s.addresses(name)[addr].Node
				said[node] = true
			}
		}
		return len(said) == 1 && node != ""
	})
	return node
}

// ask connects to an address once, and returns which server answers.
func (s *subnet) ask(addr string) (server string, err error) {
	err = s.client.Do(func() error {
		c, err := net.DialTimeout("tcp", netip.AddrPortFrom(netip.MustParseAddr(addr), 80).String(), 200*time.Millisecond)
		if err != nil {
			return err
		}
		defer func() { _ = c.Close() }()
		_ = c.SetDeadline(time.Now().Add(time.Second))
		b, err := io.ReadAll(c)
		server = string(b)
		return err
	})
	return server, err
}

// reach connects until a server answers, and returns how long that took.
func (s *subnet) reach(addr, want string) time.Duration {
	s.t.Helper()
	begun := time.Now()
	for {
		server, err := s.ask(addr)
		if err == nil && server == want {
			return time.Since(begun)
		}
		if time.Since(begun) > 30*time.Second {
			s.t.Fatalf("%s: %q answers, want %s: %v", addr, server, want, err)
		}
	}
}

// askForever has the client ask for an address of IPv4 by ARP all the time, and returns what ends
// that. It says for how long two nodes answered: from the first answer of the one that takes over
// to the last of the other.
func (s *subnet) askForever(addr string) (end func(old, next string) time.Duration) {
	s.t.Helper()
	if netip.MustParseAddr(addr).Is6() {
		return func(string, string) time.Duration { return 0 }
	}
	l, err := s.client.LinkByName("eth0")
	s.must(err)
	own, to := l.Attrs().HardwareAddr, netip.MustParseAddr(addr).As4()
	request := slices.Concat([]byte("\xff\xff\xff\xff\xff\xff"), own, []byte("\x08\x06\x00\x01\x08\x00\x06\x04\x00\x01"), own, []byte{172, 30, 0, 200}, make([]byte, 6), to[:])
	const typeARP = 0x0608 // in the order of the network
	var fd int
	s.must(s.client.Do(func() (err error) {
		fd, err = unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, typeARP)
		return err
	}))
	s.must(unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &unix.Timeval{Usec: 10_000}))
	var mu sync.Mutex
	first, last := map[string]time.Time{}, map[string]time.Time{}
	stop := make(chan struct{})
	var asking sync.WaitGroup
	asking.Go(func() {
		defer func() { _ = unix.Close(fd) }()
		b := make([]byte, 100)
		for {
			select {
			case <-stop:
				return
			default:
			}
			_ = unix.Sendto(fd, request, 0, &unix.SockaddrLinklayer{Ifindex: l.Attrs().Index, Halen: 6, Addr: [8]byte{0xff, 0xff, 0xff, 0xff, 0xff, 0xff}})
			for {
				n, _, err := unix.Recvfrom(fd, b, 0)
				if err != nil {
					break // nothing came for a while
				}
				if n >= 42 && b[21] == 2 && [4]byte(b[28:32]) == to && string(b[:6]) == string(own) { // an answer, and to the client
					mac := net.HardwareAddr(b[22:28]).String()
					mu.Lock()
					if first[mac].IsZero() {
						first[mac] = time.Now()
					}
					last[mac] = time.Now()
					mu.Unlock()
				}
			}
		}
	})
	stopped := sync.OnceFunc(func() { close(stop); asking.Wait() })
	s.t.Cleanup(stopped)
	return func(old, next string) time.Duration {
		eventually(s.t, "both nodes have answered", func() bool {
			mu.Lock()
			defer mu.Unlock()
			return !first[old].IsZero() && !first[next].IsZero()
		})
		stopped()
		both := max(0, last[old].Sub(first[next]))
		s.t.Logf("two nodes answered for %v", both)
		return both
	}
}

// neighbour is the MAC by which the client reaches an address.
func (s *subnet) neighbour(addr string) string {
	list, err := s.client.NeighList(0, 0)
	s.must(err)
	for _, n := range list {
		if n.IP.Equal(net.ParseIP(addr)) {
			return n.HardwareAddr.String()
		}
	}
	return ""
}

func (n *subnetNode) mac() string {
	l, err := n.LinkByName("eth0")
	if err != nil {
		return err.Error()
	}
	return l.Attrs().HardwareAddr.String()
}

// bothAnswer is for how long two nodes may answer for an address; 0.3 s on a machine that has
// nothing else to do.
const bothAnswer = 2 * time.Second

// A client reaches an address of a Service at the one node that announces it. Once that dies,
// another takes over, and the client reaches it there.
func TestServiceAddresses(t *testing.T) {
	t.Parallel()
	s := newSubnet(t)
	s.write("web.yaml", service("web", 100, "Cluster", "n3"))
	s.write("local.yaml", service("local", 101, "Local", "n1"))
	for name := range s.nodes {
		s.start(name)
	}
	both := func(i int) []string { return []string{fmt.Sprintf("172.30.0.%d", i), fmt.Sprintf("fd00:30::%d", i)} }
	for _, addr := range both(100) {
		node := s.agree(addr)
		s.reach(addr, "n3")
		if got, want := s.neighbour(addr), s.nodes[node].mac(); got != want {
			t.Errorf("the client finds %s at %s, want %s of %s", addr, got, want, node)
		}
	}
	for _, addr := range both(101) {
		if node := s.agree(addr); node != "n1" {
			t.Errorf("%s announces %s, and the only endpoint is on n1", node, addr)
		}
		s.reach(addr, "n1")
	}

	t.Run("Local follows the endpoint", func(t *testing.T) {
		s.write("local.yaml", service("local", 101, "Local", "n2"))
		for _, addr := range both(101) {
			t.Logf("%s: reached after %v", addr, s.reach(addr, "n2"))
			if got, want := s.neighbour(addr), s.nodes["n2"].mac(); got != want {
				t.Errorf("the client finds %s at %s, want %s of n2", addr, got, want)
			}
		}
	})

	t.Run("an agent that is restarted keeps its addresses", func(t *testing.T) {
		addr := both(100)[0]
		node := s.agree(addr)
		s.kill(node)
		s.start(node)
		s.reach(addr, "n3")
		if got := s.agree(addr); got != node {
			t.Errorf("%s announces it, it was %s", got, node)
		}
	})

	for _, addr := range both(100) {
		t.Run("the node of "+addr+" dies", func(t *testing.T) {
			dead := s.nodes[s.agree(addr)]
			server := map[bool]string{true: "n1", false: "n3"}[dead.name == "n3"] // another node has the endpoint
			s.write("web.yaml", service("web", 100, "Cluster", server))
			s.reach(addr, server)
			s.link(dead.name, "down")
			s.kill(dead.name)
			took := s.reach(addr, server)
			t.Logf("%s was announced by %s, which died: reached again after %v", addr, dead.name, took)
			if limit := 10 * time.Second; took > limit { // 3 s on a machine that has nothing else to do
				t.Errorf("that is longer than %v", limit)
			}
			next := s.agree(addr)
			if got, want := s.neighbour(addr), s.nodes[next].mac(); next == dead.name || got != want {
				t.Errorf("the client finds it at %s, want %s of %s", got, want, next)
			}
			answers := s.askForever(addr)
			s.link(dead.name, "up")
			s.start(dead.name)
			eventually(t, "the node has it again", func() bool { return s.agree(addr) == dead.name })
			s.reach(addr, server)
			if both := answers(s.nodes[next].mac(), dead.mac()); both > bothAnswer {
				t.Errorf("two nodes answered for %v", both)
			}
			eventually(t, "the client finds it there", func() bool { return s.neighbour(addr) == dead.mac() })
		})
	}

	t.Run("a network that is parted and whole again", func(t *testing.T) {
		addr := both(100)[0]
		cut := s.nodes[s.agree(addr)]
		server := map[bool]string{true: "n1", false: "n3"}[cut.name == "n3"]
		s.write("web.yaml", service("web", 100, "Cluster", server))
		s.reach(addr, server)
		s.link(cut.name, "down")
		eventually(t, "the client finds it at another node", func() bool {
			_, _ = s.ask(addr)
			mac := s.neighbour(addr)
			return mac != "" && mac != cut.mac()
		})
		s.reach(addr, server)
		s.link(cut.name, "up")
		eventually(t, "all agree on the first again", func() bool { return s.agree(addr) == cut.name })
		eventually(t, "the client is told", func() bool { return s.neighbour(addr) == cut.mac() })
		s.reach(addr, server)
	})

	t.Run("a network that carries packets in one direction", func(t *testing.T) {
		addr := both(100)[0]
		cut := s.nodes[s.agree(addr)]
		server := map[bool]string{true: "n1", false: "n3"}[cut.name == "n3"]
		s.write("web.yaml", service("web", 100, "Cluster", server))
		s.reach(addr, server)
		answers := s.askForever(addr)
		cut.In(func() error {
			return exec.Command("nft", "add table inet cut; add chain inet cut out { type filter hook output priority 0; udp dport 8383 drop; }").Run()
		})
		eventually(t, "the node knows that nobody hears it", func() bool { return s.addresses(cut.name)[addr].Node != cut.name })
		next := s.agree(addr)
		s.reach(addr, server)
		if both := answers(cut.mac(), s.nodes[next].mac()); both > bothAnswer {
			t.Errorf("two nodes answered for %v", both)
		}
		cut.In(func() error { return exec.Command("nft", "delete table inet cut").Run() })
		eventually(t, "all agree on the first again", func() bool { return s.agree(addr) == cut.name })
		s.reach(addr, server)

		// One of the others alone does not hear it, and takes over beside it. The client is told
		// once that is over, though nothing was over for the first (metallb/metallb#584). It does
		// not ask by itself, and the first has said all that it says as it begins, the last time
		// after 3 s: nothing else tells when that is over.
		time.Sleep(3500 * time.Millisecond)
		s.client.Set("net/ipv4/neigh/eth0/delay_first_probe_time", "60")
		cut.In(func() error {
			return exec.Command("nft", "add table inet cut; add chain inet cut out { type filter hook output priority 0; udp dport 8383 ip daddr 172.30.0."+next[1:]+" drop; udp dport 8383 ip6 daddr fd00:30::"+next[1:]+" drop; }").Run()
		})
		eventually(t, "the client finds it at the other node", func() bool { return s.neighbour(addr) == s.nodes[next].mac() })
		cut.In(func() error { return exec.Command("nft", "delete table inet cut").Run() })
		eventually(t, "the client is told", func() bool { return s.neighbour(addr) == cut.mac() })
	})

	t.Run("the table", func(t *testing.T) {
		code, out, stderr := sluice(t, "addresses", "--socket", s.nodes["n1"].socket)
		if code != cli.ExitOK || !strings.HasPrefix(out, "ADDRESS") || strings.Count(out, "metallb-system/outside") != 4 || strings.Count(out, "ARP") != 2 || strings.Count(out, "NDP") != 2 || !strings.Contains(out, "shop/web") {
			t.Errorf("%d: %s%s", code, out, stderr)
		}
	})
}

// An address that nobody announces is named, as any other fault is: with an interface that the node
// does not have, endpoints of policy Local that are elsewhere, and once the last pool is gone.
func TestAnnouncedByNobody(t *testing.T) {
	t.Parallel()
	s := newSubnet(t)
	const l2 = "---\napiVersion: metallb.io/v1beta1\nkind: L2Advertisement\nmetadata: {name: %s, namespace: metallb-system}\nspec: {ipAddressPools: [outside], serviceSelectors: [{matchLabels: {by: %[1]s}}], %s}\n"
	pool, _, _ := strings.Cut(subnetObjects, "---")
	cluster, err := os.ReadFile(filepath.Join(s.dir, "cluster.yaml"))
	s.must(err)
	_, nodes, _ := strings.Cut(strings.TrimPrefix(string(cluster), subnetObjects), "---")
	s.write("cluster.yaml", nodes+fmt.Sprintf(l2, "interface", "interfaces: [eth7]")+fmt.Sprintf(l2, "local", "nodeSelectors: [{matchExpressions: [{key: none, operator: DoesNotExist}]}]"))
	s.write("pool.yaml", pool)
	by := func(name, text string) string {
		return strings.Replace(text, "namespace: shop}", "namespace: shop, labels: {by: "+name+"}}", 1)
	}
	s.write("interface.yaml", by("interface", service("interface", 100, "Cluster", "n1")))
	s.write("local.yaml", by("local", service("local", 101, "Local", "n9")))
	s.start("n1")
	says := func(service, words string) {
		t.Helper()
		eventually(t, service+" says "+words, func() bool {
			ctx, cancel := context.WithTimeout(t.Context(), time.Second)
			defer cancel()
			status, _ := agent.NewClient(s.nodes["n1"].socket).Status(ctx) // not yet
			return slices.ContainsFunc(status.Issues, func(i model.Issue) bool {
				return i.Object.String() == "Service shop/"+service && strings.Contains(i.Reason, words)
			})
		})
	}
	says("local", "nobody announces 172.30.0.101: externalTrafficPolicy is Local, and all endpoints are on nodes that the L2Advertisements of metallb-system/outside do not select: n9")
	says("interface", "Node n1, which is to, has no such interface as the L2Advertisements name, eth7")
	lists := func(column int, words string) {
		t.Helper()
		eventually(t, "the table says "+words, func() bool {
			_, out, _ := sluice(t, "addresses", "--socket", s.nodes["n1"].socket)
			fields := strings.Fields(out[max(0, strings.Index(out, "172.30.0.100")):])
			return len(fields) > column && fields[column] == words
		})
	}
	lists(6, "none") // no eth7
	s.must(os.Remove(filepath.Join(s.dir, "pool.yaml")))
	for _, name := range []string{"interface", "local"} {
		says(name, "it is in no IPAddressPool")
	}
	lists(1, "-")
}

// The agent says without --service-addresses that it deals with none.
func TestAddressesOff(t *testing.T) {
	useKernel(t)
	socket := filepath.Join(t.TempDir(), "s.sock")
	startAgent(t, folder(t, map[string]string{"web.yaml": web}), socket, here)
	if code, _, stderr := sluice(t, "sync", "--socket", socket); code != cli.ExitOK {
		t.Fatal(stderr)
	}
	if code, _, stderr := sluice(t, "addresses", "--socket", socket); code == cli.ExitOK || !strings.Contains(stderr, "without --service-addresses") {
		t.Errorf("%d: %s", code, stderr)
	}
}
