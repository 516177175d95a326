package link

import (
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"sluice.dev/sluice/internal/model"
	"sluice.dev/sluice/test/world"
)

// ip runs ip(8) commands on a host, one a line.
func ip(h *world.Host, commands string) {
	h.IP(strings.Split(strings.TrimSpace(commands), "\n")...)
}

func readIn(h *world.Host) (l model.Links) {
	h.In(func() (err error) { l, err = Here.Links(); return err })
	return l
}

func TestRead(t *testing.T) {
	tests := map[string]struct {
		setup string
		want  string // links but lo, in their order
		addrs string // of them
	}{
		"a pod's pair": {`
			link add p0 type veth peer p0p
			link set p0 up
			route add 10.1.0.5/32 dev p0 scope link
			-6 route add fd00::5/128 dev p0`,
			"p0p p0:pod 10.1.0.5/32>p0 fd00::5/128>p0", ""},
		"a pod's pair of the ptp plugin": {`
			link add p0 type veth peer p0p
			link set p0 up
			addr add 10.1.0.1/32 dev p0
			route add 10.1.0.5/32 dev p0 scope host`,
			"p0p p0:pod 10.1.0.5/32>p0", "10.1.0.1"},
		"networks behind a pod": {`
			link add p0 type veth peer p0p
			link set p0 up
			route add 10.1.0.5/32 dev p0 scope link
			route add 10.9.0.0/16 via 10.1.0.5 dev p0 onlink`,
			"p0p p0:pod 10.1.0.5/32>p0", ""},
		"a pair without anything": {`link add p0 type veth peer p0p`, "p0p p0", ""},
		"link-local addresses alone": {`
			link add p0 type veth peer p0p
			link set p0 up
			link set p0p up
			addr add fe80::1/64 dev p0`,
			"p0p p0", ""},
		"an uplink": {`
			link add e0 type veth peer e0p
			link set e0 up
			addr add 192.168.0.2/24 dev e0
			addr add fd01::2/64 dev e0 nodad
			route add default via 192.168.0.1`,
			"e0p e0:host 192.168.0.0/24>e0 fd01::/64>e0", "192.168.0.2 fd01::2"},
		"an uplink whose gateway is beyond any subnet": {`
			link add e0 type veth peer e0p
			link set e0 up
			addr add 10.128.0.7/32 dev e0
			route add 10.128.0.1/32 dev e0 scope link
			route add default via 10.128.0.1`,
			"e0p e0:host 10.128.0.1/32>e0", "10.128.0.7"},
		"no pair with a host route": {`
			route add 10.128.0.1/32 dev lo scope link`,
			"10.128.0.1/32>lo", ""},
		"an address and its peer": {`
			link add e0 type veth peer e0p
			link set e0 up
			addr add 10.0.0.1 peer 10.0.0.2/32 dev e0`,
			"e0p e0:host 10.0.0.2/32>e0", "10.0.0.1"},
		"a single address of its own": {`
			link add e0 type veth peer e0p
			link set e0 up
			addr add fd01::2/128 dev e0 nodad`,
			"e0p e0:host", "fd01::2"},
		"a bridge and its port": {`
			link add br0 type bridge
			link set br0 up
			addr add 10.1.0.1/24 dev br0
			link add p0 type veth peer p0p
			link set p0 master br0
			link set p0 up`,
			"br0:bridge:host p0p p0 10.1.0.0/24>br0", "10.1.0.1"},
		"a bridge with host routes": {`
			link add br0 type bridge
			link set br0 up
			route add 10.1.0.5/32 dev br0 scope link`,
			"br0:bridge:host 10.1.0.5/32>br0", ""},
		"what is not reachable": {`
			link add e0 type veth peer e0p
			link set e0 up
			route add blackhole 10.1.0.0/24
			route add 10.1.0.5/32 dev e0 table 100`,
			"e0p e0", ""},
		"twice with another metric": {`
			link add p0 type veth peer p0p
			link set p0 up
			route add 10.1.0.5/32 dev p0 scope link
			route add 10.1.0.5/32 dev p0 scope link metric 7`,
			"p0p p0:pod 10.1.0.5/32>p0", ""},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			h := world.NewHost(t, "node")
			ip(h, tt.setup)
			l := readIn(h)
			got, addrs := describe(l)
			if got != tt.want {
				t.Errorf("got  %q\nwant %q", got, tt.want)
			}
			if addrs != tt.addrs {
				t.Errorf("addresses %q, want %q", addrs, tt.addrs)
			}
			if i := slices.IndexFunc(l.Links, func(l model.Link) bool { return l.Name == "lo" }); i < 0 || !l.Links[i].Host ||
				!slices.Contains(l.Links[i].Addresses, netip.MustParseAddr("127.0.0.1")) {
				t.Errorf("lo is missing or not the node's own: %+v", l.Links)
			}
		})
	}
}

// describe writes what there is besides lo.
func describe(l model.Links) (links, addrs string) {
	var words, own []string
	names := map[int]string{}
	for _, l := range l.Links {
		names[l.Index] = l.Name
		word := l.Name
		if l.Bridge {
			word += ":bridge"
		}
		if l.Pod {
			word += ":pod"
		}
		if l.Host {
			word += ":host"
		}
		if l.Name != "lo" {
			words = append(words, word)
		}
	}
	for _, r := range l.Routes {
		words = append(words, r.Prefix.String()+">"+names[r.Link])
	}
	for _, a := range l.Local {
		if !a.IsLoopback() {
			own = append(own, a.String())
		}
	}
	return strings.Join(words, " "), strings.Join(own, " ")
}

// await receives until the links are as they should be.
func await(t *testing.T, c <-chan model.Links, want string) {
	t.Helper()
	deadline := time.After(5 * time.Second)
	for got := "nothing"; got != want; {
		select {
		case l := <-c:
			got, _ = describe(l)
		case <-deadline:
			t.Fatalf("last saw %q, want %q", got, want)
		}
	}
}
