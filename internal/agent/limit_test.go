package agent

import (
	"context"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"os"
	"os/exec"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"sluice.dev/sluice/internal/services/kubeproxy"
)

// These are requests that clients do not finish: without the whole header, without the announced
// body, and without a byte.
var unfinished = []string{
	"GET / HTTP/1.1\r\nHost: x\r\n",
	"POST /healthz HTTP/1.1\r\nHost: x\r\nContent-Length: 1000\r\n\r\n",
	"GET /metrics HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n",
	"",
}

// dialer connects to an address: of the machine, or of an agent that is apart.
type dialer func(ctx context.Context, network, address string) (net.Conn, error)

// hold makes n connections with the given unfinished requests, and counts those that are still
// open.
func hold(t *testing.T, dial dialer, address string, n int, unfinished ...string) (open *atomic.Int64) {
	t.Helper()
	open = new(atomic.Int64)
	for i := range n {
		conn, err := dial(t.Context(), "tcp", address)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = conn.Close() })
		_, _ = io.WriteString(conn, unfinished[i%len(unfinished)]) // an error is that of one who was shown the door
		open.Add(1)
		go func() {
			_, _ = io.Copy(io.Discard, conn)
			open.Add(-1)
		}()
	}
	return open
}

// probe asks as a load balancer does: each time on a new connection.
func probe(url string) error { return probeBy(new(net.Dialer).DialContext, url) }

// probeBy is probe for an agent that another dialer reaches.
func probeBy(dial dialer, url string) error {
	client := http.Client{Transport: &http.Transport{DisableKeepAlives: true, DialContext: dial}, Timeout: 10 * time.Second}
	answer, err := client.Get(url)
	if err != nil {
		return err
	}
	defer func() { _ = answer.Body.Close() }()
	if answer.StatusCode != http.StatusOK {
		return fmt.Errorf("it answers %s", answer.Status)
	}
	_, err = io.Copy(io.Discard, answer.Body)
	return err
}

// listening is a ready agent with its HTTP addresses: its pages by address.
func listening(t *testing.T, change ...func(*Config)) (b *testAgent, pages map[string]string) {
	t.Helper()
	metrics, health := fmt.Sprintf("127.0.0.1:%d", freePort(t)), fmt.Sprintf("127.0.0.1:%d", freePort(t))
	b = start(t, append(change, func(c *Config) {
		c.MetricsAddress, c.HealthzAddress = metrics, health
		c.Pages = kubeproxy.Pages(kubeproxy.Default(), true)
	})...)
	b.source.deliver(web(1, "10.1.0.1")...)
	b.source.sync()
	b.holds(t, web1)
	check := freePort(t)
	b.checks.apply(want("web", check, 1))
	return b, map[string]string{metrics: "/metrics", health: "/healthz", fmt.Sprintf("127.0.0.1:%d", check): "/"}
}

// Clients that do not finish their requests are gone within seconds, and delay no others.
func TestUnfinishedRequests(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b, pages := listening(t, apart)
		dial := b.sockets.(*pipes).DialContext
		open := map[string]*atomic.Int64{}
		for address, page := range pages {
			open[page] = hold(t, dial, address, 300, unfinished...)
		}
		end := time.Now().Add(2*headerTimeout + 10*time.Second)
		for left := true; left; time.Sleep(20 * time.Millisecond) {
			left = false
			for address, page := range pages {
				if err := probeBy(dial, "http://"+address+page); err != nil {
					t.Fatalf("%s beside unfinished requests: %v", page, err)
				}
				n := open[page].Load()
				if left = left || n > 0; left && time.Now().After(end) {
					t.Fatalf("%d of 300 unfinished requests for %s are still there", n, page)
				}
			}
		}
	})
}

// Some answers may take longer than a request: profiles, and streams over the socket.
func TestLongAnswers(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b, pages := listening(t, apart)
		by := b.sockets.(*pipes).transport()
		for address, page := range pages {
			if page != "/metrics" {
				continue
			}
			started := time.Now()
			if err := probeBy(by.DialContext, "http://"+address+"/debug/pprof/goroutine?seconds=6"); err != nil {
				t.Error(err)
			}
			if took := time.Since(started); took < headerTimeout {
				t.Errorf("a profile of 6 s is cut short after %s", took)
			}
			answer, err := (&http.Client{Transport: by}).Post("http://"+address+"/debug/pprof/symbol", "", strings.NewReader("0x1"))
			if err != nil {
				t.Fatal(err)
			}
			_ = answer.Body.Close()
		}
	})
}

// fewDescriptors is the limit of the process that TestFewDescriptors starts.
const fewDescriptors = 96

// With few descriptors, an agent goes on programming and answering, whatever clients do.
func TestFewDescriptors(t *testing.T) {
	t.Parallel()
	if os.Getenv("SLUICE_TEST_FEW") == "" {
		cmd := exec.Command(os.Args[0], "-test.run=^TestFewDescriptors$", "-test.v")
		cmd.Env = append(os.Environ(), "SLUICE_TEST_FEW=1")
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Errorf("%v:\n%s", err, out)
		}
		return
	}
	// The descriptors that the test needs for its own clients are in another process.
	var stand standIn
	stand.start(t)
	b, pages := listening(t)
	checks := want("web", uint16(0), 1)
	clear(checks)
	for _, port := range quietPorts(200) { // more healthCheckNodePorts than there are descriptors
		maps.Copy(checks, want(fmt.Sprint("more-", port), port, 1))
	}
	b.checks.apply(checks)
	if issues := b.checks.issues(); len(issues) < 100 || !strings.Contains(issues[0].Reason, "file descriptors") {
		t.Errorf("issues: %v", issues)
	}
	for address := range pages {
		stand.hold(t, address)
	}
	for n := 2; n < 30; n++ {
		b.source.deliver(web(n, "10.1.0.2")...)
		if _, err := os.ReadDir("/proc/self/task"); err != nil { // as a source or driver needs descriptors
			t.Fatal(err)
		}
	}
	eventually(t, "all is programmed", func() bool { return len(b.driver.backends()) == 29 })
	for address, page := range pages {
		// With few descriptors there are few connections: a client among many that come at once may
		// have to try again.
		eventually(t, page+" answers", func() bool { return probe("http://"+address+page) == nil })
	}
	if _, err := b.client.Status(t.Context()); err != nil {
		t.Error(err)
	}
}

// quietPorts are distinct ports that nothing listens on at the moment, and that no client gets as
// its own.
func quietPorts(n int) (ports []uint16) {
	for port := uint16(20000); len(ports) < n; port++ {
		if l, err := net.Listen("tcp", fmt.Sprintf(":%d", port)); err == nil {
			_ = l.Close()
			ports = append(ports, port)
		}
	}
	return ports
}

// standIn is a process that holds connections for the test.
type standIn struct{ in io.WriteCloser }

func (s *standIn) start(t *testing.T) {
	cmd := exec.Command(os.Args[0], "-test.run=^TestHolder$")
	cmd.Env = append(os.Environ(), "SLUICE_TEST_HOLDER=1")
	var err error
	if s.in, err = cmd.StdinPipe(); err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.in.Close(); _ = cmd.Wait() })
	few := syscall.Rlimit{Cur: fewDescriptors, Max: fewDescriptors}
	if err := syscall.Setrlimit(syscall.RLIMIT_NOFILE, &few); err != nil {
		t.Fatal(err)
	}
}

func (s *standIn) hold(t *testing.T, address string) {
	if _, err := fmt.Fprintln(s.in, address); err != nil {
		t.Fatal(err)
	}
}

// TestHolder is the process of a standIn: it holds 300 connections to each address that it gets.
func TestHolder(t *testing.T) {
	if os.Getenv("SLUICE_TEST_HOLDER") == "" {
		t.Skip("a part of TestFewDescriptors")
	}
	for {
		var address string
		if _, err := fmt.Scanln(&address); err != nil {
			return
		}
		for i := range 300 {
			conn, err := net.Dial("tcp", address)
			if err != nil {
				t.Fatal(err)
			}
			defer func() { _ = conn.Close() }()
			_, _ = io.WriteString(conn, unfinished[i%2*3]) // kept open as long as possible
		}
	}
}
