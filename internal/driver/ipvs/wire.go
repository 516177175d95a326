package ipvs

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"time"

	"github.com/mdlayher/genetlink"
	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"

	"sluice.dev/sluice/internal/kernel/attr"
	"sluice.dev/sluice/internal/model"
	"sluice.dev/sluice/internal/state"
)

// Commands, attributes and values of IPVS' generic netlink family (linux/ip_vs.h).
const (
	familyName, familyVersion = "IPVS", 1

	cmdNewService = 1
	cmdSetService = 2
	cmdDelService = 3
	cmdGetService = 4
	cmdNewDest    = 5
	cmdSetDest    = 6
	cmdDelDest    = 7
	cmdGetDest    = 8

	attrService = 1
	attrDest    = 2

	svcFamily    = 1
	svcProtocol  = 2
	svcAddr      = 3
	svcPort      = 4
	svcMark      = 5
	svcScheduler = 6
	svcFlags     = 7
	svcTimeout   = 8
	svcNetmask   = 9

	destAddr    = 1
	destPort    = 2
	destForward = 3
	destWeight  = 4
	destUpper   = 5
	destLower   = 6
	destActive  = 7
	destOther   = 8
	destCounts  = 12 // IPVS_DEST_ATTR_STATS64

	countConns    = 1
	countInBytes  = 4
	countOutBytes = 5

	flagPersistent = 0x1  // IP_VS_SVC_F_PERSISTENT
	flagFallback   = 0x8  // of sh and mh: past a destination without weight, another one is taken
	flagPorts      = 0x10 // of sh and mh: the client's port counts, too
	flagsKnown     = flagPersistent | flagFallback | flagPorts
)

// The ways in which packets get to a destination (IP_VS_CONN_F_…).
const (
	masquerade uint32 = 0
	tunnelling uint32 = 2
	direct     uint32 = 3
)

// Owners tag the virtual servers that are ours in their flags, in bits that IPVS gives no meaning:
// it stores and lists them.
const (
	ownerServices = 0x51c00000
	ownerFarms    = 0x51d00000
	ownerMask     = 0xfff00000
)

// op is a change of one virtual server or destination.
type op struct {
	cmd    uint8
	key    state.FrontendKey
	method method         // of a new virtual server, or one that is changed
	dest   netip.AddrPort // of a destination
	destination
}

// String is what people read in a plan.
func (o op) String() string {
	switch o.cmd {
	case cmdNewService:
		return fmt.Sprintf("add virtual server %s, %s", o.key, o.method)
	case cmdSetService:
		return fmt.Sprintf("change virtual server %s: %s", o.key, o.method)
	case cmdDelService:
		return fmt.Sprintf("delete virtual server %s", o.key)
	case cmdNewDest:
		return fmt.Sprintf("add %s to virtual server %s, %s", o.dest, o.key, o.destination)
	case cmdSetDest:
		return fmt.Sprintf("change %s of virtual server %s: %s", o.dest, o.key, o.destination)
	}
	return fmt.Sprintf("delete %s from virtual server %s", o.dest, o.key)
}

func addrFamily(a netip.Addr) uint16 {
	if a.Is4() {
		return unix.AF_INET
	}
	return unix.AF_INET6
}

// put16 and put32 write numbers of the host's byte order. Ports alone are in that of the network.
func put16(a *attr.Attrs, typ, v uint16) { a.Bytes(typ, binary.NativeEndian.AppendUint16(nil, v)) }
func put32(a *attr.Attrs, typ uint16, v uint32) {
	a.Bytes(typ, binary.NativeEndian.AppendUint32(nil, v))
}

func putKey(a *attr.Attrs, k state.FrontendKey) {
	put16(a, svcFamily, addrFamily(k.Addr))
	put16(a, svcProtocol, uint16(k.Protocol))
	a.Bytes(svcAddr, k.Addr.AsSlice())
	a.Uint16(svcPort, k.Port)
}

// putMethod writes what a virtual server of an owner has beside its key; netmask is that of
// persistence, which IPVS asks for in any case.
func putMethod(a *attr.Attrs, m method, owner uint32, is4 bool) {
	netmask := uint32(128)
	if is4 {
		netmask = ^uint32(0)
	}
	flags := owner | m.flags
	if m.persist > 0 {
		flags |= flagPersistent
	}
	a.String(svcScheduler, m.scheduler)
	a.Bytes(svcFlags, binary.NativeEndian.AppendUint32(binary.NativeEndian.AppendUint32(nil, flags), ^uint32(0)))
	put32(a, svcTimeout, m.persist)
	put32(a, svcNetmask, netmask)
}

// encode returns the attributes of the request; a virtual server gets the owner's tag.
func (o op) encode(owner uint32) []byte {
	a := &attr.Attrs{B: make([]byte, 0, 128)}
	service := a.Begin(attrService)
	putKey(a, o.key)
	if o.method.scheduler != "" {
		putMethod(a, o.method, owner, o.key.Addr.Is4())
	}
	a.End(service)
	if !o.dest.IsValid() {
		return a.B
	}
	dest := a.Begin(attrDest)
	a.Bytes(destAddr, o.dest.Addr().AsSlice())
	a.Uint16(destPort, o.dest.Port())
	if o.cmd != cmdDelDest {
		put32(a, destForward, o.forward)
		put32(a, destWeight, o.weight)
		put32(a, destUpper, 0)
		put32(a, destLower, 0)
	}
	a.End(dest)
	return a.B
}

// conn is a socket to IPVS. It is written on netlink itself, as the library for IPVS waits for the
// answer to each request before it sends the next one.
type conn struct {
	nl     *netlink.Conn
	owner  uint32 // whose virtual servers are ours
	family uint16 // the kernel's number for IPVS; 0: not asked yet
	// refuse, if set, stands for the kernel in tests: an error is its answer to an op.
	refuse func(op) error
}

const (
	batchSize   = 400              // requests in one system call
	readBuffer  = 8 << 20          // room for their errors
	replyTime   = 30 * time.Second // no answer takes so long
	genlHeader  = 4
	requestMark = 0xfffffff0 // of the virtual server by which a scheduler is tried
)

// dial opens a socket in the calling thread's network namespace, for the virtual servers of an
// owner.
func dial(owner uint32) (*conn, error) {
	nl, err := netlink.Dial(unix.NETLINK_GENERIC, nil)
	if err != nil {
		return nil, fmt.Errorf("open generic netlink: %w", err)
	}
	err = errors.Join(nl.SetReadBuffer(readBuffer), nl.SetOption(netlink.CapAcknowledge, true))
	if err != nil {
		return nil, errors.Join(fmt.Errorf("configure generic netlink: %w", err), nl.Close())
	}
	return &conn{nl: nl, owner: owner}, nil
}

func (c *conn) close() error { return c.nl.Close() }

// ready finds out the family's number. The error wraps unix.ENOENT where the kernel has no IPVS.
func (c *conn) ready() error {
	if c.family != 0 {
		return nil
	}
	f, err := genetlink.NewConn(c.nl).GetFamily(familyName)
	if err != nil {
		return fmt.Errorf("ask the kernel for IPVS: %w", err)
	}
	c.family = f.ID
	return nil
}

func (c *conn) message(cmd uint8, flags netlink.HeaderFlags, body []byte) netlink.Message {
	return netlink.Message{
		Header: netlink.Header{Type: netlink.HeaderType(c.family), Flags: netlink.Request | flags},
		Data:   append([]byte{cmd, familyVersion, 0, 0}, body...),
	}
}

// do carries out changes in their order and returns the kernel's answer to those that it refused.
// What is deleted need not be there.
func (c *conn) do(ops []op) (map[int]error, error) {
	failed := map[int]error{}
	if len(ops) == 0 {
		return failed, nil
	}
	if err := c.ready(); err != nil {
		return failed, err
	}
	first := 0
	for some := range slices.Chunk(ops, batchSize) {
		if err := c.doSome(some, func(i int, err error) { failed[first+i] = err }); err != nil {
			return failed, fmt.Errorf("change IPVS: %w", err)
		}
		first += len(some)
	}
	return failed, nil
}

func (c *conn) doSome(ops []op, fail func(int, error)) error {
	batch := make([]netlink.Message, 0, len(ops)+1)
	index := make([]int, 0, len(ops))
	for i, o := range ops {
		if c.refuse != nil {
			if err := c.refuse(o); err != nil {
				fail(i, err)
				continue
			}
		}
		batch, index = append(batch, c.message(o.cmd, 0, o.encode(c.owner))), append(index, i)
	}
	// Only failures are answered, and the no-op at the end, by which the end of them is known.
	end := netlink.Message{Header: netlink.Header{Type: netlink.Noop, Flags: netlink.Request | netlink.Acknowledge}}
	if err := c.nl.SetReadDeadline(time.Now().Add(replyTime)); err != nil {
		return err
	}
	sent, err := c.nl.SendMessages(append(batch, end))
	if err != nil {
		return err
	}
	for {
		_, err := c.nl.Receive()
		if err == nil {
			return nil
		}
		i := refusedOf(sent[:len(index)], err)
		if i < 0 {
			return err
		}
		if o := ops[index[i]]; o.cmd == cmdDelService && errors.Is(err, unix.ESRCH) || o.cmd == cmdDelDest && (errors.Is(err, unix.ENOENT) || errors.Is(err, unix.ESRCH)) {
			continue
		}
		fail(index[i], err)
	}
}

// refusedOf is the index of the message that an error answers; -1: none.
func refusedOf(sent []netlink.Message, err error) int {
	var answer *netlink.OpError
	if !errors.As(err, &answer) || answer.Sequence == 0 {
		return -1
	}
	return slices.IndexFunc(sent, func(m netlink.Message) bool { return m.Header.Sequence == answer.Sequence })
}

// get sends a request and yields the attributes of each answer.
func (c *conn) get(cmd uint8, flags netlink.HeaderFlags, body []byte, yield func(*netlink.AttributeDecoder) error) error {
	if err := errors.Join(c.ready(), c.nl.SetReadDeadline(time.Now().Add(replyTime))); err != nil {
		return err
	}
	answers, err := c.nl.Execute(c.message(cmd, flags, body))
	for _, m := range answers {
		if err != nil || len(m.Data) < genlHeader {
			break
		}
		var a *netlink.AttributeDecoder
		if a, err = netlink.NewAttributeDecoder(m.Data[genlHeader:]); err == nil {
			for a.Next() {
				a.Nested(yield)
			}
			err = a.Err()
		}
	}
	return err
}

// found is a virtual server as the kernel has it.
type found struct {
	key   state.FrontendKey
	mark  uint32 // of one for marked packets, which has no key
	flags uint32
	server
	traffic map[netip.AddrPort]traffic // of its destinations
}

// traffic is what a destination has got since it was added.
type traffic struct {
	connections uint64
	active      int // connections at present, those included that are about to end
	bytes       uint64
}

func (f *found) active() (n int) {
	for _, t := range f.traffic {
		n += t.active
	}
	return n
}

func (c *conn) owns(f *found) bool { return f.flags&ownerMask == c.owner && f.mark == 0 }

// services lists the virtual servers, without their destinations.
func (c *conn) services() (all []*found, err error) {
	err = c.get(cmdGetService, netlink.Dump, nil, func(a *netlink.AttributeDecoder) error {
		f := &found{server: server{dests: map[netip.AddrPort]destination{}}, traffic: map[netip.AddrPort]traffic{}}
		var addr []byte
		family := uint16(0)
		for a.Next() {
			switch a.Type() {
			case svcFamily:
				family = a.Uint16()
			case svcProtocol:
				f.key.Protocol = model.Protocol(a.Uint16())
			case svcAddr:
				addr = a.Bytes()
			case svcPort:
				f.key.Port = readPort(a.Bytes())
			case svcMark:
				f.mark = a.Uint32()
			case svcScheduler:
				f.scheduler = a.String()
			case svcTimeout:
				f.persist = a.Uint32()
			case svcFlags:
				if b := a.Bytes(); len(b) >= 4 {
					f.flags = binary.NativeEndian.Uint32(b)
				}
			}
		}
		if f.method.flags = f.flags & flagsKnown &^ flagPersistent; f.flags&flagPersistent == 0 {
			f.persist = 0
		}
		f.key.Addr = readAddr(family, addr)
		all = append(all, f)
		return nil
	})
	if err != nil {
		err = fmt.Errorf("list virtual servers of IPVS: %w", err)
	}
	return all, err
}

// destinations reads those of a virtual server, with their connections.
func (c *conn) destinations(f *found) error {
	err := c.get(cmdGetDest, netlink.Dump, op{key: f.key}.encode(c.owner), func(a *netlink.AttributeDecoder) error {
		var addr []byte
		var p uint16
		var d destination
		var t traffic
		for a.Next() {
			switch a.Type() {
			case destAddr:
				addr = a.Bytes()
			case destPort:
				p = readPort(a.Bytes())
			case destWeight:
				d.weight = a.Uint32()
			case destForward:
				d.forward = a.Uint32()
			case destActive, destOther:
				t.active += int(a.Uint32())
			case destCounts:
				a.Nested(t.read)
			}
		}
		at := netip.AddrPortFrom(readAddr(addrFamily(f.key.Addr), addr), p)
		f.dests[at], f.traffic[at] = d, t
		return nil
	})
	if err != nil {
		return fmt.Errorf("list destinations of virtual server %s: %w", f.key, err)
	}
	return nil
}

func (t *traffic) read(a *netlink.AttributeDecoder) error {
	for a.Next() {
		switch a.Type() {
		case countConns:
			t.connections = a.Uint64()
		case countInBytes, countOutBytes:
			t.bytes += a.Uint64()
		}
	}
	return nil
}

// has reports whether there is a virtual server of a key.
func (c *conn) has(k state.FrontendKey) (bool, error) {
	err := c.get(cmdGetService, 0, op{key: k}.encode(c.owner), func(*netlink.AttributeDecoder) error { return nil })
	if errors.Is(err, unix.ESRCH) || errors.Is(err, unix.ENOENT) {
		return false, nil
	}
	return err == nil, err
}

// tryScheduler adds a virtual server with a scheduler, for packets of a mark that none has, and
// deletes it.
func (c *conn) tryScheduler(name string) error {
	if err := c.ready(); err != nil {
		return err
	}
	for _, cmd := range []uint8{cmdNewService, cmdDelService} {
		a := &attr.Attrs{}
		service := a.Begin(attrService)
		put16(a, svcFamily, unix.AF_INET)
		put32(a, svcMark, requestMark)
		putMethod(a, method{scheduler: name}, c.owner, true)
		a.End(service)
		if _, err := c.nl.Execute(c.message(cmd, netlink.Acknowledge, a.B)); err != nil {
			return err
		}
	}
	return nil
}

func readPort(b []byte) uint16 {
	if len(b) < 2 {
		return 0
	}
	return binary.BigEndian.Uint16(b)
}

// readAddr reads an address, which has room for one of IPv6 whatever it is.
func readAddr(family uint16, b []byte) netip.Addr {
	n := 16
	if family == unix.AF_INET {
		n = 4
	}
	if len(b) < n {
		return netip.Addr{}
	}
	a, _ := netip.AddrFromSlice(b[:n])
	return a
}
