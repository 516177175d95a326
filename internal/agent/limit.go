package agent

import (
	"container/list"
	"net"
	"net/http"
	"sync"
	"syscall"
	"time"
)

// Time-outs of a request to an HTTP server.
const (
	headerTimeout = 5 * time.Second // until the client has sent the whole header
	probeTimeout  = 10 * time.Second
	// pageTimeout is how long metrics and profiles may take, beside the duration requested for a
	// profile. A scraper of a busy machine waits longer than a probe.
	pageTimeout = time.Minute
)

// connLimit bounds the total connections of its listeners. At the limit, a new connection replaces
// the oldest one that is not being answered: a client that holds connections for ever loses them,
// and a probe, which is new and short, is answered. If new ones were refused or queued, an
// attacker's connections would keep the probes out.
type connLimit struct {
	most int

	mu    sync.Mutex
	conns list.List // of *limitedConn, oldest first
}

// grace is how long a connection has to send its request, however many come after it.
const grace = 20 * time.Millisecond

// listen returns l with its connections bounded.
func (c *connLimit) listen(l net.Listener) net.Listener { return limitedListener{l, c} }

type limitedListener struct {
	net.Listener
	limit *connLimit
}

// Accept implements net.Listener.
func (l limitedListener) Accept() (net.Conn, error) {
	conn, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	return l.limit.admit(conn), nil
}

func (c *connLimit) admit(conn net.Conn) net.Conn {
	c.mu.Lock()
	admitted := &limitedConn{Conn: conn, limit: c, since: time.Now()}
	admitted.place = c.conns.PushBack(admitted)
	victim := c.victim()
	c.mu.Unlock()
	if victim != nil {
		time.Sleep(time.Until(victim.since.Add(grace)))
		_ = victim.Close()
	}
	return admitted
}

// victim returns the connection that must close, if there are too many.
func (c *connLimit) victim() *limitedConn {
	if c.conns.Len() <= c.most {
		return nil
	}
	for e := c.conns.Front(); e != c.conns.Back(); e = e.Next() {
		if conn := e.Value.(*limitedConn); !conn.answered {
			return conn
		}
	}
	return c.conns.Front().Value.(*limitedConn)
}

type limitedConn struct {
	net.Conn
	limit *connLimit
	since time.Time
	place *list.Element

	answered bool // at present; limit.mu guards it
}

// Close implements net.Conn.
func (c *limitedConn) Close() error {
	c.limit.mu.Lock()
	c.limit.conns.Remove(c.place) // a second call does nothing
	c.limit.mu.Unlock()
	return c.Conn.Close()
}

func (c *limitedConn) answers(now bool) {
	c.limit.mu.Lock()
	defer c.limit.mu.Unlock()
	c.answered = now
}

// connKey is where a request's handler finds its connection.
type connKey struct{}

// answering wraps a handler that needs no request body. It does not wait for a body that a client
// announces: otherwise the client could hold the connection as long as it likes.
// (http.Server.ReadTimeout would do, but ends longer answers as well.)
func answering(h http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if conn, ok := r.Context().Value(connKey{}).(*limitedConn); ok {
			conn.answers(true)
			defer conn.answers(false)
		}
		if r.ContentLength != 0 {
			w.Header().Set("Connection", "close")
			_ = http.NewResponseController(w).SetReadDeadline(time.Unix(1, 0))
		}
		h.ServeHTTP(w, r)
	})
}

// limits are how many descriptors clients may use; the rest is for the kernel, the sources and
// their files.
type limits struct {
	socket, metrics, health *connLimit
	checks                  *connLimit // of all healthCheckNodePorts together
	checkPorts              int        // healthCheckNodePorts with a listener
}

// shareDescriptors divides up the descriptors that the process may have. (The Go runtime has raised
// the soft limit to the hard one.)
func shareDescriptors() limits {
	all := uint64(1024)
	var have syscall.Rlimit
	if syscall.Getrlimit(syscall.RLIMIT_NOFILE, &have) == nil {
		all = have.Cur
	}
	const enough, reserve = 1 << 20, 256
	n := int(min(all, enough))
	n -= min(reserve, n/2)
	share := func(part, most int) *connLimit { return &connLimit{most: max(1, min(n/part, most))} }
	l := limits{socket: share(4, 256), metrics: share(16, 32), health: share(8, 128), checks: share(4, 256)}
	l.checkPorts = n - l.socket.most - l.metrics.most - l.health.most - l.checks.most
	return l
}
