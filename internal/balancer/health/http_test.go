package health

import (
	"bufio"
	"crypto/tls"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"strings"
	"testing"
	"time"
)

// answer is a handler that shows what it was asked.
func answer(w http.ResponseWriter, r *http.Request) {
	switch r.URL.Path {
	case "/redirect":
		http.Redirect(w, r, "/broken", http.StatusFound)
	case "/broken":
		http.Error(w, "out of order", http.StatusServiceUnavailable)
	case "/silent":
		<-r.Context().Done()
	case "/torn":
		panic(http.ErrAbortHandler)
	case "/stalled":
		_, _ = w.Write([]byte("beginning"))
		w.(http.Flusher).Flush()
		<-r.Context().Done()
	case "/long":
		_, _ = w.Write([]byte(strings.Repeat("x", 2*maxAnswer) + "end"))
	default:
		_, _ = w.Write([]byte(r.Method + " " + r.Host + " " + r.URL.RequestURI()))
	}
}

func TestHTTP(t *testing.T) {
	t.Parallel()
	s := httptest.NewServer(http.HandlerFunc(answer))
	defer s.Close()
	at := netip.MustParseAddrPort(s.Listener.Addr().String())
	b := run(t, Options{})
	for _, test := range []struct {
		Check
		up  bool
		why string
	}{
		{Check{}, true, "status 200"},
		{Check{Body: "GET " + at.String() + " /"}, true, "status 200"},
		{Check{Body: "POST shop.example:81 /a?b=c", Method: "POST", Host: "shop.example:81", Path: "/a?b=c"}, true, "status 200"},
		{Check{Body: "nowhere"}, false, `the body lacks "nowhere"`},
		{Check{Path: "/long", Body: "end"}, false, `the body lacks "end"`},
		{Check{Path: "/broken"}, false, "status 503, wanted 200-399"},
		{Check{Path: "/broken", StatusFirst: 503}, true, "status 503"},
		{Check{StatusFirst: 204}, false, "status 200, wanted 204"},
		{Check{Path: "/redirect"}, true, "status 302"},
		{quick(Check{Path: "/silent"}), false, "no answer within 100ms"},
		{Check{Path: "/stalled"}, true, "status 200"},
		{Check{Path: "/stalled", Body: "beginning", Interval: 200 * time.Millisecond}, true, "status 200"},
		{quick(Check{Path: "/stalled", Body: "x"}), false, "no answer within 100ms"},
		{Check{Path: "/torn"}, false, "connection closed without an answer"},
	} {
		test.Type = HTTP
		b.want(test.Check, at, test.up, test.why)
	}
	b.want(Check{Type: HTTP}, closed(t), false, "connection refused")
	b.want(Check{Type: HTTPS}, at, false, "tls: first record does not look like a TLS handshake")
}

// Answers as servers may send them, one byte after the other.
func TestHTTPAnswers(t *testing.T) {
	t.Parallel()
	b := run(t, Options{})
	for _, test := range []struct {
		answer, body string
		up           bool
		why          string
	}{
		{"HTTP/1.1 200 OK\r\n\r\n", "", true, "status 200"},
		{"HTTP/1.0 200\n\n", "", true, "status 200"},
		{"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early\r\nLink: x\r\n\r\nHTTP/1.1 204 None\r\n\r\n", "", true, "status 204"},
		{"HTTP/1.1 103 Early\r\nLink: x\r\n\r\n", "", false, "connection closed without an answer"},
		{"HTTP/1.1 101 Switching Protocols\r\n\r\n", "", false, "status 101, wanted 200-399"},
		{"HTTP/1.1 200 OK\r\nServer: x\r\n", "", false, "connection closed without an answer"},
		{"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nhea\r\n4\r\nlthy\r\n0\r\n\r\n", "healthy", true, "status 200"},
		{"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nhea\r\n0\r\n\r\n", "healthy", false, `the body lacks "healthy"`},
		{"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nhealthy\r\n", "healthy", false, "invalid byte in chunk length"},
		{"HTTP/1.1 200 OK\r\nX: healthy\r\nContent-Length: 4\r\n\r\nsick healthy", "healthy", false, `the body lacks "healthy"`},
		{"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nsick", "healthy", false, "connection closed without an answer"},
		{"HTTP/1.0 200 OK\r\n\r\nsick, then healthy", "healthy", true, "status 200"},
		{"HTTP/1.0 200 OK\r\n\r\nsick", "healthy", false, `the body lacks "healthy"`},
		{"HTTP/1.1 2x0 OK\r\n\r\n", "", false, `not HTTP: "HTTP/1.1 2x0 OK"`},
		{"HTTP/1.1 20 OK\r\n\r\n", "", false, `not HTTP: "HTTP/1.1 20 OK"`},
		{"HTTP/1.1 200 OK\r\nX: " + strings.Repeat("x", maxAnswer), "", false, "the header is longer than 65536 bytes"},
	} {
		l, at := listen(t, "tcp6", "[::1]:0")
		go func() {
			for {
				c, err := l.Accept()
				if err != nil {
					return
				}
				_, _ = http.ReadRequest(bufio.NewReader(c))
				for rest := []byte(test.answer); len(rest) > 0; {
					n, err := c.Write(rest[:max(1, len(rest)-500)])
					if err != nil {
						break
					}
					rest = rest[n:]
				}
				_ = c.Close()
			}
		}()
		b.want(Check{Type: HTTP, Body: test.body}, at, test.up, test.why)
	}
}

// A server that speaks first, and something else.
func TestNotHTTP(t *testing.T) {
	t.Parallel()
	l, at := listen(t, "tcp4", "127.0.0.1:0")
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			_, _ = c.Write([]byte("SSH-2.0-OpenSSH\r\n"))
			t.Cleanup(func() { _ = c.Close() })
		}
	}()
	run(t, Options{}).want(Check{Type: HTTP}, at, false, `not HTTP: "SSH-2.0-OpenSSH"`)
}

// What part of an answer decides, the whole of it decides alike; and net/http finds the same
// status.
func FuzzAnswer(f *testing.F) {
	for _, answer := range []string{
		"HTTP/1.1 200 OK\r\n\r\nbody",
		"HTTP/1.1 100 \n\nHTTP/1.1 204 None\r\nTransfer-Encoding: chunked\r\n\r\n",
		"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nbo\r\n2\r\ndy\r\n0\r\n\r\n",
		"HTTP/1.1 404 Not Found\r\nContent-Length: 1\r\n\r\nbody",
	} {
		f.Add(answer, "body")
	}
	f.Fuzz(func(t *testing.T, text, body string) {
		c := Check{Type: HTTP, Body: body}.WithDefaults()
		answer := []byte(text)
		all, ended := c.compare(answer, true)
		if !ended {
			t.Fatal("the whole answer decides nothing")
		}
		for i := range answer {
			if part, ended := c.compare(answer[:i], false); ended && part.up != all.up {
				t.Errorf("%q: got %+v, of all %+v", answer[:i], part, all)
			}
		}
		c.Body = ""
		all, _ = c.compare(answer, true)
		r, err := http.ReadResponse(bufio.NewReader(strings.NewReader(text)), nil)
		if err == nil && r.StatusCode >= 200 && all.up != (r.StatusCode < 400) {
			t.Errorf("got %+v, want status %d", all, r.StatusCode)
		}
	})
}

func TestHTTPS(t *testing.T) {
	s := httptest.NewUnstartedServer(http.HandlerFunc(answer))
	var name string
	s.TLS = &tls.Config{GetConfigForClient: func(h *tls.ClientHelloInfo) (*tls.Config, error) {
		name = h.ServerName
		return nil, nil
	}}
	s.StartTLS()
	defer s.Close()
	at := netip.MustParseAddrPort(s.Listener.Addr().String())
	b := run(t, Options{})
	b.want(Check{Type: HTTPS, Insecure: true}, at, true, "status 200")
	b.want(Check{Type: HTTPS, Insecure: true, Host: "shop.example:8443", Body: "shop.example:8443"}, at, true, "status 200")
	if name != "shop.example" {
		t.Errorf("the server was asked for %q", name)
	}
	b.want(Check{Type: HTTPS}, at, false, "x509: certificate signed by unknown authority")
}
