package compile

import (
	"cmp"
	"fmt"
	"maps"
	"math/rand/v2"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	speaker "sluice.dev/sluice/internal/bgp"
	"sluice.dev/sluice/internal/model"
)

// tor makes a BGPPeer at 192.0.2.1 of AS 64501, changed.
func tor(name string, change ...func(*model.BGPPeer)) *model.BGPPeer {
	p := &model.BGPPeer{Name: name, Address: addr("192.0.2.1"), AS: 64501}
	for _, c := range change {
		c(p)
	}
	return p
}

// selected makes a BGPPeer that has nodes of one label be peers of those of another one.
func selected(name string, nodes, peers model.Selector) *model.BGPPeer {
	return &model.BGPPeer{Name: name, Nodes: nodes, Peers: peers}
}

// config makes BGPConfiguration default.
func config(change ...func(*model.BGPConfiguration)) *model.BGPConfiguration {
	c := &model.BGPConfiguration{Name: model.BGPDefault}
	for _, f := range change {
		f(c)
	}
	return c
}

func noMesh(c *model.BGPConfiguration) { c.NoMesh = true }

// metalLB makes a BGPPeer of MetalLB's at 192.0.2.1 of AS 64501.
func metalLB(name string, change ...func(*model.MetalLBPeer)) *model.MetalLBPeer {
	p := &model.MetalLBPeer{Name: model.Name{Namespace: "lb", Name: name}, MyASN: 64512, PeerASN: 64501, Address: addr("192.0.2.1"), Port: 179, Nodes: model.Everything()}
	for _, c := range change {
		c(p)
	}
	return p
}

func TestPeers(t *testing.T) {
	everyone, reflectors := model.Everything(), model.Has("reflector")
	const usual = "192.0.2.1:179 AS 64501 from 192.0.2.5 hops 255 IPv4"
	for name, c := range map[string]struct {
		objects []model.Object // beside the own node, at 192.0.2.5 unless they have it
		want    []string
		faults  []string
	}{
		"nodes with one address: the older is the peer": {
			objects: []model.Object{nodeOf("a 192.0.2.2 created=xx"), nodeOf("b 192.0.2.2 created=x as=64600")},
			want:    []string{"mesh b: 192.0.2.2:179 AS 64600 from 192.0.2.5 hops 255 IPv4"},
		},
		"the mesh": {
			objects: []model.Object{nodeOf("own 192.0.2.5 fd00::5"), nodeOf("a 192.0.2.2"), nodeOf("b 192.0.2.7 fd00::7 as=64600"), nodeOf("c fd00::3"), nodeOf("d")},
			want: []string{
				"mesh a: 192.0.2.2:179 AS 64512 from 192.0.2.5 hops 255 IPv4",
				"mesh b IPv6: [fd00::7]:179 AS 64600 from fd00::5 passive hops 255 IPv6",
				"mesh b: 192.0.2.7:179 AS 64600 from 192.0.2.5 passive hops 255 IPv4",
				"mesh c IPv6: [fd00::3]:179 AS 64512 from fd00::5 hops 255 IPv6",
			},
		},
		"the mesh, with a password, ports and ASes": {
			objects: []model.Object{
				config(func(c *model.BGPConfiguration) {
					c.AS, c.Port, c.MeshPassword = 64600, 178, model.SecretRef{Name: "s", Key: "k"}
				}),
				&model.BGPConfiguration{Name: "node.b", AS: 64601, Port: 1179}, nodeOf("a 192.0.2.2"), nodeOf("b 192.0.2.3"), nodeOf("c 192.0.2.4 as=1.1"),
			},
			want: []string{
				"mesh a: 192.0.2.2:178 AS 64600 from 192.0.2.5 password hidden hops 255 IPv4",
				"mesh b: 192.0.2.3:1179 AS 64601 from 192.0.2.5 password hidden hops 255 IPv4",
				"mesh c: 192.0.2.4:178 AS 65537 from 192.0.2.5 password hidden hops 255 IPv4",
			},
		},
		"no mesh without its password": {
			objects: []model.Object{config(func(c *model.BGPConfiguration) { c.MeshPassword = model.SecretRef{Name: "s", Key: "x"} }), nodeOf("a 192.0.2.2")},
			faults:  []string{"BGPConfiguration default: spec.nodeMeshPassword: the agent has no password of Secret s[x], so nodes are not each other's peers; put it in the file s/x of the folder that --bgp-passwords names; in force: the rest of it"},
		},
		"the mesh is off": {objects: []model.Object{config(noMesh), nodeOf("a 192.0.2.2")}},
		"reflectors are not part of the mesh": {
			objects: []model.Object{nodeOf("a 192.0.2.2"), nodeOf("r 192.0.2.9 rr=1.0.0.1 reflector=yes")},
			want:    []string{"mesh a: 192.0.2.2:179 AS 64512 from 192.0.2.5 hops 255 IPv4"},
		},
		"a reflector is not part of the mesh": {
			objects: []model.Object{nodeOf("own 192.0.2.5 rr=1.0.0.1"), nodeOf("a 192.0.2.2")},
		},
		"the AS of another Node is not known": {objects: []model.Object{nodeOf("own as=1")}, faults: []string{"Node own: it has no address, so it speaks no BGP; give it an InternalIP"}},

		"a peer of all nodes":  {objects: []model.Object{tor("p")}, want: []string{"BGPPeer p: " + usual}},
		"a peer of the node":   {objects: []model.Object{tor("p", func(p *model.BGPPeer) { p.Node = "own" })}, want: []string{"BGPPeer p: " + usual}},
		"a peer of others":     {objects: []model.Object{tor("p", func(p *model.BGPPeer) { p.Node = "a" }), tor("q", func(p *model.BGPPeer) { p.Nodes = model.Equal("name", "a") })}},
		"a peer of some nodes": {objects: []model.Object{tor("p", func(p *model.BGPPeer) { p.Nodes = model.In("name", "own", "a") })}, want: []string{"BGPPeer p: " + usual}},
		"all that a BGPPeer says": {
			objects: []model.Object{
				tor("p", func(p *model.BGPPeer) {
					p.Port, p.LocalAS, p.Password, p.AnySource, p.Keepalive = 1179, 64599, model.SecretRef{Name: "s", Key: "k"}, true, 40*time.Second
					p.KeepNextHop, p.AllowOwnAS, p.Security = true, 2, 3
				}),
			},
			want: []string{"BGPPeer p: 192.0.2.1:1179 AS 64501 local AS 64599 password hidden hold 2m0s keepalive 40s security 3 IPv4 keeps next hop own AS 2"},
		},
		"of the own AS the next hop is kept anyway": {
			objects: []model.Object{tor("p", func(p *model.BGPPeer) { p.AS, p.KeepNextHop = 64512, true })},
			want:    []string{"BGPPeer p: 192.0.2.1:179 AS 64512 from 192.0.2.5 hops 255 IPv4"},
		},
		"no peer without its password": {
			objects: []model.Object{tor("p", func(p *model.BGPPeer) { p.Password = model.SecretRef{Name: "x", Key: "k"} })},
			faults:  []string{"BGPPeer p: spec.password: the agent has no password of Secret x[k], so there is no such peer; put it in the file x/k of the folder that --bgp-passwords names; in force: nothing of it"},
		},
		"a restart time of its own": {
			objects: []model.Object{tor("p", func(p *model.BGPPeer) { p.Restart = time.Minute })}, want: []string{"BGPPeer p: " + usual},
			faults: []string{"BGPPeer p: spec.maxRestartTime: it is 2m0s for all peers of a node; set nodeMeshMaxRestartTime of BGPConfiguration default; in force: the rest of it"},
		},
		"this node itself": {objects: []model.Object{tor("p", func(p *model.BGPPeer) { p.Address, p.AS = addr("192.0.2.5"), 64512 })}},
		"IPv6":             {objects: []model.Object{nodeOf("own fd00::5"), tor("p", func(p *model.BGPPeer) { p.Address = addr("fd00::1") })}, want: []string{"BGPPeer p: [fd00::1]:179 AS 64501 from fd00::5 hops 255 IPv6"}},

		"clients of reflectors": { // as the documentation of Calico has it
			objects: []model.Object{
				config(noMesh), selected("rr", everyone, reflectors), nodeOf("own 192.0.2.5 fd00::5"), nodeOf("a 192.0.2.2"),
				nodeOf("r 192.0.2.9 fd00::9 rr=1.0.0.1 reflector=yes"), nodeOf("s 192.0.2.10 rr=1.0.0.1 reflector=yes"),
			},
			want: []string{
				"BGPPeer rr r IPv6: [fd00::9]:179 AS 64512 from fd00::5 hops 255 IPv6",
				"BGPPeer rr r: 192.0.2.9:179 AS 64512 from 192.0.2.5 hops 255 IPv4",
				"BGPPeer rr s: 192.0.2.10:179 AS 64512 from 192.0.2.5 hops 255 IPv4",
			},
		},
		"a reflector": {
			objects: []model.Object{
				config(noMesh), selected("rr", everyone, reflectors), nodeOf("own 192.0.2.5 rr=1.0.0.1 reflector=yes"), nodeOf("a 192.0.2.2"), nodeOf("b 192.0.2.3 as=64600"),
				nodeOf("s 192.0.2.10 rr=1.0.0.1 reflector=yes"), nodeOf("t 192.0.2.11 rr=1.0.0.2 reflector=yes"),
				tor("out"), tor("in", func(p *model.BGPPeer) { p.Address, p.AS = addr("192.0.2.100"), 64512 }),
			},
			want: []string{
				"BGPPeer in: 192.0.2.100:179 AS 64512 from 192.0.2.5 hops 255 IPv4 client of 1.0.0.1",
				"BGPPeer out: " + usual,
				"BGPPeer rr a: 192.0.2.2:179 AS 64512 from 192.0.2.5 hops 255 IPv4 client of 1.0.0.1",
				"BGPPeer rr b: 192.0.2.3:179 AS 64600 from 192.0.2.5 hops 255 IPv4",
				"BGPPeer rr s: 192.0.2.10:179 AS 64512 from 192.0.2.5 hops 255 IPv4",
				"BGPPeer rr t: 192.0.2.11:179 AS 64512 from 192.0.2.5 hops 255 IPv4 client of 1.0.0.1",
			},
		},
		"both ends, if one is named by its address": {
			objects: []model.Object{
				config(noMesh), tor("p", func(p *model.BGPPeer) { p.Node, p.Address, p.AS = "a", addr("192.0.2.5"), 64512 }), nodeOf("a 192.0.2.2"), nodeOf("b 192.0.2.3"),
			},
			want: []string{"BGPPeer p a: 192.0.2.2:179 AS 64512 from 192.0.2.5 hops 255 IPv4"},
		},
		"one end alone": {
			objects: []model.Object{
				config(noMesh), tor("p", func(p *model.BGPPeer) { p.Node, p.Address, p.AS, p.OneWay = "a", addr("192.0.2.5"), 64512, true }), nodeOf("a 192.0.2.2"),
			},
		},
		"the end of another node has an AS number for this one": {
			objects: []model.Object{
				config(noMesh), tor("p", func(p *model.BGPPeer) { p.Node, p.Address, p.AS, p.LocalAS = "a", addr("192.0.2.5"), 64512, 64599 }), nodeOf("a 192.0.2.2"),
			},
			want: []string{"BGPPeer p a: 192.0.2.2:179 AS 64599 from 192.0.2.5 hops 255 IPv4"},
		},
		"both ends have one": {
			objects: []model.Object{
				config(noMesh), nodeOf("own 192.0.2.5 reflector=yes"), nodeOf("a 192.0.2.2 reflector=yes"), nodeOf("b 192.0.2.3"),
				&model.BGPPeer{Name: "p", Nodes: reflectors, Peers: everyone, LocalAS: 64599},
			},
			want: []string{
				"BGPPeer p a: 192.0.2.2:179 AS 64599 local AS 64599 from 192.0.2.5 hops 255 IPv4",
				"BGPPeer p b: 192.0.2.3:179 AS 64512 local AS 64599 from 192.0.2.5 hops 255 IPv4",
			},
		},
		"a node of another AS than the BGPPeer says": {
			objects: []model.Object{config(noMesh), tor("p", func(p *model.BGPPeer) { p.Node, p.Address = "a", addr("192.0.2.5") }), nodeOf("a 192.0.2.2")},
		},
		"a node that the BGPPeer has wrong": {
			objects: []model.Object{config(noMesh), tor("p", func(p *model.BGPPeer) { p.Address = addr("192.0.2.2") }), nodeOf("a 192.0.2.2")},
			want:    []string{"BGPPeer p: 192.0.2.2:179 AS 64501 from 192.0.2.5 hops 255 IPv4"},
			faults:  []string{"BGPPeer p: spec.peerIP: it is the address of Node a, which has AS 64512 and port 179, other than the BGPPeer says; leave the port out, and give that AS, or a peerSelector"},
		},
		"a node by its address has its port": {
			objects: []model.Object{
				config(noMesh), &model.BGPConfiguration{Name: "node.a", Port: 1179}, nodeOf("a 192.0.2.2"),
				tor("p", func(p *model.BGPPeer) { p.Node, p.Address, p.AS = "own", addr("192.0.2.2"), 64512 }),
			},
			want: []string{"BGPPeer p: 192.0.2.2:1179 AS 64512 from 192.0.2.5 hops 255 IPv4"},
		},
		"a BGPPeer comes before the mesh": {
			objects: []model.Object{selected("p", everyone, model.Equal("name", "a")), nodeOf("a 192.0.2.2 created=x"), nodeOf("b 192.0.2.3")},
			want:    []string{"BGPPeer p a: 192.0.2.2:179 AS 64512 from 192.0.2.5 hops 255 IPv4", "mesh b: 192.0.2.3:179 AS 64512 from 192.0.2.5 hops 255 IPv4"},
		},
		"two with one address": {
			objects: []model.Object{tor("q", func(p *model.BGPPeer) { p.AS = 64502 }), tor("p"), metalLB("m")},
			want:    []string{"BGPPeer lb/m: 192.0.2.1:179 AS 64501 IPv4 no restart import (-) export (-)"},
			faults: []string{
				"BGPPeer p: another object that asks for the same peer comes first: 192.0.2.1 (BGPPeer lb/m); remove one; in force: nothing of it",
				"BGPPeer q: another object that asks for the same peer comes first: 192.0.2.1 (BGPPeer lb/m); remove one; in force: nothing of it",
			},
		},
		"the older of two with one address": {
			objects: []model.Object{
				tor("q", func(p *model.BGPPeer) { p.Created = time.Unix(10, 0) }), tor("p", func(p *model.BGPPeer) { p.Created = time.Unix(20, 0) }),
				metalLB("m", func(p *model.MetalLBPeer) { p.Created = time.Unix(30, 0) }),
			},
			want: []string{"BGPPeer q: " + usual},
			faults: []string{
				"BGPPeer p: another object that asks for the same peer comes first: 192.0.2.1 (BGPPeer q); remove one; in force: nothing of it",
				"BGPPeer.metallb.io lb/m: another object that asks for the same peer comes first: 192.0.2.1 (BGPPeer q); remove one; in force: nothing of it",
			},
		},

		"filters": {
			objects: []model.Object{
				tor("p", func(p *model.BGPPeer) { p.Filters = []string{"b", "a"} }),
				&model.BGPFilter{Name: "a", Import: []model.BGPFilterRule{{CIDR: prefix("10.0.0.0/8"), Match: model.BGPNotEqual, PeerType: "iBGP"}, {IPv6: true}, {Accept: true, CIDR: prefix("10.0.0.0/8"), Min: 16, Max: 24}, {PeerType: "eBGP"}}},
				&model.BGPFilter{Name: "b", Import: []model.BGPFilterRule{{Accept: true, CIDR: prefix("10.1.0.0/16"), Match: model.BGPEqual}}, Export: []model.BGPFilterRule{{Learned: true}, {CIDR: prefix("10.9.0.0/16"), Match: model.BGPNotIn}}},
			},
			want: []string{"BGPPeer p: " + usual + " import (+=10.1.0.0/16 v4; +10.0.0.0/8{16,24} v4; - v4) export (- learned v4; -!10.9.0.0/16 v4)"},
		},
		"a filter that is not there": {
			objects: []model.Object{tor("p", func(p *model.BGPPeer) { p.Filters = []string{"a"} })}, // it waits: see store.Missing
		},

		"MetalLB's": {
			objects: []model.Object{
				metalLB("a", func(p *model.MetalLBPeer) {
					p.MyASN, p.Source, p.Port, p.HoldTime, p.KeepaliveTime, p.ConnectTime = 64599, addr("192.0.2.8"), 1179, time.Minute, time.Second, 5*time.Second
					p.GracefulRestart, p.MultiHop, p.DualStack, p.Password = true, true, true, "open"
				}),
				metalLB("b", func(p *model.MetalLBPeer) {
					p.Address, p.PasswordSecret = addr("fd00::1"), model.SecretRef{Namespace: "lb", Name: "s", Key: "password"}
				}),
				metalLB("c", func(p *model.MetalLBPeer) {
					p.Address, p.PeerASN, p.Dynamic, p.MyASN = addr("192.0.2.3"), 0, "internal", 64512
				}),
				metalLB("d", func(p *model.MetalLBPeer) { p.Address, p.PeerASN, p.Dynamic = addr("192.0.2.4"), 0, "external" }),
				metalLB("e", func(p *model.MetalLBPeer) {
					p.Address, p.PasswordSecret = addr("192.0.2.6"), model.SecretRef{Namespace: "lb", Name: "x", Key: "password"}
				}),
				metalLB("f", func(p *model.MetalLBPeer) { p.Address, p.Nodes = addr("192.0.2.7"), model.Equal("name", "a") }),
				metalLB("g", func(p *model.MetalLBPeer) { p.Address, p.RouterID = addr("192.0.2.9"), addr("1.1.1.1") }),
				metalLB("h", func(p *model.MetalLBPeer) { p.Address, p.RouterID = addr("192.0.2.10"), addr("1.1.1.2") }),
			},
			want: []string{
				"BGPPeer lb/a: 192.0.2.1:1179 AS 64501 local AS 64599 from 192.0.2.8 password open hold 1m0s keepalive 1s retry 5s hops 255 IPv4 IPv6 import (-) export (-)",
				"BGPPeer lb/b: [fd00::1]:179 AS 64501 password deep IPv6 no restart import (-) export (-)",
				"BGPPeer lb/c: 192.0.2.3:179 AS 64512 IPv4 no restart import (-) export (-)",
				"BGPPeer lb/g: 192.0.2.9:179 AS 64501 IPv4 no restart import (-) export (-)",
				"BGPPeer lb/h: 192.0.2.10:179 AS 64501 IPv4 no restart import (-) export (-)",
			},
			faults: []string{
				"BGPPeer.metallb.io lb/d: spec.dynamicASN: external is not supported; give the peer's AS as peerASN; in force: nothing of it",
				"BGPPeer.metallb.io lb/e: spec.passwordSecret: the agent has no password of Secret lb/x[password], so there is no such peer; put it in the file x/password of the folder that --bgp-passwords names; in force: nothing of it",
				"BGPPeer.metallb.io lb/h: spec.routerID: it is 1.1.1.1 for all peers of this node; in force: the rest of it",
			},
		},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			w.set(append([]model.Object{nodeOf("own 192.0.2.5")}, c.objects...)...)
			if got := w.told(); !slices.Equal(got, c.want) {
				t.Errorf("told\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(c.want, "\n"))
			}
			if got := w.faults(); !slices.Equal(got, c.faults) {
				t.Errorf("faults\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(c.faults, "\n"))
			}
		})
	}
}

func TestSettings(t *testing.T) {
	for name, c := range map[string]struct {
		objects []model.Object
		want    speaker.Settings
	}{
		"nothing is said": {want: speaker.Settings{AS: 64512, RouterID: addr("192.0.2.5"), Port: 179, Restart: 2 * time.Minute}},
		"for all nodes": {
			objects: []model.Object{config(func(c *model.BGPConfiguration) {
				c.AS, c.Port, c.MeshRestart, c.NodeIP, c.ClusterIPs, c.LoadBalancerIPs = 64600, 178, time.Minute, true, prefixes("10.96.0.0/12"), prefixes("192.0.3.0/24")
			}), pool("v4", "10.244.0.0/16")},
			want: speaker.Settings{AS: 64600, RouterID: addr("192.0.2.5"), Port: 178, Restart: time.Minute, Listen: nil, PassOn: prefixes("10.96.0.0/12", "10.244.0.0/16", "192.0.3.0/24")},
		},
		"for the node": {
			objects: []model.Object{config(func(c *model.BGPConfiguration) { c.AS, c.Port = 64600, 178 }), &model.BGPConfiguration{Name: "node.own", AS: 64601, Port: 1179}, &model.BGPConfiguration{Name: "node.a", AS: 64602}},
			want:    speaker.Settings{AS: 64601, RouterID: addr("192.0.2.5"), Port: 1179, Restart: 2 * time.Minute},
		},
		"by the Node": {
			objects: []model.Object{nodeOf("own 192.0.2.5 as=64603"), &model.BGPConfiguration{Name: "node.own", AS: 64601}},
			want:    speaker.Settings{AS: 64603, RouterID: addr("192.0.2.5"), Port: 179, Restart: 2 * time.Minute},
		},
		"IPv6 alone": {
			objects: []model.Object{nodeOf("own fd00::5")},
			want:    speaker.Settings{AS: 64512, RouterID: hashed("own"), Port: 179, Restart: 2 * time.Minute},
		},
		"addresses that MetalLB's objects have announced": {
			objects: []model.Object{addresses("p", "192.0.9.0", "192.0.9.63"), advertisement("x"), pool("v4", "10.244.0.0/16")},
			want:    speaker.Settings{AS: 64512, RouterID: addr("192.0.2.5"), Port: 179, Restart: 2 * time.Minute, PassOn: prefixes("10.244.0.0/16", "192.0.9.0/26")},
		},
		"a pool that is not announced is not passed on": {
			objects: []model.Object{pool("v4", "10.244.0.0/16"), &model.IPPool{Name: "x", CIDR: prefix("10.244.64.0/18"), DisableBGPExport: true}, &model.IPPool{Name: "y", CIDR: prefix("10.244.80.0/20")}},
			want:    speaker.Settings{AS: 64512, RouterID: addr("192.0.2.5"), Port: 179, Restart: 2 * time.Minute, PassOn: prefixes("10.244.0.0/18", "10.244.80.0/20", "10.244.128.0/17")},
		},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			w.set(append([]model.Object{nodeOf("own 192.0.2.5")}, c.objects...)...)
			if w.settings == nil {
				t.Fatal("there are none")
			}
			if name == "for all nodes" {
				c.want.Listen = append(c.want.Listen, addr("192.0.2.5"))
			}
			if !w.settings.Equal(&c.want) {
				t.Errorf("%+v, want %+v", *w.settings, c.want)
			}
		})
	}
	if got := hashed("kind-worker"); got.As4()[0] > 223 || got != hashed("kind-worker") {
		t.Errorf("router ID %s", got)
	}
}

// Two nodes that are peers agree on all that a session takes, whatever objects make them so.
func TestBothEndsAgree(t *testing.T) {
	for seed := range uint64(300) {
		r := rand.New(rand.NewPCG(seed, 9))
		pick := func(options ...string) string { return options[r.IntN(len(options))] }
		maybe := func() bool { return r.IntN(2) == 0 }
		names := []string{"a", "b", "c", "d"}
		objects := []model.Object{config(func(c *model.BGPConfiguration) { c.NoMesh, c.AS = maybe(), 64512 })}
		for i, name := range names {
			objects = append(objects, nodeOf(fmt.Sprintf("%s 192.0.2.%d %s %s %s", name, 5+i*3, pick("", fmt.Sprintf("fd00::%x", 5+i*3)), pick("", "as=64600"), pick("", "rr=1.0.0.1 reflector=yes", "rr=1.0.0.2 reflector=yes"))))
			if maybe() {
				objects = append(objects, &model.BGPConfiguration{Name: model.BGPNodePrefix + name, Port: 1179, AS: 64513})
			}
		}
		for _, name := range []string{"p", "p-q", "q"}[:r.IntN(4)] {
			p := &model.BGPPeer{Name: name, LocalAS: uint32(64599 * r.IntN(2)), Password: []model.SecretRef{{}, {Name: "s", Key: "k"}}[r.IntN(2)]}
			switch r.IntN(3) {
			case 0:
				p.Node = pick(names...)
			case 1:
				p.Nodes = []model.Selector{model.Everything(), model.Has("reflector"), model.In("name", "a", "b")}[r.IntN(3)]
			}
			if maybe() {
				p.Peers = []model.Selector{model.Everything(), model.Has("reflector"), model.In("name", "b", "c")}[r.IntN(3)]
			} else {
				p.Address, p.AS = addr(pick("192.0.2.5", "192.0.2.8", "fd00::8")), []uint32{64512, 64513, 64600}[r.IntN(3)]
			}
			objects = append(objects, p)
		}
		worlds := map[string]*world{}
		for _, name := range names {
			worlds[name] = newWorldOf(t, name)
			worlds[name].set(objects...)
		}
		for name, w := range worlds {
			for _, p := range w.chosen {
				if p.node == "" {
					continue // a BGPPeer names an address of a node, and has another AS
				}
				other := worlds[p.node]
				back := other.chosen[p.Source]
				if back != nil && back.node == "" {
					continue // likewise
				}
				if back == nil || back.node != name {
					t.Fatalf("seed %d: %s has the peer %s, and %s has %q", seed, name, p.name, p.node, other.told())
				}
				if p.AS != cmp.Or(back.LocalAS, other.settings.AS) || p.Port != other.settings.Port || p.Password != back.Password || p.IPv4 != back.IPv4 || p.Passive && back.Passive {
					t.Fatalf("seed %d: %s has %s: %s, and %s has %s: %s", seed, name, p.name, showPeer(&p.Peer), p.node, back.name, showPeer(&back.Peer))
				}
				if p.Cluster.IsValid() && back.Cluster.IsValid() && p.Cluster == back.Cluster {
					t.Fatalf("seed %d: %s and %s of one cluster are each other's clients", seed, name, p.node)
				}
			}
		}
	}
}

// Passwords are looked up once, and again when that is said.
func TestSecretsChange(t *testing.T) {
	w := newWorld(t)
	ref, asked := model.SecretRef{Name: "late", Key: "k"}, 0
	there := map[model.SecretRef]string{}
	w.cfg.Secret = func(ref model.SecretRef) (string, bool) {
		asked++
		text, ok := there[ref]
		return text, ok
	}
	w.set(nodeOf("own 192.0.2.5"), nodeOf("a 192.0.2.2"), nodeOf("b 192.0.2.3"), config(func(c *model.BGPConfiguration) { c.MeshPassword = ref }))
	if len(w.peers) > 0 || asked != 1 {
		t.Errorf("peers %v, asked %d times", w.told(), asked)
	}
	there[ref] = "now"
	w.set(nodeOf("c 192.0.2.4"))
	if len(w.peers) > 0 {
		t.Errorf("peers %v", w.told())
	}
	w.SecretsChanged()
	if w.update(); len(w.peers) != 3 || w.peers["mesh a"].Password != "now" || len(w.Issues()) > 0 {
		t.Errorf("peers %v, %v", w.told(), w.Issues())
	}
	there[ref] = "later"
	w.SecretsChanged()
	if o := w.update(); len(o.Peers) != 3 || o.Settings != nil || o.Peers["mesh a"].Password != "later" {
		t.Errorf("%+v", o)
	}
}

// Without anything to look passwords up in there are none.
func TestNoSecrets(t *testing.T) {
	w := newWorld(t)
	w.cfg.Secret = nil
	w.set(nodeOf("own 192.0.2.5"), tor("p", func(p *model.BGPPeer) { p.Password = model.SecretRef{Name: "s", Key: "k"} }))
	if w.SecretsChanged() || len(w.peers) > 0 || len(w.Issues()) != 1 {
		t.Errorf("peers %v, %v", w.told(), w.Issues())
	}
}

// A change costs what it is about: the order has nothing else.
func TestOrderHasWhatDiffers(t *testing.T) {
	w := newWorld(t)
	objects := []model.Object{nodeOf("own 192.0.2.5 10.244.1.0/24"), pool("v4", "10.244.0.0/16")}
	for i := range 20 {
		objects = append(objects, nodeOf(fmt.Sprintf("n%d 192.0.3.%d", i, i)))
	}
	w.set(objects...)
	if len(w.peers) != 20 {
		t.Fatal(w.told())
	}
	w.store.Apply(nil)
	if o := w.update(); !o.IsZero() {
		t.Errorf("%+v", o)
	}
	n := nodeOf("n3 192.0.3.103")
	w.store.Apply(events(n, nodeOf("n4 192.0.3.3"))) // which has the address that n3 had
	if o := w.update(); o.Settings != nil || len(o.Routes) > 0 || len(o.Peers) != 2 || o.Peers["mesh n3"].Address != addr("192.0.3.103") || o.Peers["mesh n4"].Address != addr("192.0.3.3") {
		t.Errorf("%+v", o)
	}
	w.store.Apply(events(nodeOf("own 192.0.2.5 10.244.1.0/24 rack=1")))
	if o := w.update(); !o.IsZero() {
		t.Errorf("%+v", o)
	}
	w.remove(nodeOf("own").Ref()) // what it said last counts
	if len(w.peers) != 20 || len(w.routes) != 1 {
		t.Error(w.told())
	}
}

// A password or filter that is gone by mistake ends no session, and opens none.
func TestWhatIsNamedStays(t *testing.T) {
	defer maps.Copy(secrets, maps.Clone(secrets))
	w := newWorld(t)
	w.set(nodeOf("own 192.0.2.5"), &model.BGPFilter{Name: "f", Export: []model.BGPFilterRule{{Accept: true}}},
		tor("p", func(p *model.BGPPeer) { p.Filters, p.Password = []string{"f"}, model.SecretRef{Name: "s", Key: "k"} }))
	before := *w.peers["BGPPeer p"]
	delete(secrets, model.SecretRef{Name: "s", Key: "k"})
	if !w.SecretsChanged() {
		t.Error("that the password is gone is not noticed")
	}
	w.remove(model.Ref{Kind: model.BGPFilterKind, Name: model.Name{Name: "f"}})
	if now := w.peers["BGPPeer p"]; now == nil || !reflect.DeepEqual(*now, before) {
		t.Errorf("the peer is %+v, was %+v", now, before)
	}
	if got := w.faults(); len(got) != 1 || !strings.Contains(got[0], "so sessions that there are go on as they were, and others wait") || !strings.Contains(got[0], model.InForceRest) {
		t.Errorf("faults %q", got)
	}
	if w.SecretsChanged() {
		t.Error("it is noticed again and again")
	}
}

// A new version of a peer, or of the mesh, that names a password which is not there keeps the one
// before, or none.
func TestMissingPassword(t *testing.T) {
	there, missing := model.SecretRef{Name: "s", Key: "k"}, model.SecretRef{Name: "s", Key: "x"}
	for _, before := range []model.SecretRef{there, {}} {
		w := newWorld(t)
		version := func(ref model.SecretRef) {
			w.set(config(func(c *model.BGPConfiguration) { c.MeshPassword = ref }), tor("p", func(p *model.BGPPeer) { p.Password = ref }),
				metalLB("m", func(p *model.MetalLBPeer) { p.Address, p.PasswordSecret = addr("192.0.2.77"), ref }))
		}
		w.set(nodeOf("own 192.0.2.5"), nodeOf("a 192.0.2.2"))
		version(before)
		was := w.told()
		for range 2 {
			version(missing)
			if now := w.told(); !slices.Equal(now, was) || len(was) != 3 {
				t.Errorf("%q, before %q", now, was)
			}
			if got := w.faults(); len(got) != 3 || !strings.Contains(got[0], "so sessions that there are go on as they were") {
				t.Errorf("faults %q", got)
			}
			w.SecretsChanged()
		}
		version(there)
		if got := w.faults(); len(w.peers) != 3 || w.peers["BGPPeer p"].Password != "hidden" || len(got) > 0 {
			t.Errorf("%q, faults %q", w.told(), got)
		}
	}
}

// While the password that an object names is not there, nobody new gets a session by it, neither
// with the password before nor without one.
func TestNobodyNewWithoutPassword(t *testing.T) {
	there, missing := model.SecretRef{Name: "s", Key: "k"}, model.SecretRef{Name: "s", Key: "x"}
	mesh := func(ref model.SecretRef) model.Object {
		return config(func(c *model.BGPConfiguration) { c.MeshPassword = ref })
	}
	named := func(a string, as uint32) func(ref model.SecretRef) model.Object {
		return func(ref model.SecretRef) model.Object {
			return tor("p", func(p *model.BGPPeer) { p.Address, p.AS, p.Password = addr(a), as, ref })
		}
	}
	nodes := func(labels string) func(ref model.SecretRef) model.Object {
		return func(ref model.SecretRef) model.Object {
			return &model.BGPPeer{Name: "p", Peers: model.In("name", strings.Fields(labels)...), Password: ref}
		}
	}
	metal := func(a string, as uint32, open string) func(ref model.SecretRef) model.Object {
		return func(ref model.SecretRef) model.Object {
			return metalLB("m", func(p *model.MetalLBPeer) {
				p.Address, p.PeerASN, p.Password, p.PasswordSecret = addr(a), as, open, ref
			})
		}
	}
	without := func(o func(model.SecretRef) model.Object) model.Object { return o(model.SecretRef{}) }
	for name, c := range map[string]struct {
		before []model.Object // beside the own node, a and b
		after  model.Object
		joins  string   // a node
		stay   []string // peers, with their passwords
	}{
		"another address":                  {before: []model.Object{config(noMesh), without(named("192.0.2.1", 64501))}, after: named("192.0.2.77", 64501)(missing)},
		"another AS":                       {before: []model.Object{config(noMesh), without(named("192.0.2.1", 64501))}, after: named("192.0.2.1", 65099)(missing)},
		"another address, and a password":  {before: []model.Object{config(noMesh), named("192.0.2.1", 64501)(there)}, after: named("192.0.2.77", 64501)(missing)},
		"a node more by selector":          {before: []model.Object{config(noMesh), without(nodes("a"))}, after: nodes("a b")(missing), joins: "c 192.0.2.4", stay: []string{"BGPPeer p a ()"}},
		"one more, and a password":         {before: []model.Object{config(noMesh), nodes("a")(there)}, after: nodes("a b c")(missing), joins: "c 192.0.2.4", stay: []string{"BGPPeer p a (hidden)"}},
		"MetalLB: another address":         {before: []model.Object{config(noMesh), without(metal("192.0.2.1", 64501, ""))}, after: metal("192.0.2.77", 64501, "")(missing)},
		"MetalLB: another AS":              {before: []model.Object{config(noMesh), without(metal("192.0.2.1", 64501, "open"))}, after: metal("192.0.2.1", 65099, "")(missing)},
		"MetalLB: a Secret for a password": {before: []model.Object{config(noMesh), without(metal("192.0.2.1", 64501, "open"))}, after: metal("192.0.2.1", 64501, "")(missing), stay: []string{"BGPPeer lb/m (open)"}},
		"the mesh had a password":          {before: []model.Object{mesh(there)}, after: mesh(missing), joins: "c 192.0.2.4", stay: []string{"mesh a (hidden)", "mesh b (hidden)"}},
		"the mesh had none":                {before: []model.Object{mesh(model.SecretRef{})}, after: mesh(missing), joins: "c 192.0.2.4", stay: []string{"mesh a ()", "mesh b ()"}},
		"the mesh had no configuration":    {after: mesh(missing), joins: "c 192.0.2.4", stay: []string{"mesh a ()", "mesh b ()"}},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			w.set(append(c.before, nodeOf("own 192.0.2.5"), nodeOf("a 192.0.2.2"), nodeOf("b 192.0.2.3"))...)
			if len(w.peers) == 0 {
				t.Fatal("there is no session before")
			}
			w.set(c.after)
			if c.joins != "" {
				w.set(nodeOf(c.joins))
			}
			for range 2 {
				var got []string
				for name, p := range w.peers {
					got = append(got, fmt.Sprintf("%s (%s)", name, p.Password))
				}
				if slices.Sort(got); !slices.Equal(got, c.stay) {
					t.Errorf("peers %q, want %q", got, c.stay)
				}
				w.set(nodeOf("a 192.0.2.2 rack=1"), nodeOf("own 192.0.2.5 rack=1"))
			}
			if got := w.faults(); len(got) != 1 || strings.Contains(got[0], "go on as they were, and others wait") != (c.stay != nil) {
				t.Errorf("faults %q", got)
			}
		})
	}
}

// While a password is gone, nobody new gets a session by it.
func TestNobodyNewWithGonePassword(t *testing.T) {
	defer maps.Copy(secrets, maps.Clone(secrets))
	w := newWorld(t)
	ref := model.SecretRef{Name: "s", Key: "k"}
	w.set(config(func(c *model.BGPConfiguration) { c.MeshPassword = ref }), nodeOf("own 192.0.2.5"), nodeOf("a 192.0.2.2"))
	delete(secrets, ref)
	w.SecretsChanged()
	w.set(nodeOf("b 192.0.2.3"))
	if len(w.peers) != 1 || w.peers["mesh a"].Password != "hidden" || len(w.faults()) != 1 {
		t.Errorf("%q, faults %q", w.told(), w.faults())
	}
	secrets[ref] = "again"
	w.SecretsChanged()
	if w.update(); len(w.peers) != 2 || w.peers["mesh b"].Password != "again" || len(w.faults()) > 0 {
		t.Errorf("%q, faults %q", w.told(), w.faults())
	}
}
