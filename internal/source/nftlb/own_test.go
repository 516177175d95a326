package nftlb

import (
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"
)

// A farm that would take what the program itself is served at is refused, by a request and where it
// is loaded from, whatever the machine can do.
func TestOwnAddressesAreLeft(t *testing.T) {
	specific := []netip.AddrPort{netip.MustParseAddrPort("192.0.2.1:5555"), netip.MustParseAddrPort("[2001:db8::1]:5555")}
	everywhere := []netip.AddrPort{netip.MustParseAddrPort("0.0.0.0:5555"), netip.MustParseAddrPort("[::]:5555")}
	for _, test := range []struct {
		own     []netip.AddrPort
		farm    string
		refused string
	}{
		{specific, `"virtual-addr":"192.0.2.1","virtual-ports":"5555"`, "192.0.2.1:5555"},
		{specific, `"virtual-addr":"192.0.2.1","virtual-ports":"80,5000-6000"`, "192.0.2.1:5555"},
		{specific, `"virtual-addr":"192.0.2.1"`, "192.0.2.1:5555"},
		{specific, `"virtual-addr":"192.0.2.1","protocol":"all"`, "192.0.2.1:5555"},
		{specific, `"virtual-addr":"192.0.2.1","virtual-ports":"5555","mode":"stlsdnat","iface":"lo"`, "192.0.2.1:5555"},
		{specific, `"virtual-addr":"192.0.2.1","virtual-ports":"5555","mode":"dsr","iface":"lo"`, "192.0.2.1:5555"},
		{specific, `"virtual-addr":"2001:db8::1","family":"ipv6","virtual-ports":"5555"`, "[2001:db8::1]:5555"},
		{specific, `"virtual-ports":"5555"`, "192.0.2.1:5555"},
		{everywhere, `"virtual-ports":"5555"`, "0.0.0.0:5555"},
		{everywhere, `"virtual-addr":"127.0.0.1","virtual-ports":"5555"`, "0.0.0.0:5555"},
		{specific, `"virtual-addr":"192.0.2.1","virtual-ports":"5555","protocol":"udp"`, ""},
		{specific, `"virtual-addr":"192.0.2.1","virtual-ports":"80"`, ""},
		{specific, `"virtual-addr":"192.0.2.2","virtual-ports":"5555"`, ""},
		{specific, `"virtual-addr":"192.0.2.1","virtual-ports":"5555","state":"down"`, ""},
		{specific, `"virtual-addr":"192.0.2.1","virtual-ports":"5555","mode":"local"`, ""},
		{everywhere, `"virtual-addr":"192.0.2.1","virtual-ports":"5555"`, ""},
	} {
		text := `{"farms":[{"name":"f",` + test.farm + `}]}`
		b := start(t, Options{Own: test.own, LoadAll: true})
		code, answer := b.ask("POST", "/farms", text)
		if wrong := code == http.StatusConflict; wrong != (test.refused != "") || wrong && !strings.Contains(answer, "it takes "+test.refused) {
			t.Errorf("%s beside %v: %d %s", test.farm, test.own, code, answer)
		}
		file := filepath.Join(t.TempDir(), "farms.json")
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		for state, config := range map[string]string{"": file, file: ""} {
			err := prepare(t, Options{Own: test.own, LoadAll: true, State: state}).Load(config)
			if (err != nil) != (test.refused != "") || err != nil && !strings.Contains(err.Error(), "it takes "+test.refused) {
				t.Errorf("%s beside %v, from a file: %v", test.farm, test.own, err)
			}
		}
	}
}

// Clients that do not finish their requests hold a part of the descriptors at most, and keep nobody
// who has the key from the API.
func TestUnfinishedRequests(t *testing.T) {
	b := start(t, Options{})
	address := serve(t, b, TLS{})
	var open atomic.Int64
	for i := range 600 {
		c, err := net.Dial("tcp", address)
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		half := []string{"GET /farms HTTP/1.1\r\nHost: x\r\n", "POST /farms HTTP/1.1\r\nHost: x\r\nContent-Length: 1000\r\n\r\n{", ""}[i%3]
		_, _ = io.WriteString(c, half) // an error is that of one who was shown the door
		open.Add(1)
		go func() { _, _ = io.Copy(io.Discard, c); open.Add(-1) }()
	}
	begin := time.Now()
	if until(t, "most are closed", func() bool { return open.Load() <= 256 }); time.Since(begin) > 9*time.Second {
		t.Error("they are closed by the time-out of headers alone")
	}
	for range 3 {
		q, err := http.NewRequest("GET", fmt.Sprintf("http://%s/farms", address), nil)
		if err != nil {
			t.Fatal(err)
		}
		q.Header.Set("Key", secret)
		a, err := (&http.Client{Timeout: 5 * time.Second, Transport: &http.Transport{DisableKeepAlives: true}}).Do(q)
		if err != nil {
			t.Fatal(err)
		}
		if a.Body.Close(); a.StatusCode != http.StatusOK {
			t.Errorf("%s", a.Status)
		}
	}
}
