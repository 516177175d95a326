package hostile

import (
	"fmt"
	"net/netip"
)

// sides are the fields of a policy and of its rules.
var sides = [][2]string{{"ingress", "from"}, {"egress", "to"}}

// networkPolicy is a tenant's NetworkPolicy.
func (d *dice) networkPolicy() []object {
	if d.IntN(3) == 0 {
		return []object{networkPolicy(d.namespaced(253), d.wideNetworkPolicy())}
	}
	spec := object{"podSelector": d.podSelector()}
	put(d, spec, "policyTypes", func() []string {
		return one(d, []string{"Ingress"}, []string{"Egress"}, []string{"Ingress", "Egress"})
	})
	for _, side := range sides {
		put(d, spec, side[0], func() []object {
			return list(d, 0, 5_000, 200, func(int) object {
				r := object{}
				put(d, r, side[1], func() []object { return list(d, 0, 20_000, 120, func(int) object { return d.peer() }) })
				put(d, r, "ports", func() []object { return d.policyPorts() })
				return r
			})
		})
	}
	return []object{networkPolicy(d.namespaced(253), spec)}
}

func networkPolicy(meta, spec object) object {
	return object{"apiVersion": "networking.k8s.io/v1", "kind": "NetworkPolicy", "metadata": meta, "spec": spec}
}

// podSelector selects all of a tenant's pods in half of the cases.
func (d *dice) podSelector() object {
	if d.IntN(2) == 0 {
		return object{}
	}
	return d.selector()
}

func (d *dice) selector() object {
	s := object{}
	put(d, s, "matchLabels", func() object {
		all := object{}
		for i := range d.many(0, 5_000, 100) {
			all[d.key(i)] = d.value(i)
		}
		return all
	})
	put(d, s, "matchExpressions", func() []object {
		return list(d, 0, 5_000, 80, func(i int) object {
			r := object{"key": d.key(i), "operator": one(d, "Exists", "DoesNotExist")}
			if d.often() {
				r["operator"], r["values"] = one(d, "In", "NotIn"), list(d, 1, 50_000, 20, d.value)
			}
			return r
		})
	})
	return s
}

func (d *dice) peer() object {
	switch d.IntN(4) {
	case 0:
		return object{"podSelector": d.selector()}
	case 1:
		return object{"namespaceSelector": d.selector()}
	case 2:
		return object{"namespaceSelector": d.selector(), "podSelector": d.selector()}
	}
	six := d.rarely()
	a := d.random(six)
	block := netip.PrefixFrom(a, one(d, 0, 0, 1, 8, d.IntN(a.BitLen()+1))).Masked()
	return object{"ipBlock": object{"cidr": block.String(), "except": d.inside(block, 50_000)}}
}

// policyPorts are ports of one form or of all forms.
func (d *dice) policyPorts() []object {
	make := d.IntN(4)
	return list(d, 0, 30_000, 45, func(i int) object {
		p := object{"protocol": one(d, protocols...)}
		way := make
		if make == 3 {
			way = d.IntN(3)
		}
		switch way {
		case 0:
			p["port"] = portAt(i)
		case 1:
			p["port"], p["endPort"] = rangeAt(i)
		default:
			p["port"] = portName(i)
		}
		return p
	})
}

// clusterPolicy is a policy of the administrator for the tenants. Its lists have the lengths that
// the API allows.
func (d *dice) clusterPolicy() []object {
	hostile := object{"matchLabels": object{"team": "hostile"}}
	subject := object{"namespaces": hostile}
	if d.IntN(2) == 0 {
		subject = object{"pods": object{"namespaceSelector": hostile, "podSelector": d.podSelector()}}
	}
	spec := object{"tier": one(d, "Admin", "Baseline"), "priority": one(d, 0, 1000, d.IntN(1001), 500), "subject": subject}
	wide := d.IntN(3) == 0
	for _, side := range sides {
		put(d, spec, side[0], func() []object {
			return list(d, 0, 25, 200, func(i int) object {
				r := object{"action": one(d, "Accept", "Deny", "Pass")}
				networks := side[1] == "to" && d.IntN(2) == 0
				if wide {
					r[side[1]] = []object{d.wideClusterPeer(i)}
					return r
				}
				r[side[1]] = list(d, 1, 25, 120, func(int) object { return d.clusterPeer(networks) })
				put(d, r, "name", func() string { return fmt.Sprintf("%0100d", d.number) })
				put(d, r, "protocols", func() []object {
					return list(d, 1, 25, 60, func(i int) object { return d.clusterProtocol(i, networks) })
				})
				return r
			})
		})
	}
	return []object{{"apiVersion": "policy.networking.k8s.io/v1beta1", "kind": "ClusterNetworkPolicy", "metadata": d.meta(253), "spec": spec}}
}

func (d *dice) clusterPeer(networks bool) object {
	switch {
	case networks:
		return object{"networks": d.mixed(1, 25)}
	case d.IntN(2) == 0:
		return object{"namespaces": d.selector()}
	}
	return object{"pods": object{"namespaceSelector": d.selector(), "podSelector": d.selector()}}
}

func (d *dice) clusterProtocol(i int, networks bool) object {
	if !networks && d.IntN(3) == 0 {
		return object{"destinationNamedPort": portName(i)}
	}
	port := object{"number": portAt(i)}
	if d.IntN(2) == 0 {
		first, last := rangeAt(i)
		port = object{"range": object{"start": first, "end": last}}
	}
	return object{one(d, "tcp", "udp", "sctp"): object{"destinationPort": port}}
}
