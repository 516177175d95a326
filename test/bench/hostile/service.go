package hostile

import (
	"fmt"
	"net/netip"
	"strings"

	"sluice.dev/sluice/test/bench/cluster"
)

var protocols = []string{"TCP", "UDP", "SCTP"}

// A WideService has so many ports, each with so many endpoints: nearly as many elements in the
// kernel as a Service may have.
const (
	widePorts     = 1_000
	wideEndpoints = 500
	WideElements  = widePorts * (4 + wideEndpoints)
)

// WideService is a tenant's Service with its slices.
func WideService(namespace, number int) (files []cluster.File) {
	d := &dice{number: number}
	name, ns := fmt.Sprint("wide-", number), tenant(namespace%tenants)
	ports, targets := make([]object, widePorts), make([]object, widePorts)
	for i := range ports {
		ports[i] = object{"name": fmt.Sprint("p", i), "port": 1 + i, "protocol": "TCP"}
		targets[i] = object{"name": fmt.Sprint("p", i), "port": 1 + i, "protocol": "TCP"}
	}
	addr := d.serviceAddr(false).String()
	all := []object{{"apiVersion": "v1", "kind": "Service", "metadata": object{"name": name, "namespace": ns},
		"spec": object{"clusterIP": addr, "clusterIPs": []string{addr}, "ports": ports}}}
	for first := 0; first < wideEndpoints; first += 100 {
		endpoints := make([]object, 100)
		for i := range endpoints {
			endpoints[i] = object{"addresses": []string{netip.AddrFrom4([4]byte{10, 250, byte((first + i) >> 8), byte(first + i)}).String()}, "conditions": object{"ready": true}}
		}
		all = append(all, object{"apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice", "addressType": "IPv4", "ports": targets, "endpoints": endpoints,
			"metadata": object{"name": fmt.Sprint(name, "-", first), "namespace": ns, "labels": object{"kubernetes.io/service-name": name}}})
	}
	for i, o := range all {
		files = append(files, file(fmt.Sprintf("wide-service-%04d-%d.json", number, i), o))
	}
	return files
}

// service is a service of any type with its slices.
func (d *dice) service() []object {
	meta := d.namespaced(63)
	kind := one(d, "ClusterIP", "NodePort", "LoadBalancer", "LoadBalancer", "ExternalName")
	spec := object{"type": kind, "selector": object{"app": word(d.IntN(words))}}
	status := object{}
	headless := d.rarely() && kind == "ClusterIP"
	six := d.IntN(3) > 0
	switch {
	case kind == "ExternalName":
		spec["externalName"] = strings.Repeat("x.", 120) + "example"
	case headless:
		spec["clusterIP"], spec["clusterIPs"] = "None", []string{"None"}
	default:
		ips := []string{d.serviceAddr(false).String()}
		if six {
			ips = append(ips, d.serviceAddr(true).String())
			spec["ipFamilyPolicy"] = "RequireDualStack"
		}
		spec["clusterIP"], spec["clusterIPs"] = ips[0], ips
	}
	ports := d.servicePorts(kind)
	spec["ports"] = ports
	put(d, spec, "publishNotReadyAddresses", func() bool { return true })
	put(d, spec, "internalTrafficPolicy", func() string { return one(d, "Cluster", "Local") })
	put(d, spec, "trafficDistribution", func() string { return one(d, "PreferClose", "PreferSameZone", "PreferSameNode") })
	if d.often() {
		spec["sessionAffinity"] = "ClientIP"
		put(d, spec, "sessionAffinityConfig", func() object {
			return object{"clientIP": object{"timeoutSeconds": one(d, 1, 86400, 10800)}}
		})
	}
	if kind != "ExternalName" {
		put(d, spec, "externalIPs", func() []string { return d.externalIPs() })
	}
	if kind == "LoadBalancer" {
		spec["allocateLoadBalancerNodePorts"] = false // it must not take other services' ports, and there are not so many
		d.loadBalancer(spec, status)
	}
	if kind == "NodePort" || kind == "LoadBalancer" || spec["externalIPs"] != nil {
		local := one(d, "Cluster", "Local")
		spec["externalTrafficPolicy"] = local
		if local == "Local" && kind == "LoadBalancer" {
			spec["healthCheckNodePort"] = d.nodePort(0)
		}
	}
	all := []object{{"apiVersion": "v1", "kind": "Service", "metadata": meta, "spec": spec, "status": object{"loadBalancer": status}}}
	for i := range d.IntN(4) {
		all = append(all, d.slice(meta, ports, i))
	}
	return all
}

// nodePorts is how many node ports a service has at most. No two services that exist at the same
// time share one.
const nodePorts = 40

// nodePort is a node port that no other object has.
func (d *dice) nodePort(i int) int { return 30_000 + d.number%60*(nodePorts+1) + i }

func (d *dice) servicePorts(kind string) []object {
	one, node, most := d.rarely(), kind == "NodePort" || kind == "LoadBalancer", 20_000
	if kind == "NodePort" { // the API gives each port one
		most = nodePorts - 1
	}
	return list(d, 1, most, 70, func(i int) object {
		p := object{"name": fmt.Sprintf("n%d", i), "port": portAt(i), "protocol": protocols[i/65535%3], "targetPort": i%65535 + 1}
		if one {
			p["targetPort"] = 8080
		} else if i%7 == 0 {
			p["targetPort"] = portName(i)
		}
		if node && i+1 < nodePorts {
			p["nodePort"] = d.nodePort(i + 1)
		}
		return p
	})
}

// externalIPs include those of an older service.
func (d *dice) externalIPs() []string {
	return list(d, 1, 60_000, 18, func(i int) string {
		if i == 0 && d.IntN(2) == 0 {
			return cluster.ServiceAddr(d.IntN(2)).String()
		}
		return d.addr(i%3 == 2, i).String()
	})
}

func (d *dice) loadBalancer(spec, status object) {
	if d.often() {
		status["ingress"] = list(d, 0, 30_000, 30, func(i int) object {
			return one(d, object{"ip": d.addr(i%3 == 2, 1<<20+i).String()}, object{"ip": d.addr(false, i).String(), "ipMode": "Proxy"},
				object{"hostname": "balancer.example"}, object{"ip": d.addr(false, i).String(), "ipMode": "VIP"})
		})
	}
	if d.often() {
		spec["loadBalancerSourceRanges"] = d.mixed(1, 60_000)
	}
}

// slice is a slice of a service, sometimes with the same endpoints as other slices.
func (d *dice) slice(service object, ports []object, number int) object {
	six := d.rarely()
	family := "IPv4"
	if six {
		family = "IPv6"
	}
	base := number
	if d.IntN(2) == 0 {
		base = 0 // the same addresses as another
	}
	endpoints := list(d, 0, 1000, 150, func(i int) object {
		e := object{"addresses": list(d, 1, 100, 15, func(j int) string { return d.endpoint(six, base*1_000_000+i*100+j).String() })}
		conditions := object{}
		for _, c := range []string{"ready", "serving", "terminating"} {
			put(d, conditions, c, func() bool { return d.IntN(2) == 0 })
		}
		e["conditions"] = conditions
		put(d, e, "nodeName", func() string { return one(d, cluster.Node, "elsewhere", strings.Repeat("n", 253)) })
		put(d, e, "zone", func() string { return one(d, "z1", "z2", strings.Repeat("z", 63)) })
		put(d, e, "hints", func() object {
			return object{
				"forZones": list(d, 1, 8, 20, func(i int) object { return object{"name": fmt.Sprint("z", i)} }),
				"forNodes": list(d, 1, 8, 20, func(i int) object { return object{"name": fmt.Sprint("node", i)} }),
			}
		})
		return e
	})
	offered := list(d, 0, 20_000, 60, func(i int) object {
		p := object{"name": fmt.Sprintf("n%d", i), "protocol": "TCP"}
		if i < len(ports) {
			p["protocol"] = ports[i]["protocol"]
		}
		if !d.rarely() {
			p["port"] = 1 + i%65535
		}
		return p
	})
	name := fmt.Sprintf("%s-%d", service["name"], number)
	return object{
		"apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice", "addressType": family, "endpoints": endpoints, "ports": offered,
		"metadata": object{"name": name, "namespace": service["namespace"], "labels": object{"kubernetes.io/service-name": service["name"]}},
	}
}

// endpoint is an endpoint whose address no pod has.
func (d *dice) endpoint(six bool, i int) netip.Addr { return d.addr(six, i) }
