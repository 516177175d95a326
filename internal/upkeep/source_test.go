package upkeep

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"strings"
	"testing"

	"sluice.dev/sluice/internal/driver"
	"sluice.dev/sluice/internal/kernel/conntrack"
	"sluice.dev/sluice/internal/state"
	"sluice.dev/sluice/test/world"
)

func TestLost(t *testing.T) {
	at := func(device, addr string) state.SNAT {
		return state.SNAT{Device: device, Addr: netip.MustParseAddr(addr)}
	}
	before := []state.SNAT{at("eth0", "192.0.2.1"), at("eth0", "2001:db8::1"), at("eth1", "198.51.100.1"), at(state.DeviceVXLAN, "10.244.1.0")}
	for name, c := range map[string]struct {
		after []state.SNAT
		want  string
	}{
		"nothing changes":             {before, "[]"},
		"an address":                  {[]state.SNAT{before[1], before[2], before[3]}, "[192.0.2.1]"},
		"another interface has it":    {[]state.SNAT{before[1], before[2], before[3], at("br0", "192.0.2.1")}, "[]"},
		"the mode of the pod network": {before[:3], "[]"},
		"all":                         {nil, "[192.0.2.1 2001:db8::1 198.51.100.1]"},
	} {
		if got := fmt.Sprint(lost(before, c.after)); got != c.want {
			t.Errorf("%s: %s, want %s", name, got, c.want)
		}
	}
}

// stub is a driver whose plans do nothing but change what it holds.
type stub struct {
	driver.Driver
	held    state.State
	can     driver.Capability
	again   driver.Rejudger
	answers driver.Answerer
}

func (s *stub) Held(f func(*state.State))   { f(&s.held) }
func (s *stub) SetAside() []driver.SetAside { return nil }
func (s *stub) Close() error                { return nil }
func (s *stub) Capabilities() driver.Capabilities {
	return driver.Capabilities{Can: s.can, Rejudger: s.again, Answerer: s.answers}
}
func (s *stub) Update(_ context.Context, d state.Delta) (driver.Plan, error) {
	return stubPlan{done: func() { s.held.Apply(d) }}, nil
}

type stubPlan struct {
	driver.Plan
	done func()
}

func (p stubPlan) Apply(context.Context) error { p.done(); return nil }

// When an address goes that connections were given, their entries go, as those of masqueraded ones
// do; not when it is still there, nor those of connections that have the address of themselves.
func TestAddressGoes(t *testing.T) {
	h := world.NewHost(t, "node")
	h.IP("link add e0 type veth peer e0p", "link set e0p up", "link set e0 arp off", "link set e0 up")
	h.Address("e0", "192.0.2.1/24", "198.51.100.1/24")
	h.Address("lo", "10.9.9.9/32")
	h.Exec("nft", `table inet test { chain out { type nat hook postrouting priority 100;
		udp dport 1 snat ip to 192.0.2.1; udp dport 2 snat ip to 198.51.100.1; }; }`)
	of := &stub{held: state.State{Services: state.NewServices()}}
	of.held.Services.Settings.SNAT = []state.SNAT{{Device: "e0", Addr: netip.MustParseAddr("192.0.2.1")}, {Device: "e1", Addr: netip.MustParseAddr("198.51.100.1")}}
	var d *Driver
	h.In(func() (err error) {
		d, err = Open(of, driver.Options{Log: slog.New(slog.DiscardHandler)})
		for _, flow := range []struct{ from, to string }{
			{"10.9.9.9", "192.0.2.7:1"}, {"10.9.9.9", "192.0.2.7:2"}, {"192.0.2.1", "192.0.2.7:3"},
		} {
			if err != nil {
				break
			}
			var c net.Conn
			c, err = (&net.Dialer{LocalAddr: &net.UDPAddr{IP: net.ParseIP(flow.from)}}).Dial("udp4", flow.to)
			if err == nil {
				_, err = c.Write([]byte("hello"))
				c.Close()
			}
		}
		return err
	})
	defer d.Close()
	there := func() (ports string) {
		_, err := d.ct.Sweep(t.Context(), func(f conntrack.Flow) bool {
			for port := range uint16(3) {
				if f.Orig.Dst.Port() == port+1 {
					ports += fmt.Sprint(port + 1)
				}
			}
			return false
		})
		if err != nil {
			t.Error(err)
		}
		return ports
	}
	if n := len(there()); n != 3 {
		t.Fatalf("%d flows, want 3", n)
	}
	h.IP("addr del 192.0.2.1/24 dev e0")
	p, err := d.Update(t.Context(), state.Delta{Services: state.ServicesDelta{Settings: &state.Settings{}}})
	if err == nil {
		err = p.Apply(t.Context())
	}
	if err != nil {
		t.Fatal(err)
	}
	if err := d.AwaitCuts(t.Context()); err != nil {
		t.Fatal(err)
	}
	left := there()
	if !strings.Contains(left, "2") || !strings.Contains(left, "3") || len(left) != 2 {
		t.Errorf("flows to the ports %s are left, want 2 and 3", left)
	}
}
