package health

import (
	"errors"

	"golang.org/x/sys/unix"

	"sluice.dev/sluice/internal/kernel/ping"
)

// pinger is the socket of all ICMP checks of one family.
type pinger struct {
	*ping.Socket
	number  uint16
	waiting map[uint16]*target // by the number of the echo request
}

func (p *pinger) busy() bool { return p != nil && len(p.waiting) > 0 }

// ping begins an ICMP check.
func (s *sockets) ping(t *target) {
	p, err := s.pinger(t.at.Addr().Is4())
	if err != nil {
		s.end(t, outcome{err: err})
		return
	}
	p.number++
	number := p.number
	if p.waiting[number] != nil {
		s.end(t, outcome{err: errors.New("send echo request: too many are under way")})
		return
	}
	p.waiting[number] = t
	t.cancel = func() { delete(p.waiting, number) }
	if err := p.Send(number, t.at.Addr()); err != nil {
		s.end(t, failed(err))
	}
}

// pinger returns the socket of a family. It is opened at the first check.
func (s *sockets) pinger(is4 bool) (*pinger, error) {
	at := 0
	if !is4 {
		at = 1
	}
	if s.pings[at] != nil {
		return s.pings[at], nil
	}
	socket, err := ping.Open(is4)
	if err != nil {
		return nil, err
	}
	if err := s.watch(socket.FD(), unix.EPOLLIN); err != nil {
		socket.Close()
		return nil, err
	}
	s.pings[at] = &pinger{Socket: socket, waiting: map[uint16]*target{}}
	return s.pings[at], nil
}

// hear ends the checks that answers have come for.
func (s *sockets) hear(p *pinger) {
	for a, ok := p.Next(); ok; a, ok = p.Next() {
		t := p.waiting[a.Number]
		switch {
		case t == nil || t.at.Addr().WithZone("") != a.To:
		case a.Err != nil:
			s.end(t, failed(a.Err))
		default:
			s.end(t, up("echo reply"))
		}
	}
}
