package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"sluice.dev/sluice/internal/agent"
	"sluice.dev/sluice/internal/cli"
	"sluice.dev/sluice/internal/driver/ipvs"
	"sluice.dev/sluice/internal/kernel/conntrack"
	"sluice.dev/sluice/internal/kernel/probe"
	"sluice.dev/sluice/test/world"
)

// balanced is a client, a machine that runs 'sluice balance', and the servers red and blue behind
// it, in namespaces. Each server answers with its name.
type balanced struct {
	t               *testing.T
	client, machine *world.Host
	servers         map[string]*world.Host
	sick            map[string]*atomic.Bool // servers that answer 503 to checks
	dir             string
	flags           []string  // of the balancer
	by              []string  // the command that becomes the balancer, before the rest
	program         *exec.Cmd // nil: none runs
	log             bytes.Buffer
}

const balancedFarm = `{"farms": [{"name": "web", "virtual-addr": "10.0.0.100", "virtual-ports": "80", "mode": "dnat",
	"health-check": {"type": "http", "path": "/health", "interval": "1", "timeout": "1", "rise": "1", "fall": "2"},
	"backends": [{"name": "red", "ip-addr": "10.1.0.11", "port": "8080"}, {"name": "blue", "ip-addr": "10.1.0.12", "port": "8080"}]}]}`

func newBalanced(t *testing.T) *balanced {
	t.Helper()
	w := &balanced{t: t, dir: t.TempDir(), servers: map[string]*world.Host{}, sick: map[string]*atomic.Bool{}}
	write(t, w.dir, "farms.json", balancedFarm)
	w.client, w.machine = world.NewHost(t, "client"), world.NewHost(t, "machine")
	w.client.Join("eth0", w.machine, "front")
	w.client.Address("eth0", "10.0.0.2/24")
	w.machine.Address("front", "10.0.0.1/24", "10.0.0.100/32")
	w.machine.Bridge("back")
	w.machine.Address("back", "10.1.0.1/24")
	for i, name := range []string{"red", "blue"} {
		server := w.behind(name, fmt.Sprintf("10.1.0.1%d/24", i+1))
		server.Gateway("10.1.0.1")
		w.serve(server, name)
		w.servers[name] = server
	}
	t.Cleanup(func() {
		if w.kill(); t.Failed() {
			t.Logf("the balancer:\n%s", &w.log)
		}
	})
	return w
}

func (w *balanced) must(err error) {
	w.t.Helper()
	if err != nil {
		w.t.Fatal(err)
	}
}

// behind makes a host behind the balancer.
func (w *balanced) behind(name, address string) *world.Host {
	w.t.Helper()
	host := world.NewHost(w.t, name)
	host.Join("eth0", w.machine, name)
	w.machine.IP("link set " + name + " master back")
	host.Address("eth0", address)
	return host
}

// serve has a server answer until the test ends.
func (w *balanced) serve(host *world.Host, name string) {
	w.t.Helper()
	var l net.Listener
	host.In(func() (err error) { l, err = net.Listen("tcp", ":8080"); return err })
	sick := &atomic.Bool{}
	w.sick[name] = sick
	server := &http.Server{Handler: http.HandlerFunc(func(a http.ResponseWriter, q *http.Request) {
		if q.URL.Path == "/health" && sick.Load() {
			a.WriteHeader(http.StatusServiceUnavailable)
		}
		_, _ = io.WriteString(a, name)
	})}
	go func() { _ = server.Serve(l) }()
	w.t.Cleanup(func() { _ = server.Close() })
}

func (w *balanced) path(name string) string { return filepath.Join(w.dir, name) }

// start starts the balancer, and waits until the kernel has its farms.
func (w *balanced) start() {
	w.t.Helper()
	w.launch()
	if code, _, stderr := sluice(w.t, "sync", "--socket", w.path("s.sock")); code != cli.ExitOK {
		w.t.Fatal(stderr)
	}
}

// launch starts the balancer.
func (w *balanced) launch() {
	w.t.Helper()
	args := []string{"balance", "--config", w.path("farms.json"), "--state", w.path("state.json"), "--socket", w.path("s.sock")}
	args = slices.Concat(w.by, []string{self}, args, w.flags)
	w.program = exec.Command(args[0], args[1:]...)
	w.program.Env = append(os.Environ(), keyVariable+"=open sesame")
	w.program.Stdout, w.program.Stderr = &w.log, &w.log
	w.must(w.machine.Start(w.program))
	eventually(w.t, "the balancer answers", func() bool { return agent.Alive(w.path("s.sock")) })
}

// kill kills the balancer.
func (w *balanced) kill() {
	if w.program != nil {
		_ = w.program.Process.Kill()
		_ = w.program.Wait()
		w.program = nil
	}
}

// request makes one on a connection of its own.
func (w *balanced) request(from *world.Host, method, url, body string) (status int, text string, err error) {
	dial := func(_ context.Context, network, addr string) (c net.Conn, err error) {
		err = from.Do(func() error { c, err = net.DialTimeout(network, addr, 5*time.Second); return err })
		return c, err
	}
	c := &http.Client{Timeout: 10 * time.Second, Transport: &http.Transport{DisableKeepAlives: true, DialContext: dial}}
	q, err := http.NewRequestWithContext(w.t.Context(), method, url, strings.NewReader(body))
	if err != nil {
		return 0, "", err
	}
	q.Header.Set("Key", "open sesame")
	a, err := c.Do(q)
	if err != nil {
		return 0, "", err
	}
	defer func() { _ = a.Body.Close() }()
	b, err := io.ReadAll(a.Body)
	return a.StatusCode, string(b), err
}

// api makes a request to the API, and holds its status to what is wanted.
func (w *balanced) api(want int, method, path, body string) string {
	w.t.Helper()
	status, text, err := w.request(w.machine, method, "http://127.0.0.1:5555"+path, body)
	if w.must(err); status != want {
		w.t.Fatalf("%s %s %s: %d %s", method, path, body, status, text)
	}
	return text
}

// answer has the client ask some times: these servers answer, and no others.
func (w *balanced) answer(want ...string) {
	w.t.Helper()
	got := map[string]bool{}
	for range 6 {
		_, text, err := w.request(w.client, "GET", "http://10.0.0.100/", "")
		w.must(err)
		got[text] = true
	}
	for _, name := range want {
		if !got[name] {
			w.t.Errorf("%s does not answer", name)
		}
		delete(got, name)
	}
	if len(got) > 0 {
		w.t.Errorf("others than %s answer: %v", want, got)
	}
}

// backend is what 'sluice farms' says of one of web.
func (w *balanced) backend(name string) agent.FarmBackendReport { return w.backendOf("web", name) }

func (w *balanced) backendOf(farm, name string) agent.FarmBackendReport {
	w.t.Helper()
	code, stdout, stderr := sluice(w.t, "farms", farm, "-o", "json", "--socket", w.path("s.sock"))
	var farms []agent.FarmReport
	if err := json.Unmarshal([]byte(stdout), &farms); err != nil || code != cli.ExitOK || len(farms) != 1 {
		w.t.Fatalf("sluice farms exits with %d, %v: %s%s", code, err, stdout, stderr)
	}
	i := slices.IndexFunc(farms[0].Backends, func(b agent.FarmBackendReport) bool { return b.Name == name })
	if i < 0 {
		w.t.Fatalf("no backend %s in %s", name, stdout)
	}
	return farms[0].Backends[i]
}

func (w *balanced) set(backend, state string) {
	w.t.Helper()
	w.api(http.StatusOK, "POST", "/farms", fmt.Sprintf(`{"farms": [{"name": "web", "backends": [{"name": %q, "state": %q}]}]}`, backend, state))
}

// TestBalance goes through the life of a balancer, as the one who runs it and its clients see it.
func TestBalance(t *testing.T) {
	t.Parallel()
	w := newBalanced(t)
	w.start()
	w.answer("red", "blue")
	t.Run("what is asked of a cluster's agent", func(t *testing.T) {
		for _, command := range []string{"services", "services default/web", "addresses", "fabric", "bgp", "policies", "drops", "why 10.0.0.2 10.0.0.100:80"} {
			code, stdout, stderr := sluice(t, append(strings.Fields(command), "--socket", w.path("s.sock"))...)
			if code != cli.ExitError || stdout != "" || !strings.Contains(stderr, "'sluice farms'") {
				t.Errorf("sluice %s exits with %d: %s%s", command, code, stdout, stderr)
			}
		}
		if code, stdout, stderr := sluice(t, "farms", "wed", "--socket", w.path("s.sock")); code != cli.ExitError || !strings.Contains(stderr, "no farm wed is served") {
			t.Errorf("sluice farms exits with %d: %s%s", code, stdout, stderr)
		}
	})
	t.Run("a backend is down by request", func(t *testing.T) {
		w.keep("red")
		w.set("red", "down")
		if n := w.entries("10.0.0.100:80", "10.1.0.11"); n > 0 {
			t.Errorf("the API answers while %d connections to red are there", n)
		}
		w.answer("blue")
		w.set("red", "up")
		w.answer("red", "blue")
	})
	t.Run("a backend is down by its check", func(t *testing.T) {
		w.sick["blue"].Store(true)
		eventually(t, "blue is down", func() bool { return w.backend("blue").State == "down" })
		w.answer("red")
		if why := w.backend("blue").Reason; why != "status 503, wanted 200-399 (GET http://10.1.0.12:8080/health)" {
			t.Errorf("blue is down because of %q", why)
		}
		w.sick["blue"].Store(false)
		eventually(t, "blue serves", func() bool { return w.backend("blue").State == "serving" })
		w.answer("red", "blue")
	})
	t.Run("a wrong request changes nothing", func(t *testing.T) { w.refuses(t) })
	t.Run("what was changed outlives the balancer", func(t *testing.T) {
		w.set("blue", "draining")
		w.kill()
		w.answer("red")
		w.start()
		w.answer("red")
		if s := w.backend("blue").State; s != "draining" {
			t.Errorf("blue is %s after a restart", s)
		}
	})
	t.Run("who asks before there is a farm", w.early)
	t.Run("datagrams of a farm that goes while no balancer runs", w.abandons)
	t.Run("forwarding that is turned off is turned on again", func(t *testing.T) {
		w.machine.Set("net/ipv4/ip_forward", "0")
		eventually(t, "forwarding", func() bool { return w.machine.Exec("cat", "/proc/sys/net/ipv4/ip_forward") == "1\n" })
		w.answer("red")
	})
	t.Run("nothing is left", func(t *testing.T) { w.leaves(t) })
}

// keep opens connections to the farm, up to one that a server answers on, which it leaves open.
func (w *balanced) keep(server string) {
	w.t.Helper()
	for by := ""; by != server; {
		var c net.Conn
		w.must(w.client.Do(func() (err error) { c, err = net.Dial("tcp", "10.0.0.100:80"); return err }))
		w.t.Cleanup(func() { _ = c.Close() })
		by = askOn(c)
	}
}

// entries is how many connections to an address and port there are whose answers come from another
// address.
func (w *balanced) entries(to, from string) (n int) {
	w.t.Helper()
	w.must(w.machine.Do(func() error {
		ct, err := conntrack.Open()
		if err != nil {
			return err
		}
		err = ct.All(w.t.Context(), func(f *conntrack.Flow) {
			if f.Orig.Dst.String() == to && f.Reply.Src.Addr().String() == from {
				n++
			}
		})
		return errors.Join(err, ct.Close())
	}))
	return n
}

// refuses makes a request of which one part is wrong.
func (w *balanced) refuses(t *testing.T) {
	farms, rules := w.api(http.StatusOK, "GET", "/farms", ""), nft(t, w.machine.NS, "-s", "list", "ruleset")
	answer := w.api(http.StatusBadRequest, "POST", "/farms",
		`{"farms": [{"name": "web", "scheduler": "hash", "backends": [{"name": "red", "state": "down"}, {"name": "blue", "weight": "0"}]}]}`)
	if !strings.Contains(answer, "farms[web].backends[blue].weight") {
		t.Errorf("the answer does not name the field: %s", answer)
	}
	if now := w.api(http.StatusOK, "GET", "/farms", ""); now != farms {
		t.Errorf("farms were\n%s\nand are\n%s", farms, now)
	}
	if now := nft(t, w.machine.NS, "-s", "list", "ruleset"); now != rules {
		t.Errorf("rules were\n%s\nand are\n%s", rules, now)
	}
	w.answer("red", "blue")
}

// early has a client ask a farm that comes later: until then, the machine sends what is for it to a
// server that drops it.
func (w *balanced) early(t *testing.T) {
	w.client.Route("10.0.0.200/32", "10.0.0.1")
	w.machine.Route("10.0.0.200/32", "10.1.0.12")
	w.servers["red"].IP("addr add 10.0.0.200/32 dev lo")
	for _, mode := range []string{"dnat", "dsr"} {
		var by string
		var err error
		answered := make(chan struct{})
		go func() {
			defer close(answered)
			_, by, err = w.request(w.client, "GET", "http://10.0.0.200:8080/", "")
		}()
		eventually(t, "the machine knows of the connection", func() bool { return w.entries("10.0.0.200:8080", "10.0.0.200") > 0 })
		w.api(http.StatusOK, "POST", "/farms", fmt.Sprintf(`{"farms": [{"name": "late", "virtual-addr": "10.0.0.200", "virtual-ports": "8080", "mode": %q,
			"backends": [{"name": "red", "ip-addr": "10.1.0.11", "port": "8080"}]}]}`, mode))
		if <-answered; by != "red" || err != nil {
			t.Errorf("%s: %q answers who asked before the farm was there: %v", mode, by, err)
		}
		w.api(http.StatusOK, "DELETE", "/farms/late", "")
	}
}

// abandons has a client send to a farm of UDP, from one port on and on. While no balancer runs the
// farm goes from the state file: once one runs, no backend gets any of it.
func (w *balanced) abandons(t *testing.T) {
	without, err := os.ReadFile(w.path("state.json"))
	w.must(err)
	w.api(http.StatusOK, "POST", "/farms", `{"farms": [{"name": "dns", "virtual-addr": "10.0.0.100", "virtual-ports": "53", "protocol": "udp", "mode": "dnat",
		"backends": [{"name": "red", "ip-addr": "10.1.0.11", "port": "53"}]}]}`)
	var red net.PacketConn
	w.servers["red"].In(func() (err error) { red, err = net.ListenPacket("udp", ":53"); return err })
	defer func() { _ = red.Close() }()
	var got atomic.Int64
	go func() {
		for b := make([]byte, 9); ; got.Add(1) {
			if _, _, err := red.ReadFrom(b); errors.Is(err, net.ErrClosed) {
				return
			}
		}
	}()
	var c net.Conn
	w.client.In(func() (err error) { c, err = net.Dial("udp", "10.0.0.100:53"); return err })
	defer func() { _ = c.Close() }()
	eventually(t, "red gets datagrams", func() bool { _, _ = c.Write([]byte("?")); return got.Load() > 0 })
	w.kill()
	write(t, w.dir, "state.json", string(without))
	w.start()
	eventually(t, "nobody listens any more", func() bool { _, err := c.Write([]byte("?")); return errors.Is(err, unix.ECONNREFUSED) })
}

// leaves deletes the farm, and removes what the balancer has programmed.
func (w *balanced) leaves(t *testing.T) {
	w.api(http.StatusOK, "DELETE", "/farms/web", "")
	if _, text, err := w.request(w.client, "GET", "http://10.0.0.100/", ""); err == nil {
		t.Errorf("%s answers for a farm that is gone", text)
	}
	w.kill()
	out, err := w.machine.Run(self, "cleanup", "--socket", w.path("s.sock"))
	if w.must(err); nft(t, w.machine.NS, "list tables") != "" {
		t.Errorf("tables are left after cleanup: %s", out)
	}
}

// TestBalanceKeepsItsAPI asks for farms at the addresses of the balancer's own listeners, in each
// mode: nobody could take them back by the API.
func TestBalanceKeepsItsAPI(t *testing.T) {
	t.Parallel()
	for _, mode := range farmModes {
		t.Run(mode, func(t *testing.T) {
			w := newBalanced(t)
			w.flags = []string{"--mode", mode, "--api", "10.0.0.1:5555"}
			if err := probe.Missing(t.Context(), ipvs.Requirements); mode == ipvsFarms && errors.Is(err, probe.ErrNotSupported) {
				t.Skip("this kernel has no IPVS")
			}
			w.start()
			post := func(farm string) (int, string) {
				status, answer, err := w.request(w.client, "POST", "http://10.0.0.1:5555/farms", `{"farms": [`+farm+`]}`)
				if w.must(err); status != http.StatusOK && status != http.StatusConflict {
					t.Errorf("%d %s", status, answer)
				}
				return status, answer
			}
			const at = `{"name": "api", "virtual-addr": "%s", "virtual-ports": "%s", "mode": "dnat", "backends": [{"name": "red", "ip-addr": "10.1.0.11", "port": "8080"}]}`
			for _, where := range [][2]string{{"10.0.0.1", "5555"}, {"10.0.0.1", "5000-6000"}, {"127.0.0.1", "10256"}} {
				farm := fmt.Sprintf(at, where[0], where[1])
				if status, answer := post(farm); status != http.StatusConflict || !strings.Contains(answer, "where this balancer itself is served") {
					t.Errorf("%s: %d %s", farm, status, answer)
				}
			}
			if status, answer := post(fmt.Sprintf(at, "10.0.0.100", "5555")); status != http.StatusOK { // it is served elsewhere
				t.Errorf("%d %s", status, answer)
			}
			w.kill()
			w.answer("red", "blue")

			// A state file is no way around: the farm is kept there and named, and all others
			// serve.
			text, err := os.ReadFile(w.path("state.json"))
			w.must(err)
			const moved = `"name":"api-addr","ip-addr":"10.0.0.1`
			write(t, w.dir, "state.json", strings.Replace(string(text), moved+`00"`, moved+`"`, 1))
			w.start()
			if !strings.Contains(w.log.String(), "it takes 10.0.0.1:5555, where this balancer itself is served") {
				t.Errorf("a state file with such a farm: %s", w.log.String())
			}
			w.answer("red", "blue")
		})
	}
}

// TestBalanceFewDescriptors has clients without a key send half requests to the API of a balancer
// that may open few files: checks go on, and so does the API.
func TestBalanceFewDescriptors(t *testing.T) {
	t.Parallel()
	w := newBalanced(t)
	w.by = []string{"prlimit", "--nofile=128"}
	w.start()
	w.must(w.machine.Do(func() error {
		for range 1000 {
			c, err := net.Dial("tcp", "127.0.0.1:5555")
			if err != nil {
				return err
			}
			t.Cleanup(func() { _ = c.Close() })
			_, _ = io.WriteString(c, "POST /farms HTTP/1.1\r\n") // an error is that of one who was shown the door
		}
		return nil
	}))
	w.sick["blue"].Store(true)
	begin := time.Now()
	eventually(t, "blue is down", func() bool { return w.backend("blue").State == "down" })
	w.api(http.StatusOK, "GET", "/farms", "")
	if took := time.Since(begin); took > 9*time.Second || strings.Contains(w.log.String(), "could not be made") {
		t.Errorf("it took %s, until the half requests were given up", took)
	}
}

// TestBalanceTunnel asks for DSR to a backend on no network of the machine: it is reached through a
// tunnel, which outlives the balancer until cleanup, or the answer says what the kernel lacks.
func TestBalanceTunnel(t *testing.T) {
	t.Parallel()
	w := newBalanced(t)
	w.start()
	const far = `{"farms": [{"name": "far", "virtual-addr": "10.0.0.100", "virtual-ports": "81", "mode": "dsr", "backends": [{"name": "f", "ip-addr": "10.9.0.9"}]}]}`
	status, answer, err := w.request(w.machine, "POST", "http://127.0.0.1:5555/farms", far)
	w.must(err)
	tunnel := func() bool {
		out, err := w.machine.Run("ip", "-o", "link")
		w.must(err)
		return strings.Contains(string(out), "sluice-4a090009")
	}
	if status != http.StatusOK {
		if !strings.Contains(answer, "backend f (10.9.0.9) is not on a network of this machine, and dsr cannot send to others: modprobe sit") || tunnel() {
			t.Fatalf("%d %s", status, answer)
		}
		t.Skipf("this kernel has no IPIP: %s", answer)
	}
	if !tunnel() {
		t.Fatalf("no tunnel after the answer: %s", answer)
	}
	w.kill()
	w.start()
	if !tunnel() {
		t.Error("no tunnel after a restart")
	}
	w.kill()
	_, err = w.machine.Run(self, "cleanup", "--socket", w.path("s.sock"))
	if w.must(err); tunnel() {
		t.Error("the tunnel is left after cleanup")
	}
}

// A backend of a farm in mode dsr that no machine has is down, with the reason, and the others
// serve its clients.
func TestBalanceUnresolved(t *testing.T) {
	t.Parallel()
	w := newBalanced(t)
	write(t, w.dir, "farms.json", `{"farms": [{"name": "direct", "virtual-addr": "10.0.0.100", "virtual-ports": "8080", "mode": "dsr", "scheduler": "hash",
		"backends": [{"name": "red", "ip-addr": "10.1.0.11"}, {"name": "nobody", "ip-addr": "10.1.0.99"}]}]}`)
	w.start()
	report := func(name string) agent.FarmBackendReport { return w.backendOf("direct", name) }
	eventually(t, "the backend that nobody has is down", func() bool { return report("nobody").State == "down" })
	if r := report("nobody"); r.Reason != "no answer to ARP" {
		t.Errorf("got %+v", r)
	}
	if r := report("red"); r.State != "serving" {
		t.Errorf("got %+v", r)
	}
	w.behind("late", "10.1.0.99/24")
	eventually(t, "it serves once a machine has its address", func() bool { return report("nobody").State == "serving" })
}
