package speaker

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"syscall"
	"time"

	gobgp "github.com/osrg/gobgp/v4/pkg/packet/bgp"
	"golang.org/x/sys/unix"
)

const (
	probeTimeout  = 5 * time.Second
	probeInterval = 20 * time.Second // between two probes of a peer
)

// probe opens a connection to a peer that refuses sessions, to read why: the server does not say
// what it is told before a session is established. It never gets as far as a session.
type probe struct {
	address  netip.AddrPort
	source   netip.Addr
	password string
	ttl      int // of packets to the peer; 0: the kernel's choice
	as, want uint32
	routerID netip.Addr
	hold     uint16
	families []gobgp.Family
}

// askWhy has a peer asked why there is no session, unless that was done just now.
func (s *Speaker) askWhy(p *peer) {
	if p.added == nil || p.added.Passive || p.probing || time.Since(p.probed) < probeInterval {
		return
	}
	w := p.added
	a := &probe{
		address: netip.AddrPortFrom(w.Address, w.Port), source: w.Source, password: w.Password,
		as: s.localAS(w), want: w.AS, routerID: s.settings.RouterID, hold: uint16(holdOf(w).Seconds()), families: families(w),
	}
	if w.Port == 0 {
		a.address = netip.AddrPortFrom(w.Address, gobgp.BGP_PORT)
	}
	if w.Security > 0 {
		a.ttl = 255
	}
	p.probing = true
	go func() {
		text, err := a.run()
		s.inbox.post(func() {
			p.probing, p.probed = false, time.Now()
			if err != nil {
				s.log.Debug("a peer does not say why there is no session", "peer", p.name, "error", err)
			}
			if text == "" || p.up || p.added != w {
				return
			}
			if text != closesEarly {
				p.answer = text
			}
			s.fails(p, text)
		})
	}()
}

// run returns why the peer refuses a session, "" if it does not.
func (a *probe) run() (string, error) {
	ctx, cancel := context.WithTimeout(context.Background(), probeTimeout)
	defer cancel()
	d := net.Dialer{Control: a.control}
	if a.source.IsValid() {
		d.LocalAddr = net.TCPAddrFromAddrPort(netip.AddrPortFrom(a.source, 0))
	}
	c, err := d.DialContext(ctx, "tcp", a.address.String())
	if err != nil {
		return "", err
	}
	defer func() { _ = c.Close() }()
	deadline, _ := ctx.Deadline()
	if err := c.SetDeadline(deadline); err != nil {
		return "", err
	}
	open, err := a.open()
	if err != nil {
		return "", err
	}
	if _, err := c.Write(open); err != nil {
		return "", err
	}
	return a.read(c)
}

// open is the message that the server begins a session with, as far as it matters here.
func (a *probe) open() ([]byte, error) {
	caps := []gobgp.ParameterCapabilityInterface{gobgp.NewCapFourOctetASNumber(a.as)}
	for _, f := range a.families {
		caps = append(caps, gobgp.NewCapMultiProtocol(f))
	}
	as := uint16(gobgp.AS_TRANS)
	if a.as <= 0xffff {
		as = uint16(a.as)
	}
	m, err := gobgp.NewBGPOpenMessage(as, a.hold, a.routerID, []gobgp.OptionParameterInterface{gobgp.NewOptionParameterCapability(caps)})
	if err != nil {
		return nil, err
	}
	return m.Serialize()
}

// read reads what the peer says to it.
func (a *probe) read(c io.Reader) (string, error) {
	for {
		m, err := message(c)
		switch {
		case errors.Is(err, io.EOF), errors.Is(err, syscall.ECONNRESET):
			return closesEarly, nil
		case err != nil:
			return "", err
		}
		switch body := m.Body.(type) {
		case *gobgp.BGPNotification:
			return "the peer refuses the session: " + a.refusal(body), nil
		case *gobgp.BGPOpen:
			if as := asOf(body); as != a.want {
				return fmt.Sprintf("wrong AS: the peer says %d, and is expected to be %d", as, a.want), nil
			}
		default: // it takes the session
			return "", nil
		}
	}
}

func (a *probe) refusal(n *gobgp.BGPNotification) string {
	text := notificationText(n.ErrorCode, n.ErrorSubcode)
	if n.ErrorCode == gobgp.BGP_ERROR_OPEN_MESSAGE_ERROR && n.ErrorSubcode == gobgp.BGP_ERROR_SUB_BAD_PEER_AS {
		text += fmt.Sprintf(": it does not expect this node to be %d", a.as)
	}
	return text
}

func message(c io.Reader) (*gobgp.BGPMessage, error) {
	head := make([]byte, gobgp.BGP_HEADER_LENGTH)
	if _, err := io.ReadFull(c, head); err != nil {
		return nil, err
	}
	h := &gobgp.BGPHeader{}
	if err := h.DecodeFromBytes(head); err != nil {
		return nil, err
	}
	if h.Len < gobgp.BGP_HEADER_LENGTH || h.Len > gobgp.BGP_MAX_MESSAGE_LENGTH {
		return nil, errors.New("what the peer sends is no BGP message")
	}
	body := make([]byte, h.Len-gobgp.BGP_HEADER_LENGTH)
	if _, err := io.ReadFull(c, body); err != nil {
		return nil, err
	}
	return gobgp.ParseBGPBody(h, body)
}

// asOf is the AS that a speaker says to be.
func asOf(m *gobgp.BGPOpen) uint32 {
	as := uint32(m.MyAS)
	for _, o := range m.OptParams {
		caps, ok := o.(*gobgp.OptionParameterCapability)
		if !ok {
			continue
		}
		for _, c := range caps.Capability {
			if four, ok := c.(*gobgp.CapFourOctetASNumber); ok {
				as = four.CapValue
			}
		}
	}
	return as
}

// control sets the socket up as the server does its own.
func (a *probe) control(_, _ string, c syscall.RawConn) error {
	var failed error
	err := c.Control(func(fd uintptr) { failed = a.options(int(fd)) })
	return errors.Join(err, failed)
}

func (a *probe) options(fd int) error {
	var err error
	if a.ttl > 0 && a.address.Addr().Is4() {
		err = unix.SetsockoptInt(fd, unix.IPPROTO_IP, unix.IP_TTL, a.ttl)
	} else if a.ttl > 0 {
		err = unix.SetsockoptInt(fd, unix.IPPROTO_IPV6, unix.IPV6_UNICAST_HOPS, a.ttl)
	}
	if err != nil || a.password == "" {
		return err
	}
	return unix.SetsockoptTCPMD5Sig(fd, unix.IPPROTO_TCP, unix.TCP_MD5SIG, a.signature())
}

// signature is the key of TCP MD5 for the peer's address.
func (a *probe) signature() *unix.TCPMD5Sig {
	k := &unix.TCPMD5Sig{Keylen: uint16(len(a.password))}
	copy(k.Key[:], a.password)
	address := a.address.Addr()
	if address.Is4() {
		k.Addr.Family = unix.AF_INET
		four := address.As4()
		copy(k.Addr.Data[2:], four[:]) // after the port, which does not matter
		return k
	}
	k.Addr.Family = unix.AF_INET6
	six := address.As16()
	copy(k.Addr.Data[6:], six[:]) // after the port and the flow
	return k
}
