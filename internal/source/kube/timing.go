package kube

import (
	"math/rand/v2"
	"time"
)

// timing is how long things take and what is waited for.
type timing struct {
	// answer is the longest time for a page of a list, and for the server to
	// agree to a watch.
	answer time.Duration
	// watch is the shortest time that a watch is asked to last; the longest is twice that.
	watch time.Duration
	// A follower that fails tries again after first, then ever later up to last;
	// with a watch that held for steady it starts at first again.
	first, last, steady time.Duration
	// refused is the time until a kind is tried again that may not be read, or is not served.
	refused time.Duration
	// discover is the time between two checks of what the API serves.
	discover time.Duration
	// doubt is how long an API server that does not call itself ready is not believed when it
	// says that something may not be read or is not served: one that is just starting
	// knows neither all of its rules nor all of its kinds.
	doubt time.Duration
	// outage is how long the API can be away before all is read anew as a whole, as it may
	// be another one by then: one restored from a backup, whose versions have caught up with ours.
	outage time.Duration
	// patience is how long a kind that can't be read holds up the others, once
	// one of them has been read.
	patience time.Duration
}

func usualTiming() timing {
	return timing{
		answer: 30 * time.Second, watch: 5 * time.Minute,
		first: 50 * time.Millisecond, last: time.Second, steady: 5 * time.Second,
		refused: 10 * time.Second, discover: 10 * time.Second, doubt: 5 * time.Second, outage: 10 * time.Second, patience: 15 * time.Second,
	}
}

// jitter spreads what many do at once: it returns between a half and one and a half of d.
func jitter(d time.Duration) time.Duration { return d/2 + rand.N(d+1) }
