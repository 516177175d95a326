package nftables_test

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"strings"
	"testing"
	"time"

	"sluice.dev/sluice/internal/driver"
	"sluice.dev/sluice/internal/kernel/nflog"
	"sluice.dev/sluice/internal/model"
	"sluice.dev/sluice/test/world"
)

// refusalLog reads what the balancer's kernel tells of refused connections.
func (w *site) refusalLog() *nflog.Conn {
	w.t.Helper()
	var c *nflog.Conn
	w.balancer.In(func() (err error) { c, err = nflog.Open(driver.RefusalGroup); return err })
	w.t.Cleanup(func() { _ = c.Close() })
	return c
}

// told returns who refused the next connection that the kernel tells of within a time.
func told(c *nflog.Conn, within time.Duration) (who netip.AddrPort, ok bool) {
	ctx, cancel := context.WithTimeout(context.Background(), within)
	defer cancel()
	p, err := c.Next(ctx)
	if p.About != nil {
		return netip.AddrPortFrom(p.About.Destination, p.About.DestinationPort), err == nil
	}
	return netip.AddrPortFrom(p.Source, p.SourcePort), err == nil
}

// refusal is a way in which connections to a backend are refused.
type refusal struct {
	network, addr string
	port          uint16
}

// refuse has connections to a server's ports be refused in the ways that firewalls have, and those
// to a network behind another server, which is their router; it returns all ways.
func (w *site) refuse(is4 bool) []refusal {
	w.t.Helper()
	server, far, net, router := "10.1.0.11", "10.2.0.9", "10.2.0.0/24", "10.1.0.12"
	if !is4 {
		server, far, net, router = "fd01::11", "fd02::9", "fd02::/64", "fd01::12"
	}
	const firewall = `add table inet firewall { chain input { type filter hook input priority 0
		tcp dport 7002 reject with icmpx type port-unreachable
		udp dport 7002 reject with icmpx type admin-prohibited
		tcp dport 7003 reject with tcp reset
	}; }`
	if out, err := w.servers[0].Run("nft", firewall); err != nil {
		w.t.Fatalf("%v: %s", err, out)
	}
	w.balancer.Route(net, router)
	w.servers[1].Forward()
	w.servers[1].IP("route add unreachable " + net)
	for _, s := range w.servers {
		s.Set("net.ipv4.icmp_ratelimit", "0")
		s.Set("net.ipv6.icmp.ratelimit", "0")
	}
	return []refusal{{"tcp", server, 7001}, {"tcp", server, 7002}, {"tcp", server, 7003}, {"udp", server, 7001}, {"udp", server, 7002}, {"tcp", far, 7001}}
}

// TestRefusalsAreTold has connections be refused in each way that there is, and the kernel say
// which backend they went to.
func TestRefusalsAreTold(t *testing.T) {
	t.Parallel()
	both(t, func(t *testing.T, w *site, is4 bool, virtual, _ string) {
		ways, log := w.refuse(is4), w.refusalLog()
		w.balancer.Set("net.netfilter.nf_conntrack_tcp_loose", "0")
		same := []model.FarmAddress{at(virtual, model.PortSpan{First: 7000, Last: 7100})}
		for _, f := range []model.Farm{
			{Mode: model.DNAT}, {Mode: model.SNAT}, {Mode: model.StatelessDNAT},
			{Mode: model.DNAT, Addresses: same}, {Mode: model.StatelessDNAT, Addresses: same},
			{Mode: model.SNAT, Limits: model.FarmLimits{SYNProxy: true}},
		} {
			for _, way := range ways {
				f := f
				f.Name, f.Checked, f.Backends = "web", true, backends(1, is4, way.port)
				f.Backends[0].Addr = netip.MustParseAddr(way.addr)
				if f.Addresses == nil {
					f.Addresses = []model.FarmAddress{at(virtual, port(80))}
				}
				entry := f.Addresses[0].Ports[0].First
				if entry != 80 {
					entry, f.Backends[0].Port = way.port, 0
				}
				w.set(&f)
				want, end := netip.AddrPortFrom(f.Backends[0].Addr, way.port), time.Now().Add(world.Patience)
				for got, ok := want, false; !ok || got != want; got, ok = told(log, silence) {
					if time.Now().After(end) {
						t.Fatalf("%s, %+v: not told\n%s", f.Mode, way, w.list())
					}
					if g, err := w.askWithin(way.network, hostPort(virtual, fmt.Sprint(entry)), silence); err == nil {
						t.Fatalf("%+v answers", g)
					}
				}
			}
		}
	})
}

// TestOwnRefusals has a backend on the balancer itself refuse connections.
func TestOwnRefusals(t *testing.T) {
	t.Parallel()
	both(t, func(t *testing.T, w *site, is4 bool, virtual, _ string) {
		f := &model.Farm{Name: "web", Mode: model.DNAT, Checked: true, Addresses: []model.FarmAddress{at(virtual, port(80))}, Backends: backends(1, is4, 7001)}
		f.Backends[0].Addr = netip.MustParseAddr(map[bool]string{true: "10.1.0.1", false: "fd01::1"}[is4])
		w.set(f)
		log := w.refusalLog()
		if _, err := w.ask("tcp", hostPort(virtual, "80")); err == nil {
			t.Error("a closed port answers")
		}
		if got, ok := told(log, world.Patience); !ok || got != netip.AddrPortFrom(f.Backends[0].Addr, 7001) {
			t.Errorf("told of %v\n%s", got, w.list())
		}
	})
}

// TestNoRefusals has nothing be told of connections that are served, or closed by a reset, nor of
// farms that nobody checks: no packet of theirs is looked at.
func TestNoRefusals(t *testing.T) {
	t.Parallel()
	both(t, func(t *testing.T, w *site, is4 bool, virtual, _ string) {
		log := w.refusalLog()
		w.set(&model.Farm{Name: "unchecked", Mode: model.DNAT, Addresses: []model.FarmAddress{at(virtual, port(80))}, Backends: backends(1, is4, 7001)})
		if strings.Contains(w.list(), "chain refus") {
			t.Errorf("packets of a farm that nobody checks are looked at:\n%s", w.list())
		}
		if _, err := w.ask("tcp", hostPort(virtual, "80")); err == nil {
			t.Error("a closed port answers")
		}
		for _, mode := range []model.FarmMode{model.DNAT, model.SNAT, model.StatelessDNAT} {
			w.set(&model.Farm{Name: "web", Mode: mode, Checked: true, Addresses: []model.FarmAddress{at(virtual, port(80))}, Backends: backends(1, is4, 80)})
			for range 10 {
				c, err := w.client.Dial("tcp", "", hostPort(virtual, "80"), world.Patience)
				w.must(err)
				if _, err := exchange(c); err != nil {
					t.Error(err)
				}
				w.must(c.(*net.TCPConn).SetLinger(0)) // a reset
				w.must(c.Close())
			}
			if _, err := w.askWithin("tcp", hostPort(virtual, "81"), silence); err == nil {
				t.Error("a port that no farm has answers")
			}
		}
		if who, ok := told(log, silence); ok {
			t.Errorf("told of %v", who)
		}
	})
}

// TestRefusalsAreSampled has a backend refuse a flood of connections, of which the kernel tells of
// a few, beside which another backend's refusal is told.
func TestRefusalsAreSampled(t *testing.T) {
	t.Parallel()
	w := newSite(t, 2)
	f := &model.Farm{Name: "web", Mode: model.SNAT, Checked: true, Addresses: []model.FarmAddress{at(virtual4, port(80))}, Backends: backends(1, true, 7001)}
	other := &model.Farm{Name: "other", Mode: model.SNAT, Checked: true, Addresses: []model.FarmAddress{at(virtual4, port(81))}, Backends: backends(2, true, 7001)[1:]}
	w.set(f, other)
	log := w.refusalLog()
	const sent = 1000
	begin := time.Now()
	for range sent {
		if _, err := w.askWithin("tcp", hostPort(virtual4, "80"), world.Patience); err == nil {
			t.Fatal("it answers")
		}
	}
	most := 1 + int(10*time.Since(begin)/time.Second) + 1
	if _, err := w.askWithin("tcp", hostPort(virtual4, "81"), world.Patience); err == nil {
		t.Fatal("it answers")
	}
	n := 0
	for who, ok := told(log, world.Patience); who.Addr() != other.Backends[0].Addr; who, ok = told(log, world.Patience) {
		if n++; !ok {
			t.Fatal("not told of another backend")
		}
	}
	if n == 0 || n > most {
		t.Errorf("told of %d of %d, want %d at the most", n, sent, most)
	}
}
