package probe

import (
	"net/netip"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestMatrix(t *testing.T) {
	pass, drop, own := Expect{Fate: Answered}, Expect{Fate: Dropped}, Expect{Fate: Answered, Own: true}
	admin := func(r Result) Result { // at another port of the same service
		r.To = netip.AddrPortFrom(r.To.Addr(), 9090)
		return r
	}
	results := []Result{
		pair("web", "web", own, true, ""), pair("web", "cache", pass, true, ""), admin(pair("web", "cache", pass, true, "")),
		pair("cache", "web", drop, false, ""), pair("cache", "cache", own, true, ""), admin(pair("cache", "cache", own, true, "")),
		pair("reporter", "web", pass, false, "no answer within 2.5s"), pair("reporter", "cache", pass, true, ""), admin(pair("reporter", "cache", drop, false, "")),
	}
	p := NewPairs(results)
	want := `          web  cache
web        ○     ●
cache      ·     ○
reporter   !     ◐
● passes   · dropped   ○ its own service, not counted   ◐ in part: not all ports, endpoints or address families   ! not as the policies say`
	if diff := cmp.Diff(want, strings.Join(p.Matrix(20), "\n")); diff != "" {
		t.Errorf("matrix (-want +got):\n%s", diff)
	}
	if got, want := p.ByService().Summary(), "1 of 4 pairs of client and service pass (1 more in part), 2 should: 1 NOT AS THE POLICIES SAY"; got != want {
		t.Errorf("summary %q, want %q", got, want)
	}
	if got := p.Matrix(19); got != nil {
		t.Errorf("a matrix of 20 columns in 19: %q", got)
	}
	if got, want := p.Failures(), []string{"reporter-1 → web:80 at 10.96.0.1: no answer within 2.5s"}; !cmp.Equal(got, want) {
		t.Errorf("failures %q, want %q", got, want)
	}
}

// Names are without their namespaces only as long as they stay apart.
func TestShortest(t *testing.T) {
	for _, tc := range []struct{ names, want []string }{
		{[]string{"shop/a", "data/b"}, []string{"a", "b"}},
		{[]string{"shop/a", "data/a", "default/c"}, []string{"shop/a", "data/a", "c"}},
	} {
		if got := shortest(tc.names); !cmp.Equal(got, tc.want) {
			t.Errorf("%q are %q, want %q", tc.names, got, tc.want)
		}
	}
}
