package conntrack

import (
	"encoding/binary"
	"errors"
	"net/netip"

	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"

	"sluice.dev/sluice/internal/kernel/attr"
	"sluice.dev/sluice/internal/model"
)

// The two families that services have.
const (
	familyV4 Family = unix.AF_INET
	familyV6 Family = unix.AF_INET6
)

// Numbers of linux/netfilter/nfnetlink_conntrack.h.
const (
	msgNew    = unix.NFNL_SUBSYS_CTNETLINK << 8
	msgGet    = unix.NFNL_SUBSYS_CTNETLINK<<8 | 1
	msgDelete = unix.NFNL_SUBSYS_CTNETLINK<<8 | 2

	msgGetUnconfirmed = unix.NFNL_SUBSYS_CTNETLINK<<8 | 7

	ctaTupleOrig     = 1
	ctaTupleReply    = 2
	ctaStatus        = 3
	ctaProtoInfo     = 4
	ctaNatSrc        = 6
	ctaTimeout       = 7
	ctaMark          = 8
	ctaID            = 12
	ctaCountersOrig  = 9
	ctaCountersReply = 10
	ctaCountersBytes = 2 // within
	ctaNatDst        = 13
	ctaZone          = 18
	ctaLabels        = 22
	ctaLabelsMask    = 23
	ctaFilter        = 25
	ctaStatusMask    = 26

	ctaTupleIP    = 1
	ctaTupleProto = 2
	ctaTupleZone  = 3

	ctaIPv4Src = 1
	ctaIPv4Dst = 2
	ctaIPv6Src = 3
	ctaIPv6Dst = 4

	ctaProtoNum     = 1
	ctaProtoSrcPort = 2
	ctaProtoDstPort = 3
	ctaICMPID       = 4 // then type and code
	ctaICMPv6ID     = 7 // then type and code

	ctaProtoInfoTCP = 1
	ctaTCPState     = 1
	ctaTCPScales    = 2 // of the original direction, then of the reply's
	ctaTCPFlags     = 4 // likewise

	ctaNatV4   = 1 // the least address, then the greatest
	ctaNatV6   = 4 // likewise
	ctaNatL4   = 3
	ctaNatPort = 1 // the least port, then the greatest

	ctaFilterOrigFlags  = 1
	ctaFilterReplyFlags = 2
)

// Flags of CTA_FILTER: which parts of a tuple the kernel compares (net/netfilter/nf_internals.h).
const (
	filterSrcIP    uint32 = 1 << 0
	filterDstIP    uint32 = 1 << 1
	filterProtocol uint32 = 1 << 3
	filterSrcPort  uint32 = 1 << 4
	filterDstPort  uint32 = 1 << 5

	wholeTuple = filterSrcIP | filterDstIP | filterSrcPort | filterDstPort
)

var errMalformed = errors.New("malformed message")

// message builds a ctnetlink message: the nfgenmsg header and then attributes.
func message(t netlink.HeaderType, flags netlink.HeaderFlags, family Family, put func(*attr.Attrs)) netlink.Message {
	a := attr.Attrs{B: []byte{byte(family), unix.NFNETLINK_V0, 0, 0}}
	if put != nil {
		put(&a)
	}
	return netlink.Message{Header: netlink.Header{Type: t, Flags: netlink.Request | flags}, Data: a.B}
}

// putTuple writes those parts of a tuple that parts names; its unused
// fields may be zero.
func putTuple(a *attr.Attrs, typ uint16, t Tuple, p model.Protocol, parts uint32) {
	tuple := a.Begin(typ)
	if parts&(filterSrcIP|filterDstIP) != 0 {
		ip := a.Begin(ctaTupleIP)
		if parts&filterSrcIP != 0 {
			putAddr(a, ctaIPv4Src, ctaIPv6Src, t.Src.Addr())
		}
		if parts&filterDstIP != 0 {
			putAddr(a, ctaIPv4Dst, ctaIPv6Dst, t.Dst.Addr())
		}
		a.End(ip)
	}
	proto := a.Begin(ctaTupleProto)
	a.Uint8(ctaProtoNum, uint8(p))
	if parts&filterSrcPort != 0 {
		a.Uint16(ctaProtoSrcPort, t.Src.Port())
	}
	if parts&filterDstPort != 0 {
		a.Uint16(ctaProtoDstPort, t.Dst.Port())
	}
	if id, is := icmpAttr(p); is && parts == wholeTuple {
		a.Uint16(id, t.ICMP.ID)
		a.Uint8(id+1, t.ICMP.Type)
		a.Uint8(id+2, t.ICMP.Code)
	}
	a.End(proto)
	a.End(tuple)
}

// icmpAttr is the first of the three attributes in which a protocol has its identifier, type and
// code.
func icmpAttr(p model.Protocol) (id uint16, is bool) {
	switch p {
	case unix.IPPROTO_ICMP:
		return ctaICMPID, true
	case unix.IPPROTO_ICMPV6:
		return ctaICMPv6ID, true
	}
	return 0, false
}

func putAddr(a *attr.Attrs, v4, v6 uint16, addr netip.Addr) {
	if addr.Is4() {
		a.Bytes(v4, addr.AsSlice())
	} else {
		a.Bytes(v6, addr.AsSlice())
	}
}

// dumpAll asks for every flow whose status has all bits of status set.
func dumpAll(status uint32) netlink.Message {
	return message(msgGet, netlink.Dump, unix.AF_UNSPEC, func(a *attr.Attrs) {
		if status != 0 { // a kernel before 5.17 ignores these two and sends all
			a.Uint32(ctaStatus, status)
			a.Uint32(ctaStatusMask, status)
		}
	})
}

// dumpFiltered asks for the flows of one family that a filter selects; the kernel does the
// selecting (5.8).
//
// IPv6 addresses are left out: the kernel (6.18 at least) has that comparison the wrong
// way round and hands out the flows of all other addresses. So there it selects by ports
// alone, and the caller by address.
func dumpFiltered(f Filter, family Family) netlink.Message {
	return message(msgGet, netlink.Dump, family, func(a *attr.Attrs) {
		var orig, reply uint32
		v4 := family == familyV4
		if f.Frontend.Port() != 0 {
			orig |= filterProtocol | filterDstPort
		}
		if f.Frontend.Addr().IsValid() && v4 {
			orig |= filterDstIP
		}
		if f.Backend.IsValid() {
			reply |= filterProtocol | filterSrcPort
		}
		if f.Backend.IsValid() && v4 {
			reply |= filterSrcIP
		}
		if orig != 0 {
			putTuple(a, ctaTupleOrig, Tuple{Dst: f.Frontend}, f.Protocol, orig)
		}
		if reply != 0 {
			putTuple(a, ctaTupleReply, Tuple{Src: f.Backend}, f.Protocol, reply)
		}
		putFilter(a, orig, reply)
	})
}

// putFilter says which parts of the tuples the kernel compares. These two numbers alone are not in
// network order.
func putFilter(a *attr.Attrs, orig, reply uint32) {
	filter := a.Begin(ctaFilter)
	a.Bytes(ctaFilterOrigFlags, binary.NativeEndian.AppendUint32(nil, orig))
	a.Bytes(ctaFilterReplyFlags, binary.NativeEndian.AppendUint32(nil, reply))
	a.End(filter)
}

// deleteFlow asks to delete exactly this entry. The complete tuple is what keeps it from
// being read as a flush, which a delete without a tuple is. The reply's tuple is given
// since it holds the backend: were the flow to end and its next packet to be sent
// elsewhere before this arrives, that entry stays. (The id alone does not tell them apart:
// memory is reused, and with it ids.)
func deleteFlow(f *Flow) netlink.Message {
	return message(msgDelete, 0, f.Family, func(a *attr.Attrs) {
		putTuple(a, ctaTupleReply, f.Reply, f.Protocol, wholeTuple)
		a.Uint32(ctaID, f.id)
	})
}

// getFlow asks for one entry by its original tuple.
func getFlow(family Family, t Tuple, p model.Protocol) netlink.Message {
	return message(msgGet, 0, family, func(a *attr.Attrs) {
		putTuple(a, ctaTupleOrig, t, p, wholeTuple)
	})
}

// dumpUnconfirmed asks for the entries that first packets are about to make: at any moment few, and
// since Linux 5.19 the answer is always empty.
func dumpUnconfirmed(family Family) netlink.Message {
	return message(msgGetUnconfirmed, netlink.Dump, family, nil)
}

// decodeFlow reads one entry. The flow keeps no reference to data. It is not ok for
// entries that are not ours to judge: those of other families and those in a connection
// tracking zone.
func decodeFlow(data []byte) (f Flow, ok bool, err error) {
	if len(data) < 4 {
		return Flow{}, false, errMalformed
	}
	f.Family = Family(data[0])
	if f.Family != familyV4 && f.Family != familyV6 {
		return Flow{}, false, nil
	}
	ok = true
	for t, v := range attr.All(data[4:]) {
		switch t {
		case ctaTupleOrig:
			f.Protocol = decodeTuple(v, &f.Orig, &ok)
		case ctaTupleReply:
			decodeTuple(v, &f.Reply, &ok)
		case ctaStatus:
			f.Status = attr.Uint32(v)
		case ctaID:
			f.id = attr.Uint32(v)
		case ctaZone:
			ok = false
		case ctaCountersOrig, ctaCountersReply:
			f.Bytes += attr.Uint64(attr.Find(v, ctaCountersBytes))
		case ctaLabels:
			copy(f.Labels[:], v)
		case ctaTimeout:
			f.rest.timeout = attr.Uint32(v)
		case ctaMark:
			f.rest.mark = attr.Uint32(v)
		case ctaProtoInfo:
			f.rest.tcp.decode(attr.Find(v, ctaProtoInfoTCP))
		}
	}
	if f.Offloaded() {
		f.rest.offloaded(f.Protocol)
	}
	if !f.Orig.Dst.Addr().IsValid() || !f.Reply.Src.Addr().IsValid() {
		return Flow{}, false, errMalformed
	}
	return f, ok, nil
}

func decodeTuple(data []byte, to *Tuple, ok *bool) (p model.Protocol) {
	var src, dst netip.Addr
	var srcPort, dstPort uint16
	for t, v := range attr.All(data) {
		switch t {
		case ctaTupleIP:
			for t, v := range attr.All(v) {
				switch t {
				case ctaIPv4Src, ctaIPv6Src:
					src, _ = netip.AddrFromSlice(v)
				case ctaIPv4Dst, ctaIPv6Dst:
					dst, _ = netip.AddrFromSlice(v)
				}
			}
		case ctaTupleProto:
			for t, v := range attr.All(v) {
				switch {
				case t == ctaProtoNum && len(v) == 1:
					p = model.Protocol(v[0])
				case t == ctaProtoSrcPort && len(v) == 2:
					srcPort = binary.BigEndian.Uint16(v)
				case t == ctaProtoDstPort && len(v) == 2:
					dstPort = binary.BigEndian.Uint16(v)
				default:
					to.ICMP.decode(t, v)
				}
			}
		case ctaTupleZone:
			*ok = false
		}
	}
	to.Src, to.Dst = netip.AddrPortFrom(src, srcPort), netip.AddrPortFrom(dst, dstPort)
	return p
}

func (i *ICMP) decode(t uint16, v []byte) {
	switch {
	case (t == ctaICMPID || t == ctaICMPv6ID) && len(v) == 2:
		i.ID = binary.BigEndian.Uint16(v)
	case (t == ctaICMPID+1 || t == ctaICMPv6ID+1) && len(v) == 1:
		i.Type = v[0]
	case (t == ctaICMPID+2 || t == ctaICMPv6ID+2) && len(v) == 1:
		i.Code = v[0]
	}
}

// offloaded sets what the kernel does not tell of an entry that is in a flowtable: it is
// established, and gets the kernel's own time-out for that. (What TCP said of windows is lost; an
// entry that is made anew does not look at them.)
func (r *rest) offloaded(p model.Protocol) {
	const established = 3 // TCP_CONNTRACK_ESTABLISHED
	r.timeout, r.tcp = 120, tcpInfo{}
	if p == model.TCP {
		r.timeout, r.tcp.state = 5*24*3600, established
	}
}

func (i *tcpInfo) decode(data []byte) {
	for t, v := range attr.All(data) {
		switch {
		case len(v) == 0:
		case t == ctaTCPState:
			i.state = v[0]
		case t == ctaTCPScales, t == ctaTCPScales+1:
			i.scales[t-ctaTCPScales] = v[0]
		case t == ctaTCPFlags, t == ctaTCPFlags+1:
			i.flags[t-ctaTCPFlags] = v[0]
		}
	}
}
