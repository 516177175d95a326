package speaker_test

import (
	"errors"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"sluice.dev/sluice/internal/bgp"
)

// why waits until a peer's status says something.
func (s *speaking) why(name, text string) {
	s.t.Helper()
	s.await(name+" says "+text, func(x *said) bool {
		return x.peers[name] != nil && strings.Contains(x.peers[name].Why, text)
	})
}

// With the same MD5 password there is a session, with others there is none, and the others do not
// suffer. A password that is set right takes effect on that session alone.
func TestPasswords(t *testing.T) {
	t.Parallel()
	w := newWire(t)
	for i, password := range []string{"", "right", "right", "right"} {
		conf := frrConf(i, []string{"192.0.2." + string(rune('0'+i)) + "/32"})
		if password != "" {
			conf = frrConf(i, []string{"192.0.2." + string(rune('0'+i)) + "/32"}, "neighbor "+node4(i)+" password "+password)
		}
		w.frr(i, conf)
	}
	s := w.speaker()
	peers := map[string]*bgp.Peer{"none": peer(0), "same": peer(1), "other": peer(2), "missing": peer(3)}
	peers["same"].Password, peers["other"].Password = "right", "wrong"
	s.order(&bgp.Order{Settings: settings(), Peers: peers})
	s.up("none", "same")
	s.why("other", "MD5 passwords differ")
	s.why("missing", "MD5 passwords differ")
	var since time.Time
	s.await("no session with a wrong password", func(x *said) bool {
		since = x.peers["same"].Since
		return x.peers["other"].State != bgp.Established && x.peers["missing"].State != bgp.Established && len(x.learned) == 2
	})

	for _, name := range []string{"other", "missing"} {
		p := *peers[name]
		p.Password = "right"
		s.order(&bgp.Order{Peers: map[string]*bgp.Peer{name: &p}})
	}
	s.up("other", "missing")
	s.await("the others' sessions are as before", func(x *said) bool { return x.peers["same"].Since.Equal(since) })

	// Without a password here, the one of before is forgotten.
	p := *peers["same"]
	p.Password = ""
	s.order(&bgp.Order{Peers: map[string]*bgp.Peer{"same": &p}})
	s.why("same", "MD5 passwords differ")
	p.Password = "right"
	s.order(&bgp.Order{Peers: map[string]*bgp.Peer{"same": &p}})
	s.up("same")
}

// A wrong AS is named, whichever side has it.
func TestWrongAS(t *testing.T) {
	t.Parallel()
	w := newWire(t)
	w.frr(1, frrConf(1, nil))
	w.frr(2, strings.ReplaceAll(frrConf(2, nil), "remote-as 64512", "remote-as 64513"))
	s := w.speaker()
	here := peer(1)
	here.AS = 64999
	s.order(&bgp.Order{Settings: settings(), Peers: map[string]*bgp.Peer{"here": here, "there": peer(2)}})
	s.why("here", "wrong AS: the peer says 64601, and is expected to be 64999")
	s.why("there", "wrong AS (notification 2/2): it does not expect this node to be 64512")
	s.order(&bgp.Order{Peers: map[string]*bgp.Peer{"here": peer(1)}})
	s.up("here")
}

// Why there is no session is said in words.
func TestNoSession(t *testing.T) {
	t.Parallel()
	w := newWire(t)
	w.neighbor(1) // nobody listens
	w.neighbor(2)
	s := w.speaker()
	unreachable, away, unassigned := peer(3), peer(2), peer(1)
	unreachable.Address = addr("10.99.0.1")
	away.Address = addr("10.7.2.77")
	unassigned.Address, unassigned.Source = addr(peer6(1)), addr("fd07:1::77")
	s.order(&bgp.Order{Settings: settings(), Peers: map[string]*bgp.Peer{
		"refused": peer(1), "unreachable": unreachable, "away": away, "unassigned": unassigned,
	}})
	s.why("refused", "connection refused")
	s.why("unreachable", "network is unreachable")
	s.why("unassigned", "does not have the address")
	s.why("away", "the peer is away")
	waiting := peer(1)
	waiting.Address, waiting.Source, waiting.Passive = addr(peer6(1)), netip.Addr{}, true
	s.order(&bgp.Order{Peers: map[string]*bgp.Peer{"unassigned": nil, "waiting": waiting}})
	s.why("waiting", "the peer has not connected: it is the end that opens the session")
	s.await("settled without them", func(x *said) bool { return x.settled })
}

// A peer that takes its leave takes its routes with it, and brings them back.
func TestFlap(t *testing.T) {
	t.Parallel()
	w := newWire(t)
	conf := frrConf(1, []string{"192.0.2.0/24"})
	f := w.frr(1, conf)
	s := w.speaker()
	s.order(&bgp.Order{Settings: settings(), Peers: map[string]*bgp.Peer{"tor": peer(1)}, Routes: routes("198.51.100.0/24")})
	s.up("tor")
	accepted := 0
	s.await("learned", func(x *said) bool { accepted = x.peers["tor"].Accepted; return len(x.learned) == 1 })
	if accepted != 1 {
		t.Errorf("one route is learned, and %d are accepted", accepted)
	}
	if _, err := f.Run("configure terminal", "router bgp 64601", "neighbor "+node4(1)+" shutdown message maintenance"); err != nil {
		t.Fatal(err)
	}
	s.why("tor", "administratively shut down")
	s.await("withdrawn", func(x *said) bool { return len(x.learned) == 0 && x.peers["tor"].Received == 0 })
	if _, err := f.Run("configure terminal", "router bgp 64601", "no neighbor "+node4(1)+" shutdown"); err != nil {
		t.Fatal(err)
	}
	s.up("tor")
	s.await("learned again", func(x *said) bool { return len(x.learned) == 1 })
	eventually(t, "announced again", func() (string, error) { return f.Run("show bgp ipv4 unicast") }, contains("198.51.100.0/24"))
}

// When a peer that knows graceful restart crashes, its routes stay, as stale ones, until it tells
// them again; what it does not tell again goes.
func TestPeerRestart(t *testing.T) {
	t.Parallel()
	w := newWire(t)
	f := w.frr(1, frrConf(1, []string{"192.0.2.0/24", "192.0.3.0/24", "2001:db8:1::/48"}))
	s := w.speaker()
	s.order(&bgp.Order{Settings: settings(), Peers: map[string]*bgp.Peer{"tor": peer(1)}})
	s.up("tor")
	s.await("learned", func(x *said) bool { return len(x.learned) == 3 })
	if err := f.KillBGP(); err != nil {
		t.Fatal(err)
	}
	s.await("stale", func(x *said) bool {
		stale := 0
		for _, l := range x.learned {
			if l.Stale {
				stale++
			}
		}
		return stale == 3 && strings.Contains(x.peers["tor"].Why, "graceful restart")
	})
	if err := f.StartBGP(t.Context(), frrConf(1, []string{"192.0.2.0/24", "2001:db8:1::/48"})); err != nil {
		t.Fatal(err)
	}
	s.up("tor")
	s.await("fresh", func(x *said) bool {
		one, six := x.learned[prefix("192.0.2.0/24")], x.learned[prefix("2001:db8:1::/48")]
		return len(x.learned) == 2 && one != nil && !one.Stale && six != nil && !six.Stale
	})

	// One that comes back without graceful restart never says what has gone meanwhile.
	if err := f.KillBGP(); err != nil {
		t.Fatal(err)
	}
	s.await("stale again", func(x *said) bool { return x.learned[prefix("192.0.2.0/24")].Stale })
	conf := strings.NewReplacer(" bgp graceful-restart\n", " bgp graceful-restart-disable\n", " bgp graceful-restart preserve-fw-state\n", "").
		Replace(frrConf(1, []string{"192.0.4.0/24"}))
	if err := f.StartBGP(t.Context(), conf); err != nil {
		t.Fatal(err)
	}
	s.await("the new one alone", func(x *said) bool { return len(x.learned) == 1 && x.learned[prefix("192.0.4.0/24")] != nil })
}

// While the speaker is away, when it comes back, and when it begins anew with other settings, peers
// that know graceful restart keep its routes all the time.
func TestOwnRestart(t *testing.T) {
	t.Parallel()
	w := newWire(t)
	f := w.frr(1, frrConf(1, []string{"192.0.2.0/24"}))
	b := w.bird(2, birdConf(2, 64602, "192.0.3.0/24"))
	const four, six = "198.51.100.0/24", "2001:db8:100::/48"
	order := &bgp.Order{Settings: settings(), Peers: map[string]*bgp.Peer{"frr": peer(1), "bird": peer(2)}, Routes: routes(four, six)}
	s := w.speaker()
	s.order(order)
	s.up("frr", "bird")
	tables := func() (string, error) {
		one, err := f.Run("show bgp ipv4 unicast", "show bgp ipv6 unicast")
		two, err2 := b.Run("show route")
		return one + "BIRD\n" + two, errors.Join(err, err2)
	}
	all := func(out string) bool { return strings.Count(out, four) == 2 && strings.Count(out, six) == 2 }
	eventually(t, "announced", tables, all)

	kept := watch(tables, all)
	s.end()
	eventually(t, "FRR sees that the speaker is away", func() (string, error) { return f.Run("show bgp neighbors " + node4(1)) }, lacks("BGP state = Established"))
	s = w.speaker()
	s.order(order)
	s.up("frr", "bird")
	s.await("learned again, and settled", func(x *said) bool { return len(x.learned) == 2 && x.settled })
	fresh := func(out string) bool {
		return all(out) && !strings.Contains(out, "S>") && !strings.Contains(out, "S*") && !strings.Contains(out, "s]") // stale, with FRR and BIRD
	}
	eventually(t, "no longer stale", tables, fresh)

	other := *order.Settings
	other.Restart = 30 * time.Second
	var since time.Time
	s.await("since", func(x *said) bool { since = x.peers["frr"].Since; return true })
	s.order(&bgp.Order{Settings: &other})
	s.await("sessions anew", func(x *said) bool {
		return x.peers["frr"].State == bgp.Established && x.peers["frr"].Since.After(since) && x.peers["bird"].State == bgp.Established && len(x.learned) == 2
	})
	eventually(t, "no longer stale again", tables, fresh)
	if out := kept(); out != "" {
		t.Errorf("a route went while the speaker was away:\n%s", out)
	}
}

// watch asks again and again until it is told to end, and returns the first answer that is not as
// it should be.
func watch(ask func() (string, error), is func(string) bool) (end func() string) {
	stop, bad := make(chan struct{}), make(chan string)
	go func() {
		defer close(bad)
		for {
			if out, err := ask(); err == nil && !is(out) {
				bad <- out
				return
			}
			select {
			case <-stop:
				return
			case <-time.After(20 * time.Millisecond):
			}
		}
	}()
	return func() string {
		close(stop)
		return <-bad
	}
}

// When all sessions begin anew with other settings, neither end forgets a route that is announced
// again, and those that are not go.
func TestOtherSettings(t *testing.T) {
	t.Parallel()
	w := newWire(t)
	f := w.frr(1, frrConf(1, []string{"192.0.2.0/24", "2001:db8:1::/48"}))
	w.bird(2, birdConf(2, 64602, "192.0.3.0/24"))
	s := w.speaker()
	s.order(&bgp.Order{Settings: settings(), Peers: map[string]*bgp.Peer{"tor": peer(1), "leaves": peer(2)}, Routes: routes("198.51.100.0/24")})
	s.up("tor", "leaves")
	s.await("learned", func(x *said) bool { return len(x.learned) == 3 && x.settled })
	eventually(t, "announced", func() (string, error) { return f.Run("show bgp ipv4 unicast") }, contains("198.51.100.0/24"))
	var since time.Time
	s.await("the session of before", func(x *said) bool { since = x.peers["tor"].Since; return true })

	other := settings()
	other.Restart = 90 * time.Second
	s.order(&bgp.Order{Settings: other, Peers: map[string]*bgp.Peer{"leaves": nil}})
	s.await("a new session", func(x *said) bool {
		return x.peers["tor"].State == bgp.Established && !x.peers["tor"].Since.Equal(since)
	})
	s.await("nothing is stale", func(x *said) bool {
		for _, l := range x.learned {
			if l.Stale {
				return false
			}
		}
		return len(x.learned) == 2
	})
	s.await("what went is what nobody announces", func(x *said) bool { return slices.Equal(x.gone, []netip.Prefix{prefix("192.0.3.0/24")}) })
	eventually(t, "announced again", func() (string, error) { return f.Run("show bgp ipv4 unicast") }, contains("198.51.100.0/24"))
}
