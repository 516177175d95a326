package userspace

import (
	"io"
	"math/rand/v2"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"sluice.dev/sluice/internal/model"
	"sluice.dev/sluice/internal/state"
)

// frontend is one that is served, with what goes through it.
type frontend struct {
	d        *Driver
	key      state.FrontendKey
	listener io.Closer // its own socket; nil: none. Under the driver's mutex

	mu       sync.Mutex
	want     *state.Frontend // nil: it is no more
	sessions map[*session]struct{}
	flows    map[netip.AddrPort]*flow // of UDP, those of the sessions that live, by client
	clients  map[netip.Addr]client    // with session affinity
	swept    int                      // how many clients there were when those that are forgotten were last removed
}

// client is where a client with session affinity was sent, and when.
type client struct {
	backend netip.AddrPort
	at      time.Time
}

// session is a connection or a UDP flow with its backend.
type session struct {
	of      *frontend
	backend netip.AddrPort

	asked atomic.Int64 // UDP: Unix time in ns of the last datagram that is not answered; 0: all are

	mu    sync.Mutex
	ends  []closer // the sockets that it has by now
	isCut bool
}

// closer is a socket that can be closed with what is in it.
type closer interface {
	io.Closer
	SetLinger(sec int) error
}

// listens reports whether the frontend needs a socket of its own. One of UDP answers from it, and
// takes what established flows go on to send.
func (d *Driver) listens(k state.FrontendKey, f *state.Frontend) bool {
	switch {
	case k.Protocol == model.UDP:
		return len(f.Serving) > 0
	case d.redirect == nil:
		return len(f.Backends)+len(f.Local) > 0
	}
	return false
}

// listen opens the frontend's socket, if it needs one that is not there.
func (fe *frontend) listen(f *state.Frontend) (err error) {
	if fe.listener != nil || !fe.d.listens(fe.key, f) {
		return nil
	}
	at := netip.AddrPortFrom(fe.key.Addr, fe.key.Port)
	if fe.key.Protocol == model.UDP {
		return fe.listenUDP(at)
	}
	l, err := fe.d.sockets.listen(at, false)
	if err == nil {
		fe.listener = l
		fe.d.start(func() { fe.d.accept(l) })
	}
	return err
}

// settle follows a change after packets are led elsewhere: to be served no longer, f is nil.
func (fe *frontend) settle(f *state.Frontend) {
	if fe == nil {
		return
	}
	if fe.listener != nil && (f == nil || !fe.d.listens(fe.key, f)) {
		_ = fe.listener.Close()
		fe.listener = nil
	}
	if f == nil {
		fe.update(nil)
	}
}

// update has new connections go where f says, and cuts those that may not go on.
func (fe *frontend) update(f *state.Frontend) {
	fe.mu.Lock()
	fe.want = f
	if f == nil || f.Affinity == 0 {
		fe.clients = nil
	}
	var cut []*session
	for s := range fe.sessions {
		if f == nil || !state.Has(usable(fe.key.Protocol, f), s.backend) {
			cut = append(cut, s)
		}
	}
	fe.mu.Unlock()
	for _, s := range cut {
		s.cut()
	}
}

// usable are the endpoints to which existing connections may go on.
func usable(p model.Protocol, f *state.Frontend) []netip.AddrPort {
	if p == model.UDP {
		return f.Serving
	}
	return f.Alive
}

// begin chooses a backend for a new connection, other than those that were tried in vain, and
// returns nil if there is none that the client may use.
func (fe *frontend) begin(from netip.Addr, tried []netip.AddrPort) *session {
	settings := fe.d.settings.Load()
	fe.mu.Lock()
	defer fe.mu.Unlock()
	f := fe.want
	if f == nil || len(f.SourceRanges) > 0 && !model.Within(from, f.SourceRanges) {
		return nil
	}
	backends := f.Backends
	if f.LocalOnly && !model.Within(from, settings.ClusterCIDRs) && !fe.d.sockets.isOwn(from) {
		backends = f.Local
	}
	if len(backends) == 0 {
		return nil
	}
	backend := fe.remembered(from)
	if !state.Has(backends, backend) || slices.Contains(tried, backend) {
		first := rand.IntN(len(backends))
		i := slices.IndexFunc(append(slices.Clone(backends[first:]), backends[:first]...), func(b netip.AddrPort) bool { return !slices.Contains(tried, b) })
		if i < 0 {
			return nil
		}
		backend = backends[(first+i)%len(backends)]
	}
	if f.Affinity > 0 {
		fe.remember(from, backend)
	}
	s := &session{of: fe, backend: backend}
	fe.sessions[s] = struct{}{}
	return s
}

// remembered returns the backend that a client stays on, if it does.
func (fe *frontend) remembered(from netip.Addr) netip.AddrPort {
	if c, is := fe.clients[from]; is && time.Since(c.at) < fe.want.Affinity {
		return c.backend
	}
	return netip.AddrPort{}
}

// remember keeps a client on a backend. Now and then those are removed whose time is over.
func (fe *frontend) remember(from netip.Addr, backend netip.AddrPort) {
	if fe.clients == nil {
		fe.clients = map[netip.Addr]client{}
	}
	if _, known := fe.clients[from]; !known && len(fe.clients) >= 2*fe.swept+sweepFrom {
		for a := range fe.clients {
			if !fe.remembered(a).IsValid() {
				delete(fe.clients, a)
			}
		}
		fe.swept = len(fe.clients)
	}
	fe.clients[from] = client{backend, time.Now()}
}

// recall has clients stay on the backends to which another program sent them.
func (d *Driver) recall(clients []state.Remembered) {
	for _, fe := range d.frontends {
		fe.mu.Lock()
		for _, c := range clients {
			of := c.Service == model.Name{} || c.Service == fe.want.Service && c.Port == fe.want.Port
			if of && c.Protocol == fe.key.Protocol && fe.want.Affinity > 0 && state.Has(usable(c.Protocol, fe.want), c.Backend) {
				fe.remember(c.Client, c.Backend)
			}
		}
		fe.mu.Unlock()
	}
}

// sweepFrom is how many clients a frontend has before any are removed.
const sweepFrom = 1024

// keeps reports whether the session's backend is to see the client's address: where a driver in the
// kernel would not masquerade.
func (s *session) keeps(from netip.Addr) bool {
	settings, k := s.of.d.settings.Load(), s.of.key
	s.of.mu.Lock()
	f := s.of.want
	s.of.mu.Unlock()
	inCluster := model.Within(from, settings.ClusterCIDRs)
	known := slices.ContainsFunc(settings.ClusterCIDRs, func(p netip.Prefix) bool { return p.Addr().Is4() == k.Addr.Is4() })
	switch {
	case f == nil, s.backend.Addr() == from:
		return false
	case s.of.d.sockets.isOwn(s.backend.Addr()):
		return true // its answers always pass here
	case settings.MasqueradeAll:
		return false
	case !f.External():
		return inCluster || !known
	}
	return f.LocalOnly && (!inCluster || model.Within(from, settings.LocalCIDRs))
}

// own gives the session a socket. If the session was cut meanwhile, that is closed.
func (s *session) own(c closer) {
	s.mu.Lock()
	s.ends = append(s.ends, c)
	late := s.isCut
	s.mu.Unlock()
	if late {
		s.cut()
	}
}

// cut ends the session at once: both ends of a TCP connection get a reset.
func (s *session) cut() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.isCut = true
	for _, c := range s.ends {
		_ = c.SetLinger(0)
		_ = c.Close()
	}
}

// end forgets a session, and closes its sockets.
func (s *session) end() {
	s.of.mu.Lock()
	delete(s.of.sessions, s)
	s.of.mu.Unlock()
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, c := range s.ends {
		_ = c.Close()
	}
}
