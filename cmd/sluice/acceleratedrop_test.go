package main

import (
	"fmt"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"sluice.dev/sluice/internal/accelerate/xdp"
	"sluice.dev/sluice/internal/cli"
	"sluice.dev/sluice/test/world"
)

const closed = `
apiVersion: v1
kind: Service
metadata: {name: web, namespace: shop}
spec:
  type: LoadBalancer
  clusterIP: 10.0.0.1
  clusterIPs: [10.0.0.1]
  ports: [{name: http, port: 80, targetPort: 8080, protocol: UDP}]
  loadBalancerSourceRanges: [192.0.2.0/25]
status: {loadBalancer: {ingress: [{ip: 203.0.113.9}]}}
---
apiVersion: projectcalico.org/v3
kind: GlobalNetworkSet
metadata: {name: bad, labels: {bad: "yes"}}
spec: {nets: [192.0.2.202/32, 2001:db8:bad::/48]}
---
apiVersion: projectcalico.org/v3
kind: GlobalNetworkPolicy
metadata: {name: edge}
spec:
  selector: has(edge)
  doNotTrack: true
  applyOnForward: true
  types: [Ingress]
  ingress: [{action: Deny, source: {selector: bad == 'yes'}}, {action: Deny, source: {nets: [192.0.2.203/32]}}]
---
apiVersion: projectcalico.org/v3
kind: HostEndpoint
metadata: {name: uplink, labels: {edge: ""}}
spec: {node: node-a, interfaceName: eth1}
`

// TestAccelerateDrop has an agent drop packets early that source ranges and a doNotTrack policy
// forbid, and say how many; another one, without the flag, removes the program.
func TestAccelerateDrop(t *testing.T) {
	t.Parallel()
	world.MountBPF(t)
	node, client := world.NewHost(t, "node"), world.NewHost(t, "client")
	t.Cleanup(func() { node.In(xdp.Remove) })
	for i, device := range []string{"eth0", "eth1"} { // the first has no host endpoint
		client.Join(device, node, device)
		node.Address(device, []string{"192.0.2.1/25", "192.0.2.129/25"}[i])
	}
	client.Address("eth0", "192.0.2.2/25")
	client.Address("eth1", "192.0.2.201/25", "192.0.2.202/25", "192.0.2.203/25")
	client.Route("203.0.113.9/32", "192.0.2.1")
	client.IP("address add 198.51.100.7/32 dev eth0")
	dir, socket := folder(t, map[string]string{"web.yaml": closed}), filepath.Join(t.TempDir(), "s.sock")
	run := func(args ...string) (stop func()) {
		t.Helper()
		stop = startAgent(t, dir, socket, node.Do, append(args, "--cluster-cidr", "10.1.0.0/16")...)
		if code, _, stderr := sluice(t, "sync", "--socket", socket); code != cli.ExitOK {
			t.Fatal(stderr)
		}
		return stop
	}
	programs := func() int { return strings.Count(node.Exec("ip", "link"), "prog/xdp") }
	stop := run("--accelerate", "drop")
	if n := programs(); n != 2 {
		t.Errorf("programs run at %d interfaces", n)
	}
	before := map[string]int{}
	for _, tt := range []struct{ from, to, by string }{
		{"198.51.100.7", "203.0.113.9:80", "source ranges"},
		{"192.0.2.202", "192.0.2.129:80", "GlobalNetworkPolicy edge"}, {"192.0.2.203", "192.0.2.129:80", "GlobalNetworkPolicy edge"},
	} {
		c, err := client.Dial("udp", tt.from, tt.to, world.Patience)
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = c.Close() }()
		eventually(t, "packets are dropped by "+tt.by, func() bool {
			for range 50 { // the first in each tick of the clock is left to nftables
				if _, err := fmt.Fprintln(c, "hello"); err != nil {
					t.Fatal(err)
				}
			}
			_, status, _ := sluice(t, "status", "--socket", socket)
			dropped := regexp.MustCompile(`(\d+) packets dropped by ` + tt.by).FindStringSubmatch(status)
			if dropped == nil {
				t.Fatal(status)
			}
			n, _ := strconv.Atoi(dropped[1])
			defer func() { before[tt.by] = n }()
			return n > before[tt.by]
		})
	}
	stop()
	if n := programs(); n != 2 {
		t.Errorf("when the agent has ended, programs run at %d interfaces", n)
	}
	stop = run()
	if n := programs(); n != 0 {
		t.Errorf("with an agent without the flag, programs run at %d interfaces", n)
	}
	stop()
}
