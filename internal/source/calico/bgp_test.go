package calico

import (
	"net/netip"
	"reflect"
	"strings"
	"testing"
	"time"

	"sluice.dev/sluice/internal/model"
)

// bgpCases are specs, and what becomes of them: an object, or part of an error.
type bgpCases[T any] struct {
	kind, name string
	decode     func([]byte, error) (*T, error)
	good       map[string]T
	bad        map[string]string
}

func (c bgpCases[T]) run(t *testing.T) {
	t.Helper()
	decode := func(spec string) (*T, error) {
		return c.decode([]byte(`{"apiVersion":"projectcalico.org/v3","kind":"`+c.kind+`","metadata":{"name":"`+c.name+`"},"spec":{`+spec+`}}`), nil)
	}
	for spec, want := range c.good {
		if got, err := decode(spec); err != nil || !reflect.DeepEqual(*got, want) {
			t.Errorf("%s: %+v, %v; want %+v", spec, got, err, want)
		}
	}
	for spec, want := range c.bad {
		if got, err := decode(spec); got != nil || err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %+v, %v; want %s", spec, got, err, want)
		}
	}
}

func prefixes(texts ...string) (list []netip.Prefix) {
	for _, text := range texts {
		list = append(list, netip.MustParsePrefix(text))
	}
	return list
}

func TestBGPConfiguration(t *testing.T) {
	bgpCases[model.BGPConfiguration]{"BGPConfiguration", "default", BGPConfiguration, map[string]model.BGPConfiguration{
		``: {Name: "default"},
		`"asNumber":63400,"listenPort":178,"nodeToNodeMeshEnabled":false,"bindMode":"NodeIP","nodeMeshMaxRestartTime":"60s","nodeMeshPassword":{"secretKeyRef":{"name":"s","key":"k"}}`: {
			Name: "default", AS: 63400, Port: 178, NoMesh: true, NodeIP: true, MeshRestart: time.Minute, MeshPassword: model.SecretRef{Name: "s", Key: "k"}},
		`"asNumber":"1.10","nodeToNodeMeshEnabled":true,"bindMode":"None","serviceLoadBalancerAggregation":"Enabled"`: {Name: "default", AS: 65546},
		`"serviceClusterIPs":[{"cidr":"10.96.0.0/12"},{"cidr":"fd00:96::/108"}],"serviceExternalIPs":[{"cidr":"192.0.2.9/32"}],"serviceLoadBalancerIPs":[{"cidr":"198.51.100.7/24"}],"serviceLoadBalancerAggregation":"Disabled"`: {
			Name: "default", ClusterIPs: prefixes("10.96.0.0/12", "fd00:96::/108"), ExternalIPs: prefixes("192.0.2.9/32"), LoadBalancerIPs: prefixes("198.51.100.0/24"), EachLoadBalancerIP: true},
		`"communities":[{"name":"big","value":"63400:300:100"}],"prefixAdvertisements":[{"cidr":"172.218.4.0/26","communities":["big","63400:120","1:2:3"]}]`: {
			Name: "default", Communities: map[string]string{"big": "large:63400:300:100"},
			Advertisements: []model.PrefixAdvertisement{{CIDR: netip.MustParsePrefix("172.218.4.0/26"), Communities: []string{"big", "63400:120", "large:1:2:3"}}}},
		`"logSeverityScreen":"Info","ignoredInterfaces":["eth9"],"programClusterRoutes":"Enabled","localWorkloadPeeringIPV4":"192.0.2.1","localWorkloadPeeringIPV6":"fd00::1","ipv4NormalRoutePriority":1,"ipv6NormalRoutePriority":2`: {
			Name: "default"},
	}, map[string]string{
		`"asNumber":0`:                                                             `spec.asNumber: "0" is no AS number`,
		`"asNumber":"70000.1"`:                                                     `spec.asNumber: "70000.1" is no AS number`,
		`"asNumber":4294967296`:                                                    `spec.asNumber`,
		`"listenPort":0`:                                                           `spec.listenPort: 0 is not from 1 to 65535`,
		`"bindMode":"Node"`:                                                        `spec.bindMode: "Node" is none of None, NodeIP`,
		`"nodeMeshMaxRestartTime":"2h"`:                                            `spec.nodeMeshMaxRestartTime: 2h0m0s is not from 1s to 1h8m15s`,
		`"nodeMeshPassword":{}`:                                                    `spec.nodeMeshPassword.secretKeyRef: give the name`,
		`"nodeMeshPassword":{"secretKeyRef":{"name":"s"}}`:                         `spec.nodeMeshPassword.secretKeyRef: give the name`,
		`"nodeMeshPassword":{"password":"x"}`:                                      `spec.nodeMeshPassword.password: is not supported`,
		`"serviceLoadBalancerIPs":[{"ip":"192.0.2.1"}]`:                            `spec.serviceLoadBalancerIPs[0].ip: is not supported`,
		`"serviceLoadBalancerAggregation":"Off"`:                                   `spec.serviceLoadBalancerAggregation: "Off" is none of`,
		`"communities":[{"name":"a","value":"65536:1"}]`:                           `spec.communities[0].value: "65536:1" is no community such as`,
		`"communities":[{"name":"a:1","value":"1:1"}]`:                             `spec.communities[0].name: "a:1" is no name`,
		`"communities":[{"name":"a","value":"1:1"},{"name":"a","value":"1:2"}]`:    `spec.communities[1].name: "a" is no name, or is there twice`,
		`"prefixAdvertisements":[{"cidr":"x"}]`:                                    `spec.prefixAdvertisements[0].cidr: "x" is no`,
		`"prefixAdvertisements":[{"cidr":"10.0.0.0/8","communities":["a","1:b"]}]`: `spec.prefixAdvertisements[0].communities[1]: "1:b" is no community`,
		`"nodeToNodeMesh":true`:                                                    `spec.nodeToNodeMesh: is not supported`,
	}}.run(t)
	bgpCases[model.BGPConfiguration]{"BGPConfiguration", "node.a", BGPConfiguration, map[string]model.BGPConfiguration{
		`"asNumber":64513,"listenPort":1179,"logSeverityScreen":"Debug","prefixAdvertisements":[{"cidr":"10.0.0.0/8","communities":["1:1"]}]`: {
			Name: "node.a", AS: 64513, Port: 1179, Advertisements: []model.PrefixAdvertisement{{CIDR: netip.MustParsePrefix("10.0.0.0/8"), Communities: []string{"1:1"}}}},
	}, map[string]string{
		`"nodeToNodeMeshEnabled":true,"nodeMeshMaxRestartTime":"5s"`: `spec.nodeToNodeMeshEnabled: can be in BGPConfiguration default alone; spec.nodeMeshMaxRestartTime: can be`,
		`"serviceClusterIPs":[{"cidr":"10.96.0.0/12"}]`:              `spec.serviceClusterIPs: can be in`,
		`"bindMode":"None"`: `spec.bindMode: can be in`,
	}}.run(t)
	bgpCases[model.BGPConfiguration]{"BGPConfiguration", "other", BGPConfiguration, nil, map[string]string{
		``: `metadata.name: "other" is neither default nor node.NAME`,
	}}.run(t)
}

func TestBGPPeerIsOfAnAge(t *testing.T) {
	p, err := BGPPeer([]byte(`{"metadata":{"name":"p","creationTimestamp":"2026-01-02T03:04:05Z"},"spec":{"peerIP":"192.0.2.1","asNumber":64513}}`), nil)
	if err != nil || p.Created != time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC) {
		t.Errorf("%+v, %v", p, err)
	}
}

func TestBGPPeer(t *testing.T) {
	tor, secret := netip.MustParseAddr("192.0.2.1"), model.SecretRef{Name: "s", Key: "k"}
	least := `"peerIP":"192.0.2.1","asNumber":64513`
	bgpCases[model.BGPPeer]{"BGPPeer", "p", BGPPeer, map[string]model.BGPPeer{
		least: {Name: "p", Address: tor, AS: 64513},
		`"node":"a","peerIP":"192.0.2.1:1179","asNumber":"1.1"`:                {Name: "p", Node: "a", Address: tor, Port: 1179, AS: 65537},
		`"nodeSelector":"rack == 'a'","peerIP":"2001:db8::1","asNumber":64513`: {Name: "p", Nodes: model.Equal("rack", "a"), Address: netip.MustParseAddr("2001:db8::1"), AS: 64513},
		`"peerIP":"[2001:db8::1]:1179","asNumber":64513`:                       {Name: "p", Address: netip.MustParseAddr("2001:db8::1"), Port: 1179, AS: 64513},
		`"nodeSelector":"all()","peerSelector":"has(rr)"`:                      {Name: "p", Nodes: model.Everything(), Peers: model.Has("rr")},
		least + `,"localASNumber":64599,"password":{"secretKeyRef":{"name":"s","key":"k","optional":true}},"sourceAddress":"None"`: {
			Name: "p", Address: tor, AS: 64513, LocalAS: 64599, Password: secret, AnySource: true},
		least + `,"sourceAddress":"UseNodeIP","maxRestartTime":"30s","keepaliveTime":"10s","keepOriginalNextHop":true,"numAllowedLocalASNumbers":2,"ttlSecurity":3,"filters":["a","b"],"reversePeering":"Manual"`: {
			Name: "p", Address: tor, AS: 64513, Restart: 30 * time.Second, Keepalive: 10 * time.Second, KeepNextHop: true, AllowOwnAS: 2, Security: 3, Filters: []string{"a", "b"}, OneWay: true},
		least + `,"nextHopMode":"Keep"`: {Name: "p", Address: tor, AS: 64513, KeepNextHop: true},
		least + `,"nextHopMode":"Auto","reversePeering":"Auto","failureDetectionMode":"None","restartMode":"GracefulRestart"`: {Name: "p", Address: tor, AS: 64513},
	}, map[string]string{
		``:                                `spec.peerIP: is missing: give the address of the peer, or a peerSelector`,
		`"peerIP":"192.0.2.1"`:            `spec.asNumber: is missing`,
		`"asNumber":64513`:                `spec.peerIP: is missing`,
		`"peerIP":"tor","asNumber":64513`: `spec.peerIP: "tor" is no address such as 192.0.2.1`,
		`"peerIP":"192.0.2.1:0","asNumber":64513`:                  `spec.peerIP: "192.0.2.1:0" is no address`,
		`"peerIP":"fe80::1%eth0","asNumber":64513`:                 `spec.peerIP: "fe80::1%eth0" is no address`,
		`"peerIP":"127.0.0.1","asNumber":64513`:                    `spec.peerIP: "127.0.0.1" is no address`,
		`"peerIP":"192.0.2.1","asNumber":-1`:                       `spec.asNumber: "-1" is no AS number`,
		`"peerIP":"192.0.2.1","asNumber":true`:                     `spec.asNumber: "true" is no AS number`,
		`"peerSelector":"has(","node":"a"`:                         `spec.peerSelector: at`,
		`"peerSelector":"all()","peerIP":"192.0.2.1"`:              `spec.peerSelector: cannot be beside peerIP`,
		`"peerSelector":"all()","asNumber":1`:                      `spec.asNumber: cannot be beside peerSelector`,
		least + `,"node":"a","nodeSelector":"all()"`:               `spec.nodeSelector: cannot be beside node`,
		least + `,"nodeSelector":"a ="`:                            `spec.nodeSelector: at`,
		least + `,"localASNumber":0`:                               `spec.localASNumber: "0" is no AS`,
		least + `,"password":{"secretKeyRef":{}}`:                  `spec.password.secretKeyRef: give`,
		least + `,"sourceAddress":"192.0.2.7"`:                     `spec.sourceAddress: "192.0.2.7" is none of UseNodeIP, None`,
		least + `,"maxRestartTime":"0s"`:                           `spec.maxRestartTime: 0s is not`,
		least + `,"keepaliveTime":"-1s"`:                           `spec.keepaliveTime: -1s is not`,
		least + `,"nextHopMode":"Self"`:                            `spec.nextHopMode: Self is not supported; Auto`,
		least + `,"nextHopMode":"self"`:                            `spec.nextHopMode: "self" is none of Auto, Keep`,
		least + `,"nextHopMode":"Auto","keepOriginalNextHop":true`: `spec.nextHopMode: cannot be beside`,
		least + `,"numAllowedLocalASNumbers":-1`:                   `spec.numAllowedLocalASNumbers: -1 is not from 0 to 255`,
		least + `,"ttlSecurity":300`:                               `spec.ttlSecurity: 300 is not from 0 to 255`,
		least + `,"reversePeering":"Never"`:                        `spec.reversePeering: "Never" is none`,
		least + `,"reachableBy":"192.0.2.254"`:                     `spec.reachableBy: is not supported; take it out, and give the nodes a route`,
		least + `,"failureDetectionMode":"BFDIfDirectlyConnected"`: `spec.failureDetectionMode: BFDIfDirectlyConnected is not supported: there is no BFD`,
		least + `,"restartMode":"LongLivedGracefulRestart"`:        `spec.restartMode: LongLivedGracefulRestart is not supported`,
		least + `,"birdGatewayMode":"Recursive"`:                   `spec.birdGatewayMode: is not supported; take it out`,
		least + `,"externalNetwork":"x"`:                           `spec.externalNetwork: is not supported`,
		least + `,"extensions":{"a":"b"}`:                          `spec.extensions: is not supported`,
		least + `,"localWorkloadSelector":"all()"`:                 `spec.localWorkloadSelector: is not supported; a pod cannot be a peer`,
		least + `,"peerPort":1`:                                    `spec.peerPort: is not supported`,
	}}.run(t)
}

func TestBGPFilter(t *testing.T) {
	cidr := netip.MustParsePrefix("10.0.0.0/8")
	bgpCases[model.BGPFilter]{"BGPFilter", "f", BGPFilter, map[string]model.BGPFilter{
		``: {Name: "f"},
		`"exportV4":[{"action":"Accept","matchOperator":"In","cidr":"10.0.0.0/8","prefixLength":{"min":16,"max":24},"source":"RemotePeers"},{"action":"Reject"}],` +
			`"importV4":[{"action":"Reject","matchOperator":"NotIn","cidr":"10.1.0.0/8","peerType":"eBGP"}],` +
			`"exportV6":[{"action":"Accept","matchOperator":"Equal","cidr":"fd00::/8"}],"importV6":[{"action":"Reject","matchOperator":"NotEqual","cidr":"fd00::/8","peerType":"iBGP"}]`: {
			Name: "f",
			Export: []model.BGPFilterRule{
				{Accept: true, CIDR: cidr, Min: 16, Max: 24, Learned: true}, {},
				{Accept: true, IPv6: true, CIDR: netip.MustParsePrefix("fd00::/8"), Match: model.BGPEqual},
			},
			Import: []model.BGPFilterRule{
				{CIDR: cidr, Match: model.BGPNotIn, PeerType: "eBGP"},
				{IPv6: true, CIDR: netip.MustParsePrefix("fd00::/8"), Match: model.BGPNotEqual, PeerType: "iBGP"},
			}},
		`"importV4":[{"action":"Reject","matchOperator":"In","cidr":"10.0.0.0/8","prefixLength":{"min":4}},{"action":"Accept","matchOperator":"In","cidr":"0.0.0.0/0","prefixLength":{"max":0}}]`: {
			Name: "f", Import: []model.BGPFilterRule{{CIDR: cidr, Min: 8, Max: 32}, {Accept: true, CIDR: netip.MustParsePrefix("0.0.0.0/0"), Match: model.BGPEqual}}},
	}, map[string]string{
		`"exportV4":[{"action":"accept"}]`:                                                                             `spec.exportV4[0].action: "accept" is neither Accept nor Reject`,
		`"exportV4":[{"action":"Accept","cidr":"10.0.0.0/8"}]`:                                                         `spec.exportV4[0].matchOperator: cidr and matchOperator are both there, or none`,
		`"exportV4":[{"action":"Accept","matchOperator":"In"}]`:                                                        `spec.exportV4[0].matchOperator: cidr and`,
		`"exportV4":[{"action":"Accept","prefixLength":{"min":8}}]`:                                                    `spec.exportV4[0].prefixLength: needs a cidr`,
		`"importV4":[{"action":"Accept","matchOperator":"In","cidr":"fd00::/8"}]`:                                      `spec.importV4[0].cidr: fd00::/8 is of the other family`,
		`"importV6":[{"action":"Accept","matchOperator":"In","cidr":"10.0.0.0/8"}]`:                                    `spec.importV6[0].cidr: 10.0.0.0/8 is of the other family`,
		`"importV6":[{"action":"Accept","matchOperator":"Within","cidr":"fd00::/8"}]`:                                  `spec.importV6[0].matchOperator: "Within" is none`,
		`"exportV4":[{"action":"Accept","matchOperator":"Equal","cidr":"10.0.0.0/8","prefixLength":{"min":9}}]`:        `spec.exportV4[0].prefixLength: is supported with matchOperator In alone`,
		`"exportV4":[{"action":"Accept","matchOperator":"In","cidr":"10.0.0.0/8","prefixLength":{"min":24,"max":16}}]`: `spec.exportV4[0].prefixLength: 24 to 16 is no range`,
		`"exportV4":[{"action":"Accept","matchOperator":"In","cidr":"10.0.0.0/8","prefixLength":{"max":33}}]`:          `spec.exportV4[0].prefixLength: 8 to 33 is no range`,
		`"exportV4":[{"action":"Accept","matchOperator":"In","cidr":"10.0.0.0/8","prefixLength":{"min":1,"max":7}}]`:   `spec.exportV4[0].prefixLength: no prefix in 10.0.0.0/8 has a length of 7 or less`,
		`"exportV4":[{"action":"Accept","source":"Local"}]`:                                                            `spec.exportV4[0].source: "Local" is not RemotePeers`,
		`"exportV4":[{"action":"Accept","peerType":"BGP"}]`:                                                            `spec.exportV4[0].peerType: "BGP" is neither`,
		`"exportV4":[{"action":"Accept","interface":"*.calico"}]`:                                                      `spec.exportV4[0].interface: is not supported; match by cidr`,
		`"exportV4":[{"action":"Accept","communities":{"values":["1:1"]}}]`:                                            `spec.exportV4[0].communities: is not supported`,
		`"exportV4":[{"action":"Accept","asPathPrefix":[1]}]`:                                                          `spec.exportV4[0].asPathPrefix: is not supported`,
		`"exportV4":[{"action":"Accept","priority":1}]`:                                                                `spec.exportV4[0].priority: is not supported`,
		`"exportV4":[{"action":"Accept","operations":[{"addCommunity":{"value":"1:1"}}]}]`:                             `spec.exportV4[0].operations: is not supported; BGPConfiguration has communities`,
		`"exportV4":[{"action":"Accept","metric":1}]`:                                                                  `spec.exportV4[0].metric: is not supported`,
	}}.run(t)
}
