package conntrack

import (
	"encoding/binary"
	"errors"
	"iter"
	"net/netip"

	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"

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

const nested = unix.NLA_F_NESTED

var errMalformed = errors.New("malformed message")

// message builds a ctnetlink message: the nfgenmsg header and then attributes.
func message(t netlink.HeaderType, flags netlink.HeaderFlags, family Family, put func(*netlink.AttributeEncoder)) (netlink.Message, error) {
	ae := netlink.NewAttributeEncoder()
	ae.ByteOrder = binary.BigEndian
	if put != nil {
		put(ae)
	}
	attrs, err := ae.Encode()
	if err != nil {
		return netlink.Message{}, err
	}
	return netlink.Message{
		Header: netlink.Header{Type: t, Flags: netlink.Request | flags},
		Data:   append([]byte{byte(family), unix.NFNETLINK_V0, 0, 0}, attrs...),
	}, nil
}

// putTuple writes those parts of a tuple that parts names; its unused
// fields may be zero.
func putTuple(ae *netlink.AttributeEncoder, attr uint16, t Tuple, p model.Protocol, parts uint32) {
	ae.Nested(attr|nested, func(ae *netlink.AttributeEncoder) error {
		if parts&(filterSrcIP|filterDstIP) != 0 {
			ae.Nested(ctaTupleIP|nested, func(ae *netlink.AttributeEncoder) error {
				if parts&filterSrcIP != 0 {
					putAddr(ae, ctaIPv4Src, ctaIPv6Src, t.Src.Addr())
				}
				if parts&filterDstIP != 0 {
					putAddr(ae, ctaIPv4Dst, ctaIPv6Dst, t.Dst.Addr())
				}
				return nil
			})
		}
		ae.Nested(ctaTupleProto|nested, func(ae *netlink.AttributeEncoder) error {
			ae.Uint8(ctaProtoNum, uint8(p))
			if parts&filterSrcPort != 0 {
				ae.Uint16(ctaProtoSrcPort, t.Src.Port())
			}
			if parts&filterDstPort != 0 {
				ae.Uint16(ctaProtoDstPort, t.Dst.Port())
			}
			if id, is := icmpAttr(p); is && parts == wholeTuple {
				ae.Uint16(id, t.ICMP.ID)
				ae.Uint8(id+1, t.ICMP.Type)
				ae.Uint8(id+2, t.ICMP.Code)
			}
			return nil
		})
		return nil
	})
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

func putAddr(ae *netlink.AttributeEncoder, v4, v6 uint16, a netip.Addr) {
	if a.Is4() {
		ae.Bytes(v4, a.AsSlice())
	} else {
		ae.Bytes(v6, a.AsSlice())
	}
}

// dumpAll asks for every flow whose status has all bits of status set.
func dumpAll(status uint32) (netlink.Message, error) {
	return message(msgGet, netlink.Dump, unix.AF_UNSPEC, func(ae *netlink.AttributeEncoder) {
		if status != 0 { // a kernel before 5.17 ignores these two and sends all
			ae.Uint32(ctaStatus, status)
			ae.Uint32(ctaStatusMask, status)
		}
	})
}

// dumpFiltered asks for the flows of one family that a filter selects; the kernel does the
// selecting (5.8).
//
// IPv6 addresses are left out: the kernel (6.18 at least) has that comparison the wrong
// way round and hands out the flows of all other addresses. So there it selects by ports
// alone, and the caller by address.
func dumpFiltered(f Filter, family Family) (netlink.Message, error) {
	return message(msgGet, netlink.Dump, family, func(ae *netlink.AttributeEncoder) {
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
			putTuple(ae, ctaTupleOrig, Tuple{Dst: f.Frontend}, f.Protocol, orig)
		}
		if reply != 0 {
			putTuple(ae, ctaTupleReply, Tuple{Src: f.Backend}, f.Protocol, reply)
		}
		putFilter(ae, orig, reply)
	})
}

// putFilter says which parts of the tuples the kernel compares.
func putFilter(ae *netlink.AttributeEncoder, orig, reply uint32) {
	ae.Nested(ctaFilter|nested, func(ae *netlink.AttributeEncoder) error {
		ae.ByteOrder = binary.NativeEndian // these two alone are not in network order
		ae.Uint32(ctaFilterOrigFlags, orig)
		ae.Uint32(ctaFilterReplyFlags, reply)
		return nil
	})
}

// deleteFlow asks to delete exactly this entry. The complete tuple is what keeps it from
// being read as a flush, which a delete without a tuple is. The reply's tuple is given
// since it holds the backend: were the flow to end and its next packet to be sent
// elsewhere before this arrives, that entry stays. (The id alone does not tell them apart:
// memory is reused, and with it ids.)
func deleteFlow(f *Flow) (netlink.Message, error) {
	return message(msgDelete, 0, f.Family, func(ae *netlink.AttributeEncoder) {
		putTuple(ae, ctaTupleReply, f.Reply, f.Protocol, wholeTuple)
		ae.Uint32(ctaID, f.id)
	})
}

// getFlow asks for one entry by its original tuple.
func getFlow(family Family, t Tuple, p model.Protocol) (netlink.Message, error) {
	return message(msgGet, 0, family, func(ae *netlink.AttributeEncoder) {
		putTuple(ae, ctaTupleOrig, t, p, wholeTuple)
	})
}

// dumpUnconfirmed asks for the entries that first packets are about to make: at any moment few, and
// since Linux 5.19 the answer is always empty.
func dumpUnconfirmed(family Family) (netlink.Message, error) {
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
	for t, v := range attributes(data[4:], &err) {
		switch t {
		case ctaTupleOrig:
			f.Protocol, err = decodeTuple(v, &f.Orig, &ok)
		case ctaTupleReply:
			_, err = decodeTuple(v, &f.Reply, &ok)
		case ctaStatus:
			if len(v) == 4 {
				f.Status = binary.BigEndian.Uint32(v)
			}
		case ctaID:
			if len(v) == 4 {
				f.id = binary.BigEndian.Uint32(v)
			}
		case ctaZone:
			ok = false
		case ctaCountersOrig, ctaCountersReply:
			f.Bytes += decodeBytes(v)
		case ctaLabels:
			copy(f.Labels[:], v)
		default:
			err = f.rest.decode(t, v)
		}
		if err != nil {
			return Flow{}, false, err
		}
	}
	if err != nil {
		return Flow{}, false, err
	}
	if f.Offloaded() {
		f.rest.offloaded(f.Protocol)
	}
	if !f.Orig.Dst.Addr().IsValid() || !f.Reply.Src.Addr().IsValid() {
		return Flow{}, false, errMalformed
	}
	return f, ok, nil
}

// decodeBytes is the number of bytes of a direction; zero where it is not there.
func decodeBytes(data []byte) (n uint64) {
	var ignored error
	for t, v := range attributes(data, &ignored) {
		if t == ctaCountersBytes && len(v) == 8 {
			n = binary.BigEndian.Uint64(v)
		}
	}
	return n
}

func decodeTuple(data []byte, to *Tuple, ok *bool) (p model.Protocol, err error) {
	var src, dst netip.Addr
	var srcPort, dstPort uint16
	for t, v := range attributes(data, &err) {
		switch t {
		case ctaTupleIP:
			for t, v := range attributes(v, &err) {
				switch t {
				case ctaIPv4Src, ctaIPv6Src:
					src, _ = netip.AddrFromSlice(v)
				case ctaIPv4Dst, ctaIPv6Dst:
					dst, _ = netip.AddrFromSlice(v)
				}
			}
		case ctaTupleProto:
			for t, v := range attributes(v, &err) {
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
	return p, err
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

func (r *rest) decode(t uint16, v []byte) (err error) {
	switch {
	case t == ctaTimeout && len(v) == 4:
		r.timeout = binary.BigEndian.Uint32(v)
	case t == ctaMark && len(v) == 4:
		r.mark = binary.BigEndian.Uint32(v)
	case t == ctaProtoInfo:
		for t, v := range attributes(v, &err) {
			if t == ctaProtoInfoTCP {
				err = errors.Join(err, r.tcp.decode(v))
			}
		}
	}
	return err
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

func (i *tcpInfo) decode(data []byte) (err error) {
	for t, v := range attributes(data, &err) {
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
	return err
}

// attributes iterates over netlink attributes without copying; err is set where they do not
// add up.
func attributes(b []byte, err *error) iter.Seq2[uint16, []byte] {
	return func(yield func(uint16, []byte) bool) {
		for len(b) >= unix.NLA_HDRLEN {
			n := int(binary.NativeEndian.Uint16(b))
			t := binary.NativeEndian.Uint16(b[2:]) &^ (unix.NLA_F_NESTED | unix.NLA_F_NET_BYTEORDER)
			if n < unix.NLA_HDRLEN || n > len(b) {
				*err = errMalformed
				return
			}
			if !yield(t, b[unix.NLA_HDRLEN:n]) {
				return
			}
			b = b[min((n+3)&^3, len(b)):]
		}
		if len(b) != 0 {
			*err = errMalformed
		}
	}
}
