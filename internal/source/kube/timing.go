package kube

import (
	"math/rand/v2"
	"time"
)

// timing has the durations and time-outs of a source.
type timing struct {
	// answer is the time-out for a page of a list, and for the server to accept a watch.
	answer time.Duration
	// watch is the shortest duration that a watch is requested for; the longest is twice that.
	watch time.Duration
	// A follower that fails tries again after first, then ever later up to last. After a watch that
	// lasted for steady, it starts at first again.
	first, last, steady time.Duration
	// refused is the time until a kind is tried again that the agent may not read, or that is not
	// served.
	refused time.Duration
	// discover is the time between two checks of which kinds the API serves.
	discover time.Duration
	// doubt is how long the word of an API server that does not say that it is ready does not count
	// when it refuses a request or does not serve a kind: one that is just starting knows neither
	// all of its rules nor all of its kinds.
	doubt time.Duration
	// outage is how long the API may be away before everything is read again: by then it may be
	// another one, restored from a backup, whose versions have caught up with ours.
	outage time.Duration
	// patience is how long a kind that cannot be read holds up the others, once one of them has
	// been read.
	patience time.Duration
}

func usualTiming() timing {
	return timing{
		answer: 30 * time.Second, watch: 5 * time.Minute,
		first: 50 * time.Millisecond, last: time.Second, steady: 5 * time.Second,
		refused: 10 * time.Second, discover: 10 * time.Second, doubt: 5 * time.Second, outage: 10 * time.Second, patience: 15 * time.Second,
	}
}

// jitter spreads what many do at once: it returns a random duration between 0.5 d and 1.5 d.
func jitter(d time.Duration) time.Duration { return d/2 + rand.N(d+1) }
