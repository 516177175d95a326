package conntrack

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"slices"

	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"

	"sluice.dev/sluice/internal/kernel/attr"
	"sluice.dev/sluice/internal/model"
	"sluice.dev/sluice/internal/state"
)

// Labels are the 128 bits of an entry's connection label, as the kernel holds them.
type Labels [16]byte

// remakes bounds how often an entry is made anew that a packet made meanwhile.
const remakes = 3

// has reports whether a bit is set.
func (l Labels) has(bit int) bool {
	return binary.NativeEndian.Uint32(l[bit/32*4:])&(1<<(bit%32)) != 0
}

// Cut reports whether the flow is labelled as one that policy forbids.
func (f *Flow) Cut() bool { return f.Labels.has(state.CutLabel) }

// cutByRule reports whether a rule has labelled it so, and nobody has counted it.
func (f *Flow) cutByRule() bool { return f.Labels.has(state.CutByRuleLabel) }

// Relabel sets the cut label of flows for which decide returns true, and clears that of others. It
// looks at the flows that have one of the addresses as the source that began them or as the one
// that answers, after translation; all, if addrs is nil. It returns how many it changed, with those
// that a rule has labelled meanwhile, and whether one of those that are to be cut is in a
// flowtable, where nothing looks at labels: it is cut when whoever put it there has taken it out.
// decide must not call the Conn.
//
// The kernel has labels while a rule of the namespace sets one. An entry that is older than the
// first such rule has no room for labels: it is deleted and made anew, with its translation, state
// and time-out; should that fail, it stays deleted. After an error some flows may be labelled and
// others not; calling again is safe.
func (c *Conn) Relabel(ctx context.Context, addrs []netip.Addr, decide func(Flow) (cut bool)) (changed int, offloaded bool, err error) {
	if addrs != nil && len(addrs) == 0 {
		return 0, false, nil
	}
	wanted := make(map[netip.Addr]bool, len(addrs))
	for _, a := range addrs {
		wanted[a.Unmap().WithZone("")] = true
	}
	type entry struct { // ids alone are too few to tell a large table's entries apart
		id   uint32
		orig Tuple
	}
	seen := map[entry]bool{} // a flow between two of the addresses is in two dumps
	var flows []Flow
	c.mu.Lock()
	defer c.mu.Unlock()
	err = c.dump(ctx, labelRequests(addrs), func(f *Flow) {
		if addrs != nil && !wanted[f.Orig.Src.Addr()] && !wanted[f.Reply.Src.Addr()] {
			return
		}
		differs := f.decide(decide)
		offloaded = offloaded || f.cut && f.Offloaded()
		if e := (entry{f.id, f.Orig}); differs && !seen[e] {
			seen[e] = true
			flows = append(flows, *f)
		}
	})
	if err != nil {
		return 0, offloaded, err
	}
	changed, err = c.labelAll(ctx, flows)
	return changed, offloaded, err
}

// decide notes whether the flow is to have the cut label, and reports whether it has another one.
func (f *Flow) decide(cut func(Flow) bool) (differs bool) {
	f.cut = cut(*f)
	return f.cut != f.Cut() || f.cutByRule()
}

// RelabelEach does what Relabel does for single flows of UDP, given by one of their two tuples, and
// looks at no others. Flows that are in a flowtable it leaves to Relabel.
func (c *Conn) RelabelEach(ctx context.Context, of []Tuple, decide func(Flow) (cut bool)) (changed int, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	var flows []Flow
	for _, t := range of {
		f, err := c.get(t, model.UDP)
		if err != nil {
			return 0, fmt.Errorf("read the connection tracking entry of %v: %w", t, err)
		}
		if f != nil && !f.Offloaded() && f.decide(decide) {
			flows = append(flows, *f)
		}
	}
	return c.labelAll(ctx, flows)
}

// labelRequests are the dumps that together hold every flow of the addresses. The kernel
// cannot select by IPv6 addresses (see dumpFiltered), but by the family.
func labelRequests(addrs []netip.Addr) (requests []netlink.Message) {
	var v4 []netip.Addr
	var v6 bool
	for _, a := range addrs {
		if a = a.Unmap(); a.Is4() {
			v4 = append(v4, a)
		} else {
			v6 = true
		}
	}
	if addrs == nil || 2*len(v4) > fewFilters {
		return []netlink.Message{dumpAll(0)}
	}
	for _, a := range v4 {
		requests = append(requests, dumpSource(a, ctaTupleOrig), dumpSource(a, ctaTupleReply))
	}
	if v6 {
		requests = append(requests, message(msgGet, netlink.Dump, familyV6, nil))
	}
	return requests
}

// labelAll gives each flow the cut label that it is to have.
func (c *Conn) labelAll(ctx context.Context, flows []Flow) (changed int, err error) {
	for batch := range slices.Chunk(flows, deleteBatch) {
		if err := ctx.Err(); err != nil {
			return changed, err
		}
		n, err := c.labelBatch(batch)
		changed += n
		if err != nil {
			return changed, fmt.Errorf("label connection tracking entries: %w", err)
		}
	}
	return changed, nil
}

// labelBatch labels flows all at once, as deleteFlows does it. Failures do not say whose they are,
// so that where there is no room for labels the whole batch is gone through one by one.
func (c *Conn) labelBatch(flows []Flow) (changed int, err error) {
	batch := make([]netlink.Message, 0, len(flows)+1)
	for i := range flows {
		batch = append(batch, labelFlow(&flows[i]))
	}
	n, noRoom, err := c.send(batch)
	if err != nil || noRoom == 0 {
		return n, err
	}
	for i := range flows {
		_, noRoom, err := c.send(batch[i : i+1 : i+1])
		if err == nil && noRoom > 0 {
			var made bool
			if made, err = c.remake(&flows[i]); made {
				n++
			}
		}
		if err != nil {
			return n, err
		}
	}
	return n, nil
}

// remake deletes an entry and makes it anew with the cut label that it is to have.
func (c *Conn) remake(f *Flow) (made bool, err error) {
	if n, err := c.deleteFlows([]Flow{*f}); n == 0 || err != nil {
		return false, err
	}
	return c.restore(f)
}

// restore makes an entry that was deleted, with the cut label that it is to have. A packet in
// between may have made another, even the other way round, as nothing said any more that it was an
// answer: that goes first, as the kernel would translate to another port beside it.
func (c *Conn) restore(f *Flow) (made bool, err error) {
	create := createFlow(f)
	for range remakes {
		if err := c.deleteEither(f); err != nil {
			return false, err
		}
		if err = c.exchange(create, func([]byte) error { return nil }); !errors.Is(err, unix.EEXIST) {
			break
		}
	}
	if err != nil {
		return false, fmt.Errorf("make the entry of %v anew: %w", f.Orig, err)
	}
	return c.labelMade(f)
}

// labelMade labels an entry that was just made, which fails where the kernel has made it without.
func (c *Conn) labelMade(f *Flow) (bool, error) {
	n, noRoom, err := c.send([]netlink.Message{labelFlow(f)})
	if noRoom > 0 {
		return false, errors.New("the kernel keeps no labels: no rule of this network namespace sets one")
	}
	return n > 0, err
}

// deleteEither deletes what has taken the place of a flow, in whichever direction it was begun.
func (c *Conn) deleteEither(f *Flow) error {
	for _, t := range []Tuple{f.Orig, f.Reply} {
		m := message(msgDelete, 0, f.Family, func(a *attr.Attrs) {
			putTuple(a, ctaTupleOrig, t, f.Protocol, wholeTuple)
		})
		if _, _, err := c.send([]netlink.Message{m}); err != nil {
			return err
		}
	}
	return nil
}

// dumpSource asks for the flows whose original or reply tuple has this IPv4 source.
func dumpSource(source netip.Addr, tuple uint16) netlink.Message {
	return message(msgGet, netlink.Dump, familyV4, func(a *attr.Attrs) {
		putTuple(a, tuple, Tuple{Src: netip.AddrPortFrom(source, 0)}, 0, filterSrcIP)
		flags := map[uint16]uint32{tuple: filterSrcIP}
		putFilter(a, flags[ctaTupleOrig], flags[ctaTupleReply])
	})
}

// labelFlow asks to set or clear the cut label of an entry, which is named by the tuple that holds
// its backend, as deleteFlow does.
func labelFlow(f *Flow) netlink.Message {
	return message(msgNew, 0, f.Family, func(a *attr.Attrs) {
		putTuple(a, ctaTupleReply, f.Reply, f.Protocol, wholeTuple)
		putCut(a, f)
	})
}

// putCut writes the cut label as it is to be.
func putCut(a *attr.Attrs, f *Flow) {
	var labels Labels
	if f.cut {
		labels = state.Label(state.CutLabel)
	}
	mask := state.Label(state.CutLabel, state.CutByRuleLabel)
	a.Bytes(ctaLabels, labels[:])
	a.Bytes(ctaLabelsMask, mask[:])
}

// createFlow asks to make an entry like that of f, with the cut label that it is to have: a packet
// that finds the entry finds the label. The kernel itself works out the translation, as for a rule:
// it is given the tuples from before, and what to translate them to.
func createFlow(f *Flow) netlink.Message {
	flags := netlink.Create | netlink.Excl | netlink.Acknowledge
	return message(msgNew, flags, f.Family, func(a *attr.Attrs) {
		putTuple(a, ctaTupleOrig, f.Orig, f.Protocol, wholeTuple)
		answer := Tuple{Src: f.Orig.Dst, Dst: f.Orig.Src, ICMP: f.Reply.ICMP}
		answer.ICMP.ID = f.Orig.ICMP.ID
		putTuple(a, ctaTupleReply, answer, f.Protocol, wholeTuple)
		a.Uint32(ctaTimeout, f.rest.timeout)
		a.Uint32(ctaStatus, f.Status&(StatusSeenReply|StatusAssured)|StatusConfirmed)
		if f.rest.mark != 0 {
			a.Uint32(ctaMark, f.rest.mark)
		}
		putCut(a, f)
		if f.Protocol == model.TCP {
			putTCP(a, f.rest.tcp)
		}
		if f.Reply.Dst != f.Orig.Src || f.Reply.ICMP.ID != f.Orig.ICMP.ID {
			putNAT(a, ctaNatSrc, f.Reply.Dst, f.Reply.ICMP.ID)
		}
		if f.Translated() {
			putNAT(a, ctaNatDst, f.Reply.Src, 0)
		}
	})
}

// putTCP writes the state. The windows cannot be told to the kernel, which learns them
// anew and must not find segments invalid until then.
func putTCP(a *attr.Attrs, i tcpInfo) {
	info := a.Begin(ctaProtoInfo)
	tcp := a.Begin(ctaProtoInfoTCP)
	a.Uint8(ctaTCPState, i.state)
	for d := range uint16(2) {
		a.Uint8(ctaTCPScales+d, i.scales[d])
		a.Bytes(ctaTCPFlags+d, []byte{i.flags[d] | liberal, 0xff}) // flags, and which count
	}
	a.End(tcp)
	a.End(info)
}

// putNAT writes what to translate a source or a destination to. id is ICMP's.
func putNAT(a *attr.Attrs, typ uint16, to netip.AddrPort, id uint16) {
	nat := a.Begin(typ)
	putAddr(a, ctaNatV4, ctaNatV6, to.Addr())
	putAddr(a, ctaNatV4+1, ctaNatV6+1, to.Addr())
	if port := to.Port() | id; port != 0 {
		ports := a.Begin(ctaNatL4)
		a.Uint16(ctaNatPort, port)
		a.Uint16(ctaNatPort+1, port)
		a.End(ports)
	}
	a.End(nat)
}
