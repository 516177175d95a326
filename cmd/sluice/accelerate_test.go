package main

import (
	"encoding/json"
	"fmt"
	"maps"
	"net"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/link"

	"sluice.dev/sluice/internal/cli"
	"sluice.dev/sluice/internal/kernel/bpf"
	"sluice.dev/sluice/internal/kernel/netns"
	"sluice.dev/sluice/internal/preflight"
	"sluice.dev/sluice/test/world"
)

// TestAccelerateEstablished has an agent pass packets on by a program, and another one, without the
// flag, not; in between the program stays.
func TestAccelerateEstablished(t *testing.T) {
	t.Parallel()
	world.MountBPF(t)
	ns := nodeNS(t)
	dir := folder(t, map[string]string{"web.yaml": web})
	socket := filepath.Join(t.TempDir(), "s.sock")
	if out, err := ns.Run("ip", "link", "add", "eth0", "type", "veth", "peer", "other"); err != nil {
		t.Fatal(err, string(out))
	}
	for _, line := range []string{"link set eth0 up", "link set other up", "address add 192.0.2.1/24 dev eth0"} {
		if out, err := ns.Run("ip", strings.Fields(line)...); err != nil {
			t.Fatal(err, string(out))
		}
	}
	var cookie uint64
	if err := ns.Do(func() (err error) { cookie, err = netns.Cookie(); return err }); err != nil {
		t.Fatal(err)
	}
	programs := func() int {
		pins, _ := filepath.Glob(filepath.Join(bpf.Root, "sluice", fmt.Sprint(cookie), "established", "*"))
		return len(pins)
	}
	parameter := func() string {
		out, err := ns.Run("sysctl", "-n", "net.netfilter.nf_conntrack_tcp_be_liberal")
		if err != nil {
			t.Error(err)
		}
		return strings.TrimSpace(string(out))
	}
	run := func(args ...string) (stop func()) {
		t.Helper()
		stop = startAgent(t, dir, socket, ns.Do, args...)
		if code, _, stderr := sluice(t, "sync", "--socket", socket); code != cli.ExitOK {
			t.Fatal(stderr)
		}
		return stop
	}
	stop := run("--accelerate", "established", "--set-sysctls")
	_, status, _ := sluice(t, "status", "--socket", socket)
	if !strings.Contains(status, "established") || strings.Contains(status, "off") || parameter() != "1" {
		t.Errorf("be_liberal=%s; status:\n%s", parameter(), status)
	}
	eventually(t, "a program runs at the interface", func() bool { return programs() == 1 })
	stop()
	if n := programs(); n != 1 {
		t.Errorf("when the agent has ended, programs run at %d interfaces", n)
	}
	stop = run()
	if n := programs(); n != 0 {
		t.Errorf("with an agent without the flag, programs run at %d interfaces", n)
	}
	stop()
}

// TestAccelerateSockets has people told which connections are translated at the socket.
func TestAccelerateSockets(t *testing.T) {
	t.Parallel()
	world.MountBPF(t)
	node := world.NewHost(t, "node")
	pod := world.NewPod(node, "pod", "10.1.0.1", "fd00:1::1")
	pod.Serve("web", "10.1.0.1:8080")
	node.Address("lo", "192.0.2.1/32")
	socket := filepath.Join(t.TempDir(), "s.sock")
	dir := folder(t, map[string]string{"web.yaml": strings.ReplaceAll(web, ", {addresses: [10.1.0.2]}", "") + `---
apiVersion: v1
kind: Node
metadata: {name: node-a}
status: {addresses: [{type: InternalIP, address: 192.0.2.1}]}
---
apiVersion: v1
kind: Pod
metadata: {name: client, namespace: shop}
spec: {nodeName: node-a, containers: [{name: c, image: c}]}
status: {phase: Running, podIP: 10.1.0.1, podIPs: [{ip: 10.1.0.1}]}
`})
	stop := startAgent(t, dir, socket, node.Do, "--accelerate", "sockets")
	defer stop()
	if code, _, stderr := sluice(t, "sync", "--socket", socket); code != cli.ExitOK {
		t.Fatal(stderr)
	}
	says(t, socket, "status", "sockets: on: sockets of the node and of")
	c, err := node.Dial("tcp", "", "10.0.0.1:80", world.Patience)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = c.Close() }()
	says(t, socket, "services shop/web", "10.1.0.1:8080 shop/client - - ready yes 1 (1 at sockets)")
	const how = "note: translated at the client's socket: its packets leave for 10.1.0.1:8080, and not for 10.0.0.1:80"
	says(t, socket, "why node/node-a svc/shop/web", how)
	eventually(t, "the pod is known", func() bool {
		_, out, _ := sluice(t, "why", "shop/client", "svc/shop/web", "--socket", socket)
		return strings.Contains(out, how)
	})
	says(t, socket, "why node/node-a 10.1.0.1:8080", "!translated at")
}

// TestPreflightAccelerate has preflight say which accelerators can be on, and that another's
// program is left alone.
func TestPreflightAccelerate(t *testing.T) {
	t.Parallel()
	world.MountBPF(t)
	ns := nodeNS(t)
	ip := func(lines ...string) {
		t.Helper()
		for _, line := range lines {
			if out, err := ns.Run("ip", strings.Fields(line)...); err != nil {
				t.Fatal(err, string(out))
			}
		}
	}
	ip("link add eth0 type veth peer other", "link set eth0 up", "link set other up", "address add 192.0.2.1/24 dev eth0", "route add default via 192.0.2.9")
	said := func(want map[string]string, args ...string) {
		t.Helper()
		var results []preflight.Result
		if err := ns.Do(func() error {
			_, out, _ := sluice(t, append([]string{"preflight", "-o", "json"}, args...)...)
			return json.Unmarshal([]byte(out), &results)
		}); err != nil {
			t.Fatal(err)
		}
		got := map[string]string{}
		for _, r := range results {
			if slices.Contains([]string{"sockets", "drop", "established"}, r.Check) {
				got[r.Check] = string(r.Status) + ": " + r.Seen
			}
		}
		if !maps.EqualFunc(got, want, strings.HasPrefix) {
			t.Errorf("%q: %q, want %q", args, got, want)
		}
	}
	said(map[string]string{})
	said(map[string]string{"sockets": "ok: can be on", "drop": "ok: can be on"}, "--accelerate=auto")
	said(map[string]string{"established": "warn: cannot be on, which costs speed alone: it works with --mode nftables alone", "drop": "warn: cannot be on, which costs speed alone: --mode userspace carries"}, "--accelerate=established,drop", "--mode=userspace")
	said(map[string]string{"drop": "warn: cannot be on, which costs speed alone: it works with --policy"}, "--accelerate=drop", "--policy=false")

	p, err := ebpf.NewProgram(&ebpf.ProgramSpec{Name: "other", Type: ebpf.SchedCLS, License: "Apache-2.0", Instructions: asm.Instructions{asm.Mov.Imm(asm.R0, -1), asm.Return()}})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = p.Close() }()
	if err := ns.Do(func() error {
		eth0, err := net.InterfaceByName("eth0")
		if err != nil {
			return err
		}
		other, err := link.AttachTCX(link.TCXOptions{Program: p, Attach: ebpf.AttachTCXIngress, Interface: eth0.Index})
		if err == nil {
			t.Cleanup(func() { _ = other.Close() })
		}
		return err
	}); err != nil {
		t.Fatal(err)
	}
	ip("link add br0 type bridge", "link set br0 up", "address add 198.51.100.1/24 dev br0", "route add default via 198.51.100.9 metric 9")
	said(map[string]string{"drop": "warn: can be on, but not at br0: it is no network card", "established": "warn: can be on, but not at eth0: another program has one of its own there, tcx program "}, "--accelerate=drop,established")
}
