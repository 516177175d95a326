package agent

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"net"
	"os"
	"slices"
	"sync"
	"syscall"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/sys/unix"
)

// claimName is a Unix socket's in the abstract namespace. Of those there is one to each network
// namespace, whatever files its containers see, and it is gone with the process that holds it.
const claimName = "@sluice.dev/agent"

// maxRivals is how many agents' connections are kept. Anybody of the host may connect, so there has to be an end.
const maxRivals = 16

// Claim is the right to be the one agent of a network namespace. Methods of a nil Claim do nothing.
type Claim struct {
	listener net.Listener
	log      *slog.Logger

	mu     sync.Mutex
	rivals map[net.Conn]int32 // agents that wait, by connection: their processes, 0 where it can't be seen from here
}

// ClaimNamespace claims the network namespace of the calling thread. While another agent has it, it waits
// for that to end, as it may be on its way out; an error says, after patience or when ctx ends, that
// it has not. Two agents at work would undo what the other does.
func ClaimNamespace(ctx context.Context, patience time.Duration, log *slog.Logger) (*Claim, error) {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	said := false
	for {
		l, err := net.Listen("unix", claimName)
		if err == nil {
			c := &Claim{listener: l, log: log, rivals: make(map[net.Conn]int32)}
			go c.serve()
			return c, nil
		}
		if !errors.Is(err, syscall.EADDRINUSE) {
			return nil, fmt.Errorf("claim network namespace: %w", err)
		}
		holder, err := dialHolder(ctx)
		if errors.Is(err, syscall.ECONNREFUSED) {
			continue // it has just gone
		}
		if err != nil {
			return nil, fmt.Errorf("claim network namespace: %w", err)
		}
		if int(holder.user) != os.Geteuid() {
			_ = holder.conn.Close()
			log.Warn("another user's process has the name by which agents know of each other; going on without", "user", holder.user, "process", holder.process)
			return nil, nil
		}
		if !said {
			log.Warn("another agent is at work in this network namespace; waiting for it to end", "agent", holder.String(), "patience", patience)
			said = true
		}
		if !holder.gone(ctx) {
			return nil, fmt.Errorf("claim network namespace: %s is at work in it already: two would undo each other's work; stop it, or whatever starts one of the two", holder)
		}
		pause(ctx) // it may be at work yet, and have too many that wait
	}
}

// holder is who has the claim.
type holder struct {
	conn    net.Conn
	user    uint32
	process int32 // 0: one that can't be seen from here
}

func dialHolder(ctx context.Context) (*holder, error) {
	conn, err := new(net.Dialer).DialContext(ctx, "unix", claimName)
	if err != nil {
		return nil, err
	}
	who, err := peer(conn)
	if err != nil {
		return nil, errors.Join(err, conn.Close())
	}
	return &holder{conn, who.Uid, who.Pid}, nil
}

// peer is whose process is, or was, at the other end of a connection.
func peer(conn net.Conn) (who *unix.Ucred, err error) {
	raw, err := conn.(*net.UnixConn).SyscallConn()
	if err == nil {
		err = errors.Join(raw.Control(func(fd uintptr) { who, err = unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED) }), err)
	}
	if err != nil {
		return nil, fmt.Errorf("read peer's credentials: %w", err)
	}
	return who, nil
}

// String names the agent.
func (h *holder) String() string {
	if h.process == 0 {
		return "an agent of another container"
	}
	return fmt.Sprintf("the agent of process %d", h.process)
}

// gone waits for the holder to end, and says whether it has before ctx did.
func (h *holder) gone(ctx context.Context) bool {
	defer func() { _ = h.conn.Close() }()
	stop := context.AfterFunc(ctx, func() { _ = h.conn.SetReadDeadline(time.Unix(1, 0)) })
	defer stop()
	_, err := h.conn.Read(make([]byte, 1))
	return !errors.Is(err, os.ErrDeadlineExceeded)
}

// pause lets a moment pass, or ctx end.
func pause(ctx context.Context) {
	select {
	case <-ctx.Done():
	case <-time.After(10 * time.Millisecond):
	}
}

// serve holds on to the connections of those who wait, and says that there are some. Connections of other users, who
// don't wait either, are closed at once.
func (c *Claim) serve() {
	for {
		conn, err := c.listener.Accept()
		if err != nil {
			return
		}
		who, err := peer(conn)
		if err != nil || int(who.Uid) != os.Geteuid() || !c.admit(conn, who.Pid) {
			_ = conn.Close()
			continue
		}
		go func() {
			_, _ = io.Copy(io.Discard, conn) // ends when the other one does
			c.forget(conn)
		}()
	}
}

// admit notes that a process waits, unless too many do. A process is told of once, however many connections it has.
func (c *Claim) admit(conn net.Conn, process int32) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(c.rivals) >= maxRivals {
		return false
	}
	if known := slices.Contains(slices.Collect(maps.Values(c.rivals)), process); !known {
		c.log.Warn("another agent has been started in this network namespace; it waits, and does nothing, while this one works", "process", process)
	}
	c.rivals[conn] = process
	return true
}

func (c *Claim) forget(conn net.Conn) {
	_ = conn.Close()
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.rivals, conn)
}

// Waiting is how many other agents wait for this one to end.
func (c *Claim) Waiting() int {
	if c == nil {
		return 0
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	return len(c.rivals)
}

// Release gives the claim up to whoever waits.
func (c *Claim) Release() {
	if c == nil {
		return
	}
	_ = c.listener.Close()
	c.mu.Lock()
	defer c.mu.Unlock()
	for conn := range c.rivals {
		_ = conn.Close()
	}
}

// rivalsGauge tells how many agents wait.
func rivalsGauge(c *Claim) prometheus.Collector {
	return prometheus.NewGaugeFunc(prometheus.GaugeOpts{
		Name: "sluice_rivals", Help: "Other agents in this network namespace, which wait for this one to end.",
	}, func() float64 { return float64(c.Waiting()) })
}
