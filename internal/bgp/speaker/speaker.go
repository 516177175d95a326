// Package speaker carries out bgp.Orders with a gobgp server in this process, and says in
// bgp.Reports how its peers are and what they announce.
package speaker

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"time"

	"sluice.dev/sluice/internal/bgp"
)

// How often things are done.
const (
	flushInterval = 30 * time.Millisecond // between two Reports while there is more to say
	retryInterval = 5 * time.Second       // between two tries of what failed
)

// Speaker is a BGP speaker. One goroutine, that of Run, owns it all; the others post to its inbox.
type Speaker struct {
	log   *slog.Logger
	inbox inbox

	settings *bgp.Settings
	peers    map[string]*peer
	at       map[netip.Addr]*peer // those that the server has, by their addresses
	routes   map[netip.Prefix]*route
	marks    marks
	// What the server is still to be told: the routes that have changed, and new policies.
	changedRoutes []netip.Prefix
	policyDue     bool

	server   *server           // nil while there is none
	faults   map[string]string // what could not be done, by what it is about
	learned  map[netip.Prefix]*bgp.Learned
	left     map[netip.Prefix]bool // of learned, what an earlier server learned and this one has not
	counter  counter
	report   bgp.Report // the next one, to which flush adds how peers are
	more     bool       // it says something beside routes and peers
	reported time.Time
	settled  bool
}

// New returns a Speaker that logs to log.
func New(log *slog.Logger) *Speaker {
	return &Speaker{
		log: log, inbox: newInbox(),
		peers: map[string]*peer{}, at: map[netip.Addr]*peer{}, routes: map[netip.Prefix]*route{}, marks: newMarks(),
		faults: map[string]string{}, learned: map[netip.Prefix]*bgp.Learned{}, left: map[netip.Prefix]bool{}, report: newReport(),
	}
}

// Run carries out the Orders and writes the Reports, one a line, until the Orders end or ctx does.
// It then leaves the sessions as they are: the process is to end, which closes them without a word.
// It is called once.
func (s *Speaker) Run(ctx context.Context, orders io.Reader, reports io.Writer) error {
	ended := make(chan error, 1)
	go func() { ended <- s.read(orders) }()
	flush, tick, retry := time.NewTimer(0), time.NewTicker(time.Second), time.NewTicker(retryInterval)
	defer tick.Stop()
	defer retry.Stop()
	out := json.NewEncoder(reports)
	for {
		select {
		case <-ctx.Done():
			return nil
		case err := <-ended:
			return err
		case <-s.inbox.wake:
			for _, f := range s.inbox.take() {
				f()
			}
		case <-tick.C:
			s.count()
			s.settle()
			s.takePort()
		case <-retry.C:
			s.retry()
		case <-flush.C:
		}
		if err := s.flush(out, flush); err != nil {
			return fmt.Errorf("write report: %w", err)
		}
	}
}

// read posts the orders, so that whoever writes them never waits for Reports to be read.
func (s *Speaker) read(orders io.Reader) error {
	in := json.NewDecoder(orders)
	for {
		o := &bgp.Order{}
		switch err := in.Decode(o); {
		case errors.Is(err, io.EOF):
			return nil
		case err != nil:
			return fmt.Errorf("read order: %w", err)
		}
		s.inbox.post(func() { s.carryOut(o) })
	}
}

// flush writes what there is to say, unless the last time was just now; then it is done a little
// later, together with what comes until then.
func (s *Speaker) flush(out *json.Encoder, later *time.Timer) error {
	if !s.more && len(s.report.Learned)+len(s.report.Peers) == 0 {
		return nil
	}
	if wait := flushInterval - time.Since(s.reported); wait > 0 {
		later.Reset(wait)
		return nil
	}
	r := s.report
	s.report, s.more, s.reported = newReport(), false, time.Now()
	s.report.Error = r.Error // until there is another
	for name := range r.Peers {
		r.Peers[name] = s.status(name)
	}
	r.Settled = s.settled
	return out.Encode(r)
}

func newReport() bgp.Report {
	return bgp.Report{Learned: map[netip.Prefix]*bgp.Learned{}, Peers: map[string]*bgp.PeerStatus{}}
}

// fault notes what could not be done about something, or with "" that all is well with it.
func (s *Speaker) fault(about, text string) {
	if s.faults[about] == text {
		return
	}
	if text == "" {
		delete(s.faults, about)
	} else {
		s.faults[about] = text
		s.log.Warn(text)
	}
	var all []string
	for _, about := range slices.Sorted(maps.Keys(s.faults)) {
		all = append(all, s.faults[about])
	}
	if text := strings.Join(all, "; "); s.report.Error != text {
		s.report.Error, s.more = text, true
	}
}
