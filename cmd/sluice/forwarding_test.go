package main

import (
	"fmt"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"sluice.dev/sluice/internal/kernel/sysctl"
	"sluice.dev/sluice/test/netns"
	"sluice.dev/sluice/test/world"
)

// Forwarding that another program turns off, as hardening or a restart of the network does, is
// turned on again; who goes on with it is named.
// https://github.com/rancher/rke2/issues/2021
func TestForwardingIsTurnedOnAgain(t *testing.T) {
	t.Parallel()
	node := nodeNS(t)
	attachPods(t, node, 2)
	socket := filepath.Join(t.TempDir(), "s.sock")
	startAgent(t, folder(t, map[string]string{"web.yaml": web, "pods.yaml": onePodEach}), socket, node.Do, "--set-sysctls=true")
	on := func() (is bool) {
		if err := node.Do(func() error {
			now, err := sysctl.Read(sysctl.Forward4)
			is = now == "1"
			return err
		}); err != nil {
			t.Fatal(err)
		}
		return is
	}
	eventually(t, "forwarding", on)
	eventually(t, "the contest in status", func() bool {
		if on() {
			if err := node.Sysctl("net/ipv4/ip_forward", "0"); err != nil {
				t.Fatal(err)
			}
		}
		_, stdout, _ := sluice(t, "status", "--socket", socket)
		return strings.Contains(stdout, "Node node-a: another program goes on turning off the forwarding of packets (net.ipv4.ip_forward)")
	})
	if _, out, stderr := sluice(t, "why", "--socket", socket, "default/one", "default/two:80"); !strings.Contains(out, "another program goes on turning off the forwarding") {
		t.Errorf("why does not name the contest:\n%s%s", out, stderr)
	}
	eventually(t, "preflight says what is so", func() (says bool) {
		if err := node.Sysctl("net/ipv4/ip_forward", "0"); err != nil {
			t.Fatal(err)
		}
		if err := node.Do(func() error {
			_, out, _ := sluice(t, "preflight", "--socket", socket)
			says = strings.Contains(out, "off, though an agent runs") && strings.Contains(out, "changed by another program since: net.ipv4.ip_forward = 0 (was 1)")
			return nil
		}); err != nil {
			t.Fatal(err)
		}
		return says
	})
	eventually(t, "forwarding again", on)
}

const onePodEach = `
{apiVersion: v1, kind: Pod, metadata: {name: one, namespace: default}, spec: {nodeName: node-a}, status: {phase: Running, podIPs: [{ip: 10.1.0.1}]}}
---
{apiVersion: v1, kind: Pod, metadata: {name: two, namespace: default}, spec: {nodeName: node-a}, status: {phase: Running, podIPs: [{ip: 10.1.0.2}]}}
`

// forwards reads the parameter of a family.
func forwards(t *testing.T, ns *netns.NS, key string) (is bool) {
	t.Helper()
	if err := ns.Do(func() error {
		now, err := sysctl.Read(key)
		is = now == "1"
		return err
	}); err != nil {
		t.Fatal(err)
	}
	return is
}

func turnOff(t *testing.T, ns *netns.NS) {
	t.Helper()
	for _, key := range []string{"net/ipv4/ip_forward", "net/ipv6/conf/all/forwarding"} {
		if err := ns.Sysctl(key, "0"); err != nil {
			t.Fatal(err)
		}
	}
}

const web6 = `{apiVersion: v1, kind: Service, metadata: {name: six, namespace: shop}, spec: {clusterIP: "fd00:96::6", clusterIPs: ["fd00:96::6"], ipFamilies: [IPv6], ports: [{port: 80}]}}`

// What nothing uses may be off: an IPv4 cluster on hosts with IPv6 asks for no IPv6, nor an IPv6
// cluster for IPv4.
func TestForwardingOfFamiliesInUse(t *testing.T) {
	t.Parallel()
	for objects, keys := range map[string][2]string{web: {sysctl.Forward4, sysctl.Forward6}, web6: {sysctl.Forward6, sysctl.Forward4}} {
		node := world.NewHost(t, "node")
		node.Bridge("out")
		node.Address("out", "192.0.2.1/24", "2001:db8::1/64")
		socket := filepath.Join(t.TempDir(), "s.sock")
		startAgent(t, folder(t, map[string]string{"web.yaml": objects}), socket, node.Do, "--set-sysctls=true")
		eventually(t, "forwarding of both", func() bool { return forwards(t, node.NS, keys[0]) && forwards(t, node.NS, keys[1]) })
		for range 2 { // when the second pass has turned one on, the first is over for both
			turnOff(t, node.NS)
			eventually(t, "forwarding of what is used", func() bool { return forwards(t, node.NS, keys[0]) })
		}
		if forwards(t, node.NS, keys[1]) {
			t.Errorf("%s is turned on again, though nothing uses it", keys[1])
		}
		if _, stdout, _ := sluice(t, "status", "--socket", socket); strings.Contains(stdout, keys[1]) {
			t.Errorf("%s", stdout)
		}
	}
}

// IPv6 that cannot be passed on without losing the default route is a fault that says what to do.
func TestForwardingLosesTheDefaultRoute(t *testing.T) {
	t.Parallel()
	learnt := func(h *world.Host, device string) {
		if err := h.Sysctl("net/ipv6/conf/"+device+"/accept_ra", "1"); err != nil {
			t.Fatal(err)
		}
		h.IP("-6 route add default via fe80::1 dev " + device + " proto ra")
	}
	node := world.NewHost(t, "node")
	node.Bridge("out")
	node.Address("out", "2001:db8::1/64")
	learnt(node, "out")
	socket := filepath.Join(t.TempDir(), "s.sock")
	startAgent(t, folder(t, map[string]string{"web.yaml": web + "---\n" + web6}), socket, node.Do, "--set-sysctls=true")
	eventually(t, "the fault", func() bool {
		_, stdout, _ := sluice(t, "status", "--socket", socket)
		return strings.Contains(stdout, "Node node-a: net.ipv6.conf.all.forwarding is 0, so that this machine passes no IPv6 on: ") && strings.Contains(stdout, "net.ipv6.conf.out.accept_ra=2")
	})
	if !forwards(t, node.NS, sysctl.Forward4) || forwards(t, node.NS, sysctl.Forward6) {
		t.Error("what is safe is not set, or what is not")
	}
	if err := node.Sysctl("net/ipv6/conf/out/accept_ra", "2"); err != nil {
		t.Fatal(err)
	}
	eventually(t, "forwarding of IPv6", func() bool { return forwards(t, node.NS, sysctl.Forward6) })
	eventually(t, "no fault", func() bool {
		_, stdout, _ := sluice(t, "status", "--socket", socket)
		return !strings.Contains(stdout, "Node node-a")
	})

	w := newBalanced(t)
	w.machine.Address("front", "2001:db8::2/64")
	learnt(w.machine, "front")
	w.start()
	if !forwards(t, w.machine.NS, sysctl.Forward4) || forwards(t, w.machine.NS, sysctl.Forward6) {
		t.Error("balance: what is safe is not set, or what is not")
	}
}

// Where forwarding cannot be turned on, that is tried again, more rarely, and logged once; what no
// farm uses is no fault.
func TestForwardingIsRefused(t *testing.T) {
	t.Parallel()
	w := newBalanced(t)
	turnOff(t, w.machine.NS)
	w.by = []string{"unshare", "--mount", "sh", "-c", `mount --bind -o ro /proc/sys /proc/sys && exec "$@"`, "sh"}
	w.start()
	status := func() string {
		_, stdout, _ := sluice(t, "status", "--socket", w.path("s.sock"))
		return stdout
	}
	eventually(t, "the fault", func() bool {
		return strings.Contains(status(), "net.ipv4.ip_forward is 0, so that this machine passes no IPv4 on: ")
	})
	time.Sleep(4 * time.Second)
	if text := status(); strings.Contains(text, sysctl.Forward6) {
		t.Errorf("%s", text)
	}
	if out, err := exec.Command("nsenter", "--mount", "--target", fmt.Sprint(w.program.Process.Pid), "mount", "-o", "remount,bind,rw", "/proc/sys").CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	eventually(t, "forwarding", func() bool { return forwards(t, w.machine.NS, sysctl.Forward4) })
	eventually(t, "no fault", func() bool { return !strings.Contains(status(), "net.ipv4.ip_forward") })
	w.kill()
	if n := strings.Count(w.log.String(), "not all kernel parameters"); n != 2 { // at the start, and of the families in use
		t.Errorf("it is logged %d times:\n%s", n, &w.log)
	}
}
