package bgp

import (
	"maps"
	"net/netip"
)

// Merge adds a later order.
func (o *Order) Merge(later Order) {
	if later.Settings != nil {
		o.Settings = later.Settings
	}
	o.Peers, o.Routes = merge(o.Peers, later.Peers), merge(o.Routes, later.Routes)
}

// IsZero reports whether the order says nothing.
func (o *Order) IsZero() bool { return o.Settings == nil && len(o.Peers) == 0 && len(o.Routes) == 0 }

// Drop takes out what is nil: what is left is all that there is.
func (o *Order) Drop() {
	maps.DeleteFunc(o.Peers, func(_ string, p *Peer) bool { return p == nil })
	maps.DeleteFunc(o.Routes, func(_ netip.Prefix, r *Route) bool { return r == nil })
}

// Merge adds a later report.
func (r *Report) Merge(later Report) {
	r.Learned, r.Peers = merge(r.Learned, later.Learned), merge(r.Peers, later.Peers)
	r.Settled, r.Error = r.Settled || later.Settled, later.Error
}

// merge adds the later of two changes to the earlier.
func merge[K comparable, V any](earlier, later map[K]*V) map[K]*V {
	if len(earlier) == 0 {
		return maps.Clone(later)
	}
	maps.Copy(earlier, later)
	return earlier
}
