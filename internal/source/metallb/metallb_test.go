package metallb

import (
	"fmt"
	"net/netip"
	"reflect"
	"strings"
	"testing"
	"time"

	"sluice.dev/sluice/internal/model"
)

// object is one of a kind in MetalLB's own namespace, with a spec.
func object(kind, version, spec string) []byte {
	return fmt.Appendf(nil, `{"apiVersion":"metallb.io/%s","kind":%q,"metadata":{"name":"a","namespace":"metallb-system","labels":{"l":"1"},"creationTimestamp":"2026-01-02T03:04:05Z"},"spec":{%s},"status":{"any":1}}`, version, kind, spec)
}

var (
	name  = model.Name{Namespace: "metallb-system", Name: "a"}
	all   = model.Everything()
	team  = model.Equal("team", "red")
	addr  = netip.MustParseAddr
	made  = time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	every = model.Advertised{Nodes: all, Services: all}
)

const reds = `[{"matchLabels":{"team":"red"}}]`

// cases are those of a kind: good says which values specs become, bad what is wrong with others.
type cases[T any] struct {
	kind, version string
	decode        func([]byte, error) (*T, error)
	good          map[string]T
	bad           map[string]string
	left          map[string]string // what is said of objects that count all the same
}

func (c cases[T]) run(t *testing.T) {
	t.Helper()
	for spec, want := range c.good {
		if got, err := c.decode(object(c.kind, c.version, spec), nil); err != nil || !reflect.DeepEqual(*got, want) {
			t.Errorf("%s %s: got %+v, %v; want %+v", c.kind, spec, got, err, want)
		}
	}
	for spec, want := range c.bad {
		if got, err := c.decode(object(c.kind, c.version, spec), nil); got != nil || err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s %s: got %+v, %v; want %s", c.kind, spec, got, err, want)
		}
	}
	for spec, want := range c.left {
		if got, err := c.decode(object(c.kind, c.version, spec), nil); got == nil || err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s %s: got %+v, %v; want %s beside it", c.kind, spec, got, err, want)
		}
	}
}

func TestIPAddressPool(t *testing.T) {
	labels := map[string]string{"l": "1"}
	small := []model.AddressRange{{First: addr("192.0.2.0"), Last: addr("192.0.2.15")}}
	cases[model.IPAddressPool]{"IPAddressPool", "v1beta1", IPAddressPool, map[string]model.IPAddressPool{
		`"addresses":["192.0.2.5/28"]`: {Name: name, Created: made, Labels: labels, Ranges: small, Services: all},
		`"addresses":["192.0.2.10 - 192.0.2.12","2001:db8::/126"],"autoAssign":false,"avoidBuggyIPs":true`: {
			Name: name, Created: made, Labels: labels, ManualOnly: true, AvoidBuggy: true, Services: all,
			Ranges: []model.AddressRange{{First: addr("192.0.2.10"), Last: addr("192.0.2.12")}, {First: addr("2001:db8::"), Last: addr("2001:db8::3")}}},
		`"addresses":["192.0.2.0/28"],"serviceAllocation":{"priority":5,"namespaces":["shop"],"namespaceSelectors":` + reds + `,"serviceSelectors":` + reds + `}`: {
			Name: name, Created: made, Labels: labels, Ranges: small, Confined: true, Priority: 5,
			Namespaces: []string{"shop"}, NamespaceSelector: team, Services: team},
		`"addresses":["192.0.2.0/28"],"serviceAllocation":{"priority":1}`: {
			Name: name, Created: made, Labels: labels, Ranges: small, Confined: true, Priority: 1, Services: all},
	}, map[string]string{
		``:                                              "spec.addresses: a pool needs addresses",
		`"addresses":["192.0.2.0/33"]`:                  `spec.addresses[0]: "192.0.2.0/33" is neither`,
		`"addresses":["192.0.2.9-192.0.2.8"]`:           `spec.addresses[0]: 192.0.2.8 does not come after 192.0.2.9`,
		`"addresses":["192.0.2.9-2001:db8::1"]`:         `does not come after`,
		`"addresses":["192.0.2.9-x"]`:                   `"x" is no IP address`,
		`"addresses":["127.0.0.0/30"]`:                  `127.0.0.0 is a loopback address`,
		`"addresses":["192.0.2.0/28"],"protocol":"bgp"`: `spec.protocol: there is no such field`,
		`"addresses":["192.0.2.0/28"],"serviceAllocation":{"priority":-1}`:                                                             `spec.serviceAllocation.priority: -1 is below 0`,
		`"addresses":["192.0.2.0/28"],"serviceAllocation":{"serviceSelectors":[{"matchLabels":{"a b":"c"}}]}`:                          `serviceSelectors[0].matchLabels[a b]`,
		`"addresses":["192.0.2.0/28"],"serviceAllocation":{"namespaceSelectors":[{"matchExpressions":[{"key":"a","operator":"Is"}]}]}`: `"Is" is none of`,
	}, map[string]string{
		`"addresses":["192.0.2.1","192.0.2.0/28"]`: `spec.addresses[0]: "192.0.2.1" is neither a CIDR such as`,
	}}.run(t)
}

func TestAdvertisements(t *testing.T) {
	some := model.Advertised{Pools: []string{"p"}, PoolSelector: team, Nodes: team, Services: team}
	fields := `"ipAddressPools":["p"],"ipAddressPoolSelectors":` + reds + `,"nodeSelectors":` + reds + `,"serviceSelectors":` + reds
	cases[model.L2Advertisement]{"L2Advertisement", "v1beta1", L2Advertisement, map[string]model.L2Advertisement{
		``: {Name: name, Created: made, Advertised: every},
		fields + `,"interfaces":["eth1"],"preferredNodeSelectors":[{"weight":10,"preference":{"matchLabels":{"team":"red"}}}]`: {
			Name: name, Created: made, Advertised: some, Interfaces: []string{"eth1"}, Preferred: []model.PreferredNodes{{Weight: 10, Nodes: team}}},
		`"nodeSelectors":[{}]`: {Name: name, Created: made, Advertised: every},
	}, map[string]string{
		`"interface":"eth1"`: `spec.interface: there is no such field`,
	}, map[string]string{
		`"preferredNodeSelectors":[{"weight":0,"preference":{}}]`: `spec.preferredNodeSelectors[0].weight: 0 is not from 1 to 100; this preference is left out`,
	}}.run(t)
	cases[model.BGPAdvertisement]{"BGPAdvertisement", "v1beta1", BGPAdvertisement, map[string]model.BGPAdvertisement{
		``: {Name: name, Created: made, Advertised: every, Length4: 32, Length6: 128},
		fields + `,"localPref":200,"communities":["64500:1","large:64500:1:2","vpn"],"peers":["tor"]`: {
			Name: name, Created: made, Advertised: some, Length4: 32, Length6: 128, LocalPref: 200, Communities: []string{"64500:1", "large:64500:1:2", "vpn"}, Peers: []string{"tor"}},
		`"aggregationLength":24,"aggregationLengthV6":64`: {Name: name, Created: made, Advertised: every, Length4: 24, Length6: 64},
	}, map[string]string{
		`"aggregationLength":33`:                         `spec.aggregationLength: 33 is not from 1 to 32`,
		`"aggregationLengthV6":0`:                        `spec.aggregationLengthV6: 0 is not`,
		`"communities":["70000:1"]`:                      `spec.communities[0]: "70000:1" is no community`,
		`"aggregationLength":24,"serviceSelectors":[{}]`: `spec.serviceSelectors: cannot be beside an aggregationLength`,
	}, nil}.run(t)
	cases[model.Community]{"Community", "v1beta1", Community, map[string]model.Community{
		`"communities":[{"name":"vpn","value":"64500:1"},{"name":"big","value":"large:64500:1:2"}]`: {
			Name: name, Aliases: map[string]string{"vpn": "64500:1", "big": "large:64500:1:2"}},
	}, map[string]string{
		`"communities":[{"name":"vpn","value":"x"}]`:                                `spec.communities[0].value: "x" is no community`,
		`"communities":[{"name":"vpn","value":"1:1"},{"name":"vpn","value":"1:2"}]`: `spec.communities[1].name`,
	}, nil}.run(t)
}

func TestBGPPeer(t *testing.T) {
	least := `"myASN":64500,"peerASN":64501,"peerAddress":"192.0.2.1"`
	cases[model.MetalLBPeer]{"BGPPeer", "v1beta2", BGPPeer, map[string]model.MetalLBPeer{
		least: {Name: name, Created: made, MyASN: 64500, PeerASN: 64501, Address: addr("192.0.2.1"), Port: 179, Nodes: all},
		least + `,"passwordSecret":{"name":"s"}`: {Name: name, Created: made, MyASN: 64500, PeerASN: 64501, Address: addr("192.0.2.1"), Port: 179, Nodes: all,
			PasswordSecret: model.SecretRef{Namespace: name.Namespace, Name: "s", Key: "password"}},
		least + `,"passwordSecret":{"name":"s","namespace":"other"}`: {Name: name, Created: made, MyASN: 64500, PeerASN: 64501, Address: addr("192.0.2.1"), Port: 179, Nodes: all,
			PasswordSecret: model.SecretRef{Namespace: "other", Name: "s", Key: "password"}},
		`"myASN":64500,"dynamicASN":"external","peerAddress":"2001:db8::1","sourceAddress":"2001:db8::2","peerPort":1179,"holdTime":"90s","keepaliveTime":"30s","connectTime":"10s",` +
			`"routerID":"192.0.2.9","nodeSelectors":` + reds + `,"password":"secret","enableGracefulRestart":true,"ebgpMultiHop":true,"dualStackAddressFamily":true`: {
			Name: name, Created: made, MyASN: 64500, Dynamic: "external", Address: addr("2001:db8::1"), Source: addr("2001:db8::2"), Port: 1179,
			HoldTime: 90 * time.Second, KeepaliveTime: 30 * time.Second, ConnectTime: 10 * time.Second, RouterID: addr("192.0.2.9"),
			Nodes: team, Password: "secret", GracefulRestart: true, MultiHop: true, DualStack: true},
	}, map[string]string{
		`"peerASN":64501,"peerAddress":"192.0.2.1"`:                  "spec.myASN: is missing",
		`"myASN":64500,"peerAddress":"192.0.2.1"`:                    "spec.peerASN: give either",
		`"myASN":64500,"peerASN":64501`:                              "spec.peerAddress: is missing",
		`"myASN":64500,"dynamicASN":"any","peerAddress":"192.0.2.1"`: `spec.dynamicASN: "any" is neither`,
		`"myASN":64500,"peerASN":64501,"interface":"eth0"`:           "spec.interface: is not supported",
		least + `,"vrf":"red"`:                                       "spec.vrf: is not supported",
		least + `,"password":"p","passwordSecret":{"name":"s"}`:      "spec.passwordSecret: cannot be beside password",
		least + `,"localASN":64502`:                                  "spec.localASN: is not supported",
		least + `,"holdTime":"1s"`:                                   "spec.holdTime: 1s is shorter than 3s",
		least + `,"holdTime":"9s","keepaliveTime":"10s"`:             "spec.keepaliveTime: 10s is longer",
		least + `,"sourceAddress":"eth0"`:                            `spec.sourceAddress: "eth0" is no IP address`,
	}, map[string]string{
		least + `,"bfdProfile":"fast"`: "spec.bfdProfile: BFD is not supported",
	}}.run(t)
}

func TestBFDProfileIsRefused(t *testing.T) {
	cases[model.BFDProfile]{kind: "BFDProfile", version: "v1beta1", decode: BFDProfile,
		bad: map[string]string{`"receiveInterval":300`: "BFD is not supported", ``: "BFD is not supported"}}.run(t)
}
