// Package connlimit bounds how many connections the clients of a server may hold, so that those who
// do not finish their requests keep neither others from it nor the rest of the process from the
// descriptors that it needs.
package connlimit

import (
	"container/list"
	"context"
	"net"
	"net/http"
	"sync"
	"syscall"
	"time"
)

// Limit bounds the total connections of its listeners. At the limit, a new connection replaces the
// oldest one that is not being answered: a client that holds connections for ever loses them, and
// one that is new and short is answered. If new ones were refused or queued, an attacker's
// connections would keep the others out.
type Limit struct {
	most int

	mu    sync.Mutex
	conns list.List // of *conn, oldest first
}

// grace is how long a connection has to send its request, however many come after it.
const grace = 20 * time.Millisecond

// Share is a limit of Descriptors()/part connections, but no more than most, and at least one.
func Share(part, most int) *Limit { return &Limit{most: max(1, min(Descriptors()/part, most))} }

// Descriptors are how many descriptors the process may have, without a reserve for what is no
// connection of a client. (The Go runtime has raised the soft limit to the hard one.)
func Descriptors() int {
	all := uint64(1024)
	var have syscall.Rlimit
	if syscall.Getrlimit(syscall.RLIMIT_NOFILE, &have) == nil {
		all = have.Cur
	}
	const enough, reserve = 1 << 20, 256
	n := int(min(all, enough))
	return n - min(reserve, n/2)
}

// Most is how many connections there may be.
func (c *Limit) Most() int { return c.most }

// Listen returns l with its connections bounded. The server has Context as its ConnContext.
func (c *Limit) Listen(l net.Listener) net.Listener { return listener{l, c} }

type listener struct {
	net.Listener
	limit *Limit
}

// Accept implements net.Listener.
func (l listener) Accept() (net.Conn, error) {
	c, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	return l.limit.admit(c), nil
}

func (c *Limit) admit(accepted net.Conn) net.Conn {
	c.mu.Lock()
	admitted := &conn{Conn: accepted, limit: c, since: time.Now()}
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
func (c *Limit) victim() *conn {
	if c.conns.Len() <= c.most {
		return nil
	}
	for e := c.conns.Front(); e != c.conns.Back(); e = e.Next() {
		if conn := e.Value.(*conn); !conn.answered {
			return conn
		}
	}
	return c.conns.Front().Value.(*conn)
}

type conn struct {
	net.Conn
	limit *Limit
	since time.Time
	place *list.Element

	answered bool // at present; limit.mu guards it
}

// Close implements net.Conn.
func (c *conn) Close() error {
	c.limit.mu.Lock()
	c.limit.conns.Remove(c.place) // a second call does nothing
	c.limit.mu.Unlock()
	return c.Conn.Close()
}

func (c *conn) answers(now bool) {
	c.limit.mu.Lock()
	defer c.limit.mu.Unlock()
	c.answered = now
}

// key is where a request's handler finds its connection.
type key struct{}

// Context is a ConnContext of an http.Server.
func Context(ctx context.Context, c net.Conn) context.Context {
	if secured, ok := c.(interface{ NetConn() net.Conn }); ok { // by TLS
		c = secured.NetConn()
	}
	return context.WithValue(ctx, key{}, c)
}

// Answer has the connection of a request count as one that is being answered until done is called.
func Answer(r *http.Request) (done func()) {
	c, ok := r.Context().Value(key{}).(*conn)
	if !ok {
		return func() {}
	}
	c.answers(true)
	return func() { c.answers(false) }
}
