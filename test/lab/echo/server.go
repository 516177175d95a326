package echo

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"net/textproto"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"

	"sluice.dev/sluice/test/netns"
)

// Server listens for a set of pods. The zero value serves none. It is safe for concurrent use.
type Server struct {
	mu   sync.Mutex
	pods map[string]*listener // by Pod.key
}

// listener is one served pod.
type listener struct {
	pod Pod

	draining atomic.Bool

	mu     sync.Mutex
	closed bool
	open   map[io.Closer]bool // listening sockets and connections
}

// Set makes the server serve exactly these pods. It opens new and changed ones, closes those no
// longer wanted while their connections may end, and leaves the others alone. The error joins one
// for each port that cannot be opened; the rest is served.
func (s *Server) Set(pods []Pod) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	want := map[string]Pod{}
	for _, p := range pods {
		want[p.key()] = p
	}
	for k, l := range s.pods {
		if w, ok := want[k]; !ok || !same(w, l.pod) {
			l.close()
			delete(s.pods, k)
		}
	}
	var errs []error
	for k, p := range want {
		if s.pods[k] == nil {
			errs = append(errs, s.add(p).start())
		}
	}
	return errors.Join(errs...)
}

// Put serves a pod in place of what was served under its name, whose connections end. Its cost
// depends only on this pod. The error joins one for each port that cannot be opened; the rest is
// served.
func (s *Server) Put(p Pod) error {
	s.mu.Lock()
	old := s.pods[p.key()]
	l := s.add(p)
	s.mu.Unlock()
	if old != nil {
		old.close()
	}
	return l.start()
}

// Drain makes a pod's answers close their HTTP connections, so that clients with persistent
// connections find another pod before this one is removed. The pod is still served.
func (s *Server) Drain(p Pod) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if l := s.pods[p.key()]; l != nil {
		l.draining.Store(true)
	}
}

// Remove stops serving a pod and ends its connections. Removing an unknown pod does nothing.
func (s *Server) Remove(p Pod) {
	s.mu.Lock()
	l := s.pods[p.key()]
	delete(s.pods, p.key())
	s.mu.Unlock()
	if l != nil {
		l.close()
	}
}

// Close stops serving.
func (s *Server) Close() error { return s.Set(nil) }

// add registers a pod before it is started.
func (s *Server) add(p Pod) *listener {
	if s.pods == nil {
		s.pods = map[string]*listener{}
	}
	l := &listener{pod: p, open: map[io.Closer]bool{}}
	s.pods[p.key()] = l
	return l
}

func (p Pod) key() string { return p.Namespace + "/" + p.Name + "/" + p.Container }

func same(a, b Pod) bool {
	return a.Node == b.Node && a.NetNS == b.NetNS && slices.Equal(a.Addrs, b.Addrs) && slices.Equal(a.Ports, b.Ports)
}

func (l *listener) close() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.closed = true
	for c := range l.open {
		_ = c.Close() // nothing depends on how a socket of a removed pod ends
	}
}

// add registers a socket to close with the pod. If the pod is closed already, it closes the socket
// and returns false.
func (l *listener) add(c io.Closer) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed {
		_ = c.Close() // as in close
		return false
	}
	l.open[c] = true
	return true
}

func (l *listener) remove(c io.Closer) {
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.open, c)
}

// start opens the pod's sockets in its network namespace and serves them in the background.
func (l *listener) start() error {
	var errs []error
	listen := func() error {
		for _, p := range l.pod.Ports {
			if err := l.listen(p); err != nil {
				errs = append(errs, fmt.Errorf("serve pod %s/%s: %w", l.pod.Namespace, l.pod.Name, err))
			}
		}
		return nil
	}
	if l.pod.NetNS == "" {
		return errors.Join(listen(), errors.Join(errs...))
	}
	ns, err := netns.Open(l.pod.NetNS)
	if err != nil {
		return err
	}
	defer ns.Close()
	err = ns.Do(listen)
	return errors.Join(append(errs, err)...)
}

// listen opens one port on the calling thread's network.
func (l *listener) listen(p Port) error {
	answer := Answer{Pod: l.pod.Name, Namespace: l.pod.Namespace, Node: l.pod.Node, Protocol: p.Protocol, Port: p.Port}
	var lc net.ListenConfig
	lc.SetMultipathTCP(false)
	switch p.Protocol {
	case "TCP":
		ln, err := lc.Listen(context.Background(), "tcp", ":"+strconv.Itoa(int(p.Port)))
		if err != nil {
			return err
		}
		if l.add(ln) {
			go l.serveTCP(ln, answer)
		}
	case "UDP":
		loopback := []netip.Addr{netip.MustParseAddr("127.0.0.1"), netip.IPv6Loopback()}
		for _, a := range slices.Concat(l.pod.Addrs, loopback) {
			pc, err := lc.ListenPacket(context.Background(), "udp", netip.AddrPortFrom(a, p.Port).String())
			if err != nil {
				return err
			}
			if l.add(pc) {
				go serveUDP(pc.(*net.UDPConn), answer)
			}
		}
	}
	return nil
}

func (l *listener) serveTCP(ln net.Listener, a Answer) {
	for {
		conn, err := ln.Accept()
		if errors.Is(err, net.ErrClosed) {
			return
		}
		if err != nil {
			continue // the connection has gone; the listener has not
		}
		go func() {
			defer conn.Close()
			defer l.remove(conn)
			if !l.add(conn) {
				return
			}
			a := a
			a.Client = unmap(conn.RemoteAddr().(*net.TCPAddr).AddrPort())
			_ = l.converse(conn, a) // the client left
		}()
	}
}

// converse answers a connection's requests until the client is done: HTTP requests with HTTP, any
// other line of text with a line.
func (l *listener) converse(conn net.Conn, a Answer) error {
	text := line(a)
	r := bufio.NewReader(conn)
	for {
		first, err := r.ReadSlice('\n')
		if err != nil {
			return err
		}
		if string(first) == http2Preface {
			return serveHTTP2(&peeked{conn, io.MultiReader(strings.NewReader(http2Preface), r)}, text)
		}
		fields := strings.Fields(string(first))
		if len(fields) != 3 || !strings.HasPrefix(fields[2], "HTTP/1.") {
			if _, err := conn.Write(text); err != nil {
				return err
			}
			continue
		}
		last, err := skipRequest(r, fields[2])
		if err != nil {
			return err
		}
		last = last || l.draining.Load()
		if err := respond(conn, fields[0], text, last); err != nil || last {
			return err
		}
	}
}

// http2Preface is the first line of a client that speaks HTTP/2 without TLS, as gRPC's do (RFC
// 9113, 3.4).
const http2Preface = "PRI * HTTP/2.0\r\n"

// peeked is a connection of which some has been read already.
type peeked struct {
	net.Conn
	from io.Reader
}

func (p *peeked) Read(b []byte) (int, error) { return p.from.Read(b) }

// serveHTTP2 answers the requests of an HTTP/2 connection until the client is done. gRPC's question
// for health, as probes ask it, is answered with "serving".
func serveHTTP2(conn net.Conn, text []byte) error {
	var protocols http.Protocols
	protocols.SetUnencryptedHTTP2(true)
	ended := make(chan struct{})
	server := &http.Server{
		Protocols: &protocols,
		ConnState: func(_ net.Conn, state http.ConnState) {
			if state == http.StateClosed {
				close(ended)
			}
		},
		Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if r.URL.Path != "/grpc.health.v1.Health/Check" {
				_, _ = w.Write(text) // the client left
				return
			}
			w.Header().Set("Content-Type", "application/grpc")
			w.Header().Set("Trailer", "Grpc-Status")
			_, _ = w.Write([]byte{0, 0, 0, 0, 2, 8, 1}) // a message of 2 bytes: field 1, the status, is SERVING
			w.Header().Set("Grpc-Status", "0")
		}),
	}
	ln := &single{conn: make(chan net.Conn, 1), ended: ended}
	ln.conn <- conn
	err := server.Serve(ln)
	if errors.Is(err, net.ErrClosed) {
		return nil
	}
	return err
}

// single is a listener of one connection.
type single struct {
	conn  chan net.Conn
	ended chan struct{}
}

func (s *single) Accept() (net.Conn, error) {
	select {
	case c := <-s.conn:
		return c, nil
	case <-s.ended:
		return nil, net.ErrClosed
	}
}

func (s *single) Close() error { return nil }

func (s *single) Addr() net.Addr { return &net.TCPAddr{} }

// skipRequest reads the rest of an HTTP request and reports whether it is the connection's last.
func skipRequest(r *bufio.Reader, version string) (last bool, err error) {
	h, err := textproto.NewReader(r).ReadMIMEHeader()
	if err != nil {
		return true, err
	}
	header := http.Header(h)
	length, _ := strconv.ParseInt(header.Get("Content-Length"), 10, 64) // none: no body
	if _, err := io.CopyN(io.Discard, r, length); err != nil {
		return true, err
	}
	option := strings.ToLower(header.Get("Connection"))
	last = option == "close" || version == "HTTP/1.0" && option != "keep-alive" ||
		header.Get("Transfer-Encoding") != "" // a chunked body is not worth parsing: answer and close
	return last, nil
}

func respond(w io.Writer, method string, body []byte, last bool) error {
	option := "keep-alive"
	if last {
		option = "close"
	}
	out := fmt.Appendf(nil, "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\nConnection: %s\r\n\r\n", len(body), option)
	if method != http.MethodHead {
		out = append(out, body...)
	}
	_, err := w.Write(out)
	return err
}

func serveUDP(conn *net.UDPConn, a Answer) {
	buf := make([]byte, 64<<10)
	for {
		_, from, err := conn.ReadFromUDPAddrPort(buf)
		if errors.Is(err, net.ErrClosed) {
			return
		}
		if err != nil {
			continue // an ICMP error for an earlier answer
		}
		a.Client = unmap(from)
		_, _ = conn.WriteToUDPAddrPort(line(a), from) // an unreachable client is not our problem
	}
}

func line(a Answer) []byte {
	b, err := json.Marshal(a)
	if err != nil {
		panic(err) // strings and numbers only
	}
	return append(b, '\n')
}

func unmap(ap netip.AddrPort) netip.AddrPort {
	return netip.AddrPortFrom(ap.Addr().Unmap(), ap.Port())
}
