package driver

import "sluice.dev/sluice/internal/state"

// Traffic is what a backend of a farm has got.
type Traffic struct {
	// Chosen is how often it was chosen since it was programmed: for new connections or, if
	// Untracked, for packets.
	Chosen    uint64
	Untracked bool   // no connections are tracked
	Active    int    // connections at present, those included that are about to end
	Bytes     uint64 // of these, both ways

	// The following never fall while the process runs. They begin with its first reading.
	TotalChosen uint64
	TotalBytes  uint64 // both ways; if Untracked, what clients sent
}

// Backend names a backend of a farm.
type Backend struct{ Farm, Name string }

// Tally adds up counters of the kernel that come and go and begin again at zero. K names a counter.
// The zero value is ready; the caller sees to concurrency. What a counter gains between the last
// reading and its end is lost.
type Tally[K comparable] struct {
	readings int
	counters map[K]reading
	sums     map[Backend]Counts
}

// Counts are what a counter of the kernel has.
type Counts struct{ Times, Bytes uint64 }

// reading is what a counter had when it was last read.
type reading struct {
	Counts
	number int
}

// Count takes in a counter, and what it counts for. What counters have at the first reading is of
// an earlier time.
func (t *Tally[K]) Count(key K, of Backend, now Counts) {
	if t.counters == nil {
		t.counters, t.sums = map[K]reading{}, map[Backend]Counts{}
	}
	was := t.counters[key] // zero: it is new
	t.counters[key] = reading{now, t.readings}
	if now.Times < was.Times || now.Bytes < was.Bytes { // it has begun again
		was.Counts = Counts{}
	}
	if t.readings > 0 && now != was.Counts {
		sum := t.sums[of]
		t.sums[of] = Counts{sum.Times + now.Times - was.Times, sum.Bytes + now.Bytes - was.Bytes}
	}
}

// End ends a reading: it yields what each backend of these farms has got since the first, and
// forgets all others. A counter is forgotten that two readings have not found: one may miss some,
// while the kernel's table changes.
func (t *Tally[K]) End(farms map[string]*state.Farm, yield func(Backend, *state.Farm, Counts)) {
	for key, c := range t.counters {
		if c.number+1 < t.readings {
			delete(t.counters, key)
		}
	}
	sums := make(map[Backend]Counts, len(t.sums))
	for name, f := range farms {
		for _, b := range f.Backends {
			of := Backend{name, b.Name}
			sums[of] = t.sums[of]
			yield(of, f, sums[of])
		}
	}
	t.sums = sums
	t.readings++
}
