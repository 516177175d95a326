package nftables_test

import (
	"bytes"
	"fmt"
	"net/netip"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	farm "sluice.dev/sluice/internal/balancer/compile"
	"sluice.dev/sluice/internal/driver"
	"sluice.dev/sluice/internal/kernel/nft"
	"sluice.dev/sluice/internal/model"
	"sluice.dev/sluice/internal/state"
)

// poison has the kernel refuse what holds these bytes; none: nothing.
func (w *site) poison(all ...[]byte) {
	for _, s := range w.rules().Sockets() {
		s.Refuse = func(messages [][]byte, _ []string) error {
			for _, m := range messages {
				for _, p := range all {
					if bytes.Contains(m, p) {
						return nft.Answer("commit", unix.EINVAL)
					}
				}
			}
			return nil
		}
	}
}

// placeKey is what elements of a place hold.
func placeKey(port uint16) []byte {
	var e nft.Element
	e.AppendDestination(nft.IPv4, netip.MustParseAddr(virtual4), unix.IPPROTO_TCP, port)
	return e.Key[:e.KeyLen]
}

// aside are what is set aside.
func (w *site) aside() (names []string) {
	for _, s := range w.driver.SetAside() {
		names = append(names, s.Object())
	}
	return names
}

func (w *site) mustAside(names ...string) {
	w.t.Helper()
	if have := w.aside(); fmt.Sprint(have) != fmt.Sprint(names) {
		w.t.Errorf("%v are set aside, want %v", have, names)
	}
}

// TestRefused has the kernel refuse some farms: all others are served, at first, by a change, and
// by a driver that finds a table, while clients connect. What is refused is named, and tried again.
func TestRefused(t *testing.T) {
	t.Parallel()
	for name, direct := range map[string]bool{"tracked": false, "direct": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w, _ := newDirectSite(t, 3)
			one := func(name string, at80 uint16) *model.Farm {
				f := &model.Farm{Name: name, Mode: model.SNAT, Addresses: []model.FarmAddress{at(virtual4, port(at80))}, Backends: backends(3, true, 80)}
				if direct {
					f = dsr(virtual4, true, port(at80))
					f.Name, f.Refuse = name, false
				}
				return f
			}
			w.poison(placeKey(81), placeKey(5300))
			w.set(one("good", 80), one("bad", 81))
			w.mustAside("Farm bad")
			w.settled()
			load := w.load(hostPort(virtual4, "80"))
			compiled := func(f *model.Farm) *state.Farm { return w.farms(f).Farms.Farms[f.Name] }
			w.change(state.Delta{Farms: state.FarmsDelta{Farms: map[string]*state.Farm{"worse": compiled(one("worse", 5300)), "later": compiled(one("later", 8080))}}})
			w.mustAside("Farm bad", "Farm worse")
			if !direct {
				w.answers(1, "tcp", hostPort(virtual4, "8080"))
			}
			if text := w.driver.SetAside()[0].Reason; !strings.Contains(text, "invalid argument") {
				t.Error(text)
			}
			w.driver.Held(func(s *state.State) {
				if s.Farms.Farms["bad"] != nil || s.Farms.Farms["good"] == nil {
					t.Errorf("held are %v", s.Farms.Farms)
				}
			})
			w.restart()
			w.poison(placeKey(81))
			w.apply(w.driver.Adopt(t.Context(), w.state, driver.Keep{}))
			w.mustAside("Farm bad")
			w.settled()
			w.poison()
			w.apply(w.driver.Adopt(t.Context(), w.state, driver.Keep{}))
			w.mustAside()
			w.answers(1, "tcp", hostPort(virtual4, "81"))
			w.settled()
			load()
		})
	}
}

// TestRefusedList has the kernel refuse a list: the farm that names it is not served without.
func TestRefusedList(t *testing.T) {
	t.Parallel()
	w := newSite(t, 1)
	bad := netip.MustParseAddr("192.0.2.77").AsSlice()
	w.set(persistent())
	w.poison(bad)
	listed := &model.Farm{Name: "listed", Mode: model.DNAT, Lists: []string{"deny"}, Addresses: []model.FarmAddress{at(virtual4, port(81))}, Backends: backends(1, true, 81)}
	lists := func(ranges ...string) map[string]*model.FarmList {
		return map[string]*model.FarmList{"deny": list("deny", false, ranges...)}
	}
	f := farm.Compile(listed, nil)
	w.change(state.Delta{Farms: state.FarmsDelta{Farms: map[string]*state.Farm{"listed": f}, Lists: lists("192.0.2.77")}})
	w.mustAside("Farm listed")
	w.answers(1, "tcp", hostPort(virtual4, "80"))
	w.change(state.Delta{Farms: state.FarmsDelta{Lists: lists("192.0.2.78")}})
	w.mustAside()
	w.answers(1, "tcp", hostPort(virtual4, "81"))
}
