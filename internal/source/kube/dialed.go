package kube

import (
	"net/http/httptrace"
	"net/netip"
	"slices"
	"sync"
)

// maxDialed is how many addresses are remembered: a name may resolve to another one each time.
const maxDialed = 16

// dialed remembers the addresses to which connections to the API were made, or tried, lately. It is
// safe for concurrent use.
type dialed struct {
	mu sync.Mutex
	at []netip.AddrPort // the latest last
}

// trace returns a trace that records a request's connection before it is made.
func (d *dialed) trace() *httptrace.ClientTrace {
	return &httptrace.ClientTrace{ConnectStart: func(_, address string) {
		at, err := netip.ParseAddrPort(address)
		if err != nil {
			return
		}
		d.mu.Lock()
		defer d.mu.Unlock()
		d.at = append(slices.DeleteFunc(d.at, func(o netip.AddrPort) bool { return o == at }), at)
		d.at = d.at[max(0, len(d.at)-maxDialed):]
	}}
}

func (d *dialed) list() []netip.AddrPort {
	d.mu.Lock()
	defer d.mu.Unlock()
	list := slices.Clone(d.at)
	slices.SortFunc(list, netip.AddrPort.Compare)
	return list
}
