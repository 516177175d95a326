package nftables_test

import (
	"fmt"
	"net/netip"
	"testing"

	"sluice.dev/sluice/internal/model"
	"sluice.dev/sluice/test/world"
)

// TestErrors has ICMP errors about what a backend has sent come to that backend, whatever its farm
// chooses by.
func TestErrors(t *testing.T) {
	t.Parallel()
	bothDirect(t, func(t *testing.T, w *site, clients []*world.Host, is4 bool, virtual string) {
		heard := world.HearICMP(t, is4, w.byName())
		f := dsr(virtual, is4, port(5300))
		lists := map[string]*model.FarmList{"bad": {Name: "bad"}}
		tell := func(how string, e world.ICMPError, want string) {
			t.Helper()
			clients[1].SendICMP(clientAddr(1, is4), e)
			within := world.Patience
			if want == "" {
				within = silence
			}
			if got := heard.Who(e, within); got != want {
				t.Fatalf("%s: %+v is heard by %q, want %q\n%s", how, e, got, want, w.ingress())
			}
		}
		reaches := func(how string) (last world.ICMPError, server string) {
			t.Helper()
			for range 12 {
				g, err := w.ask("udp", hostPort(virtual, "5300"))
				w.must(err)
				last, server = world.TooBig(world.UDP, netip.AddrPortFrom(netip.MustParseAddr(virtual), 5300), g.Client), g.Server
				tell(how, last, server)
			}
			return last, server
		}
		for _, tt := range []struct {
			how  string
			edit func()
		}{
			{"source address and port", func() {}},
			{"source address", func() { f.Scheduler, f.HashBy = model.Hash, model.SrcIP }},
			{"Maglev, all of it", func() {
				f.Scheduler, f.HashBy = model.Maglev, model.SrcIP|model.DstIP|model.SrcPort|model.DstPort
			}},
			{"a range of ports", func() { f.Addresses = []model.FarmAddress{at(virtual, model.PortSpan{First: 5000, Last: 6000})} }},
			{"in turns", func() { f.Scheduler = model.RoundRobin }},
			{"one backend", func() { f.Backends = f.Backends[:1] }},
		} {
			copied := *f
			f = &copied
			tt.edit()
			w.set(f)
			reaches(tt.how)
		}

		copied := *f
		f = &copied
		f.Lists = []string{"bad"}
		change := func(sources ...string) {
			t.Helper()
			l := &model.FarmList{Name: "bad"}
			for _, s := range sources {
				a := netip.MustParseAddr(s)
				l.Ranges = append(l.Ranges, model.AddressRange{First: a, Last: a})
			}
			lists["bad"] = l
			delta := w.farms(f)
			delta.Farms.Lists = lists
			w.change(delta)
		}
		change("192.0.2.1", "2001:db8::1")
		e, server := reaches("a list of others")
		change(clientAddr(1, is4))
		tell("from a source on the list", e, "")
		change()
		tell("an empty list", e, server)

		for how, other := range map[string]world.ICMPError{
			"an echo request": {Type: map[bool]byte{true: 8, false: 128}[is4], Protocol: e.Protocol, From: e.From, To: e.To},
			"no farm":         {Type: e.Type, Code: e.Code, Protocol: e.Protocol, From: netip.AddrPortFrom(e.From.Addr(), 7), To: e.To},
			"no protocol":     {Type: e.Type, Code: e.Code, Protocol: 47, From: e.From, To: e.To},
		} {
			tell(how, other, "")
		}
		w.set()
		tell("no farm any more", e, "")
	})
}

// byName are the servers.
func (w *site) byName() map[string]*world.Host {
	all := map[string]*world.Host{}
	for i, s := range w.servers {
		all[fmt.Sprintf("s%d", i+1)] = s
	}
	return all
}

// TestPathMTU has servers answer over a way that is narrower than their own network, and than the
// one by which clients ask.
func TestPathMTU(t *testing.T) {
	t.Parallel()
	bothDirect(t, func(t *testing.T, w *site, clients []*world.Host, is4 bool, virtual string) {
		client := clientAddr(0, is4)
		narrow := world.NewHost(t, "narrow")
		narrow.Join("in", w.balancer, "in")
		w.balancer.Port("back", "in")
		narrow.Address("in", "10.1.0.9/24", "fd01::9/64")
		narrow.Narrow(w.client, client)
		narrow.Route(virtual4+"/32", "10.1.0.1")
		narrow.Route(virtual6+"/128", "fd01::1")
		bits := netip.MustParseAddr(client).BitLen()
		for _, s := range w.servers {
			s.IP(fmt.Sprintf("route replace %s/%d via %s", client, bits, map[bool]string{true: "10.1.0.9", false: "fd01::9"}[is4]))
			s.ServeLong(":82", 1<<20)
		}
		w.set(dsr(virtual, is4, port(80), port(82)))
		for range 4 {
			if n, err := w.client.Read(client, hostPort(virtual, "82"), world.Patience); n != 1<<20 {
				t.Fatalf("%d bytes, %v\n%s", n, err, w.ingress())
			}
		}
	})
}
