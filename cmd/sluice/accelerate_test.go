package main

import (
	"fmt"
	"path/filepath"
	"strings"
	"testing"

	"sluice.dev/sluice/internal/cli"
	"sluice.dev/sluice/internal/kernel/bpf"
	"sluice.dev/sluice/internal/kernel/netns"
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
