package compile_test

import (
	"net/netip"
	"slices"
	"strings"
	"testing"

	speaker "sluice.dev/sluice/internal/bgp"
	"sluice.dev/sluice/internal/compile"
	"sluice.dev/sluice/internal/model"
	services "sluice.dev/sluice/internal/services/compile"
	"sluice.dev/sluice/internal/state"
	"sluice.dev/sluice/internal/store"
)

// What the objects say goes to the speaker, and what it learns into the fabric, but for what each
// node serves by itself and what would keep the node from its API.
func TestBGP(t *testing.T) {
	st := store.New()
	far, via := netip.MustParseAddr("198.51.100.9"), netip.MustParseAddr("192.0.2.254")
	device := "eth0"
	c := compile.New(compile.Config{Config: services.Config{Node: "own", Fabric: true, APIServers: []netip.AddrPort{netip.MustParseAddrPort("203.0.113.1:6443")}, ServiceCIDRs: []netip.Prefix{netip.MustParsePrefix("172.18.0.0/16")}}, Addresses: true, BGP: true, BGPPort: 1790, Pools: []*model.IPPool{{Name: "pods", CIDR: netip.MustParsePrefix("10.0.0.0/8")}}, Secret: func(ref model.SecretRef) (string, bool) { return "p", ref.Name == "s" }, Resolve: func(a netip.Addr) (netip.Addr, string) { return via, map[bool]string{true: device}[a == far] }})
	c.SetUnderlay([]model.HostAddress{{Prefix: netip.MustParsePrefix("192.0.2.1/24"), Device: "eth0", MTU: 1500}})
	set := func(objects ...model.Object) state.Delta {
		var events []store.Event
		for _, o := range objects {
			events = append(events, store.Event{Kind: o.Ref().Kind, Name: o.Ref().Name, Object: o})
		}
		st.Apply(events)
		return c.Update(st, st.Take())
	}
	if o := c.BGP.Changes(); !o.IsZero() {
		t.Errorf("before it knows its Node, %+v", o)
	}
	set(
		&model.Node{Name: "own", IPs: []netip.Addr{netip.MustParseAddr("192.0.2.1")}, PodCIDRs: []netip.Prefix{netip.MustParsePrefix("10.244.1.0/24")}},
		&model.Node{Name: "b", IPs: []netip.Addr{netip.MustParseAddr("192.0.2.2")}, PodCIDRs: []netip.Prefix{netip.MustParsePrefix("10.244.2.0/24")}},
		&model.BGPConfiguration{Name: "default", ClusterIPs: []netip.Prefix{netip.MustParsePrefix("172.30.0.0/16")}, MeshPassword: model.SecretRef{Name: "s", Key: "k"}},
	)
	o := c.BGP.Changes()
	if o.Settings == nil || o.Settings.Port != 1790 || len(o.Peers) != 1 || o.Peers["mesh b"].Port != 1790 || o.Peers["mesh b"].Password != "p" || len(o.Routes) != 2 {
		t.Errorf("%+v", o)
	}
	if v, issues := c.BGP.View(), c.BGPIssues(); v.AS != 64512 || len(v.Peers) != 1 || len(v.Routes) != 2 || len(issues) > 0 {
		t.Errorf("%+v, %v", v, issues)
	}

	waits := &model.BGPPeer{Name: "tor", Filters: []string{"f"}}
	set(waits)
	if issues := c.BGPIssues(); len(issues) != 1 || !strings.HasPrefix(issues[0].String(), "BGPPeer tor: spec.filters: there is no BGPFilter f") {
		t.Errorf("what is shown of BGP names %v", issues)
	}
	st.Apply([]store.Event{{Kind: waits.Ref().Kind, Name: waits.Ref().Name}})
	if peers, routes := c.BGP.Counts(); !slices.Equal(peers, []string{"mesh b"}) || routes != 2 {
		t.Errorf("counts %v, %d", peers, routes)
	}

	learned := map[netip.Prefix]*speaker.Learned{}
	for to, by := range map[string]string{"172.16.0.0/16": "192.0.2.9", "172.17.0.0/16": far.String(), "172.30.0.0/16": "192.0.2.2", "172.18.4.0/24": "192.0.2.2", "203.0.113.0/24": "192.0.2.9"} {
		learned[netip.MustParsePrefix(to)] = &speaker.Learned{Peer: "mesh b", NextHop: netip.MustParseAddr(by)}
	}
	c.SetLearned(learned)
	if d := set(); len(d.Fabric.Routes) != 2 || d.Fabric.Routes[netip.MustParsePrefix("172.17.0.0/16")].Via != via || d.Fabric.Routes[netip.MustParsePrefix("172.16.0.0/16")].Device != "eth0" {
		t.Errorf("%+v", d.Fabric.Routes)
	}
	named := func(text string) bool {
		return slices.ContainsFunc(c.Issues(), func(i model.Issue) bool { return strings.Contains(i.String(), text) })
	}
	if !named("it holds 203.0.113.1/32, the API server") {
		t.Error(c.Issues())
	}
	if issues := c.BGPIssues(); len(issues) != 1 || !strings.HasPrefix(issues[0].String(), "peer mesh b: ") {
		t.Errorf("what is shown of BGP names %v", issues)
	}
	for to, why := range map[string]string{
		"172.16.0.0/16": "", "172.19.0.0/16": "", "172.18.4.0/24": "this node serves Services by itself", "172.30.0.0/16": "this node serves Services by itself", "203.0.113.0/24": "it holds 203.0.113.1/32",
	} {
		if got := c.Fabric.NotFollowed(netip.MustParsePrefix(to)); !strings.HasPrefix(got, why) || (got == "") != (why == "") {
			t.Errorf("%s is not followed: %q, want %q", to, got, why)
		}
	}
	c.SetAPIServers([]netip.AddrPort{netip.MustParseAddrPort("203.0.114.1:6443")})
	if d := set(); len(d.Fabric.Routes) != 1 || named("the API server") {
		t.Errorf("%+v, %v", d.Fabric.Routes, c.Issues())
	}
	device = ""
	c.SetLinks(model.Links{})
	if d := set(); len(d.Fabric.Routes) != 1 || !named("this node has no route to the next hop 198.51.100.9") {
		t.Errorf("%+v, %v", d.Fabric.Routes, c.Issues())
	}
}

// A BGPAdvertisement that waits for a Community announces nothing, so that somebody is told who
// expects it to. A version that waits leaves the one before in force.
func TestWaitingAdvertisementAnnouncesNothing(t *testing.T) {
	const nobody = "nobody announces its addresses: "
	lb := func(name string) model.Name { return model.Name{Namespace: "lb", Name: name} }
	advert := func(communities ...string) *model.BGPAdvertisement {
		return &model.BGPAdvertisement{Name: lb("bgp"), Length4: 32, Length6: 128, Communities: communities,
			Advertised: model.Advertised{Nodes: model.Everything(), Services: model.Everything()}}
	}
	vpn := &model.Community{Name: lb("c"), Aliases: map[string]string{"vpn": "64500:7"}}
	cluster := []model.Object{
		&model.Node{Name: "here", IPs: []netip.Addr{netip.MustParseAddr("192.0.2.1")}},
		&model.IPAddressPool{Name: lb("outside"), Services: model.Everything(), Ranges: []model.AddressRange{{First: netip.MustParseAddr("198.51.100.1"), Last: netip.MustParseAddr("198.51.100.9")}}},
		&model.Service{Name: model.Name{Namespace: "shop", Name: "web"}, ClusterIPs: []netip.Addr{netip.MustParseAddr("10.96.0.1")},
			LoadBalancer: &model.LoadBalancer{Wanted: true}, Ports: []model.ServicePort{{Protocol: model.TCP, Port: 80}}},
	}
	st, c := store.New(), compile.New(compile.Config{Config: services.Config{Node: "here"}, Addresses: true, BGP: true})
	for _, step := range []struct {
		what   string
		events []store.Event
		told   bool
	}{
		{"it waits", events(append(cluster, advert("vpn"))...), true},
		{"the Community comes", events(vpn), false},
		{"the Community goes", []store.Event{gone(vpn)}, false},
		{"another version waits", events(advert("other")), false},
		{"it goes", []store.Event{gone(advert())}, true},
		{"it comes and waits", events(advert("vpn")), true},
		{"it waits for nothing any more", events(advert("64500:8")), false},
	} {
		st.Apply(step.events)
		c.Update(st, st.Take())
		told := slices.ContainsFunc(c.Issues(), func(i model.Issue) bool { return strings.Contains(i.Reason, nobody) })
		if told != step.told {
			t.Errorf("%s: told that nobody announces: %v, want %v: %v", step.what, told, step.told, c.Issues())
		}
	}
}
