package ruleset

import (
	"math/rand/v2"
	"testing"

	"sluice.dev/sluice/internal/state"
)

// The blocks of a range hold its ports, each once, and no others.
func TestBlocks(t *testing.T) {
	t.Parallel()
	r := rand.New(rand.NewPCG(1, 2))
	ranges := []state.PortRange{{First: 0, Last: 65535}, {First: 1, Last: 65534}, {First: 65535, Last: 65535}, {First: 0, Last: 0}, {First: 80, Last: 80}, {First: 8000, Last: 8100}}
	for range 200 {
		first := uint16(r.UintN(1 << 16))
		ranges = append(ranges, state.PortRange{First: first, Last: first + uint16(r.UintN(1<<16-uint(first)))})
	}
	for _, p := range ranges {
		next, blocks := int(p.First), 0
		eachBlock(p, func(size int, first uint16) {
			if int(first) != next {
				t.Errorf("%v: a block begins at %d, want %d", p, first, next)
			}
			width := 1 << (16 - portBlocks[size])
			if next%width != 0 {
				t.Errorf("%v: a block of %d begins at %d", p, width, next)
			}
			next += width
			blocks++
		})
		if next != int(p.Last)+1 || blocks > 105 {
			t.Errorf("%v: %d blocks end before %d", p, blocks, next)
		}
	}
}
