package hostile

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"os"
	"path/filepath"
	"sync"
	"time"

	"sluice.dev/sluice/test/bench/cluster"
	"sluice.dev/sluice/test/bench/harness"
	"sluice.dev/sluice/test/bench/testbed"
	"sluice.dev/sluice/test/netns"
)

// The services of the bystanders: one that nothing happens to, one whose endpoint changes all the
// time, and one with a port that policy forbids.
const (
	steadyService = iota
	changedService
	shutService
)

// The ports of the pod behind all of them. Each answers with its own letter.
const (
	steadyPort = 8080
	evenPort   = 8081 // the changed service has this one and the next one in turns
	oddPort    = 8082
	shutPort   = 9999
)

// bystanders counts what bystanders of hostile objects notice. It is safe for concurrent use.
type bystanders struct {
	mu               sync.Mutex
	pid              int           // the agent's; 0: it has been stopped on purpose
	changed          time.Time     // when the current change was made; zero: there is none
	queued           time.Duration // what queued returned at that time
	changes          int           // how many changes packets have followed
	slowest          time.Duration // the longest time that one took
	served           int
	lost             int            // failed connections to the steady service
	reasons          map[string]int // why they failed, with counts
	passed           int            // connections that passed although policy forbids them
	unhealthyAnswers int            // in a row that did not say that the agent is healthy
	unhealthy        string         // what the last one said, if there were too many in a row
	attempts         int            // connections tried that policy forbids
}

// counters is what bystanders noticed within a time.
type counters struct {
	slowest                      time.Duration
	changes, served, lost, tried int
	passed                       int
	reasons                      map[string]int
	unhealthy                    string
}

// takeCounters returns what was noticed since the last call. A change that is not done counts with
// the time that it has taken so far.
func (w *bystanders) takeCounters() counters {
	w.mu.Lock()
	defer w.mu.Unlock()
	n := counters{w.slowest, w.changes, w.served, w.lost, w.attempts, w.passed, w.reasons, w.unhealthy}
	n.slowest = max(n.slowest, w.delay())
	w.slowest, w.changes, w.served, w.lost, w.attempts, w.passed, w.reasons, w.unhealthy = 0, 0, 0, 0, 0, 0, map[string]int{}, ""
	return n
}

// changesDone returns how many changes packets have followed since the last takeCounters.
func (w *bystanders) changesDone() int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.changes
}

// connect connects once from a namespace and returns the letter of the answer.
func connect(ctx context.Context, from *netns.NS, to netip.AddrPort, within time.Duration) (byte, error) {
	ctx, cancel := context.WithTimeout(ctx, within)
	defer cancel()
	var conn net.Conn
	err := from.Do(func() (err error) {
		conn, err = new(net.Dialer).DialContext(ctx, "tcp4", to.String())
		return err
	})
	if err != nil {
		return 0, err
	}
	defer func() { _ = conn.Close() }()
	var letter [1]byte
	err = errors.Join(conn.(*net.TCPConn).SetLinger(0), conn.SetDeadline(time.Now().Add(within)))
	if err == nil {
		_, err = io.ReadFull(conn, letter[:])
	}
	return letter[0], err
}

func serviceAt(i int) netip.AddrPort {
	return netip.AddrPortFrom(cluster.ServiceAddr(i), cluster.ServicePort)
}

// serveLetters answers connections to each port with the port's letter until ctx ends.
func serveLetters(ctx context.Context, ns *netns.NS) error {
	for i, port := range []int{steadyPort, evenPort, oddPort, shutPort} {
		var l net.Listener
		err := ns.Do(func() (err error) {
			l, err = net.Listen("tcp4", fmt.Sprintf(":%d", port))
			return err
		})
		if err != nil {
			return fmt.Errorf("listen in %s: %w", ns.Name, err)
		}
		context.AfterFunc(ctx, func() { _ = l.Close() })
		go func() {
			for {
				conn, err := l.Accept()
				if err != nil {
					return
				}
				_, _ = conn.Write([]byte{'a' + byte(i)}) // the client may have gone
				_ = conn.Close()
			}
		}()
	}
	return nil
}

// connectSteadily connects again and again to the service that nothing happens to.
func (b *testNode) connectSteadily(ctx context.Context) {
	for ctx.Err() == nil {
		letter, err := connect(ctx, b.Client, serviceAt(steadyService), 3*time.Second)
		if err == nil && letter != 'a' {
			err = fmt.Errorf("another one answers: %q", letter)
		}
		if ctx.Err() != nil {
			return
		}
		b.mu.Lock()
		if b.served++; err != nil {
			b.lost++
			b.reasons[err.Error()]++
		}
		b.mu.Unlock()
		_ = harness.Wait(ctx, 10*time.Millisecond)
	}
}

// connectForbidden tries what policy forbids again and again, through the service and directly.
func (b *testNode) connectForbidden(ctx context.Context) {
	for ctx.Err() == nil {
		for _, to := range []netip.AddrPort{serviceAt(shutService), netip.AddrPortFrom(b.backend, shutPort)} {
			_, err := connect(ctx, b.Client, to, 50*time.Millisecond)
			b.mu.Lock()
			if b.attempts++; err == nil {
				b.passed++
			}
			b.mu.Unlock()
		}
	}
}

// changeService changes a service, waits until packets follow, and begins again. Time in which the
// agent's threads wait for a CPU does not count, nor time in which the agent does not run.
func (b *testNode) changeService(ctx context.Context) {
	for odd := false; ctx.Err() == nil; odd = !odd {
		port, want := evenPort, byte('b')
		if odd {
			port, want = oddPort, 'c'
		}
		b.changing <- struct{}{}
		err := b.write(b.slice(changedService, port))
		b.mu.Lock()
		b.begin()
		b.mu.Unlock()
		for err == nil && ctx.Err() == nil {
			if letter, err := connect(ctx, b.Client, serviceAt(changedService), 100*time.Millisecond); err == nil && letter == want {
				break
			}
			_ = harness.Wait(ctx, time.Millisecond)
		}
		b.mu.Lock()
		b.slowest = max(b.slowest, b.delay())
		b.changed = time.Time{}
		b.changes++
		b.mu.Unlock()
		<-b.changing
		_ = harness.Wait(ctx, 20*time.Millisecond)
	}
}

// begin starts the timer of a change.
func (w *bystanders) begin() { w.changed, w.queued = time.Now(), queued(w.pid) }

// delay returns how long the current change has taken.
func (w *bystanders) delay() time.Duration {
	if w.changed.IsZero() || w.pid == 0 {
		return 0
	}
	return time.Since(w.changed) - (queued(w.pid) - w.queued)
}

// queued returns how long all threads of a process have waited for a CPU so far; 0 where the kernel
// does not say.
func queued(pid int) (sum time.Duration) {
	files, _ := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/schedstat", pid)) // the pattern is well-formed
	for _, f := range files {
		text, _ := os.ReadFile(f) // it may have ended
		var ran, waited int64
		if n, _ := fmt.Sscan(string(text), &ran, &waited); n == 2 {
			sum += time.Duration(waited)
		}
	}
	return sum
}

// unhealthyAfter is after how many bad answers in a row the agent counts as unhealthy, as for a
// kubelet.
const unhealthyAfter = 3

// checkHealth asks the agent again and again whether it is healthy.
func (b *testNode) checkHealth(ctx context.Context) {
	client := testbed.HTTP(b.Node)
	client.Timeout = time.Second
	for harness.Wait(ctx, 300*time.Millisecond) == nil {
		for _, path := range []string{"livez", "healthz", "readyz"} {
			req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://127.0.0.1:10256/"+path, nil)
			if err != nil {
				continue
			}
			said := ""
			if resp, err := client.Do(req); err != nil {
				said = err.Error()
			} else {
				body, _ := io.ReadAll(resp.Body)
				resp.Body.Close()
				if resp.StatusCode != http.StatusOK {
					said = fmt.Sprintf("%s: %s: %.200s", path, resp.Status, body)
				}
			}
			b.mu.Lock()
			if b.unhealthyAnswers++; said == "" || b.pid == 0 {
				b.unhealthyAnswers = 0
			}
			if b.unhealthyAnswers >= unhealthyAfter {
				b.unhealthy = said
			}
			b.mu.Unlock()
		}
	}
}
