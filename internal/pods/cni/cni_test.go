package cni_test

import (
	"encoding/json"
	"fmt"
	"net/netip"
	"strings"
	"testing"

	current "github.com/containernetworking/cni/pkg/types/100"
	"github.com/google/go-cmp/cmp"

	"sluice.dev/sluice/internal/pods/attach"
)

// Two containers get addresses through libcni, as a runtime calls it, reach each other, and give
// the addresses back.
func TestAddAndDel(t *testing.T) {
	b := newTestbed(t, "1.1.0", plugin(ranges))
	x, y := b.add("x"), b.add("y")
	for _, to := range y.addrs() {
		reach(t, x.ns, y.ns, netip.AddrPortFrom(to, 8080))
	}
	for _, c := range []*container{x, y} {
		if err := b.check(c); err != nil {
			t.Error(err)
		}
	}
	for range 2 { // a second time is no error
		b.del(x)
		b.del(y)
	}
	b.empty()
	if err := b.tryAdd(x); err != nil { // it can come back
		t.Error(err)
	}
	b.del(x)
}

// The result is that of the specification in each of its versions.
func TestResult(t *testing.T) {
	for _, version := range []string{"0.3.1", "0.4.0", "1.0.0", "1.1.0"} {
		t.Run(version, func(t *testing.T) {
			b := newTestbed(t, version, plugin(ranges, `"mtu": 1400`, `"dns": {"nameservers": ["10.96.0.10"], "search": ["svc.cluster.local"]}`))
			c := b.container("x")
			out, failed := b.call(map[string]string{"CNI_COMMAND": "ADD", "CNI_NETNS": c.NetNS, "CNI_ARGS": "K8S_POD_NAMESPACE=shop;K8S_POD_NAME=web-1"},
				fmt.Sprintf(`{"cniVersion": %q, "name": "pods", %s`, version, plugin(ranges, `"mtu": 1400`, `"dns": {"nameservers": ["10.96.0.10"], "search": ["svc.cluster.local"]}`)[1:]))
			if failed.Code != 0 {
				t.Fatal(failed)
			}
			var r map[string]any
			if err := json.Unmarshal(out, &r); err != nil {
				t.Fatal(err)
			}
			host := attach.HostInterface("c", "eth0")
			outer, err := b.node.LinkByName(host)
			if err != nil {
				t.Fatal(err)
			}
			inner, err := c.ns.LinkByName("eth0")
			if err != nil {
				t.Fatal(err)
			}
			if outer.Attrs().MTU != 1400 || inner.Attrs().MTU != 1400 || outer.Attrs().Alias != "shop/web-1" {
				t.Errorf("MTU %d and %d, alias %q", outer.Attrs().MTU, inner.Attrs().MTU, outer.Attrs().Alias)
			}
			links := []any{
				map[string]any{"name": host, "mac": outer.Attrs().HardwareAddr.String()},
				map[string]any{"name": "eth0", "mac": inner.Attrs().HardwareAddr.String(), "sandbox": c.NetNS},
			}
			ips := []any{
				map[string]any{"interface": 1.0, "address": "10.77.0.2/32", "gateway": "169.254.1.1"},
				map[string]any{"interface": 1.0, "address": "fd77::2/128", "gateway": "fe80::1"},
			}
			switch version {
			case "0.3.1", "0.4.0":
				ips[0].(map[string]any)["version"], ips[1].(map[string]any)["version"] = "4", "6"
			default: // the library of the reference has it in 1.0.0, too
				links[0].(map[string]any)["mtu"], links[1].(map[string]any)["mtu"] = 1400.0, 1400.0
			}
			want := map[string]any{
				"cniVersion": version, "interfaces": links, "ips": ips,
				"routes": []any{map[string]any{"dst": "0.0.0.0/0", "gw": "169.254.1.1"}, map[string]any{"dst": "::/0", "gw": "fe80::1"}},
				"dns":    map[string]any{"nameservers": []any{"10.96.0.10"}, "search": []any{"svc.cluster.local"}},
			}
			if diff := cmp.Diff(want, r); diff != "" {
				t.Error(diff)
			}
		})
	}
}

// A runtime asks for addresses and a hardware address, by capabilities or by CNI_ARGS.
func TestWhatIsAskedFor(t *testing.T) {
	b := newTestbed(t, "1.1.0", plugin(ranges, `"capabilities": {"ips": true, "mac": true}`))
	x, y := b.container("x"), b.container("y")
	x.CapabilityArgs = map[string]any{"ips": []string{"10.77.0.9", "fd77::9"}, "mac": "0a:00:00:00:00:09"}
	y.Args = append(y.Args, [2]string{"IP", "10.77.0.8"}, [2]string{"MAC", "0a:00:00:00:00:08"})
	wanted := []string{"[10.77.0.9 fd77::9] 0a:00:00:00:00:09", "[10.77.0.8 fd77::a] 0a:00:00:00:00:08"}
	for i, c := range []*container{x, y} {
		want := wanted[i]
		if err := b.tryAdd(c); err != nil {
			t.Fatal(err)
		}
		link, err := c.ns.LinkByName("eth0")
		if err != nil {
			t.Fatal(err)
		}
		if got := fmt.Sprint(c.addrs(), " ", link.Attrs().HardwareAddr); got != want {
			t.Errorf("got %s, want %s", got, want)
		}
	}
	for _, to := range y.addrs() {
		reach(t, x.ns, y.ns, netip.AddrPortFrom(to, 8080))
	}
	z := b.container("z")
	z.CapabilityArgs = map[string]any{"ips": []string{"10.77.0.8"}}
	if err := b.tryAdd(z); err == nil || !strings.Contains(err.Error(), "container-y has it") {
		t.Errorf("an address of another: %v", err)
	}
	z.CapabilityArgs = map[string]any{"ips": []string{"10.99.0.8"}}
	if err := b.tryAdd(z); err == nil || !strings.Contains(err.Error(), "no range has it") {
		t.Errorf("an address of no range: %v", err)
	}
	b.del(x)
	b.del(y)
	b.empty()
}

// Without mtu, a container gets that of the way to other nodes.
func TestMTU(t *testing.T) {
	b := newTestbed(t, "1.1.0", plugin(ranges))
	mtu := func(name string) int {
		c := b.add(name)
		return c.result.Interfaces[1].Mtu
	}
	if got := mtu("alone"); got != 1500 {
		t.Errorf("without a way out: %d", got)
	}
	b.node.IP(`link add uplink mtu 9000 type bridge`, `link set uplink up`, `addr add 192.168.0.1/24 dev uplink`, `route add default via 192.168.0.254`)
	if got := mtu("uplink"); got != 9000 {
		t.Errorf("by an uplink of 9000: %d", got)
	}
	b.node.IP(`link add sluice.vxlan mtu 8950 type bridge`)
	if got := mtu("tunnel"); got != 8950 {
		t.Errorf("by a tunnel of 8950: %d", got)
	}
	b.node.IP(`link add sluice.wg mtu 8940 type bridge`)
	if got := mtu("encrypted"); got != 8940 {
		t.Errorf("by WireGuard of 8940: %d", got)
	}
}

// A container's interface takes as much of a stream of TCP as one packet as the way to other nodes
// does.
func TestStreams(t *testing.T) {
	b := newTestbed(t, "1.1.0", plugin(ranges, `"mtu": 1400`))
	const size = 192 << 10
	b.node.IP(`link add uplink type veth peer name far`, `link set uplink up`, `link set far up`, `addr add 192.168.0.1/24 dev uplink`, `route add default via 192.168.0.254`)
	if b.node.Device("uplink").Attrs().GSOIPv4MaxSize == 0 {
		t.Skip("it needs Linux 6.3")
	}
	if err := b.node.LinkSetGSOIPv4MaxSize(b.node.Device("uplink"), size); err != nil {
		t.Fatal(err)
	}
	streams := func(name string, want uint32) {
		t.Helper()
		c := b.add(name)
		outer, inner := b.node.Device(c.result.Interfaces[0].Name).Attrs(), c.ns.Device("eth0").Attrs()
		if outer.GSOIPv4MaxSize != want || inner.GSOIPv4MaxSize != want {
			t.Errorf("%s: %d and %d, want %d", name, outer.GSOIPv4MaxSize, inner.GSOIPv4MaxSize, want)
		}
	}
	streams("uplink", size)
	b.node.IP(`link add sluice.vxlan type vxlan id 1 dstport 4789`)
	streams("tunnel", 1<<16)
}

// The node's pod CIDRs are ranges, from which a container gets one address of each family.
func TestPodCIDRs(t *testing.T) {
	b := newTestbed(t, "1.1.0", plugin(`"podCIDRs": ["10.77.0.0/30", "fd77::/64", "10.78.0.0/24"], "routes": [{"dst": "10.96.0.0/12", "mtu": 1300}]`))
	x, y := b.add("x"), b.add("y")
	if got := fmt.Sprint(x.addrs(), y.addrs()); got != "[10.77.0.2 fd77::2] [10.78.0.2 fd77::3]" {
		t.Error(got)
	}
	if out := x.ns.Exec("ip", "route", "get", "10.96.0.1"); !strings.Contains(out, "via 169.254.1.1") {
		t.Error(out)
	}
	if got := x.result.Routes[2]; got.Dst.String() != "10.96.0.0/12" || got.MTU != 1300 || got.GW.String() != "169.254.1.1" {
		t.Error(got)
	}
}

// What a plugin before gave a container is part of the result.
func TestPrevResult(t *testing.T) {
	b := newTestbed(t, "1.0.0", `{"type": "loopback"}`, plugin(ranges))
	c := b.container("x")
	c.ns.Set("net/ipv6/conf/default/disable_ipv6", "1") // as Docker makes namespaces
	c.IfName = "lo"
	if err := b.tryAdd(c); err == nil || !strings.Contains(err.Error(), "CNI_IFNAME=lo") {
		t.Errorf("an interface that is there: %v", err)
	}
	first := `"prevResult": {"cniVersion": "1.0.0", "interfaces": [{"name": "net0", "sandbox": "/x"}], "ips": [{"address": "192.168.9.9/24", "interface": 0}]}`
	out, failed := b.call(map[string]string{"CNI_COMMAND": "ADD", "CNI_NETNS": c.NetNS}, `{"cniVersion": "1.0.0", "name": "pods", `+plugin(ranges, first)[1:])
	if failed.Code != 0 {
		t.Fatal(failed)
	}
	r, err := current.NewResult(out)
	if err != nil {
		t.Fatal(err)
	}
	got := r.(*current.Result)
	if len(got.Interfaces) != 3 || got.Interfaces[2].Name != "eth0" || len(got.IPs) != 3 || *got.IPs[0].Interface != 0 || *got.IPs[2].Interface != 2 {
		t.Errorf("%s", out)
	}
}

// Any other IPAM plugin is called with what this one was given.
func TestDelegatedIPAM(t *testing.T) {
	needPlugins(t)
	b := newTestbed(t, "1.0.0", `{"type": "sluice-cni", "ipam": {"type": "static", "addresses": [{"address": "10.9.0.5/24", "gateway": "10.9.0.1"}, {"address": "fd09::5/64"}], "routes": [{"dst": "0.0.0.0/0"}], "dns": {"nameservers": ["9.9.9.9"]}}}`)
	x := b.add("x")
	if got := fmt.Sprint(x.addrs(), x.result.DNS.Nameservers); got != "[10.9.0.5 fd09::5] [9.9.9.9]" {
		t.Error(got)
	}
	if err := b.check(x); err != nil {
		t.Error(err)
	}
	b.use("1.0.0", plugin(ranges))
	y := b.add("y")
	for _, to := range x.addrs() {
		reach(t, y.ns, x.ns, netip.AddrPortFrom(to, 8080))
	}
	// The address is another container's: no route is taken over, and nothing of this one remains.
	b.use("1.0.0", `{"type": "sluice-cni", "ipam": {"type": "static", "addresses": [{"address": "10.9.0.5/24"}]}}`)
	z := b.container("z")
	if err := b.tryAdd(z); err == nil || !strings.Contains(err.Error(), "(shop/x) has") {
		t.Errorf("an address that is routed elsewhere: %v", err)
	}
	reach(t, y.ns, x.ns, netip.AddrPortFrom(x.addrs()[0], 8080))
	b.del(x)
	b.use("1.0.0", plugin(ranges))
	b.del(y)
	b.empty()
}

// A container's gateway is on the link: side-cars and chained plugins (route-override, which is no
// package) add routes by it, and packets take them where there is no other.
func TestRoutesByTheGateway(t *testing.T) {
	b := newTestbed(t, "1.0.0", plugin(ranges))
	c, outside := b.add("x"), host(t, "outside")
	b.node.Join("uplink", outside, "eth0")
	b.node.Address("uplink", "10.42.0.254/16", "fd42::fe/64")
	outside.Address("eth0", "10.42.0.1/16", "fd42::1/64")
	outside.Gateway("10.42.0.254", "fd42::fe")
	c.ns.IP("route del default", "-6 route del default", "route add 10.42.0.0/16 via 169.254.1.1 dev eth0", "-6 route add fd42::/64 via fe80::1 dev eth0",
		"route add default via 169.254.1.1 dev eth0 table 100", "-6 route add default via fe80::1 dev eth0 table 100") // as VPN clients do
	for _, to := range []string{"10.42.0.1", "fd42::1"} {
		reach(t, c.ns, outside, netip.AddrPortFrom(netip.MustParseAddr(to), 8080))
	}
	for _, a := range c.addrs() {
		reach(t, outside, c.ns, netip.AddrPortFrom(a, 8080))
	}
	b.node.IP("link del uplink")
	b.del(c)
	b.empty()
}
