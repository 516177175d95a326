package drivertest

import (
	"math/rand/v2"
	"net/netip"
	"time"
)

// ServeSCTP answers each INIT that comes to an address of the calling thread's network, on whatever
// port, until stop.
func ServeSCTP(addr netip.Addr) (stop func() error, err error) {
	s, err := listenSCTP(netip.AddrPortFrom(addr, 0), new(arrivals))
	if err != nil {
		return nil, err
	}
	return s.close, nil
}

// AskSCTP sends an INIT from an address and port of the calling thread's network. It returns the
// address of the answering server, and the client's address as the server sees it. Without an
// answer in time, the error is unix.EAGAIN.
func AskSCTP(from, to netip.AddrPort, timeout time.Duration) (server, client netip.AddrPort, err error) {
	a, err := initSCTP(from, to, rand.Uint32()|1, timeout)
	return a.server, a.client, err
}
