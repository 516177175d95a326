package main

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"sluice.dev/sluice/internal/cli"
	"sluice.dev/sluice/internal/driver/ipvs"
	"sluice.dev/sluice/internal/kernel/probe"
	"sluice.dev/sluice/internal/kernel/sysctl"
	"sluice.dev/sluice/test/world"
)

// virtualServers are those in the balancer's kernel, with the routes to them.
func (w *balanced) virtualServers() string {
	out, err := w.machine.Run("ip", "route", "show", "table", "local", "proto", fmt.Sprint(ipvs.FarmRouteProtocol))
	w.must(err)
	_, servers, _ := strings.Cut(readIn(w.t, w.machine.NS, "ip_vs"), "ActiveConn InActConn\n")
	return servers + string(out)
}

// askOn makes a request of a connection that stays open, and returns the answer; "": there is none.
func askOn(c net.Conn) string {
	_ = c.SetDeadline(time.Now().Add(5 * time.Second))
	if _, err := io.WriteString(c, "GET / HTTP/1.1\r\nHost: web\r\n\r\n"); err != nil {
		return ""
	}
	a, err := http.ReadResponse(bufio.NewReader(c), nil)
	if err != nil {
		return ""
	}
	defer func() { _ = a.Body.Close() }()
	text, _ := io.ReadAll(a.Body)
	return string(text)
}

// total is what the balancer's metrics have counted for a backend of web.
func (w *balanced) total(what, backend string) (n float64) {
	w.t.Helper()
	_, text, err := w.request(w.machine, "GET", "http://127.0.0.1:10249/metrics", "")
	w.must(err)
	name := fmt.Sprintf("sluice_farm_backend_%s_total{backend=%q,farm=\"web\"} ", what, backend)
	_, value, found := strings.Cut(text, name)
	if _, err := fmt.Sscan(value, &n); err != nil || !found {
		w.t.Fatalf("no metric %s: %v", name, err)
	}
	return n
}

// TestBalanceIPVS has a balancer's farms be virtual servers: what IPVS cannot carry out is named
// and harms no other farm, connections outlive the balancer, and each mode follows the other.
func TestBalanceIPVS(t *testing.T) {
	t.Parallel()
	w := newBalanced(t)
	w.flags = []string{"--mode", "ipvs"}
	if err := probe.Missing(t.Context(), ipvs.Requirements); errors.Is(err, probe.ErrNotSupported) {
		out, err := w.machine.Run(self, "balance", "--config", w.path("farms.json"), "--socket", w.path("s.sock"), "--mode", "ipvs")
		if text := fmt.Sprint(string(out), err); err == nil || !strings.Contains(text, "'modprobe ip_vs' loads it") {
			t.Errorf("a kernel without IPVS: %s", text)
		}
		t.Skip("this kernel has no IPVS")
	}
	const odd = `{"name": "odd", "virtual-addr": "10.0.0.100", "virtual-ports": "81", "mode": "dnat", "mark": "0x1"}`
	write(t, w.dir, "farms.json", strings.Replace(balancedFarm, `{"farms": [`, `{"farms": [`+odd+`, `, 1))
	w.launch()
	if code, _, stderr := sluice(t, "sync", "--socket", w.path("s.sock")); code != cli.ExitOK || !strings.Contains(stderr, "Farm odd: mark: IPVS gives none") {
		t.Errorf("sync exits with %d and does not name what IPVS cannot do: %s", code, stderr)
	}
	w.answer("red", "blue")
	if answer := w.api(http.StatusBadRequest, "POST", "/farms", `{"farms": [`+odd+`]}`); !strings.Contains(answer, "farms[odd]: mark: IPVS gives none") {
		t.Error(answer)
	}
	w.api(http.StatusOK, "DELETE", "/farms/odd", "")
	w.sick["blue"].Store(true)
	eventually(t, "blue is down", func() bool { return w.backend("blue").State == "down" })
	w.answer("red")
	w.sick["blue"].Store(false)
	eventually(t, "blue serves", func() bool { return w.backend("blue").State == "serving" })
	w.answer("red", "blue")
	eventually(t, "what red serves is counted", func() bool {
		b := w.backend("red")
		return b.Chosen > 0 && b.Active > 0 && b.Bytes > 0
	})
	connections, bytes := w.total("connections", "red"), w.total("bytes", "red")
	w.set("red", "down") // with it IPVS' own counters of red go
	w.answer("blue")
	w.set("red", "up")
	w.answer("red", "blue")
	eventually(t, "metrics go on from what they were", func() bool {
		return w.total("connections", "red") > connections && w.total("bytes", "red") > bytes
	})

	w.api(http.StatusOK, "POST", "/farms", `{"farms": [{"name": "web", "scheduler": "least"}]}`)
	if !strings.Contains(w.virtualServers(), " wlc ") || !strings.Contains(w.api(http.StatusOK, "GET", "/farms/web", ""), `"least"`) {
		t.Error(w.virtualServers())
	}
	var open net.Conn
	w.must(w.client.Do(func() (err error) { open, err = net.Dial("tcp", "10.0.0.100:80"); return err }))
	defer func() { _ = open.Close() }()
	by := askOn(open)
	w.set(by, "draining")
	w.kill()
	if got := askOn(open); by == "" || got != by {
		t.Errorf("answered by %q, and without a balancer by %q", by, got)
	}
	before := w.virtualServers()
	w.start()
	if got := askOn(open); got != by || w.backend(by).State != "draining" || w.virtualServers() != before {
		t.Errorf("answered by %q, after a restart by %q\n%s", by, got, w.virtualServers())
	}
	w.set(by, "up")
	w.api(http.StatusOK, "POST", "/farms", `{"farms": [{"name": "web", "scheduler": "rr"}]}`)
	for _, mode := range []string{"nftables", "ipvs"} {
		w.kill()
		w.flags = []string{"--mode", mode}
		w.start()
		eventually(t, "what the other mode left is gone", func() bool {
			w.must(w.client.Do(func() error { // connections that are open end at that moment, but none fails
				c, err := net.DialTimeout("tcp", "10.0.0.100:80", world.Patience)
				if err == nil {
					err = c.Close()
				}
				return err
			}))
			return (mode == "ipvs") == (w.virtualServers() != "") && (mode == "ipvs") == (nft(t, w.machine.NS, "list", "tables") == "")
		})
		w.answer("red", "blue")
	}
	w.leaves(t)
	if left := w.virtualServers(); left != "" {
		t.Errorf("left after cleanup: %s", left)
	}
	w.must(w.machine.Do(func() error {
		now, err := sysctl.Read("net.ipv4.conf.all.arp_ignore")
		if now != "0" {
			t.Errorf("arp_ignore is %s after cleanup", now)
		}
		return err
	}))
}
