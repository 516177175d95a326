package hostile

import (
	"fmt"
	"strings"

	"sluice.dev/sluice/test/bench/cluster"
)

const calicoAPI = "projectcalico.org/v3"

// calicoPolicy is a tenant's NetworkPolicy of Calico.
func (d *dice) calicoPolicy() []object {
	return []object{d.calico("NetworkPolicy", d.namespaced(253), d.calicoSpec(false))}
}

// globalPolicy is a policy of the administrator for the tenants, sometimes for their interfaces.
func (d *dice) globalPolicy() []object {
	spec := d.calicoSpec(true)
	spec["selector"] = "tenant == 'hostile'"
	if d.often() {
		spec["selector"] = fmt.Sprintf("tenant == 'hostile' && (%s)", d.calicoSelector())
	}
	if d.IntN(2) == 0 {
		spec["namespaceSelector"] = "team == 'hostile'"
	}
	switch d.IntN(4) {
	case 0:
		spec["applyOnForward"] = true
	case 1:
		spec["applyOnForward"], spec["doNotTrack"] = true, true
	case 2:
		spec["applyOnForward"], spec["preDNAT"], spec["types"] = true, true, []string{"Ingress"}
		delete(spec, "egress")
	}
	return []object{d.calico("GlobalNetworkPolicy", d.meta(253), spec)}
}

func (d *dice) calico(kind string, meta, spec object) object {
	return object{"apiVersion": calicoAPI, "kind": kind, "metadata": meta, "spec": spec}
}

func (d *dice) calicoSpec(global bool) object {
	spec := object{}
	put(d, spec, "tier", func() string { return tierName(d.IntN(tiers)) })
	put(d, spec, "order", func() float64 { return one(d, 0, -1, 1e308, 1000, 0.1, d.Float64()) })
	if !global {
		put(d, spec, "selector", d.calicoSelector)
	}
	if d.IntN(3) == 0 {
		d.wideCalico(spec)
		return spec
	}
	put(d, spec, "serviceAccountSelector", d.calicoSelector)
	put(d, spec, "types", func() []string { return one(d, []string{"Ingress"}, []string{"Egress"}, []string{"Ingress", "Egress"}) })
	for _, side := range []string{"ingress", "egress"} {
		put(d, spec, side, func() []object { return list(d, 0, 5_000, 150, func(int) object { return d.calicoRule() }) })
	}
	return spec
}

// calicoRule combines any fields; its networks are of one family.
func (d *dice) calicoRule() object {
	r := object{"action": one(d, "Allow", "Deny", "Pass", "Log")}
	six := d.rarely()
	ported, family := false, 0
	switch d.IntN(5) {
	case 0:
		r["protocol"], family = "ICMP", 4
		six = false
		put(d, r, "icmp", func() object { return object{"type": one(d, 0, 254), "code": one(d, 0, 255)} })
		put(d, r, "notICMP", func() object { return object{"type": d.IntN(255)} })
	case 1:
		put(d, r, "protocol", func() int { return one(d, 2, 47, 255) })
	default:
		r["protocol"], ported = one(d, protocols...), true
	}
	if family == 0 {
		put(d, r, "ipVersion", func() int {
			if six {
				return 6
			}
			return 4
		})
	}
	put(d, r, "notProtocol", func() any { return one[any](d, "TCP", "UDP", 1+d.IntN(57)) })
	if r["notProtocol"] == 1 {
		delete(r, "notProtocol") // it implies a family
	}
	for _, side := range []string{"source", "destination"} {
		put(d, r, side, func() object { return d.end(six, ported) })
	}
	return r
}

func (d *dice) end(six, ported bool) object {
	e := object{}
	put(d, e, "nets", func() []string { return d.nets(1, 50_000, six) })
	put(d, e, "notNets", func() []string { return d.nets(1, 50_000, six) })
	for _, field := range []string{"selector", "notSelector"} {
		put(d, e, field, d.calicoSelector)
	}
	put(d, e, "namespaceSelector", func() string { return one(d, "global()", "all()", "team == 'hostile'", d.calicoSelector()) })
	put(d, e, "serviceAccounts", func() object {
		return object{"names": list(d, 0, 10_000, 20, func(i int) string { return fmt.Sprint("a", i) }), "selector": d.calicoSelector()}
	})
	if ported {
		for _, field := range []string{"ports", "notPorts"} {
			put(d, e, field, d.calicoPorts)
		}
	}
	return e
}

func (d *dice) calicoPorts() []any {
	make := d.IntN(4)
	return list(d, 1, 50_000, 10, func(i int) any {
		way := make
		if make == 3 {
			way = d.IntN(3)
		}
		switch way {
		case 0:
			return portAt(i)
		case 1:
			first, last := rangeAt(i)
			return fmt.Sprintf("%d:%d", first, last)
		}
		return portName(i)
	})
}

// maxSelector is the greatest length of a selector in Calico's API, and nesting the greatest depth.
const (
	maxSelector = 1024
	nesting     = 60
)

// calicoSelector is long, deep, or both.
func (d *dice) calicoSelector() string {
	switch d.IntN(6) {
	case 0:
		return "all()"
	case 1:
		return "has(app)"
	case 2:
		deep := 1 + d.IntN(nesting)
		return strings.Repeat("!(", deep) + d.calicoTest(0) + strings.Repeat(")", deep)
	}
	d.room -= maxSelector / 2
	joined := one(d, " && ", " || ")
	text := d.calicoTest(0)
	for i := 1; ; i++ {
		next := d.calicoTest(i)
		if len(text)+len(joined)+len(next) > maxSelector || d.IntN(40) == 0 {
			return text
		}
		text += joined + next
	}
}

func (d *dice) calicoTest(i int) string {
	key := one(d, "app", "role", "tenant", fmt.Sprint("k", i), "projectcalico.org/namespace")
	switch d.IntN(8) {
	case 0:
		return fmt.Sprintf("%s in {%s}", key, d.calicoValues())
	case 1:
		return fmt.Sprintf("%s not in {%s}", key, d.calicoValues())
	case 2:
		return fmt.Sprintf("has(%s)", key)
	case 3:
		return fmt.Sprintf("!has(%s)", key)
	case 4:
		return fmt.Sprintf("%s contains '%s'", key, one(d, "", "w", "0"))
	case 5:
		return fmt.Sprintf("%s starts with '%s'", key, one(d, "", "w"))
	case 6:
		return fmt.Sprintf("%s ends with '%s'", key, one(d, "", "1"))
	}
	return fmt.Sprintf("%s %s '%s'", key, one(d, "==", "!="), word(d.IntN(words)))
}

func (d *dice) calicoValues() string {
	values := make([]string, 1+d.IntN(20))
	for i := range values {
		values[i] = "'" + word(i) + "'"
	}
	return strings.Join(values, ", ")
}

func (d *dice) networkSet() []object {
	m := d.namespaced(253)
	m["labels"] = d.labels(nil)
	return []object{d.calico("NetworkSet", m, object{"nets": d.mixed(0, 80_000)})}
}

// globalSet is a GlobalNetworkSet with the labels of a pod that other policies allow.
func (d *dice) globalSet() []object {
	m := d.meta(253)
	m["labels"] = d.labels(nil)
	return []object{d.calico("GlobalNetworkSet", m, object{"nets": d.mixed(0, 80_000)})}
}

func (d *dice) tier() []object {
	m := object{"name": fmt.Sprint("h", d.number)}
	spec := object{"defaultAction": one(d, "Deny", "Pass")}
	put(d, spec, "order", func() float64 { return one(d, -1e308, 0, 1, 999_999, 1e308) })
	return []object{d.calico("Tier", m, spec)}
}

// hostEndpoint is a HostEndpoint of another node or of a tenant's interface.
func (d *dice) hostEndpoint() []object {
	m := d.meta(253)
	m["labels"] = d.labels(object{"tenant": "hostile"})
	spec := object{"node": "elsewhere", "interfaceName": "*"}
	if d.often() {
		spec["node"], spec["interfaceName"] = cluster.Node, one(d, "none0", "pod2", "pod3", "pod4", "abcdefghijklmno")
	}
	put(d, spec, "profiles", func() []string { return []string{"projectcalico-default-allow"} })
	put(d, spec, "expectedIPs", func() []string {
		return list(d, 0, 50_000, 18, func(i int) string { return d.addr(i%2 == 1, i).String() })
	})
	return []object{d.calico("HostEndpoint", m, spec)}
}
