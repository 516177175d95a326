package health

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"maps"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"os"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"sluice.dev/sluice/test/logtest"
)

// bed is a Checker that runs, and what it has reported.
type bed struct {
	*Checker
	t   *testing.T
	log logtest.Log

	mu      sync.Mutex
	reports []Result
	results map[Key]Result // the last reports
	news    chan struct{}
}

// run runs a Checker until the test ends.
func run(t *testing.T, o Options) *bed {
	return runIn(t, o, func(f func() error) error { return f() })
}

// runIn is run, within a function such as a network namespace's Do.
func runIn(t *testing.T, o Options, do func(func() error) error) *bed {
	b := &bed{t: t, results: map[Key]Result{}, news: make(chan struct{}, 1)}
	o.Log = slog.New(slog.NewTextHandler(&b.log, nil))
	o.Report = b.report
	b.Checker = New(o)
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error)
	go func() {
		ended <- do(func() error {
			b.Run(ctx)
			return nil
		})
	}()
	t.Cleanup(func() {
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
	return b
}

func (b *bed) report(results []Result) {
	b.mu.Lock()
	b.reports = append(b.reports, results...)
	for _, r := range results {
		b.results[r.Key] = r
	}
	b.mu.Unlock()
	select {
	case b.news <- struct{}{}:
	default:
	}
}

// shown is what was reported last of each target.
func (b *bed) shown() map[Key]Result {
	b.mu.Lock()
	defer b.mu.Unlock()
	return maps.Clone(b.results)
}

// next returns the next results reported, n of them, and forgets them.
func (b *bed) next(n int) []Result {
	b.t.Helper()
	for {
		b.mu.Lock()
		if len(b.reports) >= n {
			got := b.reports[:n:n]
			b.reports = b.reports[n:]
			b.mu.Unlock()
			return got
		}
		b.mu.Unlock()
		select {
		case <-b.news:
		case <-time.After(time.Minute):
			b.t.Fatalf("nothing was reported for a minute; log: %s", b.log.String())
		}
	}
}

// check sets one target and returns its first result: that of its first check, unless Fall says
// otherwise.
func (b *bed) check(c Check, at netip.AddrPort) Result {
	b.t.Helper()
	c.Fall = cmp.Or(c.Fall, 1)
	if err := c.Validate(); err != nil {
		b.t.Fatal(err)
	}
	key := Key{"farm", b.t.Name()}
	b.Set(map[Key]*Target{key: {&c, at.Addr(), at.Port()}})
	return b.next(1)[0]
}

// want fails the test unless a check has a result, whatever it says that it asked for.
func (b *bed) want(c Check, at netip.AddrPort, up bool, why string) {
	b.t.Helper()
	r := b.check(c, at)
	if up {
		r = b.up(r)
	}
	if found, _, _ := strings.Cut(r.Why, " ("); r.Up != up || found != why {
		b.t.Errorf("got %v, %q, want %v, %q", r.Up, r.Why, up, why)
	}
}

// A check that fails says what it asked for, where that is more than the backend's own address and
// port.
func TestSaysWhatItAskedFor(t *testing.T) {
	b, at := run(t, Options{}), closed(t)
	elsewhere := netip.AddrPortFrom(at.Addr(), 9)
	for _, test := range []struct {
		Check
		backend netip.AddrPort
		why     string
	}{
		{Check{Type: TCP}, at, "connection refused"},
		{Check{Type: TCP, Port: at.Port()}, elsewhere, fmt.Sprintf("connection refused (port %d)", at.Port())},
		{Check{Type: HTTP, Path: "/health?deep=1"}, at, fmt.Sprintf("connection refused (GET http://%v/health?deep=1)", at)},
		{Check{Type: HTTPS, Method: "HEAD", Host: "shop.example", Port: at.Port()}, elsewhere, fmt.Sprintf("connection refused (HEAD https://%v/, Host shop.example)", at)},
		{Check{Type: Command, Command: []string{"false"}, Port: at.Port()}, elsewhere, "exit status 1"},
	} {
		if r := b.check(test.Check, test.backend); r.Up || r.Why != test.why {
			t.Errorf("got %v, %q, want %q", r.Up, r.Why, test.why)
		}
	}
}

// up returns the report, or the next one that a target is up: on a loaded machine a check may have
// had no time.
func (b *bed) up(r Result) Result {
	b.t.Helper()
	for !r.Up {
		b.t.Logf("it had no time: %+v", r)
		r = b.next(1)[0]
	}
	return r
}

// quick has a check's first failure decide soon.
func quick(c Check) Check {
	c.Interval, c.Timeout = 100*time.Millisecond, 100*time.Millisecond
	return c
}

// listen returns a TCP listener of a loopback address, and where it is.
func listen(t *testing.T, network, address string) (net.Listener, netip.AddrPort) {
	t.Helper()
	l, err := net.Listen(network, address)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() })
	return l, netip.MustParseAddrPort(l.Addr().String())
}

// closed returns an address where nothing listens.
func closed(t *testing.T) netip.AddrPort {
	l, at := listen(t, "tcp", "127.0.0.1:0")
	_ = l.Close()
	return at
}

// Flapping shorter than rise and fall goes unnoticed; what lasts is reported once.
func TestRiseAndFall(t *testing.T) {
	var healthy atomic.Bool
	healthy.Store(true)
	var asked atomic.Int32
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		asked.Add(1)
		if !healthy.Load() {
			w.WriteHeader(http.StatusInternalServerError)
		}
	}))
	defer s.Close()
	at := netip.MustParseAddrPort(s.Listener.Addr().String())
	b := run(t, Options{})
	c := Check{Type: HTTP, Interval: 20 * time.Millisecond, Timeout: 20 * time.Millisecond, Rise: 2, Fall: 4}
	if first := b.check(c, at); !first.Up {
		t.Fatalf("got %+v", first)
	}
	healthy.Store(false)
	fallen := asked.Load()
	if r := b.next(1)[0]; r.Up {
		t.Fatalf("got %+v", r)
	}
	if n := asked.Load() - fallen; n < 3 {
		t.Errorf("down after %d failures, want 4", n)
	}
	healthy.Store(true)
	r := b.next(1)[0]
	if !r.Up || r.Why != "status 200" {
		t.Errorf("got %+v", r)
	}
	if n := b.Failed(r.Key); n < 4 {
		t.Errorf("%d checks have failed, want 4 at least", n)
	}
	b.Set(map[Key]*Target{r.Key: nil})
	if n := b.Failed(r.Key); n > 0 {
		t.Errorf("of a target that is gone, %d checks have failed", n)
	}
}

// A reason that changes while a backend is down is reported once.
func TestReasonFollows(t *testing.T) {
	var status atomic.Int32
	status.Store(500)
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.WriteHeader(int(status.Load()))
	}))
	defer s.Close()
	b := run(t, Options{})
	at := netip.MustParseAddrPort(s.Listener.Addr().String())
	first := b.check(Check{Type: HTTP, Interval: 20 * time.Millisecond}, at)
	status.Store(404)
	want := Result{first.Key, false, fmt.Sprintf("status 404, wanted 200-399 (GET http://%v/)", at), first.Since}
	if now := b.next(1)[0]; now != want {
		t.Errorf("reported %v, want %v", now, want)
	}
	if len(b.reports) != 0 {
		t.Errorf("reported %v", b.reports)
	}
}

// The check of a target that is replaced or removed has no result, however late it ends.
func TestSetWhileChecksAreUnderWay(t *testing.T) {
	begun, answer := make(chan bool), make(chan bool)
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		begun <- true
		select {
		case <-answer:
			w.WriteHeader(http.StatusTeapot)
		case <-r.Context().Done():
		}
	}))
	defer s.Close()
	b := run(t, Options{})
	slow := Check{Type: HTTP, Interval: time.Hour, Timeout: time.Hour}
	old := netip.MustParseAddrPort(s.Listener.Addr().String())
	_, at := listen(t, "tcp4", "127.0.0.1:0")
	removed, replaced := Key{"farm", "removed"}, Key{"farm", "replaced"}
	b.Set(map[Key]*Target{removed: {&slow, old.Addr(), old.Port()}, replaced: {&slow, old.Addr(), old.Port()}})
	<-begun
	<-begun
	b.Set(map[Key]*Target{removed: nil, replaced: {&Check{Type: TCP}, at.Addr(), at.Port()}})
	close(answer)
	if r := b.next(1)[0]; r.Key != replaced || r.Why != "connected" {
		t.Errorf("got %+v", r)
	}
	if all := b.shown(); len(all) != 1 || all[replaced].Why != "connected" {
		t.Errorf("shows %+v", all)
	}
}

// A target that is set again as it is goes on; one that changes begins anew.
func TestSetAgain(t *testing.T) {
	_, at := listen(t, "tcp4", "127.0.0.1:0")
	b := run(t, Options{})
	c := Check{Type: TCP, Interval: time.Hour, Fall: 1}
	first := b.check(c, at)
	again := c
	b.Set(map[Key]*Target{first.Key: {&again, at.Addr(), at.Port()}, {"farm", "unknown"}: nil})
	if all := b.shown(); all[first.Key] != first {
		t.Errorf("shows %v, want %v", all, first)
	}
	again.Rise = 9
	b.Set(map[Key]*Target{first.Key: {&again, at.Addr(), at.Port()}})
	b.next(1)
	c.Rise = 9
	if b.check(c, closed(t)).Up {
		t.Error("another address has the result of the one before")
	}
}

// Set from many goroutines, with checks of all kinds that go on meanwhile: what was set last is
// what has results.
func TestSetFromManyGoroutines(t *testing.T) {
	_, at := listen(t, "tcp4", "127.0.0.1:0")
	web := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))
	defer web.Close()
	web4 := netip.MustParseAddrPort(web.Listener.Addr().String())
	b := run(t, Options{Requests: 3, Commands: 1})
	quick := func(kind string) *Check {
		return &Check{Type: kind, Interval: shortest, Timeout: shortest, Fall: 1000}
	}
	tcp, get := quick(TCP), quick(HTTP)
	get.Timeout, get.Interval = time.Minute, time.Minute
	var group sync.WaitGroup
	for worker := range 4 {
		group.Go(func() {
			for round := range 50 {
				changes := map[Key]*Target{}
				for i := range 20 {
					target := &Target{tcp, at.Addr(), at.Port()}
					if (round+i)%3 == 0 {
						target = &Target{get, web4.Addr(), web4.Port()}
					}
					if (round+i)%5 == 0 {
						target = nil
					}
					changes[Key{fmt.Sprint(worker), fmt.Sprint(i)}] = target
				}
				b.Set(changes)
			}
		})
	}
	group.Wait()
	const left = 4 * 16 // of the last round, where i+49 is no multiple of 5
	await(t, "all results", func() bool {
		right := 0
		for key, r := range b.shown() {
			i, _ := strconv.Atoi(key.Backend)
			want := map[bool]string{true: "status 200", false: "connected"}[(49+i)%3 == 0]
			if (49+i)%5 != 0 && r.Why == want {
				right++
			}
		}
		return right == left
	})
}

// Checks beyond the limit wait for their turn, and are none the worse for it.
func TestLimit(t *testing.T) {
	var running, most atomic.Int32
	s := httptest.NewTLSServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {
		for now := running.Add(1); ; {
			if max := most.Load(); now <= max || most.CompareAndSwap(max, now) {
				break
			}
		}
		time.Sleep(5 * time.Millisecond)
		running.Add(-1)
	}))
	defer s.Close()
	at := netip.MustParseAddrPort(s.Listener.Addr().String())
	b := run(t, Options{Requests: 2})
	changes := map[Key]*Target{}
	for i := range 50 {
		changes[Key{"farm", fmt.Sprint(i)}] = &Target{&Check{Type: HTTPS, Insecure: true, Interval: time.Minute}, at.Addr(), at.Port()}
	}
	b.Set(changes)
	for _, r := range b.next(50) {
		if !r.Up {
			t.Errorf("got %+v", r)
		}
	}
	if most.Load() > 2 {
		t.Errorf("%d at a time, want 2 at most", most.Load())
	}
}

// When this machine has no sockets left, nothing is known to be down.
func TestOwnTrouble(t *testing.T) {
	if !failedByUs(unix.EMFILE) || failedByUs(unix.ECONNREFUSED) {
		t.Error("the wrong errors are taken for this machine's own")
	}
	b := run(t, Options{})
	b.want(Check{Type: TCP}, closed(t), false, "connection refused")
	_, at := listen(t, "tcp4", "127.0.0.1:0")
	var limit unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &limit); err != nil {
		t.Fatal(err)
	}
	none := unix.Rlimit{Cur: 1, Max: limit.Max}
	if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &none); err != nil {
		t.Fatal(err)
	}
	restore := func() { _ = unix.Setrlimit(unix.RLIMIT_NOFILE, &limit) }
	defer restore()
	key := Key{"farm", "next"}
	b.Set(map[Key]*Target{key: {&Check{Type: TCP, Interval: 20 * time.Millisecond}, at.Addr(), at.Port()}})
	await(t, "the log", func() bool { return strings.Contains(b.log.String(), "too many open files") })
	if r, known := b.shown()[key]; known {
		t.Errorf("got %+v", r)
	}
	restore()
	if r := b.next(1)[0]; !r.Up {
		t.Errorf("got %+v", r)
	}
}

func failedByUs(err error) bool { return failed(err).err != nil }

// When Run has ended, there is neither a goroutine nor a descriptor left of it.
func TestNothingIsLeft(t *testing.T) {
	_, busy := listen(t, "tcp4", "127.0.0.1:0") // and accepts nothing
	silent, err := net.ListenPacket("udp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer silent.Close()
	mute := netip.MustParseAddrPort(silent.LocalAddr().String())
	goroutines, files := runtime.NumGoroutine(), descriptors(t)
	ctx, cancel := context.WithCancel(context.Background())
	known := make(chan int, 100)
	c := New(Options{Report: func(r []Result) { known <- len(r) }})
	changes := map[Key]*Target{}
	set := func(check Check, at netip.AddrPort) {
		check.Interval, check.Timeout = time.Minute, time.Minute
		changes[Key{check.Type, fmt.Sprint(len(changes))}] = &Target{&check, at.Addr(), at.Port()}
	}
	for range 10 {
		set(Check{Type: HTTP}, busy)
		set(Check{Type: GRPC}, busy)
		set(Check{Type: TCP, Expect: "x"}, busy)
		set(Check{Type: UDP}, mute)
		set(Check{Type: Command, Command: []string{"sleep", "60"}}, mute)
	}
	set(Check{Type: ICMP}, busy)
	c.Set(changes)
	ended := make(chan bool)
	go func() {
		c.Run(ctx)
		close(ended)
	}()
	<-known // of the ping: all others have begun before, or soon will
	cancel()
	<-ended
	await(t, "goroutines to end", func() bool { return runtime.NumGoroutine() <= goroutines })
	await(t, "descriptors to be closed", func() bool { return descriptors(t) <= files })
}

func descriptors(t *testing.T) int {
	entries, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	return len(entries)
}
