package main

import (
	"context"
	"encoding/json"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"sluice.dev/sluice/internal/agent"
	"sluice.dev/sluice/internal/bgp"
	bgpcompile "sluice.dev/sluice/internal/bgp/compile"
	"sluice.dev/sluice/internal/model"
	"sluice.dev/sluice/test/peertest"
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

// otherConf is the configuration of another speaker on the node, which announces its pod to spine.
const otherConf = `
router id 172.31.1.1;
protocol device {}
protocol static { ipv4; route 10.244.1.0/24 blackhole; }
protocol static { ipv6; route fd00:244:1::/64 blackhole; }
protocol bgp four {
  local 172.31.1.1 as 64512; neighbor 172.31.1.254 as 64501; graceful restart on; connect delay time 1; connect retry time 1;
  ipv4 { import none; export where source = RTS_STATIC; };
}
protocol bgp six {
  local fd00:31:1::1 as 64512; neighbor fd00:31:1::fe as 64501; graceful restart on; connect delay time 1; connect retry time 1;
  ipv6 { import none; export where source = RTS_STATIC; };
}
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
	t.Parallel()
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

	t.Run("an endpoint moves", func(t *testing.T) {
		r.write("here.yaml", rackService("here", 11, "Local", "b"))
		r.tells("203.0.113.11/32", "", 0, nil, nil)
		r.write("here.yaml", rackService("here", 11, "Local", "a"))
		r.tells("203.0.113.11/32", hop4, 100, nil, each)
		r.tells("fd00:51::11/128", hop6, 100, nil, each)
		for _, way := range r.flows() {
			r.await("an answer from "+way.to, func() bool { return ask(way.ns, way.from, way.to) == nil })
		}
	})
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

// What is wrong with a peer, its routes or its objects is named, and its end noticed; nobody else
// suffers.
func TestBGPFaults(t *testing.T) {
	t.Parallel()
	r := newRack(t)
	r.write("pool.yaml", rackPool)
	r.write("web.yaml", rackService("web", 10, "Cluster", "b"))
	r.start()
	since := func() time.Time { return r.report().Sessions["BGPPeer spine4"].Since }

	t.Run("routes that cut the node off, or lead nowhere", func(t *testing.T) {
		r.steady(func() {
			r.write("far.yaml", "apiVersion: v1\nkind: Node\nmetadata: {name: far}\nspec: {podCIDRs: [10.244.9.0/24]}\n")
			var routes string
			for _, to := range []string{"10.244.9.128/25", "10.244.9.7/32", "0.0.0.0/0", "172.31.0.0/16", "172.31.2.0/25", "10.244.1.128/25", "203.0.113.77/32", "10.246.0.0/24", "10.247.0.0/24"} {
				routes += "route " + to + " blackhole; "
			}
			r.reconfigure(routes, "")
			r.shows(r.node, "ip route show proto 83", "10.247.0.0/24 via 172.31.1.254")
			for _, text := range []string{
				"peer BGPPeer spine4: its routes to 0.0.0.0/0, 172.31.0.0/16 are not followed: each holds 172.31.1.0/24, the subnet of this node on eth0",
				"its route to 172.31.2.0/25 is not followed: it lies in 172.31.2.0/24, the subnet of this node on eth1",
				"its route to 10.244.1.128/25 is not followed: it lies in 10.244.1.0/24, pods of this node",
				"its routes to 10.244.9.7/32, 10.244.9.128/25 are not followed: each lies in 10.244.9.0/24, pods of Node far",
				"its route to 10.246.0.0/24 is not followed: this node has no route to the next hop 198.18.7.7",
				"203.0.113.77/32\t172.31.1.254\tBGPPeer spine4\t64501\t-\tnot followed: this node serves Services by itself",
			} {
				r.says(text)
			}
			out, err := r.node.Run("ip", "route", "show", "proto", "83")
			if r.must(err); strings.Count(string(out), " via 172.31.1.254 ") != 2 {
				t.Errorf("more of spine's routes are followed than should be: %s", out)
			}
			r.reconfigure("", "")
			r.must(os.Remove(filepath.Join(r.dir, "far.yaml")))
		})
	})

	t.Run("filters, without a flap", func(t *testing.T) {
		r.steady(func() {
			began := since()
			r.write("spine4.yaml", fmt.Sprintf(spine4, ", filters: [shut]"))
			r.says("BGPPeer spine4: spec.filters: there is no BGPFilter shut that can be read, for which it waits")
			r.shows(r.spine, "ip route show 10.244.1.0/24", "via 172.31.1.1")
			r.write("filter.yaml", "apiVersion: projectcalico.org/v3\nkind: BGPFilter\nmetadata: {name: shut}\nspec: {importV4: [{action: Reject}]}\n")
			r.shows(r.spine, "ip route show 10.244.1.0/24", "via 172.31.1.1")
			r.says("\t0 of 1\t1\t-\n")
			r.lacks(r.node, "10.245.0.0/24")
			r.must(os.Remove(filepath.Join(r.dir, "filter.yaml")))
			r.write("spine4.yaml", fmt.Sprintf(spine4, ""))
			r.up()
			if !since().Equal(began) {
				t.Error("the session of the filters was disturbed")
			}
		})
	})

	t.Run("a wrong AS", func(t *testing.T) {
		r.steady(func() {
			r.write("spine4.yaml", strings.Replace(fmt.Sprintf(spine4, ""), "64501", "64999", 1))
			r.says("wrong AS") // which one the peer tells when it is asked, unless BIRD waits after the error
			r.lacks(r.node, "10.245.0.0/24")
			r.write("spine4.yaml", fmt.Sprintf(spine4, ""))
		})
	})

	t.Run("passwords", func(t *testing.T) {
		r.steady(func() {
			r.must(os.Mkdir(filepath.Join(r.passwords, "bgp"), 0o700))
			r.write("spine4.yaml", fmt.Sprintf(spine4, ", password: {secretKeyRef: {name: bgp, key: spine}}"))
			r.says("put it in the file bgp/spine of the folder that --bgp-passwords names")
			r.reconfigure("", `password "first";`)
			write(t, filepath.Join(r.passwords, "bgp"), "spine", "first\n")
			r.up()
			r.reconfigure("", `password "second";`)
			write(t, filepath.Join(r.passwords, "bgp"), "spine", "second\n")
			r.await("the session is one with the new password", func() bool {
				s := r.report().Sessions["BGPPeer spine4"]
				return s.State == bgp.Established && s.Why != ""
			})
			r.reconfigure("", "")
			r.write("spine4.yaml", fmt.Sprintf(spine4, ""))
		})
	})

	t.Run("peers that come and go, and a reflector that is not there", func(t *testing.T) {
		r.steady(func() {
			r.write("reflector.yaml", `
apiVersion: v1
kind: Node
metadata: {name: node-r, labels: {reflector: "true"}, annotations: {projectcalico.org/RouteReflectorClusterID: 244.0.0.1}}
status: {addresses: [{type: InternalIP, address: 172.31.1.9}]}
---
apiVersion: projectcalico.org/v3
kind: BGPPeer
metadata: {name: reflectors}
spec: {nodeSelector: all(), peerSelector: reflector == 'true'}
`)
			r.says("BGPPeer reflectors node-r\t172.31.1.9\t64512\tactive")
			r.says("no route to host: the peer is away")
			r.must(os.Remove(filepath.Join(r.dir, "reflector.yaml")))
			r.must(os.Remove(filepath.Join(r.dir, "spine4.yaml")))
			r.await("the peers are gone, and their routes", func() bool {
				report := r.report()
				return len(report.Sessions) == 2 && len(report.Learned) == 1
			})
			r.write("spine4.yaml", fmt.Sprintf(spine4, ""))
		})
	})
	t.Run("another speaker on the node", func(t *testing.T) {
		r.kill()
		r.missed()
		other, err := peertest.StartBIRD(t.Context(), r.node.NS, r.short(), otherConf)
		r.must(err)
		t.Cleanup(func() { r.stopped(other.Kill()) })
		r.await("spine has its routes", func() bool {
			out, err := other.Run("show protocols")
			r.must(err)
			return strings.Count(out, "Established") == 2
		})
		r.stay(r.spine, func() {
			r.start()
			r.says("another BGP speaker runs on this node; stop it, or choose another port")
			if _, out, _ := sluice(t, "status", "--socket", r.socket); !strings.Contains(out, "PROBLEM: BGP does not work as it should: no session with any peer") {
				t.Errorf("sluice status says\n%s", out)
			}
			r.must(other.Kill())
			r.up()
		})
	})
}

// until waits until what an agent says of BGP is so.
func (s *subnet) until(name, what string, is func(agent.BGPReport) bool) {
	s.t.Helper()
	for end := time.Now().Add(time.Minute); ; time.Sleep(20 * time.Millisecond) {
		ctx, cancel := context.WithTimeout(s.t.Context(), time.Second)
		said, _ := agent.NewClient(s.nodes[name].socket).BGP(ctx) // not yet
		cancel()
		if is(said) {
			return
		}
		if time.Now().After(end) {
			s.t.Fatalf("%s: %s: not in time; it says %+v", name, what, said)
		}
	}
}

// meshed waits until an agent has sessions with the others in both families, and knows of their
// pods, none of which is stale.
func (s *subnet) meshed(name string, others ...string) {
	s.t.Helper()
	s.until(name, fmt.Sprintf("has a mesh with %v", others), func(r agent.BGPReport) bool {
		for _, o := range others {
			if r.Sessions["mesh "+o].State != bgp.Established || r.Sessions["mesh "+o+" IPv6"].State != bgp.Established {
				return false
			}
		}
		stale := slices.ContainsFunc(r.Learned, func(l agent.LearnedFrom) bool { return l.Stale })
		return len(r.Learned) == 2*len(others) && !stale && r.Settled && len(r.Issues) == 0
	})
}

// Without any object of BGP, agents are each other's peers, in both families, and with a password
// as well. What a node announced stays with the others while its agent is away.
func TestBGPMesh(t *testing.T) {
	t.Parallel()
	s := newSubnet(t)
	passwords := t.TempDir()
	s.flags = []string{"--fabric", "native", "--bgp", "--bgp-passwords", passwords}
	for name := range s.nodes {
		s.start(name)
	}
	all := func() {
		t.Helper()
		s.meshed("n1", "n2", "n3")
		s.meshed("n2", "n1", "n3")
		s.meshed("n3", "n1", "n2")
	}
	all()

	before := map[string]map[string]bgp.PeerStatus{}
	for name := range s.nodes {
		s.until(name, "has sessions", func(r agent.BGPReport) bool { before[name] = r.Sessions; return len(r.Sessions) == 4 })
	}
	s.must(os.Mkdir(filepath.Join(passwords, "bgp"), 0o700))
	write(t, filepath.Join(passwords, "bgp"), "mesh", "secret")
	s.write("bgp.yaml", `
apiVersion: projectcalico.org/v3
kind: BGPConfiguration
metadata: {name: default}
spec: {asNumber: 64999, nodeMeshPassword: {secretKeyRef: {name: bgp, key: mesh}}}
`)
	for name := range s.nodes {
		s.until(name, "follows the configuration", func(r agent.BGPReport) bool {
			return r.AS == 64999 && !slices.ContainsFunc(r.Peers, func(p bgpcompile.PeerView) bool {
				return !p.Password || r.Sessions[p.Name].Since.Equal(before[name][p.Name].Since)
			})
		})
	}
	all()

	s.kill("n2")
	s.until("n1", "knows that n2 is away, and keeps its routes", func(r agent.BGPReport) bool {
		return r.Sessions["mesh n2"].State != bgp.Established && r.Sessions["mesh n2 IPv6"].State != bgp.Established && len(r.Learned) == 4
	})
	s.start("n2")
	all()
}

// The table says of each peer and each route what there is to say, and what is wrong.
func TestBGPTable(t *testing.T) {
	at := time.Now()
	report := agent.BGPReport{
		View: bgpcompile.View{
			Node: "n1", AS: 64512, RouterID: netip.MustParseAddr("192.0.2.11"),
			Peers: []bgpcompile.PeerView{{Name: "BGPPeer tor", Address: netip.MustParseAddr("192.0.2.1"), AS: 64501}, {Name: "mesh n2", Address: netip.MustParseAddr("192.0.2.12"), AS: 64512}},
			Routes: []bgpcompile.RouteView{{Prefix: netip.MustParsePrefix("10.244.1.0/24"), Announcements: []bgp.Announcement{
				{}, {Peers: []string{"BGPPeer tor"}, Communities: []string{"64512:1", "64512:2"}, LocalPref: 200},
			}}},
		},
		Sessions: map[string]bgp.PeerStatus{
			"BGPPeer tor": {State: bgp.Established, Since: at, Received: 3, Accepted: 2, Advertised: 1},
			"mesh n2":     {State: "active", Why: "no answer"},
		},
		Learned: []agent.LearnedFrom{
			{Prefix: netip.MustParsePrefix("0.0.0.0/0"), Learned: bgp.Learned{Peer: "BGPPeer tor", NextHop: netip.MustParseAddr("192.0.2.1"), Path: []uint32{64501, 64502}, Stale: true}, NotFollowed: "it holds much"},
			{Prefix: netip.MustParsePrefix("10.9.0.0/16"), Learned: bgp.Learned{Peer: "BGPPeer tor", NextHop: netip.MustParseAddr("192.0.2.1")}},
		},
		Settled: true, Error: "no port", Issues: []model.Issue{model.Ref{Kind: model.BGPPeerKind, Name: model.Name{Name: "x"}}.Issue("is wrong")},
	}
	var b strings.Builder
	bgpTable(&b, report, true)
	for _, want := range []string{
		"n1 speaks BGP as AS 64512, router ID 192.0.2.11\n",
		"BGPPeer tor\t192.0.2.1\t64501\testablished\t", "\t2 of 3\t1\t-\n",
		"mesh n2\t192.0.2.12\t64512\tactive\t-\t0\t0\tno answer\n",
		"1 route announced, 2 routes learned\n",
		"10.244.1.0/24\tall\t-\t-\n", "10.244.1.0/24\tBGPPeer tor\t64512:1,64512:2\t200\n",
		"0.0.0.0/0\t192.0.2.1\tBGPPeer tor\t64501 64502\t-\tnot followed: it holds much; the peer is away; kept for its graceful restart\n",
		"10.9.0.0/16\t192.0.2.1\tBGPPeer tor\t-\t-\t-\n",
		"PROBLEM: BGP does not work as it should: no port\n", "1 fault:\nBGPPeer x: is wrong\n",
	} {
		if !strings.Contains(b.String(), want) {
			t.Errorf("the table lacks %q:\n%s", want, &b)
		}
	}
	b.Reset()
	bgpTable(&b, agent.BGPReport{View: bgpcompile.View{Node: "n1"}}, false)
	if got := b.String(); !strings.HasPrefix(got, "n1 speaks no BGP yet\nno peers: ") || strings.Contains(got, "PEER") {
		t.Errorf("without peers: %s", got)
	}
}

// The status names the first few peers without a session.
func TestBGPRow(t *testing.T) {
	for want, s := range map[string]*agent.BGPStatus{
		"bgp|no peers: no other node is in a mesh with it, and no BGPPeer selects it": {},
		"bgp|1 session established":                                                                            {Peers: 1},
		"bgp|1 of 2 sessions established; 'sluice bgp' has more\n|a: why":                                      {Peers: 2, Down: []string{"a: why"}},
		"bgp|none of 5 sessions established; 'sluice bgp' has more\n|a\n|b\n|c\n|and 2 more without a session": {Peers: 5, Down: []string{"a", "b", "c", "d", "e"}},
	} {
		var lines []string
		bgpRow(func(name, format string, args ...any) { lines = append(lines, name+"|"+fmt.Sprintf(format, args...)) }, s)
		if got := strings.Join(lines, "\n"); got != want {
			t.Errorf("%+v: %s, want %s", s, got, want)
		}
	}
}

// A password is what a file holds; an empty file holds none, and no name leads out of the folder.
func TestPasswordsIn(t *testing.T) {
	folder := t.TempDir()
	for name, text := range map[string]string{"bgp/tor": "secret\n", "bgp/empty": "\n", "..data/key": "linked"} {
		if err := os.MkdirAll(filepath.Join(folder, filepath.Dir(name)), 0o700); err != nil {
			t.Fatal(err)
		}
		write(t, folder, name, text)
	}
	if err := os.Symlink("../..data/key", filepath.Join(folder, "bgp", "key")); err != nil { // as Kubernetes mounts them
		t.Fatal(err)
	}
	write(t, filepath.Dir(folder), "outside", "x")
	for key, want := range map[string]string{"tor": "secret", "key": "linked", "empty": "", "none": "", "../../outside": ""} {
		if text, ok := passwordsIn(folder)(model.SecretRef{Name: "bgp", Key: key}); text != want || ok != (want != "") {
			t.Errorf("%s: %q, %v, want %q", key, text, ok, want)
		}
	}
	if _, ok := passwordsIn(filepath.Join(folder, "none"))(model.SecretRef{Name: "bgp", Key: "tor"}); ok {
		t.Error("there is a password in a folder that is not there")
	}
}
