package config

import (
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"sluice.dev/sluice/internal/balancer/health"
	"sluice.dev/sluice/test/logtest"
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
		err := prepare(t, Options{Own: test.own, LoadAll: true}).Load(t.Context(), file)
		if (err != nil) != (test.refused != "") || err != nil && !strings.Contains(err.Error(), "it takes "+test.refused) {
			t.Errorf("%s beside %v, from a file: %v", test.farm, test.own, err)
		}
	}
}

// A farm of the state file that would take what the program itself is served at keeps nothing else
// from being served. It stays in the file, is named, and served once it is mended, or does not take
// it any more.
func TestOwnAddressesInTheStateFile(t *testing.T) {
	file := filepath.Join(t.TempDir(), "state.json")
	const check = `"health-check":{"type":"tcp"},"backends":[{"name":"a","ip-addr":"10.0.0.1","port":"80"}]`
	older := start(t, Options{State: file})
	older.do("POST", "/farms", `{"farms":[{"name":"own","virtual-addr":"192.0.2.1","virtual-ports":"443,5555",`+check+`},{"name":"web","virtual-addr":"192.0.2.1","virtual-ports":"80",`+check+`}]}`)
	older.stop()
	for name, mend := range map[string]func(*bed){
		"by a request":  func(b *bed) { b.do("PUT", "/farms", `{"farms":[{"name":"own","virtual-ports":"5556"}]}`) },
		"taken down":    func(b *bed) { b.do("PUT", "/farms", `{"farms":[{"name":"own","state":"down"}]}`) },
		"taken away":    func(b *bed) { b.do("DELETE", "/farms/own", "") },
		"not at all":    func(*bed) {},
		"by moving API": nil,
	} {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		state := filepath.Join(t.TempDir(), "state.json")
		if err := os.WriteFile(state, text, 0o600); err != nil {
			t.Fatal(err)
		}
		var log logtest.Log
		own := []netip.AddrPort{netip.MustParseAddrPort("192.0.2.1:5555")}
		b := prepare(t, Options{Own: own, State: state, Log: slog.New(slog.NewTextHandler(&log, nil))})
		if err := b.Load(t.Context(), ""); err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		c := &checker{}
		b.UseChecker(c)
		b.run()
		shown := b.Status().Issues
		if farmIn(b.store, "web") == nil || farmIn(b.store, "own") != nil || len(shown) != 1 || shown[0].Object.String() != "Farm own" || !strings.Contains(shown[0].Reason, "it takes 192.0.2.1:5555") || !strings.Contains(log.String(), "leave out port 5555") {
			t.Errorf("%s: shown: %v; logged: %s", name, shown, log.String())
		}
		if _, checked := c.sets[0][health.Key{Farm: "own", Backend: "a"}]; checked || len(c.sets[0]) != 1 {
			t.Errorf("%s: checked: %v", name, c.sets)
		}
		b.do("PUT", "/farms", `{"farms":[{"name":"web","virtual-ports":"81"}]}`)
		if code, answer := b.ask("PUT", "/farms", `{"farms":[{"name":"own","est-connlimit":"2"}]}`); code != http.StatusConflict || !strings.Contains(answer, "it takes") {
			t.Errorf("%s: another change of it: %d %s", name, code, answer)
		}
		if code, answer := b.ask("POST", "/farms", `{"farms":[{"name":"other","virtual-addr":"192.0.2.1","virtual-ports":"443"}]}`); code != http.StatusConflict || !strings.Contains(answer, "'own'") {
			t.Errorf("%s: a farm that takes its other port: %d %s", name, code, answer)
		}
		if mend != nil {
			mend(b)
		}
		served := name == "by a request" || name == "by moving API"
		b.stop()
		if mend == nil {
			own = nil
		}
		again := prepare(t, Options{Own: own, State: state})
		if err := again.Load(t.Context(), ""); err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		again.run()
		if (farmIn(again.store, "own") != nil) != served || farmIn(again.store, "web") == nil || (len(again.Status().Issues) != 0) != (name == "not at all") {
			t.Errorf("%s: after another start: %v", name, again.Status().Issues)
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
