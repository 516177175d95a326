package foreign

import (
	"fmt"

	"sluice.dev/sluice/internal/link"
)

// devices returns the programs and filters of the interfaces that a connection's packets pass,
// which see them before or after all chains: what they do is not known.
func (w Way) devices() (found []Obstacle) {
	indexes := []int{w.In, w.Out}
	if w.In == w.Out {
		indexes = indexes[:1]
	}
	for _, index := range indexes {
		if index == 0 {
			continue
		}
		for _, f := range link.Filters(index) {
			found = append(found, Obstacle{Hook: f.Hook, Seen: fmt.Sprintf("%s at %s of interface %s may drop it", f.What, f.Hook, f.Device), Do: "see it: " + f.See})
		}
	}
	return found
}
