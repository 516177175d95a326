package health

import (
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"
)

// rarely has nothing but a refusal bring about a check after the first two.
func rarely(c Check) Check {
	c.Interval, c.Timeout, c.Rise, c.Fall = time.Hour, 10*time.Second, 2, 3
	return c
}

// A backend that refuses connections is down without its interval having passed, whatever its type
// of check, and comes back by rise checks at its interval.
func TestSuspect(t *testing.T) {
	t.Run("tcp", func(t *testing.T) {
		l, at := listen(t, "tcp", "127.0.0.1:0")
		falls(t, rarely(Check{Type: TCP}), at, "connection refused", func() { _ = l.Close() })
	})
	t.Run("http", func(t *testing.T) {
		s := httptest.NewServer(http.NotFoundHandler())
		at := netip.MustParseAddrPort(s.Listener.Addr().String())
		falls(t, rarely(Check{Type: HTTP, StatusFirst: 404}), at, "connection refused", s.Close)
	})
	t.Run("udp", func(t *testing.T) {
		c, err := net.ListenPacket("udp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		go func() {
			for b := make([]byte, 9); ; {
				n, from, err := c.ReadFrom(b)
				if err != nil {
					return
				}
				_, _ = c.WriteTo(b[:n], from)
			}
		}()
		at := netip.MustParseAddrPort(c.LocalAddr().String())
		falls(t, rarely(Check{Type: UDP, Send: "ping"}), at, "connection refused", func() { _ = c.Close() })
	})
	t.Run("command", func(t *testing.T) {
		file := filepath.Join(t.TempDir(), "alive")
		if err := os.WriteFile(file, nil, 0o600); err != nil {
			t.Fatal(err)
		}
		falls(t, rarely(Check{Type: Command, Command: []string{"test", "-e", file}}), netip.MustParseAddrPort("127.0.0.1:9"), "exit status 1", func() { _ = os.Remove(file) })
	})
}

// falls fails the test unless a target is down after a refusal.
func falls(t *testing.T, c Check, at netip.AddrPort, why string, end func()) {
	t.Helper()
	b := run(t, Options{})
	b.Set(map[Key]*Target{{"farm", "backend"}: {&c, at.Addr(), at.Port()}})
	b.up(b.next(1)[0])
	end()
	b.Suspect(at)
	if r := b.next(1)[0]; r.Up || !strings.HasPrefix(r.Why, why) {
		t.Errorf("got %+v, want that it is down: %s", r, why)
	}
}

// A target is looked for by the port that clients' connections come to, not by that of its check;
// where no target has the port, all of the address are checked.
func TestSuspectPorts(t *testing.T) {
	l, at := listen(t, "tcp", "127.0.0.1:0")
	c := rarely(Check{Type: TCP, Port: at.Port()})
	b := run(t, Options{})
	b.Set(map[Key]*Target{{"farm", "a"}: {&c, at.Addr(), 1}, {"farm", "b"}: {&c, at.Addr(), 2}})
	for _, r := range b.next(2) {
		b.up(r)
	}
	_ = l.Close()
	b.Suspect(netip.AddrPortFrom(at.Addr(), 2))
	if r := b.next(1)[0]; r.Backend != "b" || r.Up {
		t.Errorf("got %+v, want that b is down", r)
	}
	b.Suspect(netip.AddrPortFrom(netip.AddrFrom16(at.Addr().As16()), 3))
	if r := b.next(1)[0]; r.Backend != "a" || r.Up {
		t.Errorf("got %+v, want that a is down", r)
	}
}

// A check of a suspected target that has failed is repeated without a pause.
func TestSuspectAtOnce(t *testing.T) {
	l := newLoop(New(Options{}))
	c := rarely(Check{Type: TCP})
	key := Key{"farm", "backend"}
	defer l.close()
	l.replace(key, &Target{&c, netip.MustParseAddr("192.0.2.1"), 80})
	target := l.targets[key]
	target.begun = time.Now()
	l.end(target, up("connected"))
	l.suspect(netip.MustParseAddrPort("192.0.2.1:80"))
	target.begun = time.Now()
	l.end(target, down("connection refused"))
	if l.schedule.due(time.Now()) != target {
		t.Errorf("the next check is in %v, want now", time.Until(target.due))
	}
}

// A backend whose checks succeed stays up, however often it refuses connections, and is checked ten
// times a second for it at the most.
func TestSuspectFlood(t *testing.T) {
	var asked atomic.Int64
	s := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { asked.Add(1) }))
	defer s.Close()
	at := netip.MustParseAddrPort(s.Listener.Addr().String())
	c := rarely(Check{Type: HTTP})
	b := run(t, Options{})
	b.Set(map[Key]*Target{{"farm", "backend"}: {&c, at.Addr(), at.Port()}})
	b.up(b.next(1)[0])
	begin, before := time.Now(), asked.Load()
	await(t, "checks", func() bool {
		for range 10_000 {
			b.Suspect(at)
		}
		return asked.Load() >= before+3
	})
	if most := before + 2 + int64(time.Since(begin)/calm); asked.Load() > most {
		t.Errorf("checked %d times, want %d at the most", asked.Load(), most)
	}
	if r := b.shown()[Key{"farm", "backend"}]; !r.Up {
		t.Errorf("got %+v, want that it is up", r)
	}
}

// Of any number of targets a bounded number is checked before its time.
func TestSuspectMany(t *testing.T) {
	s, now := newSuspects(), time.Unix(1, 0)
	for i, want := range []int{mostSuspects, mostSuspects} {
		admitted := 0
		for range 10_000 {
			if s.admit(now.Add(time.Duration(i) * calm)) {
				admitted++
			}
		}
		if admitted != want {
			t.Errorf("%d were admitted, want %d", admitted, want)
		}
	}
}

// A target is found whatever its address is written with, and leaves nothing behind if it goes
// while it is suspected.
func TestSuspectGoes(t *testing.T) {
	l := newLoop(New(Options{}))
	c := rarely(Check{Type: Command, Command: []string{"sleep", "60"}})
	key := Key{"farm", "backend"}
	defer l.close()
	l.replace(key, &Target{&c, netip.MustParseAddr("fe80::1%lo"), 9})
	l.suspect(netip.MustParseAddrPort("[fe80::1]:9"))
	if l.pending != 1 || l.slot() != hurry {
		t.Errorf("%d are suspected", l.pending)
	}
	l.replace(key, nil)
	if l.pending != 0 || len(l.servers) != 0 || l.slot() != slot {
		t.Errorf("%d are suspected, of %d servers", l.pending, len(l.servers))
	}
}
