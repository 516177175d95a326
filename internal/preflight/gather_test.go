package preflight_test

import (
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"

	"github.com/safchain/ethtool"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"sluice.dev/sluice/internal/driver/nftables"
	"sluice.dev/sluice/internal/driver/table"
	"sluice.dev/sluice/internal/kernel/probe"
	"sluice.dev/sluice/internal/kernel/sysctl"
	"sluice.dev/sluice/internal/preflight"
	"sluice.dev/sluice/test/netns"
	"sluice.dev/sluice/test/world"
)

// node makes a namespace with an interface, an address and a default route for IPv4.
func node(t *testing.T) *netns.NS {
	t.Helper()
	host := world.NewHost(t, "node")
	host.Join("eth0", host, "peer0")
	host.Address("eth0", "192.168.77.2/24")
	host.Gateway("192.168.77.1")
	return host.NS
}

func eth0(t *testing.T, ns *netns.NS) netlink.Link {
	t.Helper()
	link, err := ns.LinkByName("eth0")
	if err != nil {
		t.Fatal(err)
	}
	return link
}

func addr(t *testing.T, ns *netns.NS, cidr string) {
	t.Helper()
	a, err := netlink.ParseAddr(cidr)
	if err != nil {
		t.Fatal(err)
	}
	a.Flags = unix.IFA_F_NODAD
	if err := ns.AddrAdd(eth0(t, ns), a); err != nil {
		t.Fatal(err)
	}
}

func addRoute(t *testing.T, ns *netns.NS, dst, gateway string) {
	t.Helper()
	_, n, err := net.ParseCIDR(dst)
	if err != nil {
		t.Fatal(err)
	}
	if err := ns.RouteAdd(&netlink.Route{LinkIndex: eth0(t, ns).Attrs().Index, Dst: n, Gw: net.ParseIP(gateway)}); err != nil {
		t.Fatal(err)
	}
}

func run(t *testing.T, ns *netns.NS, stdin, program string, args ...string) {
	t.Helper()
	err := ns.Do(func() error {
		cmd := exec.Command(program, args...)
		cmd.Stdin = strings.NewReader(stdin)
		if out, err := cmd.CombinedOutput(); err != nil {
			return fmt.Errorf("run %s %v: %w: %s", program, args, err, out)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}

func gather(t *testing.T, ns *netns.NS, o preflight.Options) []preflight.Result {
	t.Helper()
	if o.Socket == "" {
		o.Socket = filepath.Join(t.TempDir(), "sluice.sock")
	}
	o.Mode, o.Requirements, o.PolicyRequirements = "nftables", nftables.Requirements, nftables.PolicyRequirements
	o.Optional = []*probe.Requirement{table.Protection}
	var results []preflight.Result
	err := ns.Do(func() error {
		results = preflight.Check(preflight.Gather(t.Context(), o))
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return results
}

// expect wants a result of the check with the status that says each of the words.
func expect(t *testing.T, results []preflight.Result, check string, status preflight.Status, words ...string) {
	t.Helper()
next:
	for _, r := range results {
		if r.Check != check || r.Status != status {
			continue
		}
		for _, w := range words {
			if !strings.Contains(r.Seen+"\n"+r.Do, w) {
				continue next
			}
		}
		return
	}
	var b strings.Builder
	preflight.Print(&b, results)
	t.Errorf("no %s result of %s that says %q in\n%s", status, check, words, b.String())
}

// What datagrams cost that arrive by the default route's interface is said where they could be
// joined, with the command for it.
func TestDatagrams(t *testing.T) {
	ns := node(t)
	set := func(features map[string]bool) {
		t.Helper()
		if err := ns.Do(func() error {
			e, err := ethtool.NewEthtool()
			if err != nil {
				return err
			}
			defer e.Close()
			return e.Change("eth0", features)
		}); err != nil {
			t.Fatal(err)
		}
	}
	set(map[string]bool{"rx-gro": true, "rx-udp-gro-forwarding": false})
	expect(t, gather(t, ns, preflight.Options{}), "datagrams", preflight.OK, "eth0", "ethtool -K eth0 rx-udp-gro-forwarding on rx-gro-list off")
	set(map[string]bool{"rx-udp-gro-forwarding": true})
	for _, r := range gather(t, ns, preflight.Options{}) {
		if r.Check == "datagrams" {
			t.Errorf("it says what is done already: %+v", r)
		}
	}
}

// An uplink that could take more of a stream as one packet is named until it does.
func TestStreams(t *testing.T) {
	ns := node(t)
	uplink, err := ns.LinkByName("eth0")
	if err != nil {
		t.Fatal(err)
	}
	if uplink.Attrs().GSOIPv4MaxSize == 0 {
		t.Skip("it needs Linux 6.3")
	}
	said := func() bool {
		return slices.ContainsFunc(gather(t, ns, preflight.Options{}), func(r preflight.Result) bool { return r.Check == "streams" })
	}
	if !said() {
		t.Error("it is not said")
	}
	if err := ns.LinkSetGSOIPv4MaxSize(uplink, 192<<10); err != nil {
		t.Fatal(err)
	}
	if said() {
		t.Error("it says what is done already")
	}
}

func TestBareNode(t *testing.T) {
	ns := node(t)
	results := gather(t, ns, preflight.Options{Policy: true})
	expect(t, results, "kernel", preflight.OK, "Linux")
	expect(t, results, "policy", preflight.OK, "connection labels", "ingress hook")
	expect(t, results, "privileges", preflight.OK)
	expect(t, results, "nftables", preflight.OK, "reject while translating", "masquerade")
	expect(t, results, "route IPv4", preflight.OK, "via 192.168.77.1 dev eth0")
	expect(t, results, "forwarding IPv4", preflight.Warn, "off")
	expect(t, results, "rp_filter", preflight.OK)
	expect(t, results, "other rules", preflight.OK)
	expect(t, results, "iptables-legacy", preflight.OK)
	expect(t, results, "other proxies", preflight.OK)
	expect(t, results, "agent", preflight.OK)
	for _, r := range results {
		if strings.Contains(r.Check, "IPv6") {
			t.Errorf("IPv6 is not in use: %+v", r)
		}
	}
	if preflight.Failed(results) {
		t.Error("a bare node fails")
	}
}

func TestProbeLeavesNothing(t *testing.T) {
	ns := node(t)
	gather(t, ns, preflight.Options{Policy: true})
	out, err := ns.Run("nft", "list", "ruleset")
	if err != nil || len(out) > 0 {
		t.Errorf("ruleset after a probe: %v\n%s", err, out)
	}
}

func TestWithoutDefaultRoute(t *testing.T) {
	ns := node(t)
	_, all, _ := net.ParseCIDR("0.0.0.0/0")
	if err := ns.RouteDel(&netlink.Route{LinkIndex: eth0(t, ns).Attrs().Index, Dst: all}); err != nil {
		t.Fatal(err)
	}
	services := preflight.Options{ServiceCIDRs: []netip.Prefix{netip.MustParsePrefix("10.96.0.0/12")}}
	results := gather(t, ns, services)
	expect(t, results, "route IPv4", preflight.Fail, "no route to 10.96.0.1: network is unreachable", "default route")
	if !preflight.Failed(results) {
		t.Error("preflight does not fail")
	}
	addRoute(t, ns, "10.96.0.0/12", "192.168.77.1")
	expect(t, gather(t, ns, services), "route IPv4", preflight.OK, "via 192.168.77.1")
}

func TestIPv6InUse(t *testing.T) {
	ns := node(t)
	addr(t, ns, "fd77::2/64")
	results := gather(t, ns, preflight.Options{})
	expect(t, results, "route IPv6", preflight.Warn, "if the cluster has IPv6 services: add a default route")
	services := []netip.Prefix{netip.MustParsePrefix("fd00:96::/108")}
	expect(t, gather(t, ns, preflight.Options{ServiceCIDRs: services}), "route IPv6", preflight.Fail, "no route to fd00:96::1")
	expect(t, results, "forwarding IPv6", preflight.Warn, "off")
	addRoute(t, ns, "::/0", "fd77::1")
	if err := ns.Sysctl(sysctl.Forward6, "1"); err != nil {
		t.Fatal(err)
	}
	results = gather(t, ns, preflight.Options{})
	expect(t, results, "route IPv6", preflight.OK, "via fd77::1 dev eth0")
	expect(t, results, "forwarding IPv6", preflight.OK)
}

func TestInterfaceParameters(t *testing.T) {
	ns := node(t)
	// In this order: ip_forward sets the parameter of every interface.
	for _, p := range [][2]string{{sysctl.Forward4, "1"}, {"net.ipv4.conf.peer0.forwarding", "0"}, {"net.ipv4.conf.eth0.rp_filter", "1"}} {
		if err := ns.Sysctl(p[0], p[1]); err != nil {
			t.Fatal(err)
		}
	}
	results := gather(t, ns, preflight.Options{})
	expect(t, results, "forwarding IPv4", preflight.OK, "on")
	expect(t, results, "forwarding IPv4", preflight.Warn, "off on peer0")
	expect(t, results, "rp_filter", preflight.Warn, "strict on eth0:")
	if err := ns.Sysctl("net.ipv4.conf.all.rp_filter", "2"); err != nil {
		t.Fatal(err)
	}
	expect(t, gather(t, ns, preflight.Options{}), "rp_filter", preflight.OK)
}

func TestWithoutPrivileges(t *testing.T) {
	ns := node(t)
	var results []preflight.Result
	err := ns.Do(func() error {
		runtime.LockOSThread() // the thread that loses its privileges ends with this function
		header := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
		var none [2]unix.CapUserData
		if err := unix.Capset(&header, &none[0]); err != nil {
			return fmt.Errorf("drop capabilities: %w", err)
		}
		results = preflight.Check(preflight.Gather(t.Context(), preflight.Options{Socket: "/nonexistent", Mode: "nftables", Requirements: nftables.Requirements}))
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	expect(t, results, "privileges", preflight.Fail, "CAP_NET_ADMIN is missing")
	expect(t, results, "nftables", preflight.Warn, "cannot tell: it needs CAP_NET_ADMIN")
	expect(t, results, "route IPv4", preflight.OK)
}

// What these programs set up, as their own packages do it, cut to what matters.
const (
	dockerRules = `*filter
:INPUT ACCEPT [0:0]
:FORWARD DROP [0:0]
:OUTPUT ACCEPT [0:0]
:DOCKER - [0:0]
:DOCKER-USER - [0:0]
-A FORWARD -j DOCKER-USER
-A FORWARD -o peer0 -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT
-A FORWARD -o peer0 -j DOCKER
-A DOCKER-USER -j RETURN
COMMIT
`
	ufwRules = `*filter
:INPUT DROP [0:0]
:FORWARD DROP [0:0]
:OUTPUT ACCEPT [0:0]
:ufw-before-forward - [0:0]
:ufw-user-forward - [0:0]
-A FORWARD -j ufw-before-forward
-A ufw-before-forward -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT
-A ufw-before-forward -j ufw-user-forward
COMMIT
`
	firewalldRules = `table inet firewalld {
	chain filter_FORWARD {
		type filter hook forward priority filter + 10; policy accept;
		ct state { established, related } accept
		ct status dnat accept
		iifname "lo" accept
		ct state invalid drop
		reject with icmpx admin-prohibited
	}
	chain filter_INPUT {
		type filter hook input priority filter + 10; policy accept;
		ct state { established, related } accept
		ct status dnat accept
		iifname "lo" accept
		reject with icmpx admin-prohibited
	}
}
`
)

func TestDocker(t *testing.T) {
	for _, save := range []struct{ program, check string }{{"iptables-nft-restore", "other rules"}, {"iptables-legacy-restore", "iptables-legacy"}} {
		t.Run(save.program, func(t *testing.T) {
			ns := node(t)
			run(t, ns, dockerRules, save.program)
			results := gather(t, ns, preflight.Options{})
			expect(t, results, save.check, preflight.Warn, "Docker: ", "chain ip filter FORWARD (forward) drops", "DOCKER-USER -s PODS")
			if preflight.Failed(results) {
				t.Error("a warning made it fail")
			}
		})
	}
}

func TestBridgedPods(t *testing.T) {
	ns := node(t)
	bridge := &netlink.Bridge{LinkAttrs: netlink.LinkAttrs{Name: "cni0"}}
	if err := ns.LinkAdd(bridge); err != nil {
		t.Fatal(err)
	}
	peer, err := ns.LinkByName("peer0")
	if err != nil {
		t.Fatal(err)
	}
	if err := ns.LinkSetMaster(peer, bridge); err != nil {
		t.Fatal(err)
	}
	results := gather(t, ns, preflight.Options{Policy: true})
	for _, r := range results {
		if r.Check == "bridged pods" && strings.Contains(r.Seen, "behind cni0: ") {
			return
		}
	}
	t.Errorf("nobody says that pods are behind cni0: %+v", results)
}

func TestUfw(t *testing.T) {
	ns := node(t)
	run(t, ns, ufwRules, "iptables-nft-restore")
	results := gather(t, ns, preflight.Options{})
	expect(t, results, "other rules", preflight.Warn, "ufw: ", "FORWARD (forward) drops", "ufw route allow to PODS")
	expect(t, results, "other rules", preflight.Warn, "ufw: ", "INPUT (input) drops", "ufw allow PORT")
}

func TestFirewalld(t *testing.T) {
	ns := node(t)
	run(t, ns, firewalldRules, "nft", "-f", "-")
	results := gather(t, ns, preflight.Options{})
	expect(t, results, "other rules", preflight.OK, "firewalld: ", "filter_FORWARD (forward) rejects", "accepts connections to services")
	expect(t, results, "other rules", preflight.OK, "firewalld: ", "filter_INPUT (input) rejects", "accepts connections to services")
	run(t, ns, "table inet firewalld {\nchain filter_PREROUTING { type filter hook prerouting priority filter + 10; policy drop;\n }\n}\n", "nft", "-f", "-")
	expect(t, gather(t, ns, preflight.Options{}), "other rules", preflight.Warn, "firewalld: ", "filter_PREROUTING (prerouting) drops", "firewall-cmd")
}

func TestAChainThatAcceptsAllIsNoConcern(t *testing.T) {
	ns := node(t)
	run(t, ns, "table ip t {\nchain c { type filter hook forward priority 0; policy drop; counter accept\n }\n}\n", "nft", "-f", "-")
	expect(t, gather(t, ns, preflight.Options{}), "other rules", preflight.OK, "no other")
}

func TestKubeProxyIsFound(t *testing.T) {
	for name, rules := range map[string][]string{
		"iptables": {"*nat\n:PREROUTING ACCEPT [0:0]\n:KUBE-SERVICES - [0:0]\n-A PREROUTING -j KUBE-SERVICES\nCOMMIT\n", "iptables-nft-restore"},
		"legacy":   {"*nat\n:PREROUTING ACCEPT [0:0]\n:KUBE-SERVICES - [0:0]\n-A PREROUTING -j KUBE-SERVICES\nCOMMIT\n", "iptables-legacy-restore"},
		"nftables": {"table ip kube-proxy {\nchain services {\n}\n}\n", "nft", "-f", "-"},
	} {
		t.Run(name, func(t *testing.T) {
			ns := node(t)
			run(t, ns, rules[0], rules[1], rules[2:]...)
			expect(t, gather(t, ns, preflight.Options{}), "other proxies", preflight.Warn, "kube-proxy", "takeover")
		})
	}
}

func TestOwnTableIsNoForeignOne(t *testing.T) {
	ns := node(t)
	run(t, ns, "table inet sluice {\nchain c { type filter hook forward priority 0; policy drop;\n }\n}\n", "nft", "-f", "-")
	results := gather(t, ns, preflight.Options{})
	expect(t, results, "other rules", preflight.OK)
	expect(t, results, "agent", preflight.OK, "the next adopts it")
}

// Rules of others may ask for the direction of a connection.
func TestRulesThatAskForADirection(t *testing.T) {
	ns := node(t)
	const base = "type filter hook forward priority 0; policy drop; ct original ip saddr 192.0.2.1 drop\n"
	run(t, ns, "table ip t {\nchain others { "+base+"ct reply ip saddr 192.0.2.9 accept\n }\nchain services { "+base+"ct status dnat accept\n }\n }\n", "nft", "-f", "-")
	results := gather(t, ns, preflight.Options{})
	expect(t, results, "other rules", preflight.Warn, "ip t others (forward) drops what its rules do not accept")
	expect(t, results, "other rules", preflight.OK, "ip t services (forward) drops what its rules do not accept; it accepts connections to services")
}

// A proxy's table is ours, too.
func TestTableOfAProxyIsNoForeignOne(t *testing.T) {
	ns := node(t)
	run(t, ns, "table inet sluice-userspace {\nchain c { type filter hook forward priority 0; policy drop;\n ct original ip daddr 10.0.0.1 accept\n }\n}\n", "nft", "-f", "-")
	expect(t, gather(t, ns, preflight.Options{}), "other rules", preflight.OK)
}

func TestLivingAgentAndItsSysctls(t *testing.T) {
	ns := node(t)
	socket := filepath.Join(t.TempDir(), "a.sock")
	l, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	err = ns.Do(func() error {
		_, err := sysctl.Set(sysctl.RecordPath(socket), map[string]string{sysctl.Forward4: "1"})
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	results := gather(t, ns, preflight.Options{Socket: socket})
	expect(t, results, "agent", preflight.Warn, "one answers on "+socket)
	expect(t, results, "sysctls", preflight.OK, "net.ipv4.ip_forward = 1 (was 0)", "sluice cleanup")
	if err := l.Close(); err != nil && !errors.Is(err, net.ErrClosed) {
		t.Error(err)
	}
	expect(t, gather(t, ns, preflight.Options{Socket: socket}), "agent", preflight.OK, "none answers")
}

// What others have on the node is found by their processes, interfaces and ports.
func TestOthersAreFound(t *testing.T) {
	ns := node(t)
	program := filepath.Join(t.TempDir(), "kube-proxy") // the kernel knows a process by its file
	sleep, err := exec.LookPath("sleep")
	if err == nil {
		var b []byte
		if b, err = os.ReadFile(sleep); err == nil {
			err = os.WriteFile(program, b, 0o755)
		}
	}
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(t.Context(), program, "60") // ends with the test
	if err := ns.Start(cmd); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = cmd.Wait() })
	if err := ns.LinkAdd(&netlink.Bridge{LinkAttrs: netlink.LinkAttrs{Name: "kube-bridge"}}); err != nil {
		t.Fatal(err)
	}
	lo, err := ns.LinkByName("lo")
	if err == nil {
		err = ns.LinkSetUp(lo)
	}
	if err != nil {
		t.Fatal(err)
	}
	var health net.Listener
	err = ns.Do(func() (err error) { health, err = net.Listen("tcp", ":10256"); return err })
	if err != nil {
		t.Fatal(err)
	}
	server := &http.Server{Handler: http.NotFoundHandler()}
	served := make(chan error, 1)
	go func() { served <- server.Serve(health) }()
	t.Cleanup(func() { _, _ = server.Close(), <-served })
	results := gather(t, ns, preflight.Options{Policy: true})
	expect(t, results, "other proxies", preflight.Warn, "kube-proxy runs")
	expect(t, results, "pod network", preflight.Warn, "kube-router (interface kube-bridge)")
	expect(t, results, "ports", preflight.OK, "kube-proxy has 127.0.0.1:10256")
	expect(t, results, "ports", preflight.Warn, "no /livez", "healthzAddress")
	expect(t, gather(t, node(t), preflight.Options{Policy: true}), "ports", preflight.OK, "127.0.0.1:10249 and 127.0.0.1:10256 are free")
	expect(t, gather(t, node(t), preflight.Options{Policy: true}), "other proxies", preflight.OK)
}

func TestTwoBackendsOfIptables(t *testing.T) {
	ns := node(t)
	run(t, ns, dockerRules, "iptables-nft-restore")
	run(t, ns, "*nat\n:PREROUTING ACCEPT [0:0]\nCOMMIT\n", "iptables-legacy-restore")
	for _, r := range gather(t, ns, preflight.Options{}) {
		if r.Check == "iptables backends" {
			t.Errorf("tables without rules: %+v", r)
		}
	}
	run(t, ns, "*nat\n:PREROUTING ACCEPT [0:0]\n-A PREROUTING -i lo -j ACCEPT\nCOMMIT\n", "iptables-legacy-restore")
	expect(t, gather(t, ns, preflight.Options{}), "iptables backends", preflight.Warn, "iptables-legacy (IPv4 nat)", "iptables-nft (ip filter)")
}
