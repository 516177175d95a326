package nftables

import (
	"time"

	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"

	"sluice.dev/sluice/internal/driver"
	"sluice.dev/sluice/internal/kernel/nft"
	"sluice.dev/sluice/internal/model"
)

// Connections that are refused in a backend's place are told to who checks the backends. A packet
// of a connection that has been answered before pays for one look at the state of its connection.

const (
	refusalHeader = 128 // bytes: of an ICMP error, the headers of what it is about, too

	refusals        = 500 // a second that are told, of all backends
	backendRefusals = 10  // of one
)

// tell sends what goes on to the group, as often as the key from the first register on allows.
func (fp *family) tell(r nft.Rule) nft.Rule {
	return r.WithinEach(fp.refusals, 0, backendRefusals, time.Second, 1, time.Second).
		Within(refusals, time.Second, refusals/10).LoggedTo(driver.RefusalGroup, refusalHeader)
}

// refusalChains are there while backends of a farm whose connections are tracked are checked. They
// see answers before their addresses are translated back.
func (rs *ruleset) refusalChains() []nft.Chain {
	told := nft.Chain{Name: "refused", Comment: "who checks the backends is told"}
	for _, fp := range rs.families {
		key := []nft.Field{fp.ip.ReplySaddr, nft.L4Proto, nft.CtReplySport}
		told.Rules = append(told.Rules, fp.tell(rule().Family(fp.ip).Translated().Load(0, key...)))
	}
	enter := func(name, comment string, hook uint32) nft.Chain {
		return nft.Chain{Name: name, Comment: comment, Hook: nft.FilterHook(hook, -150), Rules: []nft.Rule{rule().Refused().Goto(told.Name)}}
	}
	return []nft.Chain{
		enter("refusals", "connections that are refused", unix.NF_INET_PRE_ROUTING),
		enter("refusals-own", "the same, by backends on this machine", unix.NF_INET_LOCAL_OUT),
		told,
	}
}

// refused has refusals of the farm's backends be told.
func (h *half) refused() {
	if h.Checked && (h.Mode == model.DNAT || h.Mode == model.SNAT) {
		h.enter(h.rs.refusalChains()...)
	}
}

// refusedSYN tells of resets that answer a SYN in place of a stateless farm's backend, of packets
// of TCP.
func (fp *family) refusedSYN(k kind, r nft.Rule) nft.Rule {
	return fp.tell(fp.answer(k, r.RefusedSYN()).Load(0, fp.refusals.Key...))
}

// unreachable tells of ICMP errors that may be about what was sent to such a backend.
func (fp *family) unreachable(r nft.Rule) nft.Rule {
	if fp.is4() {
		const unreachable, needsFragments = 3, 4 // RFC 792
		r = r.Proto(unix.IPPROTO_ICMP).ICMPType(unreachable, unreachable).Is(expr.CmpOpNeq, nft.ICMP, []byte{unreachable, needsFragments})
	} else {
		const unreachable = 1 // RFC 4443
		r = r.Proto(unix.IPPROTO_ICMPV6).ICMPType(unreachable, unreachable)
	}
	return fp.tell(r.Load(0, fp.refusals.Key...))
}
