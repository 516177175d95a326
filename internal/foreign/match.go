package foreign

import (
	"encoding/binary"

	"github.com/google/nftables/expr"
	"github.com/google/nftables/xt"
	"golang.org/x/sys/unix"
)

// match is whether a match of iptables-nft that is none of nftables' own expressions is so.
func (p *packet) match(m *expr.Match) answer {
	switch info := m.Info.(type) {
	case *xt.Comment:
		return yes
	case *xt.ConntrackMtinfo1:
		return p.conntrack(&info.ConntrackMtinfoBase, uint16(info.StateMask))
	case *xt.ConntrackMtinfo2:
		return p.conntrack(&info.ConntrackMtinfoBase, info.StateMask)
	case *xt.ConntrackMtinfo3:
		return p.conntrack(&info.ConntrackMtinfoBase, info.StateMask)
	case *xt.Tcp:
		option := maybe
		if info.Option == 0 {
			option = yes
		}
		return p.is(unix.IPPROTO_TCP).
			and(invert(p.port(0, info.SrcPorts), info.InvFlags&xt.TcpInvSrcPorts != 0)).
			and(invert(p.port(2, info.DstPorts), info.InvFlags&xt.TcpInvDestPorts != 0)).
			and(invert(p.flags(info.FlagsMask, info.FlagsCmp), info.InvFlags&xt.TcpInvFlags != 0)).and(option)
	case *xt.Udp:
		return p.is(unix.IPPROTO_UDP).
			and(invert(p.port(0, info.SrcPorts), info.InvFlags&xt.UdpInvSrcPorts != 0)).
			and(invert(p.port(2, info.DstPorts), info.InvFlags&xt.UdpInvDestPorts != 0))
	case *xt.Unknown:
		return p.plainMatch(m.Name, m.Rev, *info)
	}
	return maybe
}

// plainMatch reads matches that the library has no type for (xt_multiport.h, xt_mark.h).
func (p *packet) plainMatch(name string, rev uint32, b []byte) answer {
	switch {
	case name == "multiport" && rev == 1 && len(b) >= 48: // flags, count, 15 ports, 15 flags, invert
		var ranges [][2]uint16
		for i := 0; i < min(int(b[1]), 15); i++ {
			from := binary.NativeEndian.Uint16(b[2+2*i:])
			to := from
			if b[32+i] != 0 && i < 14 {
				i++
				to = binary.NativeEndian.Uint16(b[2+2*i:])
			}
			ranges = append(ranges, [2]uint16{from, to})
		}
		return invert(p.ports(b[0], ranges), b[47] != 0)
	case name == "mark" && rev == 1 && len(b) >= 9 && !p.marked: // mark, mask, invert
		return invert(p.knows(is(binary.NativeEndian.Uint32(b) == 0)), b[8] != 0)
	}
	return maybe
}

// invert is not, if a match says so.
func invert(a answer, not bool) answer {
	if not {
		return a.not()
	}
	return a
}

// knows is that answer, if anything is known of the packet.
func (p *packet) knows(a answer) answer {
	if p.network == nil {
		return maybe
	}
	return a
}

// is is whether the packet is of a protocol.
func (p *packet) is(protocol uint8) answer { return p.knows(is(p.protocol == protocol)) }

// flags is whether, of TCP's flags in the mask, those are set.
func (p *packet) flags(mask, set byte) answer {
	b := p.header(false, 13, 1)[0]
	switch {
	case (b.value^set)&mask&b.known != 0:
		return no
	case mask&^b.known != 0:
		return maybe
	}
	return yes
}

// port is whether the port there is in a range.
func (p *packet) port(at int, r [2]uint16) answer {
	if r == [2]uint16{0, 0xffff} {
		return yes
	}
	return p.header(false, at, 2).within(binary.BigEndian.AppendUint16(nil, r[0]), binary.BigEndian.AppendUint16(nil, r[1]))
}

// What of a packet multiport matches.
const sourcePorts, destinationPorts = 0, 1

// ports is whether one of the packet's ports, or either, is in a range.
func (p *packet) ports(which byte, ranges [][2]uint16) answer {
	found := no
	for _, r := range ranges {
		if which != destinationPorts {
			found = found.or(p.port(0, r))
		}
		if which != sourcePorts {
			found = found.or(p.port(2, r))
		}
	}
	return found
}

// or is whether one of both is so.
func (a answer) or(b answer) answer { return a.not().and(b.not()).not() }

// Bits of a connection's state in xt_conntrack.h, beside those of its state proper.
const xtDNAT, xtUntracked = 1 << 7, 1 << 8

// conntrack is whether the connection's state is one of the mask's, as iptables' conntrack has it.
func (p *packet) conntrack(base *xt.ConntrackMtinfoBase, mask uint16) answer {
	const state, alias = uint16(xt.ConntrackState), uint16(xt.ConntrackStateAlias)
	if base.MatchFlags&^(state|alias) != 0 { // it asks for more
		return maybe
	}
	return invert(p.inState(mask), base.InvertFlags&state != 0)
}

// inState is whether a state of the mask is the connection's.
func (p *packet) inState(mask uint16) answer {
	found := no
	if rest := mask &^ xtDNAT; rest != 0 {
		switch now := p.state(); {
		case now == 0:
			found = maybe
		case now == stateUntracked:
			found = is(rest&xtUntracked != 0)
		default:
			found = is(uint16(now)&rest != 0)
			const snat = 1 << 6
			if found == no && rest&snat != 0 {
				found = maybe
			}
		}
	}
	if mask&xtDNAT != 0 {
		found = found.or(p.dnat())
	}
	return found
}
