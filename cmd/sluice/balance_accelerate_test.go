package main

import (
	"strings"
	"testing"

	"sluice.dev/sluice/test/world"
)

// TestBalanceAccelerate has a balancer's program forward packets of a farm, and outlive it until
// another one does without, or cleanup comes.
func TestBalanceAccelerate(t *testing.T) {
	t.Parallel()
	world.MountBPF(t)
	w := newBalanced(t)
	server := world.NewHost(t, "green")
	server.Join("eth0", w.machine, "direct")
	server.Feature("eth0", "rx-gro", true)
	w.client.Feature("eth0", "tx-checksum-ip-generic", false)
	w.machine.Address("direct", "10.3.0.1/24")
	w.machine.Set("net.ipv4.conf.all.accept_local", "1")
	w.machine.Set("net.ipv4.conf.direct.accept_local", "1")
	server.Address("eth0", "10.3.0.11/24")
	server.Address("lo", "10.0.0.100/32")
	server.Gateway("10.3.0.1")
	w.serve(server, "green")
	write(t, w.dir, "farms.json", `{"farms": [{"name": "web", "virtual-addr": "10.0.0.100", "virtual-ports": "8080", "mode": "dsr",
		"backends": [{"name": "green", "ip-addr": "10.3.0.11"}]}]}`)
	ask := func(n int) {
		for range n {
			if _, text, err := w.request(w.client, "GET", "http://10.0.0.100:8080/", ""); err != nil || text != "green" {
				t.Fatalf("%q, %v", text, err)
			}
		}
	}
	runs := func(when string, want bool) {
		t.Helper()
		out, err := w.machine.Run("ip", "link", "show", "front")
		if w.must(err); strings.Contains(string(out), "prog/xdp") != want {
			t.Errorf("%s: %s", when, out)
		}
	}
	chosen := func() uint64 { return w.backend("green").Chosen }

	w.start()
	runs("without the flag", false)
	ask(3)
	plain := chosen() / 3 // packets of a request
	w.kill()
	w.flags = []string{"--accelerate", "dsr"}
	w.start()
	runs("with the flag", true)
	before := chosen()
	ask(20)
	if n := chosen() - before; n < 19*plain || n > 25*plain {
		t.Errorf("%d packets are counted for 20 requests of %d", n, plain)
	}
	if _, stdout, _ := sluice(t, "status", "--socket", w.path("s.sock")); !strings.Contains(stdout, "not at back: its driver does not run XDP programs") {
		t.Errorf("sluice status: %s", stdout)
	}
	w.kill()
	runs("killed", true)
	ask(3)
	w.start()
	runs("started again", true)
	ask(3)
	w.kill()
	w.flags = nil
	w.start()
	runs("started without the flag", false)
	w.kill()
	w.flags = []string{"--accelerate", "auto"}
	w.start()
	runs("with all", true)
	w.kill()
	_, err := w.machine.Run(self, "cleanup", "--socket", w.path("s.sock"))
	w.must(err)
	runs("after cleanup", false)
}
