package nftables_test

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"sluice.dev/sluice/internal/model"
	"sluice.dev/sluice/internal/state"
	"sluice.dev/sluice/test/world"
)

// list is one of ranges, each an address, "first-last" or a prefix.
func list(name string, allow bool, ranges ...string) *model.FarmList {
	l := &model.FarmList{Name: name, Allow: allow}
	for _, text := range ranges {
		p, err := netip.ParsePrefix(text)
		if err != nil {
			a := netip.MustParseAddr(text)
			p = netip.PrefixFrom(a, a.BitLen())
		}
		l.Ranges = append(l.Ranges, model.AddressRange{First: p.Addr(), Last: model.Last(p)})
	}
	return l
}

// lists has the balancer look in these lists, and in no others.
func (w *site) lists(all ...*model.FarmList) {
	w.t.Helper()
	d := state.FarmsDelta{Lists: map[string]*model.FarmList{}}
	for name := range w.state.Farms.Lists {
		d.Lists[name] = nil
	}
	for _, l := range all {
		d.Lists[l.Name] = l
	}
	w.change(state.Delta{Farms: d})
}

// thirdClient is behind an interface of the balancer that has no address: it has no chain of its
// own.
func (w *site) thirdClient() *world.Host {
	c := world.NewHost(w.t, "client3")
	c.Join("eth0", w.balancer, "bare")
	c.Address("eth0", "10.3.0.2/24", "fd03::2/64")
	w.balancer.Behind("bare", "10.3.0.2/32", "fd03::2/128")
	c.Behind("eth0", virtual4+"/32", virtual6+"/128")
	c.Neighbour("eth0", w.balancer, "bare", virtual4, virtual6)
	return c
}

// reach has a connection be answered, or get no answer for a moment.
func (w *site) reach(from *world.Host, to, addr string, pass bool) error {
	limit := map[bool]time.Duration{true: world.Patience, false: 50 * time.Millisecond}[pass]
	c, err := from.Dial("tcp", addr, to, limit)
	switch {
	case err == nil:
		_ = c.Close()
		if !pass {
			return errors.New("it was answered")
		}
	case !pass && world.TimedOut(err):
		return nil
	}
	return err
}

// TestLists asks farms of all modes from clients on and off lists, by each interface.
func TestLists(t *testing.T) {
	t.Parallel()
	bothDirect(t, func(t *testing.T, w *site, clients []*world.Host, is4 bool, virtual string) {
		clients = append(clients, w.thirdClient())
		addrs := map[bool][]string{true: {"10.0.0.2", "10.2.0.2", "10.3.0.2"}, false: {"fd00::2", "fd02::2", "fd03::2"}}[is4]
		net := map[bool]string{true: "10.0.0.0/8", false: "fd00::/13"}[is4]
		snat := model.Farm{Name: "web", Mode: model.SNAT, Addresses: []model.FarmAddress{at(virtual, port(80))}, Backends: backends(3, is4, 0), Lists: []string{"first", "second"}}
		direct := snat
		direct.Mode = model.DSR
		spans := snat
		spans.Addresses = []model.FarmAddress{at(virtual, model.PortSpan{First: 80, Last: 90})}
		anywhere := snat
		anywhere.Addresses = []model.FarmAddress{{Protocols: snat.Addresses[0].Protocols, Ports: []model.PortSpan{port(80)}, IPv4: is4, IPv6: !is4}}
		for name, f := range map[string]*model.Farm{"snat": &snat, "dsr": &direct, "a range of ports": &spans, "every address": &anywhere} {
			w.set(f)
			for _, c := range []struct {
				name  string
				lists []*model.FarmList
				pass  [3]bool
			}{
				{"no list", nil, [3]bool{true, true, true}},
				{"a denied address", []*model.FarmList{list("first", false, addrs[0])}, [3]bool{false, true, true}},
				{"others", []*model.FarmList{list("first", false, addrs[1], addrs[2])}, [3]bool{true, false, false}},
				{"a denied network", []*model.FarmList{list("second", false, net)}, [3]bool{}},
				{"an exception", []*model.FarmList{list("first", true, addrs[1]), list("second", false, net)}, [3]bool{false, true, false}},
				{"an exception that comes too late", []*model.FarmList{list("first", false, net), list("second", true, addrs[1])}, [3]bool{}},
				{"a list that no farm names", []*model.FarmList{list("other", false, net)}, [3]bool{true, true, true}},
			} {
				w.lists(c.lists...)
				for i, client := range clients {
					if i == 2 && f.Mode == model.DSR { // its interface has no address: it is not served
						continue
					}
					if err := w.reach(client, hostPort(virtual, "80"), addrs[i], c.pass[i]); err != nil {
						t.Fatalf("%s, %s, client %d: %v\n%s", name, c.name, i, err, w.list())
					}
				}
			}
		}
		w.set()
		w.lists()
	})
}

// TestListChanges has a change cost what it is about, and a new driver find nothing to do.
func TestListChanges(t *testing.T) {
	t.Parallel()
	w := newSite(t, 1)
	f := &model.Farm{Name: "web", Mode: model.DNAT, Addresses: []model.FarmAddress{at(virtual4, port(80))}, Backends: backends(1, true, 0), Lists: []string{"many"}}
	var many []string
	for i := range 5000 {
		many = append(many, fmt.Sprintf("198.%d.%d.%d", 18+i>>16, i>>8&255, i&255))
	}
	w.set(f)
	w.lists(list("many", false, many...))
	for _, now := range [][]string{many[:4999], many[1:], append([]string{"198.0.0.0/16"}, many...)} {
		d := state.Delta{Farms: state.FarmsDelta{Lists: map[string]*model.FarmList{"many": list("many", false, now...)}}}
		p, err := w.driver.Update(t.Context(), d)
		w.must(err)
		if p.Len() == 0 || p.Len() > 10 {
			t.Errorf("%d operations", p.Len())
		}
		w.must(p.Apply(t.Context()))
		w.state.Apply(d)
		w.settled()
	}
	w.restart()
	w.settled()
}

// TestListsWhileInterfacesChange has a client that a list denies send while the interface that it
// comes by gets a chain of its own and loses it. It meets the list by one way or the other.
func TestListsWhileInterfacesChange(t *testing.T) {
	t.Parallel()
	w := newSite(t, 2)
	w.set(&model.Farm{Name: "web", Mode: model.DNAT, Lists: []string{"bad"}, Addresses: []model.FarmAddress{at(virtual4, port(7005))}, Backends: backends(2, true, 7005)})
	w.lists(list("bad", false, "10.0.0.3"))
	front := w.balancer.Device("front").Attrs().Index
	w.balancer.Flood([]*world.Flow{{Name: "listed", Host: w.client, From: "10.0.0.3", To: hostPort(virtual4, "7005"), Early: true}}, func() {
		for i := range 100 {
			delta := state.Delta{Farms: state.FarmsDelta{Devices: map[int]bool{front: i%2 == 1}}}
			w.state.Apply(delta)
			w.apply(w.driver.Update(t.Context(), delta))
		}
	})
	w.settled()
}

// TestLongNames has farms name lists whose names fit no comment of the kernel's.
func TestLongNames(t *testing.T) {
	t.Parallel()
	w := newSite(t, 1)
	name := strings.Repeat("ü", 150)
	w.lists(list(name, false, "10.0.0.3"))
	w.set(&model.Farm{Name: "web", Mode: model.DNAT, Lists: []string{name}, Addresses: []model.FarmAddress{at(virtual4, port(80))}, Backends: backends(1, true, 80)})
	w.mustAside()
	w.must(w.reach(w.client, hostPort(virtual4, "80"), "10.0.0.2", true))
	w.must(w.reach(w.client, hostPort(virtual4, "80"), "10.0.0.3", false))
}

// TestListed reads what an earlier driver has put on lists.
func TestListed(t *testing.T) {
	t.Parallel()
	w := newSite(t, 1)
	listed := func(want string, lists ...string) {
		t.Helper()
		nets, err := w.rules().Listed(t.Context(), lists)
		w.must(err)
		for _, all := range nets {
			slices.SortFunc(all, netip.Prefix.Compare)
		}
		if got := fmt.Sprint(nets); got != want {
			t.Errorf("lists %q: %s, want %s", lists, got, want)
		}
	}
	listed("map[]", "bad") // there is no table
	w.lists(list("bad", false, "10.0.0.3", "10.9.0.0/16", "fd00::3", "fd09::/16"), list("good", true, "10.0.0.3"), list("none", false))
	w.restart()
	listed("map[bad:[10.0.0.3/32 10.9.0.0/16 fd00::3/128 fd09::/16]]", "bad", "none", "other")
	listed("map[bad:[10.0.0.3/32 10.9.0.0/16 fd00::3/128 fd09::/16] good:[10.0.0.3/32]]", "bad", "good")
	listed("map[]")
}
