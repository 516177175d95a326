package speaker

import (
	"log/slog"
	"net/netip"
	"strings"
	"syscall"
	"testing"
	"time"

	"sluice.dev/sluice/internal/bgp"
	"sluice.dev/sluice/internal/kernel/link"
)

func TestNotificationText(t *testing.T) {
	for _, c := range []struct {
		code, subcode uint8
		want          string
	}{
		{2, 2, "wrong AS (notification 2/2)"},
		{4, 0, "hold timer expired (notification 4/0)"},
		{6, 2, "cease, administratively shut down (notification 6/2)"},
		{6, 200, "cease (notification 6/200)"},
		{3, 11, "UPDATE message error, malformed AS path (notification 3/11)"},
		{99, 1, "unknown error (notification 99/1)"},
	} {
		if got := notificationText(c.code, c.subcode); got != c.want {
			t.Errorf("%d/%d: %q, want %q", c.code, c.subcode, got, c.want)
		}
	}
}

func TestCommunity(t *testing.T) {
	for text, want := range map[string]string{
		"64500:1": "4227072001", "65535:65281": "4294967041", "no-export": "4294967041", "NO_ADVERTISE": "4294967042", "7": "7",
		"64500": "64500", "64500:": "", "64500:65536": "", "65536:1": "", "x": "", "1:2:3": "", "": "",
	} {
		if got, err := community(text); got != want || (err == nil) != (want != "") {
			t.Errorf("%q: %q, %v, want %q", text, got, err, want)
		}
	}
}

// What announcements say adds up, whatever their order.
func TestSaying(t *testing.T) {
	a := bgp.Announcement{Communities: []string{"1:2"}, LocalPref: 50}
	b := bgp.Announcement{Peers: []string{"x", "y"}, Communities: []string{"1:1", "large:1:2:3"}, LocalPref: 40}
	c := bgp.Announcement{Peers: []string{"x"}, Communities: []string{"1:1"}}
	one, err := sayingOf(&bgp.Route{Announcements: []bgp.Announcement{a, b, c}})
	if err != nil {
		t.Fatal(err)
	}
	two, err := sayingOf(&bgp.Route{Announcements: []bgp.Announcement{c, b, a}})
	if err != nil || one.key != two.key {
		t.Errorf("%q and %q, %v", one.key, two.key, err)
	}
	if got, want := one.all.text(), "[65538] [] 50"; got != want {
		t.Errorf("all get %s, want %s", got, want)
	}
	if got, want := one.named["x"].text(), "[65537 65538] [1:2:3] 50"; got != want || one.named["y"].text() != want {
		t.Errorf("x gets %s and y %s, want %s", got, one.named["y"].text(), want)
	}
	if y, err := sayingOf(&bgp.Route{Announcements: []bgp.Announcement{{}, {}}}); err != nil || !y.plain() {
		t.Errorf("nothing, to all: %+v, %v", y, err)
	}
	if y, err := sayingOf(&bgp.Route{}); err != nil || y.plain() || y.all != nil {
		t.Errorf("to nobody: %+v, %v", y, err)
	}
	if _, err := sayingOf(&bgp.Route{Announcements: []bgp.Announcement{{Communities: []string{"large:1:2"}}}}); err == nil {
		t.Error("a large community of two parts is taken")
	}
}

// A mark is given again once nobody has it, and not before.
func TestMarks(t *testing.T) {
	m := newMarks()
	route := func(community string) *bgp.Route {
		return &bgp.Route{Announcements: []bgp.Announcement{{Communities: []string{community}}}}
	}
	first, err := m.of(route("1:1"))
	if again, err2 := m.of(route("1:1")); err != nil || err2 != nil || first == 0 || again != first {
		t.Fatalf("%d, then %d: %v %v", first, again, err, err2)
	}
	second, _ := m.of(route("1:2"))
	m.keep(map[uint32]bool{second: true})
	if third, _ := m.of(route("1:1")); third == second || len(m.known) != 2 {
		t.Errorf("%d is given to two", third)
	}
	if plain, _ := m.of(&bgp.Route{Announcements: []bgp.Announcement{{}}}); plain != 0 {
		t.Errorf("nothing has the mark %d", plain)
	}
}

func TestOtherAddress(t *testing.T) {
	at := func(device int, prefix string, global bool) link.Address {
		return link.Address{Prefix: netip.MustParsePrefix(prefix), Link: device, Global: global}
	}
	all := []link.Address{
		at(1, "127.0.0.1/8", false), at(1, "10.0.0.9/32", true), at(2, "10.0.1.1/24", true), at(3, "10.0.2.1/24", true),
		at(1, "::1/128", false), at(2, "fe80::1/64", false), at(2, "fd00::1/64", true), at(3, "fe80::1/64", false),
	}
	for _, c := range []struct {
		local  string
		on     int
		six    bool
		want   string
		device int
	}{
		{"10.0.1.1", 0, true, "fd00::1", 2}, {"fd00::1", 0, false, "10.0.1.1", 2}, {"10.0.2.1", 0, true, "", 3}, {"10.0.0.9", 0, true, "", 1},
		{"10.9.9.9", 0, true, "", 0}, {"fe80::1", 3, false, "10.0.2.1", 3}, {"fe80::1", 0, false, "", 0},
	} {
		got, device := otherAddress(all, netip.MustParseAddr(c.local), c.on, c.six)
		if got.IsValid() != (c.want != "") || got.IsValid() && got.String() != c.want || device != c.device {
			t.Errorf("%s: %s of %d, want %s of %d", c.local, got, device, c.want, c.device)
		}
	}
}

// What keeps the speaker from its port is said with what to do.
func TestNotListening(t *testing.T) {
	for err, want := range map[error]string{
		syscall.EADDRINUSE: "another BGP speaker runs on this node",
		syscall.EACCES:     "give the agent the capability CAP_NET_BIND_SERVICE",
		syscall.EMFILE:     "no session with any peer: too many open files",
	} {
		if got := notListening(nil, err); !strings.Contains(got, want) {
			t.Errorf("%v: %q, want %q", err, got, want)
		}
	}
}

// A peer that connects to another address of this node is told both.
func TestHearing(t *testing.T) {
	r := slog.NewRecord(time.Now(), slog.LevelInfo, "Mismatched local address", 0)
	r.Add("Configured addr", "192.0.2.1", "Addr", "192.0.2.9", "BindInterface", "")
	if h, ok := hearing(r); !ok || !strings.Contains(h.text, "connects to 192.0.2.9, and the session is to be from 192.0.2.1") {
		t.Errorf("%+v, %v", h, ok)
	}
}

// A peer that waits after an error, as BIRD does, closes what is opened meanwhile. That does not
// hide the error, as long as nothing else comes up.
func TestErrorOutlivesItsWait(t *testing.T) {
	a := netip.MustParseAddr("192.0.2.1")
	s := New(slog.New(slog.DiscardHandler))
	p := &peer{name: "tor", want: &bgp.Peer{}, session: newSession()}
	s.peers["tor"], s.at[a] = p, p
	for _, c := range []struct {
		heard heard
		want  string
	}{
		{heard{text: "connection refused"}, "connection refused"},
		{heard{text: closesEarly, vague: true}, closesEarly},
		{heard{text: "this node closed the session: wrong AS (notification 2/2)", vague: true}, "this node closed the session: wrong AS (notification 2/2)"},
		{heard{text: closesEarly, vague: true}, "this node closed the session: wrong AS (notification 2/2)"},
		{heard{text: "connection refused"}, "connection refused"},
		{heard{text: closesEarly, vague: true}, closesEarly},
	} {
		s.hear(a, c.heard)
		for _, f := range s.inbox.take() {
			f()
		}
		if got := p.why(); got != c.want {
			t.Errorf("after %q it says %q, want %q", c.heard.text, got, c.want)
		}
	}
}
