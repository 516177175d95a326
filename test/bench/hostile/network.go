package hostile

import (
	"fmt"
	"net/netip"

	"sluice.dev/sluice/test/bench/cluster"
)

// own is a prefix of IPv4 of a random length, in which no other objects have addresses than such.
// Some have it in common.
func (d *dice) own() netip.Prefix {
	return netip.PrefixFrom(d.addr(false, one(d, 0, 0, -d.number*4096)), 10+d.IntN(23)).Masked()
}

// owns are prefixes or single addresses that no other objects have but such.
func (d *dice) owns(least, most, each int) []string {
	six, draw := d.rarely(), one(d, prefixLists[2:5]...)
	return list(d, least, most, each, func(i int) string { return draw(d, six, i).String() })
}

// ipPool is an IPPool that holds and lies in others.
func (d *dice) ipPool() []object {
	cidr := d.own()
	spec := object{"cidr": cidr.String(), "blockSize": max(26, cidr.Bits()), "natOutgoing": d.often(), "disabled": d.rarely(), "disableBGPExport": d.IntN(2) == 0}
	spec[one(d, "vxlanMode", "ipipMode")] = one(d, "Never", "CrossSubnet", "Always")
	put(d, spec, "nodeSelector", d.calicoSelector)
	return []object{d.calico("IPPool", d.meta(253), spec)}
}

// block is a BlockAffinity of this node or another one.
func (d *dice) block() []object {
	spec := object{"cidr": d.own().String(), "node": one(d, cluster.Node, "elsewhere", fmt.Sprintf("h%d", d.IntN(1000))), "deleted": false}
	put(d, spec, "state", func() string { return one(d, "confirmed", "pending", "pendingDeletion") })
	put(d, spec, "type", func() string { return one(d, "host", "virtual") })
	return []object{d.calico("BlockAffinity", d.meta(253), spec)}
}

// bgpConfiguration is one of another node.
func (d *dice) bgpConfiguration() []object {
	spec := object{}
	put(d, spec, "asNumber", func() int { return one(d, 1, 64512, 4_294_967_295) })
	put(d, spec, "listenPort", func() int { return one(d, 179, 65535) })
	spec["communities"] = list(d, 0, 10_000, 60, func(i int) object { return object{"name": fmt.Sprint("c", i), "value": fmt.Sprintf("64500:%d", i)} })
	spec["prefixAdvertisements"] = list(d, 0, 10_000, 80, func(i int) object {
		return object{"cidr": d.addr(false, i).String() + "/32", "communities": []string{one(d, fmt.Sprint("c", i), "64500:1", "64500:1:2")}}
	})
	m := d.meta(63)
	m["name"] = fmt.Sprintf("node.h%d", d.number)
	return []object{d.calico("BGPConfiguration", m, spec)}
}

// bgpPeer is a BGPPeer that nobody answers as.
func (d *dice) bgpPeer() []object {
	spec := object{}
	if d.IntN(2) == 0 {
		spec["peerSelector"] = d.calicoSelector()
	} else {
		spec["peerIP"], spec["asNumber"] = d.addr(d.rarely(), one(d, 0, -d.number*4096)).String(), one(d, 1, 64512, 4_294_967_295)
	}
	put(d, spec, "nodeSelector", d.calicoSelector)
	put(d, spec, "filters", func() []string { return list(d, 0, 20_000, 20, func(i int) string { return fmt.Sprintf("h%d", i) }) })
	put(d, spec, "ttlSecurity", func() int { return d.IntN(256) })
	put(d, spec, "password", func() object { return object{"secretKeyRef": object{"name": "none", "key": "password"}} })
	return []object{d.calico("BGPPeer", d.meta(253), spec)}
}

func (d *dice) bgpFilter() []object {
	spec := object{}
	for _, field := range []string{"importV4", "exportV4"} {
		put(d, spec, field, func() []object {
			return list(d, 0, 10_000, 80, func(i int) object {
				return object{"action": one(d, "Accept", "Reject"), "matchOperator": one(d, "In", "NotIn", "Equal", "NotEqual"), "cidr": d.addr(false, i).String() + "/32"}
			})
		})
	}
	return []object{d.calico("BGPFilter", d.meta(253), spec)}
}

func (d *dice) metalLB(version, kind string, spec object) []object {
	m := d.namespaced(253)
	m["labels"] = d.labels(nil)
	return []object{{"apiVersion": "metallb.io/" + version, "kind": kind, "metadata": m, "spec": spec}}
}

// addressPool is an IPAddressPool for tenants. Some have the addresses of others.
func (d *dice) addressPool() []object {
	spec := object{"addresses": d.owns(1, 60_000, 22), "autoAssign": d.often(), "avoidBuggyIPs": d.rarely()}
	put(d, spec, "serviceAllocation", func() object {
		return object{"priority": d.IntN(100), "namespaces": list(d, 0, 20_000, 12, func(i int) string { return tenant(i) }), "namespaceSelectors": d.labelSelectors()}
	})
	return d.metalLB("v1beta1", "IPAddressPool", spec)
}

// labelSelectors are some that MetalLB's objects have.
func (d *dice) labelSelectors() []object {
	return list(d, 0, 5_000, 40, func(i int) object { return object{"matchLabels": object{one(d, "app", "team", "k"): word(i)}} })
}

// advertisement is what both kinds of advertisements have.
func (d *dice) advertisement() object {
	spec := object{}
	put(d, spec, "ipAddressPools", func() []string { return list(d, 0, 50_000, 12, func(i int) string { return fmt.Sprintf("h%d", i) }) })
	for _, field := range []string{"ipAddressPoolSelectors", "nodeSelectors"} {
		put(d, spec, field, d.labelSelectors)
	}
	return spec
}

func (d *dice) l2Advertisement() []object {
	spec := d.advertisement()
	put(d, spec, "serviceSelectors", d.labelSelectors)
	put(d, spec, "interfaces", func() []string { return list(d, 0, 20_000, 12, func(i int) string { return fmt.Sprint("none", i) }) })
	put(d, spec, "preferredNodeSelectors", func() []object {
		return list(d, 0, 5_000, 70, func(i int) object {
			return object{"weight": 1 + i%100, "preference": object{"matchLabels": object{"app": word(i)}}}
		})
	})
	return d.metalLB("v1beta1", "L2Advertisement", spec)
}

func (d *dice) bgpAdvertisement() []object {
	spec := d.advertisement()
	put(d, spec, "localPref", func() uint32 { return d.Uint32() })
	put(d, spec, "communities", func() []string {
		return list(d, 0, 10_000, 12, func(i int) string { return fmt.Sprintf("64500:%d", i) })
	})
	put(d, spec, "peers", func() []string { return list(d, 0, 20_000, 12, func(i int) string { return fmt.Sprintf("h%d", i) }) })
	put(d, spec, "aggregationLength", func() int { return 1 + d.IntN(32) })
	put(d, spec, "aggregationLengthV6", func() int { return 100 + d.IntN(29) })
	return d.metalLB("v1beta1", "BGPAdvertisement", spec)
}

func (d *dice) metalLBPeer() []object {
	spec := object{"myASN": one(d, 64512, 1), "peerASN": one(d, 64512, 4_294_967_295), "peerAddress": d.addr(d.rarely(), one(d, 0, -d.number*4096)).String()}
	put(d, spec, "nodeSelectors", d.labelSelectors)
	put(d, spec, "ebgpMultiHop", func() bool { return true })
	return d.metalLB("v1beta2", "BGPPeer", spec)
}

func (d *dice) community() []object {
	return d.metalLB("v1beta1", "Community", object{"communities": list(d, 0, 30_000, 45, func(i int) object {
		return object{"name": fmt.Sprint("c", i), "value": fmt.Sprintf("64500:%d", i%65536)}
	})})
}
