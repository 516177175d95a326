package foreign

import (
	"fmt"
	"net"

	"sluice.dev/sluice/internal/kernel/link"
)

// nic is an interface; the zero nic is not known.
type nic struct {
	index int
	name  string
	// filters are programs and filters that see its packets before or after all chains: what they
	// do is not known.
	filters []Obstacle
}

// nic reads an interface, once; 0: it is not known.
func (r *Rules) nic(index int) nic {
	n, known := r.nics[index]
	if known || index == 0 {
		return n
	}
	if i, err := net.InterfaceByIndex(index); err == nil {
		n.index, n.name = index, i.Name
	}
	for _, f := range link.Filters(index) {
		n.filters = append(n.filters, Obstacle{Hook: f.Hook, Seen: fmt.Sprintf("%s at %s of interface %s may drop it", f.What, f.Hook, f.Device), Do: "see it: " + f.See})
	}
	if r.nics == nil {
		r.nics = map[int]nic{}
	}
	r.nics[index] = n
	return n
}
