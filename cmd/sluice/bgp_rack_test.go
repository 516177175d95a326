package main

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"sluice.dev/sluice/internal/agent"
	"sluice.dev/sluice/internal/bgp"
	"sluice.dev/sluice/test/peertest"
	"sluice.dev/sluice/test/programs"
	"sluice.dev/sluice/test/world"
)

// rack is a node with an agent, and two routers on subnets of their own: spine, which is BIRD and
// of another AS, and tor, which is FRR and of the node's. The node has a pod, and spine a server,
// which are addresses of theirs.
type rack struct {
	t                *testing.T
	node, spine, tor *world.Host
	bird             *peertest.BIRD
	birdDir          string
	frr              *peertest.FRR

	dir, passwords, socket string
	agent                  *exec.Cmd
	log                    bytes.Buffer
}

// Where the node, its pod and the server of spine are.
const (
	podIPv4, podIPv6       = "10.244.1.10", "fd00:244:1::10"
	serverIPv4, serverIPv6 = "10.245.0.1", "fd00:245::1"
)

// spineConf is the configuration of spine; what %s stand for are more routes of IPv4, and more of
// the session over it.
const spineConf = `
router id 172.31.1.254;
protocol device {}
protocol kernel { ipv4 { export where source = RTS_BGP; }; }
protocol kernel { ipv6 { export where source = RTS_BGP; }; }
protocol static s4 { ipv4; route 10.245.0.0/24 blackhole; %s }
protocol static s6 { ipv6; route fd00:245::/64 blackhole; }
protocol bgp four {
  local 172.31.1.254 as 64501; neighbor 172.31.1.1 as 64512; graceful restart on; connect retry time 1; error wait time 1, 5; %s
  ipv4 {
    import all;
    next hop keep;
    export filter {
      if source != RTS_STATIC then reject;
      if net = 10.246.0.0/24 then bgp_next_hop = 198.18.7.7; else bgp_next_hop = 172.31.1.254;
      accept;
    };
  };
}
protocol bgp six {
  local fd00:31:1::fe as 64501; neighbor fd00:31:1::1 as 64512; graceful restart on; connect retry time 1; error wait time 1, 5;
  ipv6 { import all; export where source = RTS_STATIC; };
}
`

const torConf = `
frr defaults traditional
router bgp 64512
 bgp router-id 172.31.2.254
 no bgp default ipv4-unicast
 bgp graceful-restart
 bgp graceful-restart preserve-fw-state
 neighbor 172.31.2.1 remote-as 64512
 neighbor 172.31.2.1 timers connect 1
 address-family ipv4 unicast
  neighbor 172.31.2.1 activate
 exit-address-family
 address-family ipv6 unicast
  neighbor 172.31.2.1 activate
 exit-address-family
`

// rackObjects have the node speak with both routers. Its address is on the subnet of spine.
const rackObjects = `
apiVersion: v1
kind: Node
metadata: {name: node-a}
spec: {podCIDRs: [10.244.1.0/24, "fd00:244:1::/64"]}
status: {addresses: [{type: InternalIP, address: 172.31.1.1}, {type: InternalIP, address: "fd00:31:1::1"}]}
---
apiVersion: v1
kind: Node
metadata: {name: node-b}
spec: {podCIDRs: [10.244.2.0/24, "fd00:244:2::/64"]}
status: {addresses: [{type: InternalIP, address: 172.31.1.2}, {type: InternalIP, address: "fd00:31:1::2"}]}
---
apiVersion: projectcalico.org/v3
kind: BGPConfiguration
metadata: {name: default}
spec: {nodeToNodeMeshEnabled: false, asNumber: 64512}
---
apiVersion: projectcalico.org/v3
kind: BGPPeer
metadata: {name: spine6}
spec: {peerIP: "fd00:31:1::fe", asNumber: 64501}
---
apiVersion: metallb.io/v1beta2
kind: BGPPeer
metadata: {name: tor, namespace: metallb-system}
spec: {myASN: 64512, peerASN: 64512, peerAddress: 172.31.2.254, dualStackAddressFamily: true, enableGracefulRestart: true, connectTime: 1s}
`

// spine4 is the session with spine over IPv4; what %s stands for comes after its AS.
const spine4 = `
apiVersion: projectcalico.org/v3
kind: BGPPeer
metadata: {name: spine4}
spec: {peerIP: 172.31.1.254, asNumber: 64501%s}
`

// newRack makes it, without an agent.
func newRack(t *testing.T) *rack {
	t.Helper()
	r := &rack{t: t, dir: t.TempDir(), passwords: t.TempDir(), socket: filepath.Join(t.TempDir(), "s.sock")}
	r.node, r.spine, r.tor = world.NewHost(t, "node"), world.NewHost(t, "spine"), world.NewHost(t, "tor")
	t.Cleanup(func() {
		r.kill()
		if t.Failed() {
			t.Logf("the agent:\n%s", &r.log)
		}
	})
	r.wire()
	r.birdDir = r.short()
	var err error
	r.bird, err = peertest.StartBIRD(t.Context(), r.spine.NS, r.birdDir, fmt.Sprintf(spineConf, "", ""))
	r.must(err)
	t.Cleanup(func() { r.stopped(r.bird.Kill()) })
	r.frr, err = peertest.StartFRR(t.Context(), r.tor.NS, r.short(), torConf)
	r.must(err)
	t.Cleanup(func() { r.stopped(r.frr.Stop()) })
	r.write("rack.yaml", rackObjects)
	r.write("spine4.yaml", fmt.Sprintf(spine4, ""))
	return r
}

// withSpeaker is the environment of an agent that finds sluice-bgp.
func withSpeaker(t *testing.T) []string {
	t.Helper()
	return append(os.Environ(), "PATH="+filepath.Dir(programs.Path(t, "sluice-bgp"))+":"+os.Getenv("PATH"))
}

// reconfigure gives spine more routes of IPv4, and more of the session over it.
func (r *rack) reconfigure(routes, session string) {
	r.t.Helper()
	r.must(os.WriteFile(filepath.Join(r.birdDir, "bird.conf"), fmt.Appendf(nil, spineConf, routes, session), 0o600))
	_, err := r.bird.Run("configure")
	r.must(err)
}

// wire gives the hosts their links and addresses.
func (r *rack) wire() {
	r.node.Join("eth0", r.spine, "node")
	r.node.Join("eth1", r.tor, "node")
	r.node.Forward()
	r.node.Address("eth0", "172.31.1.1/24", "fd00:31:1::1/64")
	r.node.Address("eth1", "172.31.2.1/24", "fd00:31:2::1/64")
	r.node.Address("lo", podIPv4+"/32", podIPv6+"/128")
	r.spine.Address("node", "172.31.1.254/24", "fd00:31:1::fe/64")
	r.spine.Address("lo", serverIPv4+"/32", serverIPv6+"/128")
	r.tor.Address("node", "172.31.2.254/24", "fd00:31:2::fe/64")
}

func (r *rack) must(err error) {
	r.t.Helper()
	if err != nil {
		r.t.Fatal(err)
	}
}

func (r *rack) stopped(err error) {
	if err != nil {
		r.t.Error(err)
	}
}

// short is an empty folder with a short path, for sockets.
func (r *rack) short() string {
	dir, err := os.MkdirTemp("", "rack")
	r.must(err)
	r.t.Cleanup(func() { r.stopped(os.RemoveAll(dir)) })
	return dir
}

// write writes a manifest in one step.
func (r *rack) write(name, text string) {
	r.t.Helper()
	temporary := filepath.Join(r.t.TempDir(), name)
	r.must(os.WriteFile(temporary, []byte(text), 0o600))
	r.must(os.Rename(temporary, filepath.Join(r.dir, name)))
}

// start starts the agent.
func (r *rack) start() {
	r.t.Helper()
	r.agent = exec.Command(self, "run", "--manifests", r.dir, "--node", "node-a", "--socket", r.socket, "--metrics-address", "", "--healthz-address", "",
		"--set-sysctls=false", "--policy=false", "--fabric", "native", "--bgp", "--bgp-passwords", r.passwords, "--service-addresses")
	r.agent.Env = withSpeaker(r.t)
	r.agent.Stdout, r.agent.Stderr = &r.log, &r.log
	r.must(r.node.Start(r.agent))
}

// kill ends the agent as a crash does.
func (r *rack) kill() {
	if r.agent != nil {
		_ = r.agent.Process.Kill()
		_ = r.agent.Wait() // once the speaker has ended, too: it has the agent's standard error
		r.agent = nil
	}
}

// speaker is the process of the agent's speaker.
func (r *rack) speaker() (pid int) {
	r.t.Helper()
	r.await("the agent has a speaker", func() bool {
		tasks, _ := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/children", r.agent.Process.Pid))
		for _, task := range tasks {
			if text, err := os.ReadFile(task); err == nil && len(text) > 0 {
				_, err = fmt.Sscan(string(text), &pid)
				return err == nil
			}
		}
		return false
	})
	return pid
}

// await waits until something is so, for as long as a session may take on a machine with much else
// to do.
func (r *rack) await(what string, is func() bool) {
	r.t.Helper()
	for end := time.Now().Add(time.Minute); !is(); time.Sleep(50 * time.Millisecond) {
		if time.Now().After(end) {
			r.t.Fatalf("does not happen: %s", what)
		}
	}
}

// report is what the agent says of BGP.
func (r *rack) report() agent.BGPReport {
	ctx, cancel := context.WithTimeout(r.t.Context(), time.Second)
	defer cancel()
	report, _ := agent.NewClient(r.socket).BGP(ctx) // not yet
	return report
}

// up waits until all sessions are, all routes are learned, and what is learned is not stale.
func (r *rack) up() {
	r.t.Helper()
	r.await("all sessions are established", func() bool {
		report := r.report()
		for _, s := range report.Sessions {
			if s.State != bgp.Established {
				return false
			}
		}
		for _, l := range report.Learned {
			if l.Stale {
				return false
			}
		}
		return len(report.Sessions) == 3 && len(report.Learned) == 2 && report.Settled
	})
}

// steady does something that sessions other than that over IPv4 with spine do not notice.
func (r *rack) steady(f func()) {
	r.t.Helper()
	r.up()
	before := r.report().Sessions
	f()
	r.up()
	after := r.report().Sessions
	for _, name := range []string{"BGPPeer metallb-system/tor", "BGPPeer spine6"} {
		if !before[name].Since.Equal(after[name].Since) {
			r.t.Errorf("the session with %s was disturbed: %s", name, after[name].Why)
		}
	}
}

// missed waits until both routers have noticed that there is no speaker on the node.
func (r *rack) missed() {
	r.t.Helper()
	r.await("the routers know that the node's speaker is away", func() bool {
		bird, err := r.bird.Run("show protocols")
		r.must(err)
		frr, err := r.frr.Run("show bgp neighbors 172.31.2.1")
		r.must(err)
		return !strings.Contains(bird, "Established") && !strings.Contains(frr, "BGP state = Established")
	})
}

// says waits until a session, or an issue, says something.
func (r *rack) says(text string) {
	r.t.Helper()
	var said strings.Builder
	defer func() {
		if r.t.Failed() {
			r.t.Logf("it says: %s", &said)
		}
	}()
	r.await("sluice bgp says "+text, func() bool {
		said.Reset()
		report := r.report()
		bgpTable(&said, report, true)
		return strings.Contains(said.String(), text)
	})
}

// shows waits until a command in a namespace prints something.
func (r *rack) shows(ns *world.Host, command, want string) {
	r.t.Helper()
	var out []byte
	defer func() {
		if r.t.Failed() {
			r.t.Logf("%s: %s", command, out)
		}
	}()
	args := strings.Fields(command)
	r.await(command+" shows "+want, func() bool {
		out, _ = ns.Run(args[0], args[1:]...)
		return strings.Contains(string(out), want)
	})
}

// lacks waits until a namespace has no route to a prefix.
func (r *rack) lacks(ns *world.Host, to string) {
	r.t.Helper()
	r.await(ns.Name+" has no route to "+to, func() bool {
		out, err := ns.Run("ip", "route", "show", to)
		r.must(err)
		return len(out) == 0
	})
}

// serve answers on port 8080 in a namespace until the test ends.
func (r *rack) serve(ns *world.Host) {
	r.t.Helper()
	var l net.Listener
	ns.In(func() (err error) {
		l, err = net.Listen("tcp", ":8080")
		return err
	})
	r.t.Cleanup(func() { _ = l.Close() })
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			_, _ = io.WriteString(c, "hello")
			_ = c.Close()
		}
	}()
}

// ask connects from an address in a namespace, and reads the answer.
func ask(ns *world.Host, from, to string) error {
	return ns.Do(func() error {
		d := net.Dialer{Timeout: 5 * time.Second}
		if from != "" {
			d.LocalAddr = &net.TCPAddr{IP: net.ParseIP(from)}
		}
		c, err := d.Dial("tcp", to)
		if err != nil {
			return err
		}
		defer func() { _ = c.Close() }()
		_ = c.SetDeadline(time.Now().Add(5 * time.Second))
		b, err := io.ReadAll(c)
		if err == nil && string(b) != "hello" {
			err = fmt.Errorf("%s answers %q", to, b)
		}
		return err
	})
}

// flow is a way that traffic goes.
type flow struct {
	ns       *world.Host
	from, to string
}

// flows are from the node's pod to spine, and from tor to a Service.
func (r *rack) flows() []flow {
	return []flow{
		{r.node, podIPv4, serverIPv4 + ":8080"}, {r.node, podIPv6, "[" + serverIPv6 + "]:8080"},
		{r.spine, serverIPv4, podIPv4 + ":8080"}, {r.spine, serverIPv6, "[" + podIPv6 + "]:8080"},
		{r.tor, "", "203.0.113.11:80"}, {r.tor, "", "[fd00:51::11]:80"},
	}
}

// undisturbed does something under traffic, and fails the test if a request does, or a route goes
// anywhere meanwhile.
func (r *rack) undisturbed(f func()) {
	r.t.Helper()
	stop := make(chan struct{})
	var running sync.WaitGroup
	defer func() {
		close(stop)
		running.Wait()
	}()
	for _, way := range r.flows() {
		running.Go(func() {
			requests := 0
			for {
				select {
				case <-stop:
					r.t.Logf("%d requests to %s", requests, way.to)
					return
				case <-time.After(20 * time.Millisecond):
				}
				requests++
				if err := ask(way.ns, way.from, way.to); err != nil {
					r.t.Errorf("request %d from %s to %s: %v", requests, way.ns.Name, way.to, err)
					return
				}
			}
		})
	}
	r.stay(r.node, func() { r.stay(r.spine, func() { r.stay(r.tor, f) }) })
}

// stay does something, and fails the test if a route of a namespace goes anywhere meanwhile.
func (r *rack) stay(ns *world.Host, f func()) {
	r.t.Helper()
	stop, changes := make(chan struct{}), make(chan netlink.RouteUpdate, 1024)
	var watching sync.WaitGroup
	defer func() {
		close(stop)
		watching.Wait()
	}()
	r.must(ns.Do(func() error { return netlink.RouteSubscribe(changes, stop) }))
	watching.Go(func() {
		for c := range changes {
			if c.Type == unix.RTM_DELROUTE && c.Route.Type != unix.RTN_MULTICAST {
				r.t.Errorf("%s lost the route %v", ns.Name, c.Route)
			}
		}
	})
	f()
}
