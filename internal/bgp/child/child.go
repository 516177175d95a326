// Package child runs the BGP speaker, the program sluice-bgp, as a process of the agent's. It tells
// the speaker what to do, hands on what it reports, and starts it again when it ends.
package child

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"time"

	"sluice.dev/sluice/internal/bgp"
	"sluice.dev/sluice/internal/lib/wake"
)

// Program is the name of the speaker's program.
const Program = "sluice-bgp"

// patience is how long a speaker may take to end.
const patience = 5 * time.Second

// The times between two starts of a speaker that keeps ending.
const (
	firstPause = time.Second
	maxPause   = 30 * time.Second
)

// Child is a speaker's process. Make it with New, and run it once.
type Child struct {
	path string
	log  *slog.Logger
	// after is time.After, but in tests.
	after func(time.Duration) <-chan time.Time

	ordered  wake.Signal // set when there is something to tell
	reported wake.Signal

	mu     sync.Mutex
	whole  bgp.Order // all that the speaker is to do
	next   bgp.Order // what it has not been told
	report bgp.Report
	known  map[netip.Prefix]bool // learned, as Take has told or will
	again  map[netip.Prefix]bool // learned by a speaker that is not settled; nil: it is
}

// Find returns the path of the speaker's program: beside the own one, or where PATH says.
func Find() (string, error) {
	if own, err := os.Executable(); err == nil {
		if path, err := exec.LookPath(filepath.Join(filepath.Dir(own), Program)); err == nil {
			return path, nil
		}
	}
	path, err := exec.LookPath(Program)
	if err != nil {
		return "", fmt.Errorf("find %s: %w: install it beside sluice", Program, err)
	}
	return path, nil
}

// New returns a Child that runs the program at a path.
func New(path string, log *slog.Logger) *Child {
	return &Child{path: path, log: log, after: time.After, ordered: wake.New(), reported: wake.New(), known: map[netip.Prefix]bool{}}
}

// Follow has the speaker follow a change. It returns at once. It is safe for concurrent use.
func (c *Child) Follow(o bgp.Order) {
	if o.IsZero() {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.whole.Apply(o)
	c.next.Merge(o)
	c.ordered.Set()
}

// Reported delivers whenever Take has something to say.
func (c *Child) Reported() <-chan struct{} { return c.reported }

// Take returns what has changed since the last call. Routes of a speaker that ended stay until the
// one after it is settled and has not learned them. Settled is true from the first time on that one
// is. It is safe for concurrent use.
func (c *Child) Take() bgp.Report {
	c.mu.Lock()
	defer c.mu.Unlock()
	r := c.report
	c.report = bgp.Report{Settled: r.Settled, Error: r.Error}
	return r
}

// Run keeps a speaker running until ctx ends.
func (c *Child) Run(ctx context.Context) {
	pause := firstPause
	for {
		began := time.Now()
		err := c.runOnce(ctx)
		if ctx.Err() != nil {
			return
		}
		if time.Since(began) > 2*maxPause {
			pause = firstPause
		}
		c.log.Error("the BGP speaker ended; its routes stay, and it is started again", "error", err, "in", pause)
		c.failed(fmt.Errorf("the speaker ended: %w", err))
		select {
		case <-ctx.Done():
			return
		case <-c.after(pause):
		}
		pause = min(2*pause, maxPause)
	}
}

// runOnce runs a speaker until it ends, or ctx does.
func (c *Child) runOnce(ctx context.Context) error {
	select { // it has nothing to do before it knows its AS
	case <-ctx.Done():
		return nil
	case <-c.ordered:
	}
	cmd := exec.CommandContext(ctx, c.path)
	cmd.Stderr = os.Stderr // it logs as the agent does
	orders, err := cmd.StdinPipe()
	if err != nil {
		return err
	}
	cmd.Cancel, cmd.WaitDelay = orders.Close, patience // it ends with its input, without a word to its peers
	reports, err := cmd.StdoutPipe()
	if err != nil {
		return err
	}
	if err := cmd.Start(); err != nil {
		return fmt.Errorf("start %s: %w", c.path, err)
	}
	c.begin()
	ended, stop := context.WithCancel(ctx)
	var telling sync.WaitGroup
	telling.Go(func() { c.tell(ended, orders) })
	err = c.listen(reports)
	stop()
	telling.Wait()
	c.ordered.Set() // for the next one
	return errors.Join(err, cmd.Wait())
}

// begin prepares for a speaker that knows nothing.
func (c *Child) begin() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.next = bgp.Order{}
	c.next.Merge(c.whole)
	c.again = map[netip.Prefix]bool{}
	c.ordered.Set()
}

// tell writes orders until ctx ends, or the speaker does.
func (c *Child) tell(ctx context.Context, to io.Writer) {
	w := bufio.NewWriter(to)
	lines := json.NewEncoder(w)
	for {
		select {
		case <-ctx.Done():
			return
		case <-c.ordered:
		}
		c.mu.Lock()
		o := c.next
		c.next = bgp.Order{}
		c.mu.Unlock()
		if o.IsZero() {
			continue
		}
		if lines.Encode(o) != nil || w.Flush() != nil {
			return // listen learns that it has ended
		}
	}
}

// listen reads reports until the speaker ends.
func (c *Child) listen(from io.Reader) error {
	for lines := json.NewDecoder(bufio.NewReader(from)); ; {
		var r bgp.Report
		if err := lines.Decode(&r); errors.Is(err, io.EOF) {
			return nil
		} else if err != nil {
			_, _ = io.Copy(io.Discard, from) // so that it can end
			return fmt.Errorf("read a report of the speaker: %w", err)
		}
		c.take(r)
	}
}

// take adds a report to what Take returns.
func (c *Child) take(r bgp.Report) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for p, l := range r.Learned {
		if l == nil {
			delete(c.known, p)
			delete(c.again, p)
			continue
		}
		c.known[p] = true
		if c.again != nil {
			c.again[p] = true
		}
	}
	c.report.Merge(r)
	if r.Settled && c.again != nil {
		for p := range c.known {
			if !c.again[p] {
				delete(c.known, p)
				c.report.Merge(bgp.Report{Learned: map[netip.Prefix]*bgp.Learned{p: nil}, Error: r.Error})
			}
		}
		c.again = nil
	}
	c.reported.Set()
}

// failed reports that there is no speaker: no session is established.
func (c *Child) failed(err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	down := map[string]*bgp.PeerStatus{}
	for name := range c.whole.Peers {
		down[name] = &bgp.PeerStatus{State: "idle", Since: time.Now(), Why: err.Error()}
	}
	c.report.Merge(bgp.Report{Peers: down, Error: err.Error()})
	c.reported.Set()
}
