package bgp

import "maps"

// Merge adds a later order.
func (o *Order) Merge(later Order) {
	if later.Settings != nil {
		o.Settings = later.Settings
	}
	o.Peers, o.Routes = merge(o.Peers, later.Peers), merge(o.Routes, later.Routes)
}

// IsZero reports whether the order says nothing.
func (o *Order) IsZero() bool { return o.Settings == nil && len(o.Peers) == 0 && len(o.Routes) == 0 }

// Apply changes all that there is to do by an order.
func (o *Order) Apply(by Order) {
	if by.Settings != nil {
		o.Settings = by.Settings
	}
	o.Peers, o.Routes = Apply(o.Peers, by.Peers), Apply(o.Routes, by.Routes)
}

// Apply changes a map, which may be nil, by what is new, or gone where the value is nil, and
// returns it.
func Apply[K comparable, V any](m, changes map[K]*V) map[K]*V {
	if m == nil {
		m = make(map[K]*V, len(changes))
	}
	for k, v := range changes {
		if v == nil {
			delete(m, k)
		} else {
			m[k] = v
		}
	}
	return m
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
