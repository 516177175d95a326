package compile

import (
	"math/rand/v2"
	"testing"
)

// bytesSource makes the choices that bytes say, and random ones after their end.
type bytesSource struct {
	data []byte
	then *rand.PCG
}

func (s *bytesSource) Uint64() uint64 {
	if len(s.data) == 0 {
		return s.then.Uint64()
	}
	b := uint64(s.data[0])
	s.data = s.data[1:]
	return b * 0x0101010101010101
}

// Whatever comes and goes, the compiler takes it, agrees with a new one and with a
// search through everything.
func FuzzPolicy(f *testing.F) {
	f.Add([]byte("a pod, a policy, and a set"), uint64(1))
	f.Add([]byte{0, 255, 40, 80, 120, 200, 35, 36, 37, 70, 71, 90, 99}, uint64(2))
	f.Fuzz(func(t *testing.T, data []byte, seed uint64) {
		w := world{rand.New(&bytesSource{data: data[:min(len(data), 1000)], then: rand.NewPCG(seed, 1)})}
		h := newHistory(worldConfig, crowded)
		for range 12 {
			h.apply(t, w.event(), w.event())
			if w.chance(20) {
				h.links = w.newLinks()
			}
		}
		h.apply(t)
		same(t, h.compiler, h.fresh())
		sound(t, h.compiler.Policy())
		complete(t, h.compiler)
	})
}
