package compile

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"
	"testing"
	"time"

	"sluice.dev/sluice/internal/model"
	"sluice.dev/sluice/internal/policy/compile/objects"
)

// Each interface has the host endpoint that fits it best, the oldest of several; one that has none
// fits the interface that is said to be another's, if it fits any.
func TestHostEndpointsFit(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	some := func() (list []netip.Addr) {
		for range random.IntN(3) {
			list = append(list, netip.AddrFrom4([4]byte{192, 0, 2, byte(random.IntN(5))}))
		}
		return list
	}
	fits := func(h *model.HostEndpoint, l *model.Link) int {
		switch {
		case l.Pod:
			return 0
		case h.Interface == l.Name:
			return fitsName
		case h.Interface == "" && slices.ContainsFunc(h.Addresses, func(a netip.Addr) bool { return slices.Contains(l.Addresses, a) }):
			return fitsAddress
		case h.Interface == "*" && l.Host && l.Name != "lo":
			return fitsNode
		}
		return 0
	}
	for range 2_000 {
		h := &hosts{links: &links{}, all: map[model.Ref]*endpoint{}, stale: true, marked: map[*endpoint]struct{}{}}
		for i, name := range []string{"lo", "eth0", "eth1", "cali1"} {
			h.links.Links.Links = append(h.links.Links.Links, model.Link{Index: i + 1, Name: name, Pod: name == "cali1", Host: random.IntN(4) > 0, Addresses: some()})
		}
		var hosts []*model.HostEndpoint // the oldest first; those of one age, and those without, by name
		for i := range random.IntN(8) {
			host := &model.HostEndpoint{Name: fmt.Sprint("h", 9-i), Interface: []string{"", "*", "eth0", "cali1", "none"}[random.IntN(5)], Addresses: some()}
			if i < 6 {
				host.Name, host.Created = fmt.Sprint("h", random.IntN(2), i), time.Unix(int64(i), 0)
			}
			h.all[host.Ref()] = &endpoint{item: &objects.Item{Host: host}}
			hosts = append(hosts, host)
		}
		if len(hosts) == 8 {
			hosts[6], hosts[7] = hosts[7], hosts[6]
		}
		h.assign()
		has := map[*endpoint]bool{}
		for i := range h.links.Links.Links {
			l := &h.links.Links.Links[i]
			var want *endpoint
			rank := 0
			for _, host := range hosts {
				if r := fits(host, l); r > rank {
					want, rank = h.all[host.Ref()], r
				}
			}
			if h.assigned[l.Index] != want {
				t.Fatalf("%+v has %v, want %v", l, h.assigned[l.Index], want)
			}
			has[want] = true
		}
		for _, e := range h.all {
			any := slices.ContainsFunc(h.links.Links.Links, func(l model.Link) bool { return fits(e.item.Host, &l) > 0 })
			if e.linked != has[e] || (e.fits != nil) != any || any && fits(e.item.Host, e.fits) == 0 {
				t.Fatalf("%+v: linked %t, fits %v", e.item.Host, e.linked, e.fits)
			}
		}
	}
}
