package pathmtu

import (
	"context"
	"fmt"
	"net/netip"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"sluice.dev/sluice/internal/model"
	"sluice.dev/sluice/internal/netns"
)

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// between makes two nodes, and a router between them whose far link has an MTU.
func between(t *testing.T, mtu int) (node, router *netns.NS) {
	t.Helper()
	all := map[string]*netns.NS{}
	for _, name := range []string{"node", "router", "far"} {
		ns, err := netns.New(fmt.Sprintf("mtu%d-%s", os.Getpid(), name))
		must(t, err)
		t.Cleanup(func() { must(t, ns.Delete()) })
		all[name] = ns
		for _, kv := range [][2]string{
			{"net.ipv4.ip_forward", "1"}, {"net.ipv6.conf.all.forwarding", "1"}, {"net.ipv4.icmp_ratelimit", "0"}, {"net.ipv6.icmp.ratelimit", "0"}, {"net.ipv6.conf.default.accept_dad", "0"},
		} {
			must(t, ns.Sysctl(kv[0], kv[1]))
		}
	}
	node, router = all["node"], all["router"]
	must(t, netns.Veth(node, "eth0", router, "near"))
	must(t, netns.Veth(all["far"], "eth0", router, "far"))
	for _, line := range []string{
		"node addr add 192.0.2.1/24 dev eth0", "node -6 addr add fd00:2::1/64 dev eth0 nodad", "node route add default via 192.0.2.254", "node -6 route add default via fd00:2::254",
		"router addr add 192.0.2.254/24 dev near", "router -6 addr add fd00:2::254/64 dev near nodad",
		"router addr add 198.51.100.254/24 dev far", "router -6 addr add fd00:3::254/64 dev far nodad", fmt.Sprintf("router link set far mtu %d", mtu),
		"far addr add 198.51.100.3/24 dev eth0", "far -6 addr add fd00:3::3/64 dev eth0 nodad", "far route add default via 198.51.100.254", "far -6 route add default via fd00:3::254",
	} {
		words := strings.Fields(line)
		_, err := all[words[0]].Run("ip", words[1:]...)
		must(t, err)
	}
	return node, router
}

// A path that carries less than the interface says is named with what it carries, whether the
// router on the way says so or drops in silence; one that carries all is not, nor one of which
// nothing can be told.
func TestPaths(t *testing.T) {
	for name, silent := range map[string]bool{"a router says so": false, "silence": true} {
		t.Run(name, func(t *testing.T) {
			node, router := between(t, 1393)
			if silent {
				_, err := router.Run("nft", "add table inet t; add chain inet t out { type filter hook output priority 0; }; "+
					"add rule inet t out icmp type destination-unreachable icmp code frag-needed drop; add rule inet t out icmpv6 type packet-too-big drop")
				must(t, err)
			}
			var p *Prober
			must(t, node.Do(func() (err error) { p, err = Open(); return err }))
			defer p.Close()
			p.pause, p.again = 50*time.Millisecond, 0
			path := func(node, to string, mtu int) model.Path {
				return model.Path{Node: node, To: netip.MustParseAddr(to), Device: "eth0", MTU: mtu}
			}
			paths := []model.Path{
				path("far", "198.51.100.3", 1500), path("far", "fd00:3::3", 1500), path("right", "198.51.100.3", 1393),
				path("near", "192.0.2.254", 1500), path("near", "fd00:2::254", 1500), path("down", "192.0.2.77", 1500), path("tiny", "192.0.2.254", 576),
			}
			ctx, cancel := context.WithCancel(t.Context())
			done := make(chan struct{})
			go func() { defer close(done); p.Run(ctx, func() []model.Path { return paths }) }()
			defer func() { cancel(); <-done }()
			want := []string{
				"Node far: packets of 1500 bytes, the MTU of eth0 on this node, do not reach its address 198.51.100.3, those of 1393 do",
				"Node far: packets of 1500 bytes, the MTU of eth0 on this node, do not reach its address fd00:3::3, those of 1393 do",
			}
			right := func() bool {
				p.mu.Lock()
				measured := len(p.known)
				for _, r := range p.known {
					if r.at.IsZero() {
						measured--
					}
				}
				p.mu.Unlock()
				got := p.Issues()
				return measured == len(paths)-1 && slices.EqualFunc(got, want, func(i model.Issue, want string) bool { return strings.HasPrefix(i.String(), want) })
			}
			for begin := time.Now(); !right(); time.Sleep(10 * time.Millisecond) {
				if time.Since(begin) > time.Minute {
					t.Fatalf("%v, want %q", p.Issues(), want)
				}
			}
		})
	}
}
