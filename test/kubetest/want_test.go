package kubetest

import (
	"fmt"
	"net/netip"
	"slices"
	"testing"

	"sluice.dev/sluice/test/lab/echo"
)

var (
	clientAddr = netip.MustParseAddr("10.244.1.1")
	nodeAddr   = netip.MustParseAddr("10.10.0.11")
)

// from is the answer of a pod that sees an address.
func from(pod string, client netip.Addr) result {
	return result{from: []netip.Addr{clientAddr}, answer: echo.Answer{Pod: pod, Port: 80, Client: netip.AddrPortFrom(client, 4321)}}
}

func failing(err error) result { return result{err: fmt.Errorf("ask: %w", err)} }

func TestFits(t *testing.T) {
	a, masked := from("a", clientAddr), from("a", nodeAddr)
	no, silence := failing(echo.ErrRefused), failing(echo.ErrSilent)
	for _, c := range []struct {
		want     Want
		fit, not []result
	}{
		{answeredBy("a", "b"), []result{a, masked}, []result{from("c", clientAddr), no, silence}},
		{answeredBy("a").seeing(own), []result{a}, []result{masked}},
		{answeredBy("a").seeing(node), []result{masked}, []result{a, from("a", netip.MustParseAddr("192.0.2.1"))}},
		{answeredBy("a").on(80), []result{a}, nil},
		{answeredBy("a").on(81), nil, []result{a}},
		{answered(), []result{a, masked}, []result{no, silence}},
		{refused(), []result{no}, []result{a, silence}},
		{silent(), []result{silence}, []result{a, no}},
		{unanswered(), []result{no, silence}, []result{a, failing(fmt.Errorf("no such namespace"))}},
		{says(503), []result{{status: 503}}, []result{{status: 200}, no}},
		{broken(), []result{failing(fmt.Errorf("reset"))}, []result{a}},
	} {
		for _, r := range c.fit {
			if err := c.want.fits(r, []netip.Addr{nodeAddr}); err != nil {
				t.Errorf("%s: %s: %v", c.want, r, err)
			}
		}
		for _, r := range c.not {
			if c.want.fits(r, []netip.Addr{nodeAddr}) == nil {
				t.Errorf("%s: fits %s", c.want, r)
			}
		}
	}
}

func TestEnough(t *testing.T) {
	times := func(n int, pods ...string) (rs []result) {
		for i := range n {
			rs = append(rs, from(pods[i%len(pods)], clientAddr))
		}
		return rs
	}
	turnedAway := []result{failing(echo.ErrRefused), failing(echo.ErrRefused)}
	for _, c := range []struct {
		want    Want
		results []result
		done    bool
		fails   bool
	}{
		{answeredBy("a"), times(atLeast-1, "a"), false, false},
		{answeredBy("a"), times(atLeast, "a"), true, false},
		{answeredBy("a", "b"), times(atLeast, "a"), false, false},
		{answeredBy("a", "b"), times(atLeast, "a", "b"), true, false},
		{answeredBy("a", "b"), times(atMost, "a"), false, true},
		{answered(), times(atLeast, "a", "b"), true, false},
		{sticky(), times(inARow-1, "a"), false, false},
		{sticky(), times(inARow, "a"), true, false},
		{sticky(), times(2, "a", "b"), false, true},
		{spread(), times(2, "a", "b"), true, false},
		{spread(), times(atMost, "a"), false, true},
		{refused(), turnedAway[:1], false, false},
		{refused(), turnedAway, true, false},
	} {
		if done, err := c.want.enough(c.results); done != c.done || (err != nil) != c.fails {
			t.Errorf("%s after %d: done %v, error %v", c.want, len(c.results), done, err)
		}
	}
}

func TestExcludes(t *testing.T) {
	apart := [][2]Want{
		{refused(), silent()}, {refused(), answeredBy("a")}, {unanswered(), answeredBy("a")}, {answeredBy("a"), broken()}, {says(200), says(503)},
		{spread().overAll(), sticky().overAll()}, {answeredBy("a"), answeredBy("b")}, {answeredBy("a").seeing(own), answeredBy("a").seeing(node)},
	}
	together := [][2]Want{
		{refused(), refused()}, {refused(), unanswered()}, {silent(), unanswered()}, {answeredBy("a"), answeredBy("a").seeing(own)}, {answered(), sticky()},
	}
	for i, pair := range slices.Concat(apart, together) {
		want := i < len(apart)
		if a, b := pair[0].excludes(pair[1]), pair[1].excludes(pair[0]); a != want || b != want {
			t.Errorf("%s, %s: exclude each other: %v and %v, want %v", pair[0], pair[1], a, b, want)
		}
	}
}
