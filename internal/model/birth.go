package model

import (
	"cmp"
	"time"
)

// Birth is what decides between objects that claim the same: the first of them has it.
type Birth struct {
	Created time.Time
	Name    Name
}

// Compare puts first what was there first: by creationTimestamp, the zero time last, then by name.
func (b Birth) Compare(o Birth) int {
	if b.Created.IsZero() != o.Created.IsZero() {
		if b.Created.IsZero() {
			return 1
		}
		return -1
	}
	return cmp.Or(b.Created.Compare(o.Created), b.Name.Compare(o.Name))
}

// Birth is the Service's.
func (s *Service) Birth() Birth { return Birth{s.Created, s.Name} }

// Birth is the Node's.
func (n *Node) Birth() Birth { return Birth{n.Created, Name{Name: n.Name}} }

// Birth is the pool's.
func (p *IPAddressPool) Birth() Birth { return Birth{p.Created, p.Name} }
