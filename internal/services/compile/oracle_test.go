package compile_test

import (
	"fmt"
	"net/netip"
	"slices"
	"testing"

	"sluice.dev/sluice/internal/compile"
	"sluice.dev/sluice/internal/model"
	"sluice.dev/sluice/internal/state"
)

// Random endpoints, conditions, hints and policies, held against kube-proxy's
// rules written down as plainly as they can be.
func TestBackendsFollowTheRules(t *testing.T) {
	for seed := range uint64(500) {
		w := newWorld(seed)
		f := w.family()
		svc := f.service(func(s *model.Service) {
			s.ExternalIPs = f.addrs("x1")
			s.InternalLocal, s.ExternalLocal = w.chance(50), w.chance(50)
		})
		var eps []model.Endpoint
		for i := range w.IntN(9) {
			e := w.endpoint()
			e.Addr = f.addr(fmt.Sprintf("e%d", i+1))
			if w.chance(60) {
				e.ZoneHints = []string{pickOne(w, "z1", "z2")}
			}
			eps = append(eps, e)
		}
		objects := []any{svc, slice("a", eps[:len(eps)/2]...), slice("b", eps[len(eps)/2:]...)}
		zone := ""
		if w.chance(80) {
			objects, zone = append(objects, f.node()), "z1"
		}
		c := compiled(compile.Config{}, objects...)
		for address, want := range expected(svc, eps, zone) {
			key := state.FrontendKey{Addr: f.addr(address), Protocol: model.TCP, Port: 80}
			if got := c.State().Services.Frontends[key]; !got.Equal(want) {
				t.Errorf("seed %d, %+v\ngot:  %s\nwant: %s", seed, eps, showFrontend(key, got), showFrontend(key, want))
			}
		}
	}
}

// expected are the service's frontends by the name of their address.
func expected(svc *model.Service, eps []model.Endpoint, zone string) map[string]*state.Frontend {
	ready := filter(eps, func(e model.Endpoint) bool { return e.Ready })
	fallback := filter(eps, func(e model.Endpoint) bool { return e.Serving && e.Terminating })
	onNode := func(e model.Endpoint) bool { return e.Node == "here" }

	cluster := ready
	nodeHints := func(e model.Endpoint) []string { return e.NodeHints }
	zoneHints := func(e model.Endpoint) []string { return e.ZoneHints }
	if list, ok := hinted(ready, nodeHints, "here"); ok {
		cluster = list
	} else if list, ok := hinted(ready, zoneHints, zone); ok {
		cluster = list
	}
	local := filter(ready, onNode)
	if len(cluster) == 0 {
		cluster = fallback
	}
	if len(local) == 0 {
		local = filter(fallback, onNode)
	}

	serving := filter(eps, func(e model.Endpoint) bool { return e.Ready || e.Serving })
	nobody := len(ready)+len(fallback) == 0
	internal := &state.Frontend{Service: svc.Name, Port: "http", Backends: addrPorts(cluster), Reject: nobody, Alive: addrPorts(eps), Serving: addrPorts(serving)}
	external := *internal
	external.Kind = state.ExternalIP
	if svc.InternalLocal {
		internal.Backends = addrPorts(local)
	}
	if svc.ExternalLocal {
		external.LocalOnly, external.Local = true, addrPorts(local)
	}
	return map[string]*state.Frontend{"c1": internal, "x1": &external}
}

// hinted are the endpoints with a hint for us, if all have hints and one has such.
func hinted(eps []model.Endpoint, hints func(model.Endpoint) []string, us string) ([]model.Endpoint, bool) {
	without := filter(eps, func(e model.Endpoint) bool { return len(hints(e)) == 0 })
	ours := filter(eps, func(e model.Endpoint) bool { return slices.Contains(hints(e), us) })
	return ours, len(without) == 0 && len(ours) > 0
}

func filter(eps []model.Endpoint, keep func(model.Endpoint) bool) []model.Endpoint {
	var list []model.Endpoint
	for _, e := range eps {
		if keep(e) {
			list = append(list, e)
		}
	}
	return list
}

func addrPorts(eps []model.Endpoint) []netip.AddrPort {
	var list []netip.AddrPort
	for _, e := range eps {
		list = append(list, netip.AddrPortFrom(e.Addr, 8080))
	}
	return list
}
