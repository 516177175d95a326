package nftables_test

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"

	farms "sluice.dev/sluice/internal/balancer/nftables"
	"sluice.dev/sluice/internal/driver"
	"sluice.dev/sluice/internal/driver/ipvs"
	"sluice.dev/sluice/internal/model"
	"sluice.dev/sluice/test/world"
)

// newDirectSite is a site whose servers have the virtual addresses and answer clients directly:
// there are two clients, each behind a device of its own of the balancer, and both have an
// interface on the servers' network, too.
func newDirectSite(t *testing.T, servers int) (w *site, clients []*world.Host) {
	w = newSite(t, servers)
	other := world.NewHost(t, "client2")
	other.Join("eth0", w.balancer, "front2")
	other.Address("eth0", "10.2.0.2/24", "fd02::2/64")
	w.balancer.Address("front2", "10.2.0.1/24", "fd02::1/64")
	other.Gateway("10.2.0.1", "fd02::1")
	clients = []*world.Host{w.client, other}
	for _, key := range []string{"iptables", "ip6tables"} { // the bridge stands for a switch
		_ = w.balancer.Sysctl("net.bridge.bridge-nf-call-"+key, "0")
	}
	for i, c := range clients {
		port := fmt.Sprintf("c%d", i)
		c.Join("direct", w.balancer, port)
		w.balancer.Port("back", port)
		c.Address("direct", fmt.Sprintf("10.1.0.20%d/24", i), fmt.Sprintf("fd01::20%d/64", i))
	}
	for i, s := range w.servers {
		s.Set("net.ipv4.conf.all.arp_ignore", "1")
		s.Set("net.ipv4.conf.all.arp_announce", "2")
		s.Address("lo", virtual4+"/32", virtual6+"/128")
		for to, via := range map[string]string{"10.0.0.2/32": "10.1.0.200", "10.2.0.2/32": "10.1.0.201", "fd00::2/128": "fd01::200", "fd02::2/128": "fd01::201"} {
			s.Route(to, via)
		}
		for _, addr := range []string{virtual4, virtual6} { // an answer is to come from where the client asked
			s.ServeUDP(fmt.Sprintf("s%d", i+1), hostPort(addr, "5300"))
		}
	}
	return w, clients
}

// clientAddr is the address of a client by which it is known at its own network.
func clientAddr(i int, is4 bool) string {
	return map[bool][]string{true: {"10.0.0.2", "10.2.0.2"}, false: {"fd00::2", "fd02::2"}}[is4][i]
}

func bothDirect(t *testing.T, f func(t *testing.T, w *site, clients []*world.Host, is4 bool, virtual string)) {
	for _, is4 := range []bool{true, false} {
		t.Run(map[bool]string{true: "IPv4", false: "IPv6"}[is4], func(t *testing.T) {
			t.Parallel()
			w, clients := newDirectSite(t, 3)
			f(t, w, clients, is4, map[bool]string{true: virtual4, false: virtual6}[is4])
		})
	}
}

func dsr(virtual string, is4 bool, ports ...model.PortSpan) *model.Farm {
	return &model.Farm{Name: "web", Mode: model.DSR, Refuse: true, Addresses: []model.FarmAddress{at(virtual, ports...)}, Backends: backends(3, is4, 0)}
}

// TestDSR has clients of two networks be answered by the servers themselves, although the balancer
// knows no neighbour at first.
func TestDSR(t *testing.T) {
	t.Parallel()
	bothDirect(t, func(t *testing.T, w *site, clients []*world.Host, is4 bool, virtual string) {
		for name, f := range map[string]*model.Farm{"ports": dsr(virtual, is4, port(80), port(5300)), "all ports": dsr(virtual, is4)} {
			w.set(f)
			if _, err := w.balancer.Run("ip", "neigh", "flush", "all"); err != nil {
				t.Fatal(err)
			}
			for i, c := range clients {
				for network, at := range map[string]string{"tcp": "80", "udp": "5300"} {
					counts := map[string]int{}
					for range 40 {
						g, err := c.Ask(network, clientAddr(i, is4), hostPort(virtual, at), world.Patience)
						if err != nil {
							t.Fatalf("%s, client %d, %s: %v\n%s", name, i, network, err, w.ingress())
						}
						if g.Client.Addr().String() != clientAddr(i, is4) {
							t.Errorf("%s: the server sees %s", name, g.Client)
						}
						counts[g.Server]++
					}
					if len(counts) != 3 {
						t.Errorf("%s, client %d, %s: %v", name, i, network, counts)
					}
				}
			}
		}
		if all := w.tracked(); len(all) > 0 {
			t.Errorf("%d connections are tracked: %s", len(all), all[0])
		}
		w.set()
		if strings.Contains(w.ingress(), "jump") {
			t.Errorf("rules stay that nothing needs:\n%s", w.ingress())
		}
	})
}

func (w *site) ingress() string {
	if _, virtual := w.driver.(*ipvs.Farms); virtual {
		return w.list()
	}
	out, err := w.balancer.Run("nft", "list", "table", "netdev", farms.TableName)
	if err != nil {
		w.t.Errorf("nft cannot list the table: %v", err)
	}
	return string(out)
}

// TestDSRStaysPut has a connection go on while other backends come and go, and its client be
// refused when nobody serves.
func TestDSRStaysPut(t *testing.T) {
	t.Parallel()
	bothDirect(t, func(t *testing.T, w *site, clients []*world.Host, is4 bool, virtual string) {
		f := func(down ...int) *model.Farm {
			f := dsr(virtual, is4, port(80))
			for _, i := range down {
				f.Backends[i].State = model.BackendDown
			}
			return f
		}
		w.set(f())
		c, err := clients[1].Dial("tcp", clientAddr(1, is4), hostPort(virtual, "80"), world.Patience)
		w.must(err)
		defer func() { _ = c.Close() }()
		first, err := exchange(c)
		w.must(err)
		for down := range 3 {
			if f().Backends[down].Name == first.Server {
				continue
			}
			for _, all := range []*model.Farm{f(down), f()} {
				w.set(all)
				if g, err := exchange(c); err != nil || g.Server != first.Server {
					t.Fatalf("%d down: %+v, %v", down, g, err)
				}
			}
		}
		w.set(f(0, 1, 2))
		if _, err := clients[1].Ask("tcp", clientAddr(1, is4), hostPort(virtual, "80"), world.Patience); err == nil || world.TimedOut(err) {
			t.Errorf("nobody serves: %v", err)
		}
		as := f()
		as.Mode = model.SNAT
		w.set(as) // another mode, and back
		if _, err := w.ask("tcp", hostPort(virtual, "80")); err != nil {
			t.Error(err)
		}
		w.set(f())
		if _, err := w.ask("tcp", hostPort(virtual, "80")); err != nil {
			t.Error(err)
		}
	})
}

// TestDSRDevices has interfaces come and go while a farm is served, and a backend that is on no
// network of the balancer get nothing.
func TestDSRDevices(t *testing.T) {
	t.Parallel()
	w, clients := newDirectSite(t, 2)
	far := dsr(virtual4, true, port(80))
	far.Backends = append(backends(2, true, 0), model.FarmBackend{Name: "far", Addr: netip.MustParseAddr("10.9.0.9"), Weight: 1, Priority: 1})
	serves := func(client int, want bool) {
		t.Helper()
		for range 20 {
			if _, err := clients[client].Ask("tcp", clientAddr(client, true), virtual4+":80", world.Patience); (err == nil) != want {
				t.Fatalf("client %d: %v\n%s", client, err, w.ingress())
			}
		}
	}
	w.set(far)
	serves(0, true)
	serves(1, true)
	w.balancer.IP("link del front2")
	w.settled() // nobody has said that it went
	w.set(far)
	serves(0, true)
	clients[1].Join("eth0", w.balancer, "front3")
	clients[1].Address("eth0", "10.2.0.2/24")
	w.balancer.Address("front3", "10.2.0.1/24")
	clients[1].Route("10.0.0.0/24", "10.2.0.1")
	w.set(far)
	serves(1, true)
}

// TestTakeOver has a second driver find all as it should be, and remove both tables.
func TestTakeOver(t *testing.T) {
	t.Parallel()
	w, clients := newDirectSite(t, 3)
	other := stateless(virtual4, true, port(8080))
	other.Name, other.Backends = "other", backends(2, true, 8080)
	third := stateless(virtual4, true, model.PortSpan{First: 81, Last: 90})
	third.Name, third.Backends = "third", backends(2, true, 0)
	w.set(dsr(virtual4, true, port(80)), other, third)
	w.restart()
	w.settled()
	for client := range clients {
		_, err := clients[client].Ask("tcp", clientAddr(client, true), virtual4+":80", world.Patience)
		w.must(err)
	}
	if tampered, err := w.driver.Tampered(t.Context()); err != nil || tampered {
		t.Errorf("tampered: %v, %v", tampered, err)
	}
	w.must(w.driver.Purge(t.Context()))
	if out, err := w.balancer.Run("nft", "list", "tables"); err != nil || strings.Contains(string(out), farms.TableName) {
		t.Errorf("%v: %s", err, out)
	}
	w.apply(w.driver.Adopt(t.Context(), w.state, driver.Keep{}))
	w.settled()
}
