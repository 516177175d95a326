package health

import (
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
