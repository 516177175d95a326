package nftables

import (
	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"

	"sluice.dev/sluice/internal/kernel/nft"
)

// A farm may have clients be answered in its backends' place until they have shown that they are
// there: their first segment is not tracked, and nothing is remembered of it but what the answer
// says (SYN cookies). What they answer to that is of no connection, and has the kernel open one to
// the farm in the client's name, which is balanced as one of the machine itself. That needs
// net.netfilter.nf_conntrack_tcp_loose to be 0: otherwise connection tracking takes the client's
// answer for the middle of a connection that it has missed.

// TCP's flags (RFC 9293, section 3.1).
const (
	tcpFIN = 0x01
	tcpSYN = 0x02
	tcpRST = 0x04
	tcpACK = 0x10
)

// synProxyChains are there while a farm asks for them.
func (rs *ruleset) synProxyChains() []nft.Chain {
	raw := nft.Chain{Name: "syn-untracked", Comment: "first segments to farms that are proxied", Hook: nft.FilterHook(unix.NF_INET_PRE_ROUTING, beforeTracking)}
	in := nft.Chain{Name: "syn-proxy-in", Comment: "clients are answered in their backends' place", Hook: nft.FilterHook(unix.NF_INET_LOCAL_IN, 0)}
	forward := nft.Chain{Name: "syn-proxy-forward", Comment: "the same, at addresses that the machine does not have", Hook: nft.FilterHook(unix.NF_INET_FORWARD, 0)}
	for _, fp := range rs.families {
		for k := range kinds {
			is := func(r nft.Rule) nft.Rule { return r.Load(0, fp.dest()...).Has(fp.proxied[k], 0) }
			raw.Rules = append(raw.Rules, is(rule().Family(fp.ip).TCPFlags(tcpFIN|tcpSYN|tcpRST|tcpACK, tcpSYN)).Untracked())
			proxy := is(rule().Family(fp.ip).Proto(unix.IPPROTO_TCP).CtState(expr.CtStateBitINVALID | expr.CtStateBitUNTRACKED)).SYNProxy()
			in.Rules, forward.Rules = append(in.Rules, proxy), append(forward.Rules, proxy)
		}
	}
	return []nft.Chain{raw, in, forward}
}

// proxied yields the virtual addresses of a farm whose clients are answered in its backends' place.
func (h *half) proxied() {
	if !h.Limits.SYNProxy {
		return
	}
	h.enter(h.rs.synProxyChains()...)
	for _, p := range h.addrs {
		if p.proto == unix.IPPROTO_TCP {
			e := h.fp.at(h.fp.proxied, p)
			h.element(&e)
		}
	}
}
