package speaker

import (
	"net/netip"
	"time"

	"sluice.dev/sluice/internal/bgp"
)

// pending is what the next Report is to say.
type pending struct {
	learned map[netip.Prefix]*bgp.Learned
	peers   map[string]bool
	fault   string
	more    bool // there is something to say beside routes and peers
	last    time.Time
}

func newPending() pending {
	return pending{learned: map[netip.Prefix]*bgp.Learned{}, peers: map[string]bool{}}
}

func (p *pending) any() bool { return p.more || len(p.learned) > 0 || len(p.peers) > 0 }

func (p *pending) setFault(text string) {
	if p.fault != text {
		p.fault, p.more = text, true
	}
}

// take returns the Report except for what is asked for when it is written, and begins the next one.
func (p *pending) take() *bgp.Report {
	r := &bgp.Report{Learned: p.learned}
	p.learned, p.more, p.last = map[netip.Prefix]*bgp.Learned{}, false, time.Now()
	return r
}
