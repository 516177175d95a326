package main

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"syscall"
	"testing"
)

// What MetalLB's objects have announced: the pool as a whole, with communities and a preference,
// to tor; and some Services' addresses one by one.
const rackPool = `
apiVersion: metallb.io/v1beta1
kind: IPAddressPool
metadata: {name: outside, namespace: metallb-system}
spec: {addresses: [203.0.113.0/24, "fd00:51::/120"]}
---
apiVersion: metallb.io/v1beta1
kind: Community
metadata: {name: ours, namespace: metallb-system}
spec: {communities: [{name: rack, value: "64512:200"}]}
---
apiVersion: metallb.io/v1beta1
kind: BGPAdvertisement
metadata: {name: whole, namespace: metallb-system}
spec: {ipAddressPools: [outside], aggregationLength: 24, aggregationLengthV6: 120, localPref: 300, communities: ["64512:100", rack], peers: [tor]}
---
apiVersion: metallb.io/v1beta1
kind: BGPAdvertisement
metadata: {name: each, namespace: metallb-system}
spec: {ipAddressPools: [outside], serviceSelectors: [{matchLabels: {each: "true"}}], communities: ["large:64512:1:2"]}
`

// rackService is a Service with the addresses 203.0.113.N and fd00:51::N, and an endpoint on a
// node, which is a or b.
func rackService(name string, n int, policy, node string) string {
	text := fmt.Sprintf(`
apiVersion: v1
kind: Service
metadata: {name: %[1]s, namespace: shop, labels: {each: "%[4]t"}}
spec: {type: LoadBalancer, externalTrafficPolicy: %[3]s, clusterIPs: [10.96.0.%[2]d, "fd00:96::%[2]d"], ports: [{port: 80, targetPort: 8080}]}
status: {loadBalancer: {ingress: [{ip: 203.0.113.%[2]d}, {ip: "fd00:51::%[2]d"}]}}
`, name, n, policy, policy == "Local")
	addresses := map[string][]string{"a": {podIPv4, podIPv6}, "b": {"10.244.2.10", "fd00:244:2::10"}}[node]
	for i, family := range []string{"IPv4", "IPv6"} {
		text += fmt.Sprintf("---\napiVersion: discovery.k8s.io/v1\nkind: EndpointSlice\nmetadata: {name: %[1]s-%[2]s, namespace: shop, labels: {kubernetes.io/service-name: %[1]s}}\n"+
			"addressType: %[3]s\nports: [{port: 8080}]\nendpoints: [{addresses: [%[4]q], nodeName: node-%[5]s, conditions: {ready: true}}]\n",
			name, strings.ToLower(family), family, addresses[i], node)
	}
	return text
}

// torRoute is what FRR says of a route.
type torRoute struct {
	Paths []struct {
		LocPrf    int
		Community struct{ List []string }
		Large     struct{ List []string } `json:"largeCommunity"`
		Nexthops  []struct {
			IP   string
			Used bool
		}
	}
}

// tells waits until tor has a route as it should be: of the next hop, the preference and the
// communities; or, without a next hop, not at all.
func (r *rack) tells(to, hop string, preference int, communities, large []string) {
	r.t.Helper()
	family := "ipv4"
	if strings.Contains(to, ":") {
		family = "ipv6"
	}
	var out string
	defer func() {
		if r.t.Failed() {
			r.t.Logf("tor says: %s", out)
		}
	}()
	r.await("tor knows "+to+" by "+hop, func() bool {
		var err error
		if out, err = r.frr.Run("show bgp " + family + " unicast " + to + " json"); err != nil {
			return false
		}
		var x torRoute
		r.must(json.Unmarshal([]byte(out), &x))
		if len(x.Paths) == 0 || hop == "" {
			return len(x.Paths) == 0 && hop == ""
		}
		p := x.Paths[0]
		return p.LocPrf == preference && slices.Equal(p.Community.List, communities) && slices.Equal(p.Large.List, large) &&
			len(p.Nexthops) > 0 && p.Nexthops[0].IP == hop
	})
}

// An agent with Calico's and MetalLB's objects announces pods to one router and addresses of
// Services to another, each with what the objects say, and follows what the first announces, in
// both families. When it, or its speaker alone, is killed, nothing changes for anybody.
func TestBGP(t *testing.T) {
	r := newRack(t)
	r.write("pool.yaml", rackPool)
	r.write("web.yaml", rackService("web", 10, "Cluster", "b"))
	r.write("here.yaml", rackService("here", 11, "Local", "a"))
	r.write("there.yaml", rackService("there", 12, "Local", "b"))
	r.serve(r.node)
	r.serve(r.spine)
	r.start()
	r.up()

	const hop4, hop6 = "172.31.2.1", "fd00:31:2::1"
	ours, each := []string{"64512:100", "64512:200"}, []string{"64512:1:2"}
	r.tells("203.0.113.0/24", hop4, 300, ours, nil)
	r.tells("fd00:51::/120", hop6, 300, ours, nil)
	r.tells("203.0.113.11/32", hop4, 100, nil, each)
	r.tells("fd00:51::11/128", hop6, 100, nil, each)
	for _, to := range []string{"203.0.113.10/32", "203.0.113.12/32", "fd00:51::12/128", "10.244.1.0/24", "fd00:244:1::/64"} {
		r.tells(to, "", 0, nil, nil)
	}
	r.shows(r.node, "ip -4 route show proto 83", "10.245.0.0/24 via 172.31.1.254 dev eth0")
	r.shows(r.node, "ip -6 route show proto 83", "fd00:245::/64 via fd00:31:1::fe dev eth0")
	r.shows(r.spine, "ip -4 route", "10.244.1.0/24 via 172.31.1.1")
	r.shows(r.spine, "ip -6 route", "fd00:244:1::/64 via fd00:31:1::1")
	for _, way := range r.flows() {
		r.await("an answer from "+way.to, func() bool { return ask(way.ns, way.from, way.to) == nil })
	}

	t.Run("the agent is killed", func(t *testing.T) {
		r.undisturbed(func() {
			r.kill()
			r.missed()
			r.start()
			r.up()
		})
	})
	t.Run("the speaker is killed", func(t *testing.T) {
		r.undisturbed(func() {
			old := r.speaker()
			r.must(syscall.Kill(old, syscall.SIGKILL))
			r.await("another one runs", func() bool { return r.speaker() != old })
			r.up()
		})
	})
}
