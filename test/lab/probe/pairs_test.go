package probe

import (
	"net/netip"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// pair is the result of a try from a workload to a service of the name to.
func pair(from, to string, expect Expect, answered bool, reason string) Result {
	f := Frontend{Service: "default/" + to, Kind: ClusterIP, Protocol: "TCP", To: netip.MustParseAddrPort("10.96.0.1:80")}
	r := Result{Try: Try{Source{Kind: FromPod, Name: "default/" + from + "-1", Of: "default/" + from}, f, expect}, Sent: 1, By: map[string]int{}, Reason: reason}
	if answered {
		r.By["default/"+to+"-1"] = 1
	}
	if reason != "" {
		r.Failed = 1
	}
	return r
}

func TestPairsTable(t *testing.T) {
	pass, drop, own := Expect{Fate: Answered}, Expect{Fate: Dropped}, Expect{Fate: Answered, Own: true}
	six := pair("web", "db", drop, false, "")
	six.To = netip.MustParseAddrPort("[fd00:10:96::1]:80")
	p := NewPairs([]Result{
		pair("web", "web", own, true, ""), pair("web", "cache", pass, true, ""), pair("web", "db", pass, true, ""), six,
		pair("cache", "web", drop, false, ""), pair("cache", "cache", own, true, ""), pair("cache", "db", drop, true, "answered by default/db-1, should be dropped (by policy)"),
		pair("reporter", "web", pass, false, "no answer within 2.5s"), pair("reporter", "cache", drop, false, ""), pair("reporter", "db", drop, false, ""),
	})
	var b strings.Builder
	p.Table(&b)
	want := `          ┌─ web:80
          │ ┌─ cache:80
          │ │ ┌─ db:80
CLIENT    │ │ │
web       ○ ● ◐
cache     · ○ !
reporter  ! · ·
          ● passes   · dropped   ○ its own service, not counted   ◐ in part: not all ports, endpoints or address families   ! not as the policies say
! cache-1 → db:80 at 10.96.0.1: answered by default/db-1, should be dropped (by policy)
! reporter-1 → web:80 at 10.96.0.1: no answer within 2.5s
`
	if diff := cmp.Diff(want, b.String()); diff != "" {
		t.Errorf("table (-want +got):\n%s", diff)
	}
	if got, want := p.Summary(), "2 of 7 pairs of client and port pass (1 more in part), 2 should: 2 NOT AS THE POLICIES SAY"; got != want {
		t.Errorf("summary %q, want %q", got, want)
	}
}

func TestPairsSummary(t *testing.T) {
	pass, drop, unknown := Expect{Fate: Answered}, Expect{Fate: Dropped}, Expect{Fate: Unknown, Why: "others"}
	for _, tc := range []struct {
		name    string
		results []Result
		want    string
	}{
		{"right", []Result{pair("a", "b", pass, true, ""), pair("b", "a", drop, false, "")}, "1 of 2 pairs of client and port pass, as the policies say"},
		{"unknown", []Result{pair("a", "b", unknown, true, ""), pair("b", "a", unknown, false, "")}, "1 of 2 pairs of client and port pass, not checked: there are others"},
	} {
		if got := NewPairs(tc.results).Summary(); got != tc.want {
			t.Errorf("%s: %q, want %q", tc.name, got, tc.want)
		}
	}
}
