// Package load is an HTTP client and an HTTP server in one thread.
//
// Both ends of every connection are served by one event loop, bound to one CPU, so all that a
// request costs (the client's and the server's system calls, and the kernel's packet work between
// them, which the kernel does in whichever thread sends) falls on that CPU and on that thread's
// clock, and no scheduling between processes adds noise. What differs between two runs is then what
// lies between the two ends.
package load

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"runtime"
	"runtime/debug"
	"slices"
	"time"

	"golang.org/x/sys/unix"

	"sluice.dev/sluice/test/bench/cpuaffinity"
	"sluice.dev/sluice/test/netns"
)

// Config describes a run.
type Config struct {
	Client  *netns.NS        // where requests start
	Sources []netip.Addr     // the client's addresses, used in turns; IPv4
	Target  netip.AddrPort   // where they go; IPv4
	Targets []netip.AddrPort // where connections go in turns; empty: to Target
	Backend *netns.NS        // where a server listens on Port of every address
	Port    uint16

	Body        int           // bytes of an answer's body; 0: two
	KeepAlive   bool          // reuse connections, as many as Concurrency
	Rate        int           // requests a second, started on time even if answers are late; 0: as fast as Concurrency allows
	Concurrency int           // requests under way at once where Rate is 0; at least 1
	Duration    time.Duration // how long requests are started
	Timeout     time.Duration // when a request counts as failed; 0: one second
	CPU         int           // the CPU that does it all
}

// Result is the result of a run.
type Result struct {
	Requests int            // answered
	Failed   int            // not answered, or with a wrong answer
	Reasons  map[string]int // why requests failed, with counts
	Took     time.Duration  // from the first start to the last answer or failure
	CPU      time.Duration  // of the thread: both ends and the packets between
	latency  []time.Duration
}

// PerSecond is the rate of answers.
func (r *Result) PerSecond() float64 { return float64(r.Requests) / r.Took.Seconds() }

// Mean is the mean time from a request's due start to its whole answer.
func (r *Result) Mean() time.Duration {
	if len(r.latency) == 0 {
		return 0
	}
	var sum time.Duration
	for _, d := range r.latency {
		sum += d
	}
	return sum / time.Duration(len(r.latency))
}

// Quantile is the response time that a share q of the answers did not exceed.
func (r *Result) Quantile(q float64) time.Duration {
	if len(r.latency) == 0 {
		return 0
	}
	slices.Sort(r.latency)
	return r.latency[min(int(q*float64(len(r.latency))), len(r.latency)-1)]
}

// Run makes requests until the duration is over or ctx ends, and waits for those under way.
func Run(ctx context.Context, c Config) (*Result, error) {
	if c.Timeout == 0 {
		c.Timeout = time.Second
	}
	c.Concurrency = max(1, c.Concurrency)
	listener, err := listen(c.Backend, c.Port)
	if err != nil {
		return nil, fmt.Errorf("listen in %s: %w", c.Backend.Name, err)
	}
	defer unix.Close(listener)
	defer quietRuntime()()
	var res *Result
	err = c.Client.Do(func() error {
		if err := cpuaffinity.BindThread(c.CPU); err != nil {
			return err
		}
		l, err := newLoop(c, listener)
		if err != nil {
			return err
		}
		defer l.close()
		res, err = l.run(ctx)
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("send requests from %s to %s: %w", c.Client.Name, c.Target, err)
	}
	return res, nil
}

// quietRuntime keeps the Go runtime from disturbing the measurement until the returned function is
// called: no garbage is collected, and the scheduler has a processor free whenever the loop's
// thread returns from the kernel.
func quietRuntime() (restore func()) {
	runtime.GC()
	percent := debug.SetGCPercent(-1)
	procs := runtime.GOMAXPROCS(runtime.NumCPU() + 2)
	return func() {
		runtime.GOMAXPROCS(procs)
		debug.SetGCPercent(percent)
	}
}

func listen(ns *netns.NS, port uint16) (int, error) {
	fd := -1
	err := ns.Do(func() error {
		var err error
		fd, err = unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC, 0)
		if err != nil {
			return err
		}
		err = errors.Join(
			unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_REUSEADDR, 1),
			unix.Bind(fd, &unix.SockaddrInet4{Port: int(port)}),
			unix.Listen(fd, 4096))
		if err != nil {
			unix.Close(fd)
		}
		return err
	})
	return fd, err
}

// threadCPU returns the calling thread's CPU time so far.
func threadCPU() time.Duration {
	var ts unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_THREAD_CPUTIME_ID, &ts); err != nil {
		panic(err) // a clock that every supported kernel has
	}
	return time.Duration(ts.Nano())
}
