package agent

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"os"
	"syscall"
	"time"

	"sluice.dev/sluice/internal/lib/connlimit"
	"sluice.dev/sluice/internal/lib/wake"
)

// openInterval is the time between two attempts to open an address that is taken.
const openInterval = 500 * time.Millisecond

// server is an HTTP server with its listeners. A listener is nil while its address is taken.
type server struct {
	*http.Server
	what, address string
	conns         *connlimit.Limit
	listener      net.Listener
}

// sockets are those that the agent listens on.
type sockets interface {
	Listen(network, address string) (net.Listener, error)
}

type kernelSockets struct{}

// Listen implements sockets.
func (kernelSockets) Listen(network, address string) (net.Listener, error) {
	if network == "unix" {
		return Listen(address)
	}
	return net.Listen(network, address)
}

// newServer returns a server whose clients cannot block it with slow requests. An answer may take
// as long as timeout, and any time if that is 0. The body of a request cannot be read, unless a
// handler sets a time for it.
func newServer(timeout time.Duration, h http.Handler) *http.Server {
	return &http.Server{
		Handler:           answering(h),
		ConnContext:       connlimit.Context,
		ReadHeaderTimeout: headerTimeout,
		WriteTimeout:      timeout,
		IdleTimeout:       time.Minute,
		MaxHeaderBytes:    16 << 10,
		ErrorLog:          slog.NewLogLogger(slog.DiscardHandler, slog.LevelError),
	}
}

// listen opens all listeners of the agent, or none. An address that is taken, for example by the
// kube-proxy that is about to be replaced, is left for serve to open later, unless it is required
// now.
func (a *Agent) listen() ([]server, error) {
	var servers []server
	fail := func(err error) ([]server, error) {
		for _, s := range servers {
			if s.listener != nil {
				err = errors.Join(err, s.listener.Close())
			}
		}
		return nil, err
	}
	l, err := a.listenOn(a.Socket)
	if err != nil && !full(err) {
		return fail(err)
	}
	servers = append(servers, server{newServer(0, a.handler()), "socket", a.Socket, a.limits.socket, l})
	for _, s := range []server{
		{newServer(pageTimeout, a.metrics.handler(a.Pages)), "--metrics-address", a.MetricsAddress, a.limits.metrics, nil},
		{newServer(probeTimeout, a.health.handler(a.metrics.healthz, a.metrics.livez)), "--healthz-address", a.HealthzAddress, a.limits.health, nil},
	} {
		if s.address == "" {
			continue
		}
		s.listener, err = a.listenOn(s.address)
		if err != nil && (a.MustServe || !taken(err)) {
			return fail(fmt.Errorf("serve on %s: %w: choose another address with %s, or turn it off with %s=''", s.address, err, s.what, s.what))
		}
		servers = append(servers, s)
	}
	return servers, nil
}

// taken reports whether an address is unavailable now, but may be available later: another process
// has it, or the host does not have it.
func taken(err error) bool {
	return errors.Is(err, syscall.EADDRINUSE) || errors.Is(err, syscall.EADDRNOTAVAIL)
}

// full reports whether a filesystem has no space: services do not wait for that.
func full(err error) bool { return errors.Is(err, syscall.ENOSPC) || errors.Is(err, syscall.EDQUOT) }

// serve answers requests from when its address is available until the server is closed.
func (a *Agent) serve(ctx context.Context, s server) {
	if s.listener == nil {
		s.listener = a.open(ctx, s.what, s.address)
	}
	for s.listener != nil {
		served := make(chan struct{})
		go func() {
			serve(a.Log, s.what, s.Server, s.conns.Listen(s.listener))
			close(served)
		}()
		socket, ok := s.listener.(*net.UnixListener)
		if !ok || !removed(s.address, served) {
			<-served
			return
		}
		a.Log.Warn("the socket has been removed; making it again", "socket", s.address)
		socket.SetUnlinkOnClose(false) // the name now belongs to the next one
		_ = socket.Close()
		<-served
		s.listener = a.open(ctx, s.what, s.address)
	}
}

// removed waits until a socket's file is gone, and reports whether that happened before its server
// ended.
func removed(path string, served <-chan struct{}) bool {
	for {
		select {
		case <-served:
			return false
		case <-time.After(openInterval):
		}
		if _, err := os.Lstat(path); errors.Is(err, os.ErrNotExist) {
			return true
		}
	}
}

// listenOn opens a TCP address, or the agent's socket.
func (a *Agent) listenOn(address string) (net.Listener, error) {
	if address == a.Socket {
		return a.sockets.Listen("unix", address)
	}
	return a.sockets.Listen("tcp", address)
}

// open waits for an address and opens it; it returns nil if ctx ends first. Meanwhile, the status
// names the address.
func (a *Agent) open(ctx context.Context, what, address string) net.Listener {
	last := ""
	for {
		l, err := a.listenOn(address)
		switch {
		case err == nil:
			a.unserved(address, nil)
			a.Log.Info("address is free and served now", "address", address, "flag", what)
			return l
		case err.Error() != last:
			a.unserved(address, err)
			a.Log.Warn("address cannot be served on; trying until it can", "address", address, "flag", what, "error", err)
			last = err.Error()
		}
		if !wake.Sleep(ctx, openInterval) {
			return nil
		}
	}
}

// unserved records that an address cannot be served on, or (nil) that it can.
func (a *Agent) unserved(address string, err error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	delete(a.record.unserved, address)
	if err == nil {
		return
	}
	if a.record.unserved == nil {
		a.record.unserved = map[string]string{}
	}
	a.record.unserved[address] = err.Error()
}

// serve answers requests on l until the server is closed.
func serve(log *slog.Logger, what string, s *http.Server, l net.Listener) {
	if err := s.Serve(l); !errors.Is(err, http.ErrServerClosed) && !errors.Is(err, net.ErrClosed) {
		log.Error("server ended", "server", what, "error", err)
	}
}

// writeJSON answers a request. A client that has gone away is not our error.
func writeJSON(w http.ResponseWriter, code int, v any) {
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("X-Content-Type-Options", "nosniff")
	w.WriteHeader(code)
	_ = json.NewEncoder(w).Encode(v)
}
