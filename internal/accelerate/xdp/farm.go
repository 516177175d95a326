package xdp

import (
	"crypto/sha256"
	"encoding/binary"
	"net/netip"
	"strings"

	"sluice.dev/sluice/internal/model"
	"sluice.dev/sluice/internal/state"
)

// place is where clients find a farm.
type place struct {
	addr  netip.Addr
	proto model.Protocol
	port  uint16
}

// target is where packets for a backend go.
type target struct {
	addr   netip.Addr
	device uint32 // 0: in IPIP, by whatever route there is
}

// half is a farm in one family, as far as the program does something for it.
type half struct {
	is4     bool
	places  []place
	by      model.FlowKey
	slots   []int16 // indexes of targets; none: it forwards nothing
	targets []target
	lists   []string // that sources are looked up in
}

// Names of accelerators.
const (
	DSR  = "dsr"
	Drop = "drop"
)

// Stages are what a program does.
type Stages struct {
	DSR  bool // forward packets of farms in mode DSR
	Drop bool // drop what lists have dropped: of farms, or of a node
}

// String returns them as --accelerate has them.
func (s Stages) String() string {
	var names []string
	if s.DSR {
		names = append(names, DSR)
	}
	if s.Drop {
		names = append(names, Drop)
	}
	return strings.Join(names, ",")
}

// mostPlaces is how many places a farm at ranges of ports may have, for which each is one of its
// own: a hash finds no ranges.
const mostPlaces = 4096

// wide reports whether a farm is at all addresses, or has too many places for the program.
func wide(f *state.Farm) bool {
	places := 0
	f.Each(func(addr netip.Addr, _ bool, _ model.Protocol, ports model.PortSpan) {
		if places += int(ports.Last) - int(ports.First) + 1; !addr.IsValid() {
			places += mostPlaces
		}
	})
	return f.InRanges() && places > mostPlaces
}

// halves are what the program does for a farm, none for nil. The rest is left to the base: wide
// farms, and those that name lists where these are left to it.
func (s Stages) halves(f *state.Farm) (all []half) {
	if f == nil || wide(f) || len(f.Lists) > 0 && !s.Drop {
		return nil
	}
	for i, is4 := range []bool{true, false} {
		h := half{is4: is4, by: f.PacketKey(), lists: f.Lists}
		if s.DSR && f.Mode == model.DSR {
			h.slots = f.Tables[i].Slots
		}
		if len(h.slots) == 0 && len(h.lists) == 0 {
			continue
		}
		f.Each(func(addr netip.Addr, of4 bool, p model.Protocol, ports model.PortSpan) {
			for port := int(ports.First); of4 == is4 && port <= int(ports.Last); port++ {
				h.places = append(h.places, place{addr, p, uint16(port)})
			}
		})
		for n := range f.Devices {
			t := target{addr: f.Backends[n].Addr}
			if !f.Tunnelled(n) {
				t.device = uint32(f.Devices[n])
			}
			h.targets = append(h.targets, t)
		}
		if len(h.places) > 0 {
			all = append(all, h)
		}
	}
	return all
}

// digest identifies a table of slots: farms with the same backends and weights share one.
type digest [sha256.Size]byte

func (h *half) digest() digest {
	b := make([]byte, 0, 20*len(h.targets)+2*len(h.slots))
	for _, t := range h.targets {
		a := t.addr.As16()
		b = binary.NativeEndian.AppendUint32(append(b, a[:]...), t.device)
	}
	for _, s := range h.slots {
		b = binary.NativeEndian.AppendUint16(b, uint16(s))
	}
	return sha256.Sum256(b)
}

// words are an address as programs have it: that of IPv4 is the first word.
func words(a netip.Addr) (w [4]uint32) {
	for i, b := 0, a.AsSlice(); i < len(b); i += 4 {
		w[i/4] = binary.NativeEndian.Uint32(b[i:])
	}
	return w
}

// network is a number in the network's byte order.
func network(n uint16) uint16 {
	return binary.NativeEndian.Uint16(binary.BigEndian.AppendUint16(nil, n))
}
