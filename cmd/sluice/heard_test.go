package main

import (
	"fmt"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"sluice.dev/sluice/test/world"
)

const twoPods = `
apiVersion: v1
kind: Pod
metadata: {name: here, namespace: default}
spec: {nodeName: node-a, containers: [{name: c}]}
status: {phase: Running, podIPs: [{ip: 10.244.1.5}]}
---
apiVersion: v1
kind: Pod
metadata: {name: there, namespace: default}
spec: {nodeName: node-b, containers: [{name: c}]}
status: {phase: Running, podIPs: [{ip: 10.244.2.5}]}
`

const meshOfTwo = `
apiVersion: projectcalico.org/v3
kind: BGPConfiguration
metadata: {name: default}
spec: {nodeToNodeMeshEnabled: true, asNumber: 64512}
`

// What a firewall between two nodes drops is found by preflight before there is an agent, and then
// by status, fabric and why; no command needs the other node for that.
func TestFirewallBetweenNodes(t *testing.T) {
	t.Parallel()
	a, b := world.NewHost(t, "node-a"), world.NewHost(t, "node-b")
	a.Join("eth0", b, "eth0")
	a.Address("eth0", "192.0.2.1/24")
	b.Address("eth0", "192.0.2.2/24")
	a.Forward()
	b.Exec("nft", "add table inet fw; add chain inet fw in { type filter hook prerouting priority -400; }")
	dir := folder(t, map[string]string{"nodes.yaml": twoNodes, "pods.yaml": twoPods, "pool.yaml": fmt.Sprintf(onePool, "Always", false), "bgp.yaml": meshOfTwo})
	socket := filepath.Join(t.TempDir(), "a.sock")
	preflight := func(want ...string) {
		t.Helper()
		a.In(func() error {
			_, out, stderr := sluice(t, "preflight", "--fabric", "pools", "--bgp", "--manifests", dir, "--node", "node-a", "--socket", socket)
			for _, w := range want {
				if !strings.Contains(out, w) {
					t.Errorf("preflight lacks %q:\n%s%s", w, out, stderr)
				}
			}
			return nil
		})
	}
	a.In(func() error {
		_, out, _ := sluice(t, "preflight", "--fabric", "pools", "--manifests", dir, "--node", "another", "--socket", socket)
		if !strings.Contains(out, "nothing is tried: the objects have no other node, or not this one") {
			t.Errorf("preflight for a node that is not there:\n%s", out)
		}
		return nil
	})
	preflight("UDP 4789 (VXLAN): packets get there, and no tunnel takes them yet: node-b (192.0.2.2)", "BGP: answers come back from 1 peer")
	startAgent(t, dir, filepath.Join(t.TempDir(), "b.sock"), b.Do, "--node", "node-b", "--fabric", "pools")
	eventually(t, "node-b has its tunnel", func() bool { _, err := b.Run("ip", "link", "show", "sluice.vxlan"); return err == nil })
	preflight("UDP 4789 (VXLAN): answers come back: node-b (192.0.2.2)")
	b.Exec("nft", "add rule inet fw in udp dport 4789 drop; add rule inet fw in tcp dport 179 drop")
	preflight("UDP 4789 (VXLAN): nothing comes back: node-b (192.0.2.2)", "have firewalls let UDP 4789 (VXLAN) pass", "BGP: nothing comes back: ", "let TCP 179 pass")

	a.IP("route flush table main")
	preflight("UDP 4789 (VXLAN): packets do not get there: node-b (192.0.2.2)", "this node has no route there", "BGP: packets do not get there: ")
	a.IP("route add 192.0.2.0/24 dev eth0")
	world.NewPod(a, "here", "10.244.1.5")

	startAgent(t, dir, socket, a.Do, "--fabric", "pools")
	says := func(want string, command ...string) {
		t.Helper()
		eventually(t, strings.Join(command, " ")+" says "+want, func() bool {
			_, out, _ := sluice(t, append(command, "--socket", socket)...)
			return strings.Contains(out, want)
		})
	}
	says("Node node-b: it is not heard through sluice.vxlan", "status")
	says(" never\n", "fabric")
	says(", TCP 80\n  warning: through sluice.vxlan node node-b is not heard", "why", "default/here", "default/there:80")
	preflight("of 1 other node the agent that runs does not hear node-b, by VXLAN")
	b.IP("link set eth0 down")
	says("Node node-a: node node-b is not heard through sluice.vxlan: eth0 has no carrier", "status")
	says(", TCP 80\n  warning: through sluice.vxlan node node-b is not heard: eth0 has no carrier; see", "why", "default/here", "default/there:80")
	b.IP("link set eth0 up")
	b.Exec("nft", "flush chain inet fw in")
	says("faults       none", "status")
	a.Exec("nft", "add table inet own; add chain inet own in { type filter hook input priority -200; }; add rule inet own in udp dport 4789 drop comment \"closed\"")
	says(`through sluice.vxlan node node-b is not heard: rule 1 ("closed") of nftables chain inet own in (input) drops it; see that rule: nft -a list chain inet own in, handle`, "why", "default/here", "default/there:80")
	a.Exec("nft", "flush chain inet own in")
	says("faults       none", "status")
	says("s ago\n", "fabric")
	preflight("the agent that runs hears 1 other node, by VXLAN")
	a.In(func() error {
		_, out, _ := sluice(t, "preflight", "--fabric", "ipip", "--node", "node-a", "--socket", socket)
		if want := "give the source of the objects, too (--kubeconfig or --manifests), to try IPIP beside it"; !strings.Contains(out, "the agent that runs hears 1 other node, by VXLAN") || !strings.Contains(out, want) {
			t.Errorf("preflight of another mode than the agent's, without objects:\n%s", out)
		}
		return nil
	})
	a.In(func() error {
		nodes := folder(t, map[string]string{"nodes.yaml": twoNodes})
		_, out, _ := sluice(t, "preflight", "--fabric", "ipip", "--manifests", nodes, "--node", "node-a", "--socket", socket)
		if !strings.Contains(out, "protocol 4 (IPIP): packets get there, and no tunnel takes them yet: node-b (192.0.2.2)") {
			t.Errorf("preflight of another mode than the agent's tries that:\n%s", out)
		}
		_, out, stderr := sluice(t, "preflight", "--fabric", "ipip", "--manifests", "/nonexistent", "--node", "node-a", "--socket", socket)
		if words := strings.Join(strings.Fields(out), " "); !strings.Contains(words, "ok kernel") || !strings.Contains(words, "fail heard nothing is tried: read --manifests: open /nonexistent") {
			t.Errorf("preflight with a folder that is not there:\n%s%s", out, stderr)
		}
		return nil
	})
}

// An agent that the kernel lets ping nobody says so in status and fabric.
func TestDeaf(t *testing.T) {
	t.Parallel()
	a := world.NewHost(t, "node-a")
	a.Set("net.ipv4.ping_group_range", "1 0")
	a.IP("link add eth0 type veth peer name far")
	a.Address("eth0", "192.0.2.1/24")
	dir, socket := folder(t, map[string]string{"nodes.yaml": twoNodes}), filepath.Join(t.TempDir(), "a.sock")
	startProgram(t, a.NS, exec.Command("setpriv", "--bounding-set=-net_raw", self, "run", "--manifests", dir, "--node", "node-a", "--socket", socket,
		"--fabric", "vxlan", "--metrics-address", "", "--healthz-address", "", "--set-sysctls=false"))
	for _, command := range []string{"status", "fabric"} {
		var out string
		eventually(t, command+" says it", func() bool {
			_, out, _ = sluice(t, command, "--socket", socket)
			return strings.Contains(out, "other nodes are not asked whether they are heard: open ICMP socket: operation not permitted: set net.ipv4.ping_group_range")
		})
		if strings.Count(out, "whether they are heard") != 1 {
			t.Errorf("%s:\n%s", command, out)
		}
	}
}
