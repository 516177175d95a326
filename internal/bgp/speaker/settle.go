package speaker

import "time"

// How long peers have to tell their routes, before the speaker settles without them.
const (
	settleConnect = 5 * time.Second  // to come up, after a second attempt to connect
	settleTell    = 10 * time.Second // to tell all, once they are up
	settleQuiet   = time.Second      // without a route, of those that do not say when they have told all
)

// settle finds out whether all peers have told their routes, or had the time to. What is left of an
// earlier server goes then.
func (s *Speaker) settle() {
	if s.server == nil || s.settled && len(s.left) == 0 {
		return
	}
	now := time.Now()
	for _, p := range s.peers {
		if p.want != nil && !p.settled(now) {
			return
		}
	}
	for prefix := range s.left {
		s.forget(prefix)
	}
	clear(s.left)
	s.settled, s.more = true, true
}

func (p *peer) settled(now time.Time) bool {
	if !p.up {
		return p.added == nil || now.Sub(p.begun) > retryOf(p.added)+settleConnect
	}
	all := true
	for _, f := range families(p.added) {
		all = all && p.told[f]
	}
	// Those without graceful restart need not say when they have told all.
	return all || now.Sub(p.since) > settleTell || !p.added.Restart && now.Sub(p.heard) > settleQuiet
}
