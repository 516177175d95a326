package main

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/vishvananda/netlink"

	"sluice.dev/sluice/internal/cli"
	"sluice.dev/sluice/internal/driver/ipvs"
	"sluice.dev/sluice/internal/driver/userspace"
	"sluice.dev/sluice/internal/kernel/probe"
	"sluice.dev/sluice/test/netns"
)

// datagrams is a service of UDP beside web, of the same endpoints.
var datagrams = strings.NewReplacer("name: web", "name: dns", "web-1", "dns-1", "10.0.0.1", "10.0.0.53", "port: 80,", "port: 53,", "TCP", "UDP", "service-name: web", "service-name: dns").Replace(web)

const (
	webAddress = "10.0.0.1:80"
	dnsAddress = "10.0.0.53:53"
	pause      = 5 * time.Millisecond // between two requests of a client
	patience   = 5 * time.Second      // for an answer
)

// modeNode is a node with two servers and a client in pods, which an agent in some mode serves.
type modeNode struct {
	*netns.NS
	client *netns.NS
	dir    string // of the manifests
}

func newModeNode(t *testing.T) *modeNode {
	t.Helper()
	ns := nodeNS(t)
	pods := attachPods(t, ns, 3)
	for _, pod := range pods[:2] {
		serveEcho(t, pod)
	}
	// The node's own requests need a way, as on any node with a default route.
	lo, err := ns.LinkByName("lo")
	if err != nil {
		t.Fatal(err)
	}
	_, all, _ := net.ParseCIDR("10.0.0.0/24")
	veth, err := ns.LinkByName("veth0")
	if err != nil {
		t.Fatal(err)
	}
	own := netlink.Addr{IPNet: &net.IPNet{IP: net.IPv4(192, 0, 2, 1), Mask: net.CIDRMask(32, 32)}}
	if err := errors.Join(ns.AddrAdd(lo, &own), ns.RouteAdd(&netlink.Route{LinkIndex: veth.Attrs().Index, Dst: all, Scope: netlink.SCOPE_LINK, Src: own.IP})); err != nil {
		t.Fatal(err)
	}
	return &modeNode{ns, pods[2], folder(t, map[string]string{"web.yaml": web, "dns.yaml": datagrams})}
}

// serveEcho has a pod send back what it gets, line by line and datagram by datagram.
func serveEcho(t *testing.T, pod *netns.NS) {
	t.Helper()
	err := pod.Do(func() error {
		l, err := net.Listen("tcp", ":8080")
		if err != nil {
			return err
		}
		u, err := net.ListenPacket("udp", ":8080")
		if err != nil {
			return errors.Join(err, l.Close())
		}
		t.Cleanup(func() { _, _ = l.Close(), u.Close() })
		go func() {
			for {
				c, err := l.Accept()
				if err != nil {
					return
				}
				go func() { defer c.Close(); _, _ = io.Copy(c, c) }()
			}
		}()
		go func() {
			b := make([]byte, 1500)
			for {
				n, from, err := u.ReadFrom(b)
				if err != nil {
					return
				}
				_, _ = u.WriteTo(b[:n], from)
			}
		}()
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}

// say sends a line and waits for it to come back.
func say(c net.Conn) error {
	_ = c.SetDeadline(time.Now().Add(patience))
	if _, err := io.WriteString(c, "hello\n"); err != nil {
		return err
	}
	line, err := bufio.NewReader(c).ReadString('\n')
	if err == nil && line != "hello\n" {
		err = fmt.Errorf("answer %q", line)
	}
	return err
}

// dialFrom connects from a namespace.
func dialFrom(ns *netns.NS, network, to string) (c net.Conn, err error) {
	err = ns.Do(func() error {
		c, err = net.DialTimeout(network, to, patience)
		return err
	})
	return c, err
}

// request sends one request by a connection of its own.
func request(ns *netns.NS, network, to string) error {
	c, err := dialFrom(ns, network, to)
	if err != nil {
		return err
	}
	return errors.Join(say(c), c.Close())
}

// requests are clients that send one request after the other, each by a connection of its own.
type requests struct {
	stop chan struct{}
	done sync.WaitGroup
	sent atomic.Int64

	mu     sync.Mutex
	failed []string
}

// send has a pod and the node send requests by some of TCP and UDP.
func (n *modeNode) send(networks ...string) *requests {
	r := &requests{stop: make(chan struct{})}
	for from, ns := range map[string]*netns.NS{"a pod": n.client, "the node": n.NS} {
		for _, network := range networks {
			to := map[string]string{"tcp": webAddress, "udp": dnsAddress}[network]
			r.done.Go(func() {
				for i := 1; ; i++ {
					select {
					case <-r.stop:
						return
					case <-time.After(pause):
					}
					began := time.Now()
					err := request(ns, network, to)
					r.sent.Add(1)
					if err != nil {
						r.mu.Lock()
						r.failed = append(r.failed, fmt.Sprintf("%s request %d from %s to %s: %v after %v", began.Format("15:04:05.000"), i, from, network, err, time.Since(began)))
						r.mu.Unlock()
					}
				}
			})
		}
	}
	return r
}

// goOn returns when n more requests have been sent.
func (r *requests) goOn(t *testing.T, n int64) {
	t.Helper()
	want := r.sent.Load() + n
	eventually(t, "clients send requests", func() bool { return r.sent.Load() >= want })
}

// failures ends the clients.
func (r *requests) failures() []string {
	close(r.stop)
	r.done.Wait()
	return r.failed
}

// agentMode is a way to run an agent, and what it leaves in the kernel, as lines of text.
type agentMode struct {
	name  string
	flags []string
	left  func(*testing.T, *netns.NS) string
}

var agentModes = []agentMode{
	{"nftables", []string{"--mode", "nftables"}, leftNFTables},
	{"iptables-legacy", []string{"--mode", "iptables", "--iptables-variant", "legacy"}, leftLegacy},
	{"iptables-nft", []string{"--mode", "iptables", "--iptables-variant", "nft"}, leftNFT},
	{"userspace", []string{"--mode", "userspace"}, leftUserspace},
}

// lines are those of a command's output that have one of some texts.
func lines(t *testing.T, ns *netns.NS, texts []string, command ...string) string {
	t.Helper()
	out, err := ns.Run(command[0], command[1:]...)
	if err != nil {
		t.Fatalf("%v: %v: %s", command, err, out)
	}
	var b strings.Builder
	for line := range strings.Lines(string(out)) {
		if slices.ContainsFunc(texts, func(s string) bool { return strings.Contains(line, s) }) {
			b.WriteString(line)
		}
	}
	return b.String()
}

func leftNFTables(t *testing.T, ns *netns.NS) string {
	return lines(t, ns, []string{"table inet sluice\n"}, "nft", "list", "tables")
}

func leftIn(variant string) func(*testing.T, *netns.NS) string {
	return func(t *testing.T, ns *netns.NS) (all string) {
		for _, program := range []string{"iptables", "ip6tables"} {
			all += lines(t, ns, []string{"SLUICE"}, program+"-"+variant+"-save")
		}
		return all
	}
}

func leftSets(t *testing.T, ns *netns.NS) string {
	return lines(t, ns, []string{"SLUICE"}, "ipset", "list", "-n")
}

var leftLegacy = leftIn("legacy")

// leftNFT includes the tables that iptables has made in nftables.
func leftNFT(t *testing.T, ns *netns.NS) string {
	return leftIn("nft")(t, ns) + lines(t, ns, []string{"table ip ", "table ip6 "}, "nft", "list", "tables")
}

func leftUserspace(t *testing.T, ns *netns.NS) string {
	table := fmt.Sprint(userspace.RouteTable)
	return lines(t, ns, []string{"sluice-userspace"}, "nft", "list", "tables") + lines(t, ns, []string{table}, "ip", "rule") + lines(t, ns, []string{table}, "ip", "-6", "rule") +
		lines(t, ns, []string{"table " + table}, "ip", "route", "show", "table", "all") + listeners(t, ns)
}

// listeners are the sockets of a namespace that listen for connections, as the kernel lists them.
func listeners(t *testing.T, ns *netns.NS) (all string) {
	t.Helper()
	for _, family := range []string{"tcp", "tcp6"} {
		text := readIn(t, ns, family)
		for line := range strings.Lines(text) {
			if f := strings.Fields(line); len(f) > 3 && f[3] == "0A" {
				all += line
			}
		}
	}
	return all
}

// readIn reads a file of a namespace's /proc/net; "": there is none.
func readIn(t *testing.T, ns *netns.NS, name string) (text string) {
	t.Helper()
	err := ns.Do(func() error {
		b, err := os.ReadFile("/proc/thread-self/net/" + name)
		text = string(b)
		return err
	})
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		t.Fatal(err)
	}
	return text
}

// ipvsMode is there where the kernel has IPVS. Its table of nftables is that of the mode nftables.
var ipvsMode = agentMode{"ipvs", []string{"--mode", "ipvs"}, func(t *testing.T, ns *netns.NS) string {
	_, servers, _ := strings.Cut(readIn(t, ns, "ip_vs"), "ActiveConn InActConn\n")
	return servers + lines(t, ns, []string{" "}, "ip", "route", "show", "table", "local", "proto", fmt.Sprint(ipvs.RouteProtocol))
}}

// leftAll is what agents in all modes have left, except for one.
func leftAll(t *testing.T, ns *netns.NS, but agentMode) (all string) {
	for _, m := range append(slices.Clone(agentModes), ipvsMode) {
		shared := but.name == ipvsMode.name && m.name == "nftables"
		if m.name != but.name && !shared {
			all += m.left(t, ns)
		}
	}
	if !strings.HasPrefix(but.name, "iptables") {
		all += leftSets(t, ns)
	}
	return all
}

// A node goes from each mode to each other while clients connect: no request fails, a connection
// that is under way goes on, and nothing of the former mode is left. The next agent starts beside
// the former one, and takes over when that is told to end.
func TestModeSwitch(t *testing.T) {
	t.Parallel()
	for from, a := range agentModes {
		t.Run("from "+a.name, func(t *testing.T) {
			t.Parallel()
			n := newModeNode(t)
			for to, b := range agentModes {
				if from != to {
					t.Run("to "+b.name, func(t *testing.T) { n.change(t, a, b) })
				}
			}
		})
	}
}

// The same with IPVS, where the kernel has it, and the modes of which the kernel does the work:
// what is led to a proxy passes IPVS on its way. Virtual servers go once their connections have
// ended, those included that wait for stray segments: here the agent does not wait that long.
func TestModeSwitchIPVS(t *testing.T) {
	if err := probe.Missing(t.Context(), ipvs.Requirements); err != nil {
		t.Skip(err)
	}
	patience := drainTimeout
	drainTimeout = 10 * time.Second
	t.Cleanup(func() { drainTimeout = patience })
	n := newModeNode(t)
	for _, m := range agentModes[:2] {
		t.Run(m.name+" to ipvs", func(t *testing.T) { n.change(t, m, ipvsMode) })
		t.Run("ipvs to "+m.name, func(t *testing.T) { n.change(t, ipvsMode, m) })
	}
}

func (n *modeNode) change(t *testing.T, from, to agentMode) {
	sockets := t.TempDir()
	first, second := filepath.Join(sockets, "1"), filepath.Join(sockets, "2")
	log, stop := startAgentLogged(t, n.dir, first, n.Do, append(from.flags, "--policy=false")...)
	inSync(t, first)
	long, err := dialFrom(n.client, "tcp", webAddress)
	if err != nil {
		t.Fatal(err)
	}
	defer long.Close()
	if err := say(long); err != nil {
		t.Fatal(err)
	}
	load := n.send("tcp", "udp")
	load.goOn(t, 20)

	started := make(chan func(), 1)
	go func() { started <- startAgent(t, n.dir, second, n.Do, append(to.flags, "--policy=false")...) }()
	eventually(t, "the agent knows that the next one waits", func() bool { return strings.Contains(log.String(), "another agent has been started") })
	ended := make(chan struct{})
	go func() { stop(); close(ended) }()
	stop = <-started
	inSync(t, second)
	if to.name != "nftables" && to.name != ipvsMode.name {
		eventually(t, "the table of nftables is gone", func() bool { return leftNFTables(t, n.NS) == "" })
	}
	load.goOn(t, 20)
	if err := say(long); err != nil {
		t.Errorf("a connection that was under way: %v", err)
	}
	if from.name == ipvsMode.name {
		stop()
		stop = startAgent(t, n.dir, second, n.Do, append(to.flags, "--policy=false")...)
		inSync(t, second)
		load.goOn(t, 20)
		if err := say(long); err != nil {
			t.Errorf("a connection that was under way, after a restart: %v", err)
		}
	}
	_ = long.Close()
	<-ended
	eventually(t, "nothing is left of "+from.name, func() bool { return leftAll(t, n.NS, to) == "" })
	load.goOn(t, 20)
	if failed := load.failures(); len(failed) > 0 {
		t.Errorf("%d of %d requests failed:\n%s", len(failed), load.sent.Load(), strings.Join(failed[:min(10, len(failed))], "\n"))
	}
	t.Logf("%d of %d requests failed", len(load.failed), load.sent.Load())
	stop()
	var b bytes.Buffer
	if err := n.Do(func() error {
		if code := execute(t.Context(), []string{"cleanup", "--socket", second}, &b, &b); code != cli.ExitOK {
			t.Errorf("cleanup exits with %d: %s", code, b.String())
		}
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	if left := leftAll(t, n.NS, agentMode{}); left != "" {
		t.Errorf("cleanup leaves:\n%s", left)
	}
}

func inSync(t *testing.T, socket string) {
	t.Helper()
	if code, _, stderr := sluice(t, "sync", "--socket", socket); code != cli.ExitOK {
		t.Fatal(stderr)
	}
}
