package main

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"sluice.dev/sluice/internal/cli"
	"sluice.dev/sluice/test/netns"
)

const twoNodes = `
apiVersion: v1
kind: Node
metadata: {name: node-a}
spec: {podCIDRs: [10.244.1.0/24]}
status: {addresses: [{type: InternalIP, address: 192.0.2.1}]}
---
apiVersion: v1
kind: Node
metadata: {name: node-b}
spec: {podCIDRs: [10.244.2.0/24]}
status: {addresses: [{type: InternalIP, address: 192.0.2.2}]}
`

const onePool = `
apiVersion: projectcalico.org/v3
kind: IPPool
metadata: {name: pods}
spec: {cidr: 10.244.0.0/16, vxlanMode: %s, natOutgoing: %t}
`

// The agent reaches the other node's pods as the pool says, follows the pool, the underlay's MTU
// and what others remove; what it made outlives it, and cleanup removes it.
func TestFabric(t *testing.T) {
	t.Parallel()
	ns := nodeNS(t)
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	must(netns.Veth(ns, "eth0", ns, "far"))
	ip := func(args string) string {
		t.Helper()
		out, err := ns.Run("ip", strings.Fields(args)...)
		must(err)
		return string(out)
	}
	ip("addr add 192.0.2.1/24 dev eth0")
	dir := folder(t, map[string]string{"nodes.yaml": twoNodes, "pool.yaml": fmt.Sprintf(onePool, "Always", false)})
	socket := filepath.Join(t.TempDir(), "s.sock")
	shows := func(what, args, want string) {
		t.Helper()
		eventually(t, what, func() bool {
			out, _ := ns.Run("ip", strings.Fields(args)...)
			return strings.Contains(string(out), want)
		})
	}
	plan := func(flags ...string) (out string) {
		t.Helper()
		must(ns.Do(func() error {
			code, stdout, stderr := sluice(t, append([]string{"plan", "--manifests", dir, "--node", "node-a", "--socket", socket, "--fabric", "pools"}, flags...)...)
			if out = stdout + stderr; code != cli.ExitOK {
				return errors.New(out)
			}
			return nil
		}))
		return out
	}
	for _, want := range []string{"set device sluice.vxlan: VXLAN from 192.0.2.1, address 10.244.1.0, MTU 1450\n", "set route 10.244.2.0/24"} {
		if got := plan(); !strings.Contains(got, want) || strings.Contains(got, "sluice.wg") {
			t.Errorf("the plan does not say %q:\n%s", want, got)
		}
	}
	if got := plan("--encrypt"); !strings.Contains(got, "set device sluice.wg: WireGuard from 192.0.2.1") || !strings.Contains(got, "wireguard.key: the agent makes a key") {
		t.Errorf("the plan does not encrypt:\n%s", got)
	}
	stop := startAgent(t, dir, socket, ns.Do, "--fabric", "pools")
	shows("the tunnel", "link show sluice.vxlan", "mtu 1450")
	shows("the route through it", "route show 10.244.2.0/24", "via 192.0.2.2 dev sluice.vxlan proto 83")
	ip("route add 10.244.2.0/24 via 192.0.2.9 dev eth0 proto bird metric 32")
	eventually(t, "status to name a route that comes before", func() bool {
		_, out, _ := sluice(t, "status", "--socket", socket)
		return strings.Contains(out, "routes of other programs: they come before ours, so what goes to these pods takes them: 10.244.2.0/24 via 192.0.2.9 dev eth0 proto bird metric 32;") &&
			strings.Contains(out, "tunnels and routes to other nodes are programmed, with ")
	})
	ip("route del 10.244.2.0/24 proto bird")
	ip("link set eth0 mtu 1400")
	shows("the underlay's MTU to be followed", "link show sluice.vxlan", "mtu 1350")
	ip("link del sluice.vxlan")
	shows("the tunnel to be back", "route show 10.244.2.0/24", "dev sluice.vxlan")
	must(os.WriteFile(filepath.Join(dir, "pool.yaml"), fmt.Appendf(nil, onePool, "CrossSubnet", true), 0o600))
	shows("the direct route", "route show 10.244.2.0/24", "via 192.0.2.2 dev eth0")
	eventually(t, "pods to be masqueraded to the outside", func() bool {
		out, _ := ns.Run("nft", "list", "set", "inet", "sluice", "ip-outgoing")
		return strings.Contains(string(out), "{ 16 . 10.244.0.0 }")
	})
	eventually(t, "a plan of what is there to say so", func() bool { return plan() == "nothing to do\n" })
	stop()
	shows("what outlives the agent", "route show 10.244.2.0/24", "via 192.0.2.2 dev eth0")
	startAgent(t, dir, socket, ns.Do, "--fabric", "vxlan")()
	must(ns.Do(func() error {
		if code, out, _ := sluice(t, "cleanup", "--socket", socket); code != cli.ExitOK {
			return fmt.Errorf("cleanup: %s", out)
		}
		return nil
	}))
	if left := ip("route show proto 83") + ip("-o link show type vxlan"); left != "" {
		t.Errorf("cleanup left %s", left)
	}
}

func TestFabricFlag(t *testing.T) {
	for _, flags := range []string{"--encrypt", "--nat-outgoing", "--fabric vxlan --nat-outgoing"} {
		for _, command := range []string{"run", "plan"} {
			if code, _, stderr := sluice(t, append([]string{command, "--manifests", t.TempDir(), "--node", "node-a"}, strings.Fields(flags)...)...); code != cli.ExitUsage || !strings.Contains(stderr, "needs --fabric") {
				t.Errorf("%s %s: %d: %s", command, flags, code, stderr)
			}
		}
	}
	if code, _, stderr := sluice(t, "run", "--manifests", t.TempDir(), "--fabric", "calico"); code != cli.ExitUsage || !strings.Contains(stderr, "it is one of off, pools, native") {
		t.Errorf("%d: %s", code, stderr)
	}
	o := &runOptions{}
	for _, mode := range fabricNames {
		f := fabricMode{&o.compiler}
		if err := f.Set(mode); err != nil || f.String() != mode {
			t.Errorf("--fabric %s is %s: %v", mode, f, err)
		}
	}
}
