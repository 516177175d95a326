package ipvs

import (
	"cmp"
	"fmt"
	"maps"
	"net/netip"
	"slices"

	"sluice.dev/sluice/internal/model"
	"sluice.dev/sluice/internal/state"
)

// server is a virtual server: how it chooses, and its destinations.
type server struct {
	method
	dests map[netip.AddrPort]destination
}

// method is how a virtual server chooses: by a scheduler of the kernel with its flags, and how many
// seconds a client stays on its destination; 0: it does not.
type method struct {
	scheduler string
	flags     uint32
	persist   uint32
}

func (m method) String() string {
	text := "scheduler " + m.scheduler
	if m.flags&flagPorts != 0 {
		text += " with ports"
	}
	if m.persist > 0 {
		text += fmt.Sprintf(", persistence %d s", m.persist)
	}
	return text
}

// destination is how a virtual server sends to one. One without a weight gets no new connections;
// those that it has go on.
type destination struct{ weight, forward uint32 }

func (d destination) String() string {
	return fmt.Sprintf("weight %d", d.weight) + map[uint32]string{direct: ", direct routing", tunnelling: ", tunnelling"}[d.forward]
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
	s := &server{method{scheduler: cmp.Or(f.IPVSScheduler, scheduler)}, make(map[netip.AddrPort]destination, len(may))}
	for _, b := range may {
		s.dests[b] = destination{}
	}
	for _, b := range f.Backends {
		s.dests[b] = destination{weight: 1}
	}
	return s
}

// serves reports whether new connections have somewhere to go.
func (s *server) serves() bool {
	if s != nil {
		for _, d := range s.dests {
			if d.weight > 0 {
				return true
			}
		}
	}
	return false
}

// changes appends what makes of one version of a virtual server another one; either may be nil.
// What takes connections is before what nftables does, and what no longer does after it. The first
// destinations of a virtual server of UDP come after it, too: before that, flows that went astray
// are to be forgotten.
func changes(before, after []op, k state.FrontendKey, old, now *server) ([]op, []op) {
	switch {
	case now == nil && old == nil:
		return before, after
	case now == nil:
		return before, append(after, op{cmd: cmdDelService, key: k})
	case old == nil:
		before = append(before, op{cmd: cmdNewService, key: k, method: now.method})
		old = &server{}
	case old.method != now.method:
		before = append(before, op{cmd: cmdSetService, key: k, method: now.method})
	}
	first := k.Protocol == model.UDP && !old.serves()
	for _, b := range sorted(now.dests) {
		d := now.dests[b]
		was, is := old.dests[b]
		o := op{cmd: cmdSetDest, key: k, dest: b, destination: d}
		if !is {
			o.cmd = cmdNewDest
		}
		switch {
		case is && d == was:
		case is && d.weight < was.weight, first:
			after = append(after, o)
		default:
			before = append(before, o)
		}
	}
	for _, b := range sorted(old.dests) {
		if _, stays := now.dests[b]; !stays {
			after = append(after, op{cmd: cmdDelDest, key: k, dest: b})
		}
	}
	return before, after
}

func sorted(m map[netip.AddrPort]destination) []netip.AddrPort {
	all := slices.AppendSeq(make([]netip.AddrPort, 0, len(m)), maps.Keys(m))
	slices.SortFunc(all, netip.AddrPort.Compare)
	return all
}
