package state

import (
	"cmp"
	"maps"
	"net/netip"
	"slices"
	"strings"

	"sluice.dev/sluice/internal/model"
)

// Fabric is the part of the State that says how this node reaches the pods of the others: tunnel
// devices, the far ends of the tunnels, and routes. The values behind its pointers are immutable
// once published, and comparable, except for peers.
type Fabric struct {
	Tunnels map[string]*Tunnel // by the name of the device
	VTEPs   map[VTEPKey]*VTEP
	Peers   map[model.PublicKey]*Peer // of the WireGuard device
	Routes  map[netip.Prefix]*Route
}

// The names of the tunnel devices.
const (
	DeviceVXLAN  = "sluice.vxlan"
	DeviceVXLAN6 = "sluice.vxlan6" // for IPv6
	DeviceIPIP   = "sluice.ipip"
	DeviceWG     = "sluice.wg"
)

// VNI is what VXLAN packets of the pod network carry, as Calico's do.
const VNI = 4096

// IsTunnel reports whether a device of the name is a tunnel of ours.
func IsTunnel(device string) bool { return strings.HasPrefix(device, "sluice.") }

// Encapsulation is how packets travel between nodes.
type Encapsulation uint8

// The encapsulations.
const (
	Native Encapsulation = iota // as they are
	VXLAN
	IPIP
	WireGuard
)

// String returns "native", "VXLAN", "IPIP" or "WireGuard".
func (e Encapsulation) String() string { return [...]string{"native", "VXLAN", "IPIP", "WireGuard"}[e] }

// Tunnel is a tunnel device of this node.
type Tunnel struct {
	Encapsulation Encapsulation
	Local         netip.Addr // of this node, that packets travel from; of their outer family
	Address       netip.Addr // the device's own, from which the node itself sends through it; of their inner family
	MTU           int
	MAC           MAC // VXLAN
	VNI           uint32
	Port          uint16 // UDP: VXLAN and WireGuard

	// WireGuard carries both families: Address6 is that of IPv6, beside Address; invalid if there
	// is none. Key is the one that the driver has the private one of.
	Address6 netip.Addr
	Key      model.PublicKey
}

// MAC is an Ethernet address.
type MAC = model.MAC

// VTEPKey is the gateway by which routes name the far end of a tunnel. That of IPv6 is link-local:
// the kernel refuses one that another device has a route to, as it has while the mode changes.
type VTEPKey struct {
	Device  string
	Gateway netip.Addr
}

// Compare orders keys by device and gateway.
func (k VTEPKey) Compare(o VTEPKey) int {
	return cmp.Or(cmp.Compare(k.Device, o.Device), k.Gateway.Compare(o.Gateway))
}

// VTEP is the far end of a VXLAN tunnel: another node. No two of a device have the same MAC.
type VTEP struct {
	Node   string // for people
	MAC    MAC
	Remote netip.Addr // the node's address, that packets travel to
}

// Peer is another node that WireGuard encrypts for. No two have an allowed prefix in common.
type Peer struct {
	Node     string // for people
	Endpoint netip.AddrPort
	Allowed  []netip.Prefix // what packets may come from, and go to; sorted
}

// Equal reports whether two peers are the same.
func (p *Peer) Equal(o *Peer) bool {
	return p.Node == o.Node && p.Endpoint == o.Endpoint && slices.Equal(p.Allowed, o.Allowed)
}

// Route says where packets to a prefix go.
type Route struct {
	Node string // for people; this node's name if nothing is to leave it
	// Device and Via are the next hop, which counts as being on the device's link, whatever subnets
	// that has; WireGuard needs no Via. Without a Device packets are dropped silently, unless a
	// longer prefix or another program's route takes them: it keeps packets to addresses that no
	// pod of this node has from going back where they came from.
	Device string
	Via    netip.Addr
}

// NewFabric returns a Fabric without anything in it.
func NewFabric() *Fabric {
	return &Fabric{Tunnels: map[string]*Tunnel{}, VTEPs: map[VTEPKey]*VTEP{}, Peers: map[model.PublicKey]*Peer{}, Routes: map[netip.Prefix]*Route{}}
}

// FabricDelta is a change of a Fabric.
type FabricDelta Fabric

// Len is the number of named changes.
func (d FabricDelta) Len() int { return len(d.Tunnels) + len(d.VTEPs) + len(d.Peers) + len(d.Routes) }

// Merge has d be the one change that d and then a later one come to. Maps of d may be changed,
// those of the later one are not.
func (d *FabricDelta) Merge(later FabricDelta) {
	d.Tunnels = merged(d.Tunnels, later.Tunnels)
	d.VTEPs = merged(d.VTEPs, later.VTEPs)
	d.Peers = merged(d.Peers, later.Peers)
	d.Routes = merged(d.Routes, later.Routes)
}

// merged is a change of a map that a change and a later one come to. It may be the former of them.
func merged[K comparable, V any](d, later map[K]V) map[K]V {
	if len(d) == 0 {
		return maps.Clone(later)
	}
	maps.Copy(d, later)
	return d
}

// Apply changes f by d.
func (f *Fabric) Apply(d FabricDelta) {
	applyMap(f.Tunnels, d.Tunnels)
	applyMap(f.VTEPs, d.VTEPs)
	applyMap(f.Peers, d.Peers)
	applyMap(f.Routes, d.Routes)
}

// To returns the route of the longest prefix that has an address; nil: there is none.
func (f *Fabric) To(a netip.Addr) *Route {
	for bits := a.BitLen(); bits >= 0; bits-- {
		if p, err := a.Prefix(bits); err == nil && f.Routes[p] != nil {
			return f.Routes[p]
		}
	}
	return nil
}

// Clone returns a copy that Apply changes apart from f; nil of nil.
func (f *Fabric) Clone() *Fabric {
	if f == nil {
		return nil
	}
	return &Fabric{Tunnels: maps.Clone(f.Tunnels), VTEPs: maps.Clone(f.VTEPs), Peers: maps.Clone(f.Peers), Routes: maps.Clone(f.Routes)}
}

// Equal reports whether two are the same.
func (f *Fabric) Equal(o *Fabric) bool {
	return maps.EqualFunc(f.Tunnels, o.Tunnels, same) && maps.EqualFunc(f.VTEPs, o.VTEPs, same) &&
		maps.EqualFunc(f.Peers, o.Peers, (*Peer).Equal) && maps.EqualFunc(f.Routes, o.Routes, same)
}

func same[V comparable](a, b *V) bool { return *a == *b }
