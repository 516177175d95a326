package compile

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"sluice.dev/sluice/internal/model"
	"sluice.dev/sluice/internal/state"
	"sluice.dev/sluice/internal/store"
)

// object makes a Node of a name, addresses and pod CIDRs: "a 192.0.2.1 10.244.1.0/24".
func object(t testing.TB, line string) (string, *model.Node) {
	t.Helper()
	words := strings.Fields(line)
	n := &model.Node{Name: words[0]}
	for _, w := range words[1:] {
		said := func() *model.NodeFabric {
			if n.Fabric == nil {
				n.Fabric = &model.NodeFabric{}
			}
			return n.Fabric
		}
		if seconds, ok := strings.CutPrefix(w, "created="); ok {
			n.Created = time.Unix(int64(len(seconds)), 0)
		} else if a, ok := strings.CutPrefix(w, "ipv4="); ok {
			said().IPv4 = netip.MustParseAddr(a)
		} else if a, ok := strings.CutPrefix(w, "vxlan="); ok {
			said().VXLAN = netip.MustParseAddr(a)
		} else if m, ok := strings.CutPrefix(w, "mac="); ok {
			said().MAC = state.MAC{2, 0, 0, 0, 0, m[0]}
		} else if k, ok := strings.CutPrefix(w, "key="); ok {
			said().WireGuard = model.PublicKey{k[0]}
		} else if zone, ok := strings.CutPrefix(w, "zone="); ok {
			n.Labels = map[string]string{"zone": zone}
		} else if p, err := netip.ParsePrefix(w); err == nil {
			n.PodCIDRs = append(n.PodCIDRs, p)
		} else {
			n.IPs = append(n.IPs, netip.MustParseAddr(w))
		}
	}
	return n.Name, n
}

// poolOf makes a pool of a name, CIDR and mode: "pods 10.244.0.0/16 vxlan=Always".
func poolOf(line string) *model.IPPool {
	words := strings.Fields(line)
	p := &model.IPPool{Name: words[0], CIDR: netip.MustParsePrefix(words[1])}
	for e := model.Never; e <= model.Always; e++ {
		if slices.Contains(words, "vxlan="+e.String()) {
			p.VXLAN = e
		}
		if slices.Contains(words, "ipip="+e.String()) {
			p.IPIP = e
		}
	}
	p.Disabled = slices.Contains(words, "disabled")
	if slices.Contains(words, "zone=a") {
		p.Nodes = model.Equal("zone", "a")
	}
	return p
}

// cluster is a store of nodes and pools with a compiler that follows it.
type cluster struct {
	*store.Store
	c *Compiler
}

func newCluster(cfg Config, underlay ...model.HostAddress) *cluster {
	c := &cluster{store.New(), New(cfg)}
	c.c.SetUnderlay(underlay)
	return c
}

func (c *cluster) update(events ...store.Event) (d state.FabricDelta) {
	c.Apply(events)
	dirty := c.Take()
	c.Read(func(v *store.View) { d = c.c.Update(v, dirty) })
	return d
}

func nodeEvent(t testing.TB, line string) store.Event {
	name, n := object(t, line)
	return store.Event{Kind: model.NodeKind, Name: model.Name{Name: name}, Object: n}
}

func poolEvent(line string) store.Event {
	p := poolOf(line)
	return store.Event{Kind: model.IPPoolKind, Name: model.Name{Name: p.Name}, Object: p}
}

// blockEvent brings one of a name, CIDR and node.
func blockEvent(line string) store.Event {
	words := append(strings.Fields(line), "")
	b := &model.BlockAffinity{Name: words[0], CIDR: netip.MustParsePrefix(words[1]), Node: words[2]}
	return store.Event{Kind: model.BlockAffinityKind, Name: model.Name{Name: b.Name}, Object: b}
}

func gone(kind model.Kind, name string) store.Event {
	return store.Event{Kind: kind, Name: model.Name{Name: name}}
}

// text shows a fabric, sorted.
func text(f *state.Fabric) string {
	var lines []string
	for name, t := range f.Tunnels {
		lines = append(lines, fmt.Sprintf("%s: %s local %s address %s mtu %d", name, t.Encapsulation, t.Local, t.Address, t.MTU))
	}
	for k, v := range f.VTEPs {
		lines = append(lines, fmt.Sprintf("%s to %s: %s", k.Device, v.Node, v.Remote))
		if v.MAC[5] != 'm' && v.MAC != macOf(&model.Node{Name: v.Node}, true) || k.Gateway.Is6() && k.Gateway != linkLocal(v.MAC) {
			lines = append(lines, "but wrong")
		}
	}
	for k, p := range f.Peers {
		lines = append(lines, fmt.Sprintf("peer %c %s: %s %v", k[0], p.Node, p.Endpoint, p.Allowed))
	}
	for to, r := range f.Routes {
		line := fmt.Sprintf("%s: %s", to, r.Device)
		if r.Device == "" {
			line = fmt.Sprintf("%s: nowhere", to)
		} else if !r.Via.IsValid() {
			line = fmt.Sprintf("%s: %s", to, r.Device)
		} else if r.Via.IsLinkLocalUnicast() {
			line += " link-local"
		} else {
			line += " " + r.Via.String()
		}
		lines = append(lines, line)
	}
	slices.Sort(lines)
	return strings.Join(lines, "\n")
}

var underlay = []model.HostAddress{
	{Prefix: netip.MustParsePrefix("127.0.0.1/8"), Device: "lo", MTU: 65536},
	{Prefix: netip.MustParsePrefix("192.0.2.1/24"), Device: "eth0", MTU: 1500},
	{Prefix: netip.MustParsePrefix("fd00:2::1/64"), Device: "eth0", MTU: 1500},
	{Prefix: netip.MustParsePrefix("203.0.113.1/24"), Device: "eth1", MTU: 9000},
}

func TestFabric(t *testing.T) {
	const own = "own 192.0.2.1 fd00:2::1 10.244.1.0/24 fd00:10:244:1::/64"
	const near = "near 192.0.2.2 fd00:2::2 10.244.2.0/24 fd00:10:244:2::/64"
	const far = "far 198.51.100.3 fd00:3::3 10.244.3.0/24 fd00:10:244:3::/64"
	for name, c := range map[string]struct {
		nodes, pools, blocks []string
		want                 string
		issues               []string
		key                  byte
	}{
		"native": {
			nodes: []string{own, near}, pools: []string{"v4 10.244.0.0/16", "v6 fd00:10:244::/48"},
			want: "10.244.1.0/24: nowhere\n10.244.2.0/24: eth0 192.0.2.2\nfd00:10:244:1::/64: nowhere\nfd00:10:244:2::/64: eth0 fd00:2::2",
		},
		"native across subnets": {
			nodes: []string{own, far}, pools: []string{"v4 10.244.0.0/16"},
			want: "10.244.1.0/24: nowhere",
			issues: []string{
				"Node far: it is on no subnet of this node, and IPPool v4 has no tunnel: its pods of 10.244.3.0/24 are reached only if the network between knows them",
				"Node far: no IPPool holds its pod CIDR fd00:10:244:3::/64", "Node own: no IPPool holds its pod CIDR fd00:10:244:1::/64",
			},
		},
		"native by another interface": {
			nodes: []string{own, "b 203.0.113.7 10.244.7.0/24"}, pools: []string{"v4 10.244.0.0/16", "v6 fd00:10:244::/48"},
			want: "10.244.1.0/24: nowhere\n10.244.7.0/24: eth1 203.0.113.7\nfd00:10:244:1::/64: nowhere",
		},
		"VXLAN": {
			nodes: []string{own, near}, pools: []string{"v4 10.244.0.0/16 vxlan=Always", "v6 fd00:10:244::/48 vxlan=Always"},
			want: "10.244.1.0/24: nowhere\n10.244.2.0/24: sluice.vxlan 192.0.2.2\n" +
				"fd00:10:244:1::/64: nowhere\nfd00:10:244:2::/64: sluice.vxlan6 link-local\n" +
				"sluice.vxlan to near: 192.0.2.2\nsluice.vxlan6 to near: fd00:2::2\n" +
				"sluice.vxlan6: VXLAN local fd00:2::1 address fd00:10:244:1:: mtu 1430\nsluice.vxlan: VXLAN local 192.0.2.1 address 10.244.1.0 mtu 1450",
		},
		"VXLAN across subnets": {
			nodes: []string{own, near, far}, pools: []string{"v4 10.244.0.0/16 vxlan=CrossSubnet", "v6 fd00:10:244::/48"},
			want: "10.244.1.0/24: nowhere\n10.244.2.0/24: eth0 192.0.2.2\n10.244.3.0/24: sluice.vxlan 198.51.100.3\n" +
				"fd00:10:244:1::/64: nowhere\nfd00:10:244:2::/64: eth0 fd00:2::2\n" +
				"sluice.vxlan to far: 198.51.100.3\nsluice.vxlan: VXLAN local 192.0.2.1 address 10.244.1.0 mtu 1450",
			issues: []string{"Node far: it is on no subnet of this node, and IPPool v6 has no tunnel"},
		},
		"IPIP": {
			nodes: []string{own, near, far}, pools: []string{"v4 10.244.0.0/16 ipip=Always", "v6 fd00:10:244::/48 vxlan=CrossSubnet"},
			want: "10.244.1.0/24: nowhere\n10.244.2.0/24: sluice.ipip 192.0.2.2\n10.244.3.0/24: sluice.ipip 198.51.100.3\n" +
				"fd00:10:244:1::/64: nowhere\nfd00:10:244:2::/64: eth0 fd00:2::2\nfd00:10:244:3::/64: sluice.vxlan6 link-local\n" +
				"sluice.ipip: IPIP local 192.0.2.1 address 10.244.1.0 mtu 1480\n" +
				"sluice.vxlan6 to far: fd00:3::3\nsluice.vxlan6: VXLAN local fd00:2::1 address fd00:10:244:1:: mtu 1430",
		},
		"the smallest pool counts": {
			nodes: []string{"own 192.0.2.1", "b 192.0.2.2 10.244.2.0/24", "c 192.0.2.3 10.244.128.0/24"}, pools: []string{"small 10.244.128.0/17", "large 10.244.0.0/16 ipip=Always"},
			want:   "10.244.128.0/24: eth0 192.0.2.3\n10.244.2.0/24: sluice.ipip 192.0.2.2\nsluice.ipip: IPIP local 192.0.2.1 address 192.0.2.1 mtu 1480",
			issues: []string{"IPPool large: its cidr 10.244.0.0/16 overlaps 10.244.128.0/17 of IPPool small, which counts for the addresses in both; change one of them; in force: the rest of it"},
		},
		"the older node has what two claim": {
			nodes: []string{
				"own 192.0.2.1", "b 192.0.2.2 10.244.2.0/24 created=xx", "a 192.0.2.3 10.244.2.0/24 created=xxx", "c 192.0.2.2 10.244.4.0/24",
				"d 192.0.2.5 10.244.2.128/25", "e 10.244.5.0/24",
			}, pools: []string{"v4 10.244.0.0/16"},
			want: "10.244.2.0/24: eth0 192.0.2.2",
			issues: []string{
				"Node a: its pod CIDR 10.244.2.0/24 is that of Node b, which was there first",
				"Node c: its address 192.0.2.2 is that of Node b, which was there first: its pods of 10.244.4.0/24 are not reached",
				"Node d: its pod CIDR 10.244.2.128/25 lies in 10.244.2.0/24 of Node b, which was there first: its pods there are not reached",
				"Node e: it has no IPv4 address: its pods of 10.244.5.0/24 are not reached",
			},
		},
		"an address that the host lacks": {
			nodes: []string{"own 192.0.2.99", near}, pools: []string{"v4 10.244.0.0/16", "v6 fd00:10:244::/48"},
			issues: []string{"Node own: it has no IPv6 address, so it reaches no IPv6 pods of other nodes", "Node own: its address 192.0.2.99 is on no interface of this machine, so it reaches no IPv4 pods of other nodes"},
		},
		"a block of a newer node in an older one's": {
			nodes:  []string{"own 192.0.2.1 10.244.1.0/24", "b 192.0.2.2 10.244.2.0/24 created=x", "c 192.0.2.3 10.244.3.0/24 created=xx"},
			pools:  []string{"v4 10.244.0.0/15 ipip=Always"},
			blocks: []string{"x 10.245.0.0/26 b", "y 10.245.0.0/28 c"},
			want: "10.244.1.0/24: nowhere\n10.244.2.0/24: sluice.ipip 192.0.2.2\n10.244.3.0/24: sluice.ipip 192.0.2.3\n" +
				"10.245.0.0/26: sluice.ipip 192.0.2.2\nsluice.ipip: IPIP local 192.0.2.1 address 10.244.1.0 mtu 1480",
			issues: []string{"Node c: its pod CIDR 10.245.0.0/28 lies in 10.245.0.0/26 of Node b, which was there first"},
		},
		"Calico's blocks": {
			nodes: []string{own + " vxlan=10.244.77.9", near, far}, pools: []string{"v4 10.244.0.0/16 vxlan=CrossSubnet", "v6 fd00:10:244::/48"},
			blocks: []string{"a 10.244.66.64/26 near", "b 10.244.2.64/26 near", "c 10.244.77.0/26 own", "d 10.244.77.64/26 far", "e 10.244.1.128/26 far", "f 10.244.99.0/26 nobody", "g 10.244.99.0/26"},
			want: "10.244.1.0/24: nowhere\n10.244.1.128/26: sluice.vxlan 198.51.100.3\n10.244.2.0/24: eth0 192.0.2.2\n10.244.3.0/24: sluice.vxlan 198.51.100.3\n" +
				"10.244.66.64/26: eth0 192.0.2.2\n10.244.77.0/26: nowhere\n10.244.77.64/26: sluice.vxlan 198.51.100.3\n" +
				"fd00:10:244:1::/64: nowhere\nfd00:10:244:2::/64: eth0 fd00:2::2\n" +
				"sluice.vxlan to far: 198.51.100.3\nsluice.vxlan: VXLAN local 192.0.2.1 address 10.244.77.9 mtu 1450",
			issues: []string{"Node far: it is on no subnet of this node", "Node own: its pod CIDRs hold blocks of other nodes: 10.244.1.128/26 of Node far; a pod that gets an address there from another IPAM"},
		},
		"Calico's annotations": {
			nodes: []string{"own 203.0.113.1 10.244.1.0/24 ipv4=192.0.2.1 mac=m", "b 203.0.113.2 10.244.2.0/24 ipv4=192.0.2.2 mac=m created=x", "c 192.0.2.3 10.244.3.0/24 mac=m"},
			pools: []string{"v4 10.244.0.0/16 vxlan=Always"}, blocks: []string{"a 10.244.66.64/26 own"},
			want: "10.244.1.0/24: nowhere\n10.244.2.0/24: sluice.vxlan 192.0.2.2\n10.244.66.64/26: nowhere\n" +
				"sluice.vxlan to b: 192.0.2.2\nsluice.vxlan: VXLAN local 192.0.2.1 address 192.0.2.1 mtu 1450",
			issues: []string{"Node c: the MAC 02:00:00:00:00:6d of its VXLAN device is that of Node b, which was there first: its pods of 10.244.3.0/24 are not reached; remove its annotation"},
		},
		"pools that pods have no addresses of": {
			nodes: []string{"own 192.0.2.1 10.244.1.0/24 zone=a", "b 192.0.2.2 10.244.2.0/24 zone=b", "c 192.0.2.3 10.99.3.0/24"}, blocks: []string{"x 10.99.7.0/24 b"},
			pools: []string{"v4 10.244.0.0/16 zone=a", "old 10.99.0.0/16 disabled"},
			want:  "10.244.1.0/24: nowhere\n10.244.2.0/24: eth0 192.0.2.2\n10.99.3.0/24: eth0 192.0.2.3\n10.99.7.0/24: eth0 192.0.2.2",
			issues: []string{
				"Node b: its pods get addresses of its pod CIDR 10.244.2.0/24 though the nodeSelector of IPPool v4 does not select it: give it another pod CIDR, or change the selector",
				"Node c: its pods get addresses of its pod CIDR 10.99.3.0/24 though IPPool old is disabled",
			},
		},
		"WireGuard": {
			key:   'o',
			nodes: []string{own + " key=o", near + " key=n", far + " key=f", "d 192.0.2.4 10.244.4.0/24", "e 192.0.2.5 10.244.5.0/24 key=n", "g fd00:2::7 fd00:10:244:7::/64 key=g"},
			pools: []string{"v4 10.244.0.0/16 vxlan=CrossSubnet", "v6 fd00:10:244::/48"},
			want: "10.244.1.0/24: nowhere\n10.244.2.0/24: eth0 192.0.2.2\n10.244.3.0/24: sluice.wg\n10.244.4.0/24: eth0 192.0.2.4\n10.244.5.0/24: sluice.wg\n" +
				"fd00:10:244:1::/64: nowhere\nfd00:10:244:2::/64: eth0 fd00:2::2\nfd00:10:244:3::/64: sluice.wg\nfd00:10:244:7::/64: eth0 fd00:2::7\n" +
				"peer f far: 198.51.100.3:51820 [10.244.3.0/24 198.51.100.3/32 fd00:3::3/128 fd00:10:244:3::/64]\npeer n e: 192.0.2.5:51820 [10.244.5.0/24 192.0.2.5/32]\n" +
				"sluice.vxlan: VXLAN local 192.0.2.1 address 10.244.1.0 mtu 1450\nsluice.wg: WireGuard local 192.0.2.1 address 10.244.1.0 mtu 1440",
			issues: []string{
				"Node d: what goes to its pods is not encrypted: it has no key for WireGuard; run its agent with --encrypt",
				"Node g: what goes to its pods is not encrypted: it has no IPv4 address",
				"Node near: what goes to its pods is not encrypted: its key for WireGuard is that of Node e, too",
			},
		},
		"WireGuard, and the key not known yet": {
			key: 'o', nodes: []string{"own 192.0.2.1 10.244.1.0/24 key=x", "b 192.0.2.2 10.244.2.0/24 key=b"}, pools: []string{"v4 10.244.0.0/16"},
			want: "10.244.1.0/24: nowhere\n10.244.2.0/24: eth0 192.0.2.2\npeer b b: 192.0.2.2:51820 [10.244.2.0/24 192.0.2.2/32]\n" +
				"sluice.wg: WireGuard local 192.0.2.1 address 10.244.1.0 mtu 1440",
			issues: []string{"Node own: nothing is encrypted from here and to here: its annotation projectcalico.org/WireguardPublicKey is not bwAA"},
		},
		"WireGuard turned off": {
			nodes: []string{"own 192.0.2.1 10.244.1.0/24 key=o", "b 192.0.2.2 10.244.2.0/24 key=b"}, pools: []string{"v4 10.244.0.0/16"},
			want:   "10.244.1.0/24: nowhere\n10.244.2.0/24: eth0 192.0.2.2",
			issues: []string{"Node own: other nodes encrypt what they send to its pods, and this one does not take it without --encrypt; kubectl annotate node own"},
		},
		"pods with the addresses of nodes": { // projectcalico/calico#13116
			nodes: []string{"own 192.0.2.1 10.244.1.0/24 192.0.0.0/16", "b 192.0.2.2 192.0.2.0/25", "c 192.0.2.3 0.0.0.0/0", "d 198.51.100.4 198.51.100.0/24"}, pools: []string{"all 0.0.0.0/0 vxlan=Always"}, blocks: []string{"x 192.0.2.0/30 d"},
			want: "10.244.1.0/24: nowhere\nsluice.vxlan: VXLAN local 192.0.2.1 address 10.244.1.0 mtu 1450",
			issues: []string{
				"Node b: its pod CIDR 192.0.2.0/25 holds 192.0.2.2, which is the address of a node",
				"Node c: its pod CIDR 0.0.0.0/0 holds 192.0.2.3, which is the address of a node",
				"Node d: its pod CIDR 192.0.2.0/30 holds 192.0.2.2, which is the address of a node",
				"Node d: its pod CIDR 198.51.100.0/24 holds 198.51.100.4, which is the address of a node",
				"Node own: its pod CIDR 192.0.0.0/16 holds 192.0.2.1, which is the address of a node",
			},
		},
		"a later node with what many have": {
			nodes:  []string{"own 192.0.2.1 10.244.1.0/24 created=x", "b 192.0.2.2 10.244.2.0/24 created=x", "c 192.0.2.3 10.244.3.0/24 created=x", "d 192.0.2.4 10.244.4.0/24 created=x", "e 192.0.2.5 10.244.0.0/16 created=xx"},
			pools:  []string{"v4 10.244.0.0/16"},
			want:   "10.244.0.0/16: eth0 192.0.2.5\n10.244.1.0/24: nowhere\n10.244.2.0/24: eth0 192.0.2.2\n10.244.3.0/24: eth0 192.0.2.3\n10.244.4.0/24: eth0 192.0.2.4",
			issues: []string{"Node e: its pod CIDR 10.244.0.0/16 holds what other nodes have before it, 10.244.1.0/24 of Node own, 10.244.2.0/24 of Node b, 10.244.3.0/24 of Node c and 1 more: its pods there are not reached; give it another"},
		},
		"pods with the address of a third node": {
			nodes: []string{"own 192.0.2.1", "b 192.0.2.2 198.51.100.0/30 created=xx", "c 198.51.100.3 10.244.3.0/24 created=x"}, pools: []string{"all 0.0.0.0/0 vxlan=Always"},
			want:   "10.244.3.0/24: sluice.vxlan 198.51.100.3\nsluice.vxlan to c: 198.51.100.3\nsluice.vxlan: VXLAN local 192.0.2.1 address 192.0.2.1 mtu 1450",
			issues: []string{"Node b: its pod CIDR 198.51.100.0/30 holds 198.51.100.3, which is the address of a node: its pods there are not reached; give it another"},
		},
		"a later node with the address of a pod": {
			nodes: []string{"own 192.0.2.1", "b 192.0.2.2 198.51.100.0/30 created=x", "c 198.51.100.3 10.244.3.0/24 created=xx"}, pools: []string{"all 0.0.0.0/0 vxlan=Always"},
			want:   "198.51.100.0/30: sluice.vxlan 192.0.2.2\nsluice.vxlan to b: 192.0.2.2\nsluice.vxlan: VXLAN local 192.0.2.1 address 192.0.2.1 mtu 1450",
			issues: []string{"Node c: its address 198.51.100.3 is in 198.51.100.0/30, pods of Node b, which was there first: its pods of 10.244.3.0/24 are not reached; give it another address"},
		},
		"this node came later, with the address of a pod": {
			nodes: []string{"own 192.0.2.1 10.244.1.0/24 created=xx", "b 192.0.2.2 192.0.2.0/31 10.244.2.0/24 created=x"}, pools: []string{"all 0.0.0.0/0"},
			want:   "10.244.1.0/24: nowhere\n10.244.2.0/24: eth0 192.0.2.2",
			issues: []string{"Node own: its address 192.0.2.1 is in 192.0.2.0/31, pods of Node b, which was there first: neither reaches the other's pods; give it another address"},
		},
		"a CIDR that nobody has takes nothing": {
			nodes: []string{"own 192.0.2.1", "b 192.0.2.2 10.0.0.0/8 10.244.2.0/24 created=xx", "c 10.1.1.1 10.2.0.0/16 created=x", "d 192.0.2.4 10.244.4.0/24 created=xxx"}, pools: []string{"all 0.0.0.0/0 vxlan=Always"},
			want: "10.2.0.0/16: sluice.vxlan 10.1.1.1\n10.244.2.0/24: sluice.vxlan 192.0.2.2\n10.244.4.0/24: sluice.vxlan 192.0.2.4\nsluice.vxlan to b: 192.0.2.2\nsluice.vxlan to c: 10.1.1.1\n" +
				"sluice.vxlan to d: 192.0.2.4\nsluice.vxlan: VXLAN local 192.0.2.1 address 192.0.2.1 mtu 1450",
			issues: []string{"Node b: its pod CIDR 10.0.0.0/8 holds 10.1.1.1, which is the address of a node"},
		},
		"no own node": {nodes: []string{near}, pools: []string{"v4 10.244.0.0/16 vxlan=Always", "v6 fd00:10:244::/48"}},
	} {
		t.Run(name, func(t *testing.T) {
			x := newCluster(Config{Node: "own", Key: model.PublicKey{c.key}}, underlay...)
			var events []store.Event
			for _, line := range c.nodes {
				events = append(events, nodeEvent(t, line))
			}
			for _, line := range c.pools {
				events = append(events, poolEvent(line))
			}
			for _, line := range c.blocks {
				events = append(events, blockEvent(line))
			}
			x.update(events...)
			if got := text(x.c.Fabric()); got != c.want {
				t.Errorf("fabric\n%s\nwant\n%s", got, c.want)
			}
			var issues []string
			for _, i := range x.c.Issues() {
				issues = append(issues, i.String())
			}
			if !slices.EqualFunc(issues, c.issues, strings.HasPrefix) {
				t.Errorf("issues %q, want %q", issues, c.issues)
			}
		})
	}
}

// Whatever Nodes claim, and in whatever order they come, a newer one takes nothing from those that
// were there before: each address is reached as it was without it, and what it does not get is
// named with it alone.
func TestOlderNodesKeepWhatTheyHave(t *testing.T) {
	var samples []netip.Addr
	for _, text := range []string{"10.244.1.1", "10.244.1.200", "10.244.1.129", "10.244.2.1", "10.244.2.254", "10.244.9.9", "192.0.2.2", "192.0.2.3", "192.0.2.9", "198.51.100.3"} {
		samples = append(samples, netip.MustParseAddr(text))
	}
	taken := 0
	for seed := range uint64(2000) {
		r := rand.New(rand.NewPCG(seed, 3))
		pick := func(options ...string) string { return options[r.IntN(len(options))] }
		names := []string{"a", "b", "c", "d", "e", "f"}
		r.Shuffle(len(names), func(i, j int) { names[i], names[j] = names[j], names[i] })
		own := r.IntN(2) // it, too, may be a newer one
		lines := []string{"own 192.0.2.1 " + pick("10.244.1.0/24", "10.244.1.128/25", "10.244.7.0/24", "192.0.2.0/24")}
		for _, name := range names {
			cidr := func() string {
				return pick("10.244.1.0/24", "10.244.1.128/25", "10.244.1.129/32", "10.244.2.0/24", "10.244.2.254/32", "10.244.0.0/16", "192.0.2.0/28", "198.51.100.0/30", "0.0.0.0/0")
			}
			lines = append(lines, name+" "+pick("192.0.2.2", "192.0.2.3", "192.0.2.9", "198.51.100.3", "10.244.1.200", "10.244.2.1", "192.0.2.1")+" "+cidr()+" "+pick("", cidr()))
		}
		lines[0], lines[own] = lines[own], lines[0]
		var before *cluster
		for count := max(own+1, 1); count <= len(lines); count++ {
			x := newCluster(Config{Node: "own", Key: model.PublicKey{}}, underlay...)
			events := []store.Event{poolEvent("all 0.0.0.0/0 " + pick("vxlan=Always", "ipip=Always"))}
			for i, line := range lines[:count] {
				events = append(events, nodeEvent(t, line+" created="+strings.Repeat("x", i+1)))
			}
			r.Shuffle(len(events), func(i, j int) { events[i], events[j] = events[j], events[i] })
			for _, e := range events {
				x.update(e)
			}
			newest := strings.Fields(lines[count-1])[0]
			if before != nil {
				for _, a := range samples {
					if had := nodeOf(before, a); had != "" && nodeOf(x, a) != had {
						t.Fatalf("seed %d: %v of Node %s goes to %q once there is %q, of %q", seed, a, had, nodeOf(x, a), lines[count-1], lines[:count-1])
					}
				}
				for _, issue := range x.c.Issues() {
					if issue.Object.Name.Name != newest && !slices.Contains(before.c.Issues(), issue) {
						t.Fatalf("seed %d: %s, once there is %q, of %q", seed, issue, lines[count-1], lines[:count-1])
					}
				}
			}
			for _, issue := range x.c.Issues() {
				if strings.Contains(issue.String(), "first") {
					taken++
				}
			}
			before = x
		}
	}
	if taken < 1000 {
		t.Errorf("%d claims were of what another had", taken)
	}
}

// nodeOf is the node to which packets to an address go; "": to none.
func nodeOf(x *cluster, a netip.Addr) (node string) {
	bits := -1
	for p, r := range x.c.Fabric().Routes {
		if p.Contains(a) && p.Bits() > bits {
			node, bits = r.Node, p.Bits()
		}
	}
	return node
}

// Flags say what holds where no pool of the API does.
func TestPoolsOfFlags(t *testing.T) {
	x := newCluster(Config{Node: "own", Pools: []*model.IPPool{poolOf("flags 0.0.0.0/0 vxlan=Always")}}, underlay...)
	x.update(nodeEvent(t, "own 192.0.2.1 10.244.1.0/24"), nodeEvent(t, "b 192.0.2.2 10.244.2.0/24"), nodeEvent(t, "c 192.0.2.3 10.99.2.0/24"), poolEvent("v4 10.99.0.0/16"))
	if r := x.c.Fabric().Routes; r[netip.MustParsePrefix("10.244.2.0/24")].Device != state.DeviceVXLAN || r[netip.MustParsePrefix("10.99.2.0/24")].Device != "eth0" {
		t.Error(text(x.c.Fabric()))
	}
	if issues := x.c.Issues(); len(issues) > 0 {
		t.Error(issues)
	}
}

// The paths are those to all nodes that are reached, by the interfaces that packets leave by.
func TestPaths(t *testing.T) {
	x := newCluster(Config{Node: "own"}, underlay...)
	x.update(nodeEvent(t, "own 192.0.2.1 10.244.1.0/24"), nodeEvent(t, "b 192.0.2.2 fd00:2::2 10.244.2.0/24 10.244.4.0/24"), nodeEvent(t, "c 203.0.113.3 10.244.3.0/24"),
		nodeEvent(t, "d 198.51.100.3 10.244.5.0/24"), nodeEvent(t, "e 192.0.2.9"), poolEvent("v4 10.244.0.0/16 vxlan=Always"))
	var got []string
	for _, p := range x.c.Paths() {
		got = append(got, fmt.Sprint(p))
	}
	slices.Sort(got)
	if want := []string{"{b 192.0.2.2 eth0 1500}", "{c 203.0.113.3 eth1 9000}", "{d 198.51.100.3 eth0 1500}"}; !slices.Equal(got, want) {
		t.Errorf("%v, want %v", got, want)
	}
	x.update(gone(model.NodeKind, "b"), gone(model.NodeKind, "c"))
	if got := x.c.Paths(); len(got) != 1 {
		t.Error(got)
	}
}

// Whoever may make a Node leads no packets away that are for others than pods: the flags say where
// pods are and where they are not, and for pods of an IPPool that does.
func TestPodsAreInTheClusterCIDR(t *testing.T) {
	prefixes := func(list ...string) (all []netip.Prefix) {
		for _, p := range list {
			all = append(all, netip.MustParsePrefix(p))
		}
		return all
	}
	x := newCluster(Config{
		Node: "own", Pools: []*model.IPPool{poolOf("flags 0.0.0.0/0"), poolOf("flags ::/0")},
		ClusterCIDRs: prefixes("10.244.0.0/16"), ServiceCIDRs: prefixes("10.96.0.0/16", "fd00:10:96::/108"),
	}, underlay...)
	x.update(nodeEvent(t, "own 192.0.2.1 fd00:2::1 10.244.1.0/24"), nodeEvent(t, "b 192.0.2.2 10.244.2.0/24"),
		nodeEvent(t, "c 192.0.2.3 fd00:2::3 8.8.8.0/24 10.244.0.0/15 192.0.2.254/31 10.96.7.0/24 fd00:10::/32 fd00:7::/64 10.99.3.0/24"), poolEvent("p 10.99.0.0/16"))
	if got, want := text(x.c.Fabric()), "10.244.1.0/24: nowhere\n10.244.2.0/24: eth0 192.0.2.2\n10.99.3.0/24: eth0 192.0.2.3\nfd00:7::/64: eth0 fd00:2::3"; got != want {
		t.Errorf("%s\nwant\n%s", got, want)
	}
	var why []string
	for _, i := range x.c.Issues() {
		why = append(why, i.String())
	}
	for _, want := range []string{"8.8.8.0/24 lies outside of --cluster-cidr", "10.244.0.0/15 lies outside", "192.0.2.254/31 lies outside", "10.96.7.0/24 overlaps 10.96.0.0/16, where", "fd00:10::/32 overlaps"} {
		if !slices.ContainsFunc(why, func(s string) bool { return strings.HasPrefix(s, "Node c: its pod CIDR "+want) }) {
			t.Errorf("%q is not said in %q", want, why)
		}
	}
	if len(why) != 5 {
		t.Errorf("%q", why)
	}
}

// A cluster of one family lacks nothing of the other, though the flags' pools hold all addresses.
func TestOneFamily(t *testing.T) {
	x := newCluster(Config{Node: "own", Pools: []*model.IPPool{poolOf("flags 0.0.0.0/0 vxlan=Always"), poolOf("flags ::/0 vxlan=Always")}}, underlay[1:3]...)
	x.update(nodeEvent(t, "own 192.0.2.1 10.244.1.0/24"), nodeEvent(t, "b 192.0.2.2 10.244.2.0/24"))
	if issues := x.c.Issues(); len(issues) > 0 || x.c.Fabric().Tunnels[state.DeviceVXLAN6] != nil {
		t.Error(issues, text(x.c.Fabric()))
	}
	x.update(nodeEvent(t, "own 192.0.2.1 fd00:2::1 10.244.1.0/24"), nodeEvent(t, "b 192.0.2.2 fd00:2::2 10.244.2.0/24 fd00:10:244:2::/64"))
	if len(x.c.Issues()) > 0 || x.c.Fabric().Tunnels[state.DeviceVXLAN6] == nil {
		t.Error(x.c.Issues(), text(x.c.Fabric()))
	}
}

// The own Node's last version counts once it is deleted.
func TestOwnNodeIsDeleted(t *testing.T) {
	x := newCluster(Config{Node: "own"}, underlay...)
	x.update(nodeEvent(t, "own 192.0.2.1 10.244.1.0/24"), nodeEvent(t, "b 192.0.2.2 10.244.2.0/24"), poolEvent("v4 10.244.0.0/16 vxlan=Always"))
	if d := x.update(gone(model.NodeKind, "own")); d.Len() > 0 {
		t.Errorf("%+v", d)
	}
	if d := x.update(nodeEvent(t, "own 192.0.2.1 10.244.9.0/24")); len(d.Routes) != 2 || len(d.Tunnels) != 1 || len(d.VTEPs) != 0 {
		t.Errorf("%+v", d)
	}
}

// A Node of a file may name a pod CIDR twice.
func TestPodCIDRTwice(t *testing.T) {
	x := newCluster(Config{Node: "own"}, underlay...)
	x.update(nodeEvent(t, "own 192.0.2.1 10.244.1.0/24"), poolEvent("v4 10.244.0.0/16 vxlan=Always"))
	if d := x.update(nodeEvent(t, "b 192.0.2.2 10.244.2.0/24 10.244.2.0/24")); len(d.Routes) != 1 {
		t.Errorf("%+v", d)
	}
	if d := x.update(gone(model.NodeKind, "b")); len(d.Routes) != 1 {
		t.Errorf("%+v", d)
	}
}

// However the objects come, and whatever came before, the fabric is that of the current ones, and
// deltas lead to it.
func TestFabricIsOfTheCurrentObjects(t *testing.T) {
	for seed := range uint64(300) {
		r := rand.New(rand.NewPCG(seed, 11))
		pick := func(options ...string) string { return options[r.IntN(len(options))] }
		cfg := Config{Node: "own", Key: model.PublicKey{byte(seed % 2)}}
		x := newCluster(cfg, underlay...)
		held := state.NewFabric()
		objects := map[model.Ref]store.Event{}
		for range 30 {
			var events []store.Event
			for range r.IntN(4) {
				var e store.Event
				switch name := pick("own", "a", "b", "c", "d"); r.IntN(8) {
				case 6:
					e = gone(model.BlockAffinityKind, pick("x", "y", "z"))
				case 7:
					e = blockEvent(pick("x", "y", "z") + " " + pick("10.244.1.64/26", "10.244.2.0/25", "10.244.8.0/26") + " " + pick(name, name, ""))

				case 0:
					e = gone(model.NodeKind, name)
				case 1:
					e = gone(model.IPPoolKind, pick("p", "q"))
				case 2:
					e = poolEvent(pick("p", "q") + " " + pick("10.244.0.0/16", "10.244.0.0/23", "fd00:10::/32", "192.0.0.0/2") + " " + pick("vxlan=Always", "vxlan=CrossSubnet", ""))
				default:
					e = nodeEvent(t, name+" "+pick("192.0.2.1", "192.0.2.2", "192.0.2.3", "198.51.100.1", "10.244.1.9", "fd00:2::1")+" "+
						pick("10.244.1.0/24", "10.244.2.0/24", "10.244.1.0/25", "10.244.0.0/16", "10.244.1.9/32", "fd00:10:1::/64", "10.7.0.0/24", "192.0.2.2/31", "198.51.100.0/24")+" "+pick("", "10.244.3.0/24")+" created="+pick("x", "xx", "xxx")+" "+pick("", "mac=m", "vxlan=10.244.9.9", "ipv4=192.0.2.2")+" "+pick("", "key=a", "key=b"))
				}
				if e.Kind == model.NodeKind && e.Name.Name == "own" && e.Object == nil {
					continue
				}
				objects[model.Ref{Kind: e.Kind, Name: e.Name}] = e
				events = append(events, e)
			}
			if r.IntN(8) == 0 {
				x.c.SetUnderlay(underlay[:r.IntN(len(underlay)+1)])
			}
			held.Apply(x.update(events...))
			anew := newCluster(cfg, x.c.underlay...)
			anew.update(slices.Collect(maps.Values(objects))...)
			if got, want := text(x.c.Fabric()), text(anew.c.Fabric()); got != want || text(held) != want {
				t.Fatalf("seed %d: fabric\n%s\nby deltas\n%s\nwant\n%s", seed, got, text(held), want)
			}
			if got, want := fmt.Sprint(x.c.Issues()), fmt.Sprint(anew.c.Issues()); got != want {
				t.Fatalf("seed %d: issues %s, want %s", seed, got, want)
			}
		}
	}
}

// manyNodes are those of a large cluster.
func manyNodes(t testing.TB, count int) (events []store.Event) {
	for i := range count {
		events = append(events, nodeEvent(t, fmt.Sprintf("node-%d 192.0.%d.%d 10.%d.%d.0/24", i, i>>8, i&255, 64+i>>8, i&255)))
	}
	return append(events, poolEvent("v4 10.0.0.0/8 vxlan=Always"))
}

func BenchmarkFromNothing(b *testing.B) {
	for _, count := range []int{1000, 10000} {
		b.Run(fmt.Sprint(count), func(b *testing.B) {
			events := manyNodes(b, count)
			for b.Loop() {
				x := newCluster(Config{Node: "node-1"}, model.HostAddress{Prefix: netip.MustParsePrefix("192.0.0.1/16"), Device: "eth0", MTU: 1500})
				if d := x.update(events...); len(d.VTEPs) != count-1 {
					b.Fatal(len(d.VTEPs))
				}
			}
		})
	}
}

func BenchmarkOneNode(b *testing.B) {
	events := manyNodes(b, 10000)
	x := newCluster(Config{Node: "node-1"}, model.HostAddress{Prefix: netip.MustParsePrefix("192.0.0.1/16"), Device: "eth0", MTU: 1500})
	x.update(events...)
	there := events[77]
	for b.Loop() {
		x.update(gone(model.NodeKind, "node-77"))
		if d := x.update(there); d.Len() != 2 {
			b.Fatal(d)
		}
	}
}
