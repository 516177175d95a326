package ruleset

import (
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"sluice.dev/sluice/internal/kernel/attr"
	"sluice.dev/sluice/internal/kernel/nft"
	"sluice.dev/sluice/internal/model"
	"sluice.dev/sluice/internal/state"
)

func prefixes(s ...string) (ps []netip.Prefix) {
	for _, s := range s {
		ps = append(ps, netip.MustParsePrefix(s))
	}
	return ps
}

func addrPorts(s ...string) (as []netip.AddrPort) {
	for _, s := range s {
		as = append(as, netip.MustParseAddrPort(s))
	}
	return as
}

// printed collects elements as "set { element }", sorted.
func printed(elements func(yield func(*nft.Element))) (lines []string) {
	elements(func(e *nft.Element) { lines = append(lines, e.Set.Name+" { "+e.String()+" }") })
	slices.Sort(lines)
	return lines
}

func TestFrontendElements(t *testing.T) {
	t.Parallel()
	vip := state.FrontendKey{Addr: netip.MustParseAddr("10.96.0.1"), Protocol: model.TCP, Port: 80}
	name := model.Name{Namespace: "shop", Name: "web"}
	tests := []struct {
		name     string
		frontend state.Frontend
		want     []string
	}{
		{"one backend", state.Frontend{Service: name, Port: "http", Backends: addrPorts("10.1.0.1:8080")}, []string{
			`ip-backends { 0 . 10.96.0.1 . tcp . 80 : 10.1.0.1 . 8080 }`,
			`ip-frontends { 10.96.0.1 . tcp . 80 comment "shop/web:http" : goto ip-pick-1 }`,
		}},
		{"nobody serves", state.Frontend{Service: name, Reject: true}, []string{
			`ip-frontends { 10.96.0.1 . tcp . 80 comment "shop/web" : goto ip-reject }`,
		}},
		{"nobody serves here", state.Frontend{Service: name}, []string{
			`ip-frontends { 10.96.0.1 . tcp . 80 comment "shop/web" : drop }`,
		}},
		{"external", state.Frontend{Service: name, Kind: state.NodePort, Backends: addrPorts("10.1.0.1:8080")}, []string{
			`ip-backends { 0 . 10.96.0.1 . tcp . 80 : 10.1.0.1 . 8080 }`,
			`ip-frontends { 10.96.0.1 . tcp . 80 comment "shop/web NodePort" : goto ip-pick-1 }`,
			`ip-masquerade { 10.96.0.1 . tcp . 80 : goto ip-masquerade }`,
		}},
		{"local, none here", state.Frontend{Service: name, Kind: state.LoadBalancer, LocalOnly: true, Backends: addrPorts("10.1.0.1:8080")}, []string{
			`ip-backends { 0 . 10.96.0.1 . tcp . 80 : 10.1.0.1 . 8080 }`,
			`ip-frontends { 10.96.0.1 . tcp . 80 comment "shop/web LoadBalancer" : goto ip-pick-1 }`,
			`ip-masquerade { 10.96.0.1 . tcp . 80 : goto ip-keep }`,
			`ip-outside { 10.96.0.1 . tcp . 80 : drop }`,
			`ip-staged { 10.96.0.1 . tcp . 80 }`,
		}},
		{"local, one here", state.Frontend{Service: name, Kind: state.LoadBalancer, LocalOnly: true,
			Backends: addrPorts("10.1.0.1:8080"), Local: addrPorts("10.1.0.1:8080")}, []string{
			`ip-backends { 0 . 10.96.0.1 . tcp . 80 : 10.1.0.1 . 8080 }`,
			`ip-frontends { 10.96.0.1 . tcp . 80 comment "shop/web LoadBalancer" : goto ip-pick-1 }`,
			`ip-local { 0 . 10.96.0.1 . tcp . 80 : 10.1.0.1 . 8080 }`,
			`ip-masquerade { 10.96.0.1 . tcp . 80 : goto ip-keep }`,
			`ip-outside { 10.96.0.1 . tcp . 80 : goto ip-pick-local-1 }`,
			`ip-staged { 10.96.0.1 . tcp . 80 }`,
		}},
		{"source ranges and affinity", state.Frontend{Service: name, Affinity: time.Hour, Backends: addrPorts("10.1.0.1:8080"),
			SourceRanges: prefixes("192.0.2.0/23", "fd00::/8")}, []string{
			`ip-affine-to { 10.96.0.1 . tcp . 80 . 10.1.0.1 . 8080 }`,
			`ip-backends { 0 . 10.96.0.1 . tcp . 80 : 10.1.0.1 . 8080 }`,
			`ip-frontends { 10.96.0.1 . tcp . 80 comment "shop/web" : goto ip-pick-1 }`,
			`ip-learn { 10.96.0.1 . tcp . 80 : goto ip-learn-3600 }`,
			`ip-restricted { 10.96.0.1 . tcp . 80 }`,
			`ip-sources { 24 . 10.96.0.1 . tcp . 80 . 192.0.2.0 }`,
			`ip-sources { 24 . 10.96.0.1 . tcp . 80 . 192.0.3.0 }`,
			`ip-staged { 10.96.0.1 . tcp . 80 }`,
		}},
	}
	rs := New(Options{})
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			s := state.New()
			s.Services.Settings.MasqueradeAll = true
			s.Services.Frontends[vip] = &tt.frontend
			got := printed(func(yield func(*nft.Element)) { rs.EachElement(s, yield) })
			if !slices.Equal(got, tt.want) {
				t.Errorf("got\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(tt.want, "\n"))
			}
		})
	}
}

func TestSettingsLists(t *testing.T) {
	t.Parallel()
	rs := New(Options{})
	got := printed(func(yield func(*nft.Element)) {
		rs.SettingsLists(state.Settings{
			ServiceCIDRs: prefixes("10.96.0.0/12"),
			ClusterCIDRs: prefixes("10.0.0.0/8", "10.1.0.0/16", "255.0.0.0/8"),
			LocalCIDRs:   prefixes("10.1.0.0/16"),
		}).Elements(yield)
	})
	want := []string{
		`ip-kept-cidrs { 8 . 10.0.0.0 }`, `ip-kept-cidrs { 8 . 255.0.0.0 }`,
		`ip-own-cidrs { 16 . 10.1.0.0 }`,
		`ip-pod-cidrs { 8 . 10.0.0.0 }`, `ip-pod-cidrs { 8 . 255.0.0.0 }`,
		`ip-service-cidrs { 12 . 10.96.0.0 }`,
		`ip6-kept-cidrs { 0 . :: }`, // where the cluster is not known, every source is kept
	}
	if !slices.Equal(got, want) {
		t.Errorf("got\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
	if got := printed(rs.SettingsLists(state.Settings{MasqueradeAll: true}).Elements); len(got) != 0 {
		t.Errorf("masquerade all, but these sources are kept: %v", got)
	}
}

// The kernel's answer to a listing must read back as what was written.
func TestElementRoundTrip(t *testing.T) {
	t.Parallel()
	rs := New(Options{})
	s := state.New()
	for _, vip := range []string{"10.96.0.1", "fd00:96::1"} {
		a := netip.MustParseAddr(vip)
		backend, source := "10.1.0.1:80", "192.0.2.0/24"
		if !a.Is4() {
			backend, source = "[fd00::1]:80", "fd00:2::/64"
		}
		s.Services.Frontends[state.FrontendKey{Addr: a, Protocol: model.UDP, Port: 53}] = &state.Frontend{
			Kind: state.LoadBalancer, Backends: addrPorts(backend), Local: addrPorts(backend), LocalOnly: true,
			SourceRanges: prefixes(source), Affinity: time.Minute, Port: "dns", Service: model.Name{Namespace: "n", Name: "s"},
		}
		s.Services.ClusterIPs[a] = struct{}{}
		s.Services.Hairpins[a] = struct{}{}
	}
	s.Services.Settings.ClusterCIDRs = prefixes("10.0.0.0/8", "fd00::/8")
	rs.EachElement(s, func(e *nft.Element) {
		var a attr.Attrs
		e.Write(&a, false)
		for _, v := range attr.All(a.B) {
			if got := nft.ReadElement(e.Set, v); got != *e {
				t.Errorf("set %s: wrote %v, read %v", e.Set.Name, e, &got)
			}
		}
	})
}
