package ipvs

import (
	"cmp"
	"maps"
	"net/netip"
	"slices"

	"sluice.dev/sluice/internal/model"
	"sluice.dev/sluice/internal/state"
)

// server is a virtual server: how it chooses, and the weight of each destination. One without a
// weight gets no new connections; those that it has go on.
type server struct {
	scheduler string
	weights   map[netip.AddrPort]uint32
}

// serverOf is the virtual server of a frontend, by the node's scheduler where it has none of its
// own; nil: it needs none. Endpoints to which only existing connections go on have no weight.
func serverOf(k state.FrontendKey, f *state.Frontend, scheduler string) *server {
	if f == nil {
		return nil
	}
	may := f.Alive
	if k.Protocol == model.UDP {
		may = f.Serving
	}
	if len(may)+len(f.Backends) == 0 {
		return nil
	}
	s := &server{scheduler: cmp.Or(f.IPVSScheduler, scheduler), weights: make(map[netip.AddrPort]uint32, len(may))}
	for _, b := range may {
		s.weights[b] = 0
	}
	for _, b := range f.Backends {
		s.weights[b] = 1
	}
	return s
}

// serves reports whether new connections have somewhere to go.
func (s *server) serves() bool {
	if s != nil {
		for _, weight := range s.weights {
			if weight > 0 {
				return true
			}
		}
	}
	return false
}

// changes are what makes of one version of a virtual server another one; either may be nil. What
// takes connections is before what nftables does, and what no longer does after it. The first
// destinations of a virtual server of UDP come after it, too: before that, flows that went astray
// are to be forgotten.
func changes(k state.FrontendKey, old, now *server) (before, after []op) {
	switch {
	case now == nil && old == nil:
		return nil, nil
	case now == nil:
		return nil, []op{{cmd: cmdDelService, key: k}}
	case old == nil:
		before = append(before, op{cmd: cmdNewService, key: k, scheduler: now.scheduler})
		old = &server{}
	case old.scheduler != now.scheduler:
		before = append(before, op{cmd: cmdSetService, key: k, scheduler: now.scheduler})
	}
	first := k.Protocol == model.UDP && !old.serves()
	for _, b := range sorted(now.weights) {
		weight := now.weights[b]
		was, is := old.weights[b]
		o := op{cmd: cmdSetDest, key: k, dest: b, weight: weight}
		if !is {
			o.cmd = cmdNewDest
		}
		switch {
		case is && weight == was:
		case is && weight < was, first:
			after = append(after, o)
		default:
			before = append(before, o)
		}
	}
	for _, b := range sorted(old.weights) {
		if _, stays := now.weights[b]; !stays {
			after = append(after, op{cmd: cmdDelDest, key: k, dest: b})
		}
	}
	return before, after
}

func sorted(m map[netip.AddrPort]uint32) []netip.AddrPort {
	return slices.SortedFunc(maps.Keys(m), netip.AddrPort.Compare)
}
