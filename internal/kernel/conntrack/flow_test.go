package conntrack

import (
	"math/rand/v2"
	"net/netip"
	"testing"

	"sluice.dev/sluice/internal/kernel/attr"
	"sluice.dev/sluice/internal/model"
)

// matches says in the plainest way what a Filter selects.
func matches(f Filter, flow *Flow) bool {
	if f.Protocol != flow.Protocol || f.Unanswered && flow.Answered() {
		return false
	}
	if a := f.Frontend.Addr(); a.IsValid() && a != flow.Orig.Dst.Addr() {
		return false
	}
	if p := f.Frontend.Port(); p != 0 && p != flow.Orig.Dst.Port() {
		return false
	}
	if f.Backend.IsValid() {
		return f.Backend == flow.Reply.Src && (flow.Reply.Src != flow.Orig.Dst || f.Frontend.Addr().IsValid())
	}
	return f.Frontend.Port() != 0
}

// TestIndex compares the index with a walk of all filters, over few enough
// values for them to meet often.
func TestIndex(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	addrs := []netip.Addr{netip.MustParseAddr("10.0.0.1"), netip.MustParseAddr("10.0.0.2"), netip.MustParseAddr("fd00::1")}
	protocols := []model.Protocol{model.TCP, model.UDP, model.SCTP}
	addr := func() netip.Addr { return addrs[r.IntN(len(addrs))] }
	port := func() uint16 { return uint16(1 + r.IntN(2)) }
	protocol := func() model.Protocol { return protocols[r.IntN(len(protocols))] }
	hits := 0
	for range 20_000 {
		var filters []Filter
		for range r.IntN(5) {
			f := Filter{Protocol: protocol(), Unanswered: r.IntN(2) == 0}
			switch r.IntN(3) {
			case 0:
				f.Frontend = netip.AddrPortFrom(addr(), port())
			case 1:
				f.Frontend = netip.AddrPortFrom(netip.Addr{}, port())
			}
			if r.IntN(2) == 0 {
				f.Backend = netip.AddrPortFrom(addr(), port())
			}
			filters = append(filters, f)
		}
		flow := Flow{
			Status:   uint32(r.IntN(2)) * StatusSeenReply,
			Protocol: protocol(),
			Orig:     Tuple{Dst: netip.AddrPortFrom(addr(), port())},
			Reply:    Tuple{Src: netip.AddrPortFrom(addr(), port())},
		}
		want := false
		for _, f := range filters {
			want = want || matches(f, &flow)
		}
		// A frontend of one family with a backend of the other is invalid, and matches no flow that
		// exists.
		if flow.Orig.Dst.Addr().Is4() != flow.Reply.Src.Addr().Is4() {
			continue
		}
		if got := newIndex(filters).match(&flow); got != want {
			t.Fatalf("filters %v on %+v: got %v, want %v", filters, flow, got, want)
		}
		if want {
			hits++
		}
	}
	if hits == 0 {
		t.Error("no filter ever matched")
	}
}

func TestFilterString(t *testing.T) {
	for want, f := range map[string]Filter{
		"UDP 10.96.0.1:53 -> 10.2.0.1:5353": {Protocol: model.UDP, Frontend: ap("10.96.0.1:53"), Backend: ap("10.2.0.1:5353")},
		"TCP *:30053 -> *":                  {Protocol: model.TCP, Frontend: port(30053), Backend: netip.AddrPort{}},
		"SCTP * -> [fd02::1]:1":             {Protocol: model.SCTP, Frontend: netip.AddrPort{}, Backend: ap("[fd02::1]:1")},
		"TCP 10.96.0.1:53 -> *, unanswered": {Protocol: model.TCP, Frontend: ap("10.96.0.1:53"), Unanswered: true},
	} {
		if got := f.String(); got != want {
			t.Errorf("got %q, want %q", got, want)
		}
	}
}

// Of an entry in a flowtable the kernel tells neither time-out nor state. Made anew, it is
// established for as long as such are.
func TestOffloaded(t *testing.T) {
	for protocol, want := range map[model.Protocol]rest{
		model.UDP: {timeout: 120},
		model.TCP: {timeout: 432000, tcp: tcpInfo{state: 3}},
	} {
		tuple := Tuple{Src: netip.MustParseAddrPort("10.0.0.1:40000"), Dst: netip.MustParseAddrPort("10.0.0.2:80")}
		m := message(msgNew, 0, familyV4, func(a *attr.Attrs) {
			putTuple(a, ctaTupleOrig, tuple, protocol, wholeTuple)
			putTuple(a, ctaTupleReply, Tuple{Src: tuple.Dst, Dst: tuple.Src}, protocol, wholeTuple)
			a.Uint32(ctaStatus, StatusConfirmed|StatusAssured|StatusOffload)
		})
		f, ok, err := decodeFlow(m.Data)
		if err != nil || !ok || !f.Offloaded() || f.rest != want {
			t.Errorf("%v: %+v, %v, %v; want %+v", protocol, f, ok, err, want)
		}
	}
}
