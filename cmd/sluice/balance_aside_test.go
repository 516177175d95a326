package main

import (
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"sluice.dev/sluice/internal/driver/table"
)

// TestBalanceSetsAside has the kernel refuse a farm for its burst (Linux 6.8 counts it, and finds
// that it overflows): all others are served, and it is named. A change by the API that the kernel
// refuses is answered with that, and changes nothing.
func TestBalanceSetsAside(t *testing.T) {
	t.Parallel()
	w := newBalanced(t)
	farm := func(name, port, more string) string {
		return `{"name": "` + name + `", "virtual-addr": "10.0.0.100", "virtual-ports": "` + port + `", "mode": "snat"` + more + `,
			"backends": [{"name": "red", "ip-addr": "10.1.0.11", "port": "8080"}]}`
	}
	const tooMuch = `, "new-rtlimit": "1/day", "new-rtlimit-burst": "4294967295"`
	write(t, w.dir, "farms.json", `{"farms": [`+farm("web", "80", "")+","+farm("bad", "81", tooMuch)+`]}`)
	w.start()
	w.answer("red")
	code, out, stderr := sluice(t, "status", "--socket", w.path("s.sock"))
	if strings.Contains(out, "faults       none") {
		t.Skip("this kernel takes every burst")
	}
	if !strings.Contains(out, "Farm bad: the kernel refuses what is made of it: value too large for defined data type") {
		t.Errorf("status exits with %d: %s%s", code, out, stderr)
	}
	if said := w.api(http.StatusConflict, "POST", "/farms", `{"farms": [`+farm("worse", "82", tooMuch)+`]}`); !strings.Contains(said, "Farm worse: the kernel refuses") {
		t.Error(said)
	}
	w.api(http.StatusNotFound, "GET", "/farms/worse", "")
	w.api(http.StatusOK, "POST", "/farms", `{"farms": [`+farm("later", "83", "")+`]}`)
	served := func(port string, want bool) {
		t.Helper()
		if _, text, err := w.request(w.client, "GET", "http://10.0.0.100:"+port+"/", ""); (err == nil) != want {
			t.Errorf("port %s: %s, %v", port, text, err)
		}
	}
	served("83", true)
	w.api(http.StatusOK, "POST", "/farms", `{"farms": [{"name": "bad", "new-rtlimit-burst": "5"}]}`)
	served("81", true)
	if _, out, _ := sluice(t, "status", "--socket", w.path("s.sock")); !strings.Contains(out, "faults       none") {
		t.Error(out)
	}
}

// TestBalanceUnderLoad has another program flush the ruleset, and balancers follow each other,
// while a client asks.
func TestBalanceUnderLoad(t *testing.T) {
	t.Parallel()
	w := newBalanced(t)
	w.start()
	w.machine.In(func() error {
		if err := table.Protection.Met(t.Context()); err != nil {
			t.Skip(err)
		}
		return nil
	})
	var over atomic.Bool
	var asked atomic.Int64
	var client sync.WaitGroup
	client.Go(func() {
		for ; !over.Load(); asked.Add(1) {
			if _, _, err := w.request(w.client, "GET", "http://10.0.0.100/", ""); err != nil {
				t.Errorf("request %d: %v", asked.Load(), err)
			}
		}
	})
	goesOn := func() {
		t.Helper()
		from := asked.Load()
		eventually(t, "the client goes on", func() bool { return asked.Load() > from+20 })
	}
	for range 3 {
		nft(t, w.machine.NS, "flush ruleset")
		goesOn()
		w.kill()
		goesOn()
		w.start()
	}
	over.Store(true)
	client.Wait()
}
