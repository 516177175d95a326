package agent

import (
	"context"
	"net"
	"net/http"
	"sync"
	"syscall"
)

// pipes are a network within this process. Whoever waits in it waits for another goroutine and not
// for the kernel, so that the clock of a synctest goes on.
type pipes struct {
	mu        sync.Mutex
	listeners map[string]*pipeListener
}

// apart has an agent listen in a network of its own, for a test in a synctest's bubble. Its client
// connects there.
func apart(c *Config) { c.sockets = &pipes{listeners: map[string]*pipeListener{}} }

func (p *pipes) Listen(_, address string) (net.Listener, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	l := &pipeListener{address: address, conns: make(chan net.Conn), closed: make(chan struct{})}
	p.listeners[port(address)] = l
	return l, nil
}

// DialContext connects to an address. That of a port is the same on all hosts.
func (p *pipes) DialContext(ctx context.Context, _, address string) (net.Conn, error) {
	p.mu.Lock()
	l := p.listeners[port(address)]
	p.mu.Unlock()
	if l == nil {
		return nil, syscall.ECONNREFUSED
	}
	here, there := net.Pipe()
	select {
	case l.conns <- there:
		return here, nil
	case <-l.closed:
		return nil, syscall.ECONNREFUSED
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// port is the port of an address, or else the address.
func port(address string) string {
	if _, port, err := net.SplitHostPort(address); err == nil {
		return port
	}
	return address
}

// transport is for clients that connect anew each time.
func (p *pipes) transport() *http.Transport {
	return &http.Transport{DisableKeepAlives: true, DialContext: p.DialContext}
}

type pipeListener struct {
	address string
	conns   chan net.Conn
	once    sync.Once
	closed  chan struct{}
}

func (l *pipeListener) Accept() (net.Conn, error) {
	select {
	case c := <-l.conns:
		return c, nil
	case <-l.closed:
		return nil, net.ErrClosed
	}
}

func (l *pipeListener) Close() error {
	l.once.Do(func() { close(l.closed) })
	return nil
}

func (l *pipeListener) Addr() net.Addr { return &net.UnixAddr{Name: l.address, Net: "unix"} }
