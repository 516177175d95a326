package echo

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"sluice.dev/sluice/test/world"
)

var loopback = netip.MustParseAddr("127.0.0.1")

func pod(h *world.Host, name string, ports ...Port) Pod {
	return Pod{Namespace: "default", Name: name, Node: "node1", NetNS: h.Name, Ports: ports}
}

// ask asks a port of the host's loopback and returns the name of the answering pod.
func ask(t *testing.T, h *world.Host, protocol string, port uint16) (string, error) {
	t.Helper()
	var a Answer
	err := h.Do(func() (err error) {
		a, err = Ask(protocol, netip.AddrPortFrom(loopback, port), 2*time.Second)
		return err
	})
	if err == nil && (a.Protocol != protocol || a.Port != port || a.Client.Addr() != loopback) {
		t.Errorf("answer: %+v", a)
	}
	return a.Pod, err
}

func TestSet(t *testing.T) {
	h := world.NewHost(t, "pod")
	var s Server
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
	tcp, udp := Port{"TCP", 80}, Port{"UDP", 80}
	for _, step := range []struct {
		pods     []Pod
		tcp, udp string // the answering pod; empty: none
	}{
		{[]Pod{pod(h, "a", tcp, udp)}, "a", "a"},
		{[]Pod{pod(h, "a", tcp, udp)}, "a", "a"},
		{[]Pod{pod(h, "a", tcp)}, "a", ""},
		{[]Pod{pod(h, "b", udp), pod(h, "a", tcp)}, "a", "b"},
		{[]Pod{pod(h, "c", tcp, udp)}, "c", "c"},
		{nil, "", ""},
	} {
		if err := s.Set(step.pods); err != nil {
			t.Fatal(err)
		}
		for protocol, want := range map[string]string{"TCP": step.tcp, "UDP": step.udp} {
			got, err := ask(t, h, protocol, 80)
			if got != want || want == "" && !errors.Is(err, ErrRefused) {
				t.Errorf("%v: %s answered by %q (%v), want %q", step.pods, protocol, got, err, want)
			}
		}
	}
}

func TestSetServesWhatItCan(t *testing.T) {
	h := world.NewHost(t, "pod")
	var s Server
	t.Cleanup(func() { _ = s.Close() })
	err := s.Set([]Pod{
		pod(h, "a", Port{"TCP", 80}), pod(h, "b", Port{"TCP", 80}, Port{"TCP", 81}),
		{Namespace: "default", Name: "lost", NetNS: "echo-no-such-namespace"},
	})
	if err == nil || !strings.Contains(err.Error(), "echo-no-such-namespace") || !errors.Is(err, syscall.EADDRINUSE) {
		t.Errorf("error: %v, want one on the port and one on the namespace", err)
	}
	if got, err := ask(t, h, "TCP", 81); got != "b" {
		t.Errorf("port 81: %q %v", got, err)
	}
}

func TestPutAndRemove(t *testing.T) {
	h := world.NewHost(t, "pod")
	var s Server
	t.Cleanup(func() { _ = s.Close() })
	one, two := pod(h, "a", Port{"TCP", 80}), pod(h, "a", Port{"TCP", 81})
	one.Container, two.Container = "one", "two"
	expect := func(when string, want ...string) {
		t.Helper()
		for i, w := range want {
			if got, err := ask(t, h, "TCP", uint16(80+i)); got != w {
				t.Errorf("%s: port %d is answered by %q (%v), want %q", when, 80+i, got, err, w)
			}
		}
	}
	for _, p := range []Pod{one, two} {
		if err := s.Put(p); err != nil {
			t.Fatal(err)
		}
	}
	expect("two containers", "a", "a")
	if err := s.Put(pod(h, "b", Port{"TCP", 81})); !errors.Is(err, syscall.EADDRINUSE) {
		t.Errorf("a port that is taken: %v", err)
	}
	s.Remove(two)
	s.Remove(two)
	expect("one is removed", "a", "")
	if err := s.Put(pod(h, "b", Port{"TCP", 81})); err != nil {
		t.Error(err)
	}
	if err := s.Put(one); err != nil {
		t.Errorf("the same once more: %v", err)
	}
	expect("at last", "a", "b")
}

// A draining pod answers, and then closes HTTP connections; lines of text go on.
func TestDrain(t *testing.T) {
	h := world.NewHost(t, "pod")
	var s Server
	t.Cleanup(func() { _ = s.Close() })
	p := pod(h, "a", Port{"TCP", 80})
	if err := s.Put(p); err != nil {
		t.Fatal(err)
	}
	dial := func() (conn net.Conn) {
		t.Helper()
		h.In(func() (err error) {
			conn, err = net.Dial("tcp", "127.0.0.1:80")
			return err
		})
		t.Cleanup(func() { _ = conn.Close() })
		if err := conn.SetDeadline(time.Now().Add(5 * time.Second)); err != nil {
			t.Fatal(err)
		}
		return conn
	}
	get := func(conn net.Conn) (closes bool) {
		t.Helper()
		if _, err := fmt.Fprint(conn, "GET / HTTP/1.1\r\nHost: a\r\n\r\n"); err != nil {
			t.Fatal(err)
		}
		resp, err := http.ReadResponse(bufio.NewReader(conn), nil)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := io.Copy(io.Discard, resp.Body); err != nil {
			t.Fatal(err)
		}
		return resp.Close
	}
	kept, text := dial(), dial()
	if get(kept) {
		t.Error("the connection is not kept")
	}
	s.Drain(p)
	if !get(kept) || !get(dial()) {
		t.Error("the connection is kept while the pod drains")
	}
	buf := make([]byte, 1024)
	for range 2 {
		if _, err := fmt.Fprintln(text, "hello"); err != nil {
			t.Fatal(err)
		}
		if _, err := text.Read(buf); err != nil {
			t.Fatal(err)
		}
	}
}

func TestConnectionsEndWithTheirPod(t *testing.T) {
	h := world.NewHost(t, "pod")
	var s Server
	t.Cleanup(func() { _ = s.Close() })
	if err := s.Set([]Pod{pod(h, "a", Port{"TCP", 80})}); err != nil {
		t.Fatal(err)
	}
	var conn net.Conn
	h.In(func() (err error) {
		conn, err = net.Dial("tcp", "127.0.0.1:80")
		return err
	})
	defer conn.Close()
	buf := make([]byte, 1024)
	for range 2 { // two requests on one connection
		if _, err := fmt.Fprintln(conn, "hello"); err != nil {
			t.Fatal(err)
		}
		if n, err := conn.Read(buf); err != nil || !strings.Contains(string(buf[:n]), `"pod":"a"`) {
			t.Fatalf("answer: %s %v", buf[:n], err)
		}
	}
	if err := s.Set(nil); err != nil {
		t.Fatal(err)
	}
	if err := conn.SetDeadline(time.Now().Add(5 * time.Second)); err != nil {
		t.Fatal(err)
	}
	if _, err := conn.Read(buf); err == nil || errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("the connection goes on without its pod: %v", err)
	}
}

func TestSilenceAndForeignAnswers(t *testing.T) {
	h := world.NewHost(t, "pod")
	var mute, odd net.Listener
	h.In(func() (err error) {
		if mute, err = net.Listen("tcp", "127.0.0.1:80"); err != nil {
			return err
		}
		odd, err = net.Listen("tcp", "127.0.0.1:81")
		return err
	})
	defer mute.Close()
	defer odd.Close()
	go func() {
		if c, err := odd.Accept(); err == nil {
			_, _ = fmt.Fprint(c, "HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello")
			_ = c.Close()
		}
	}()
	if err := h.Do(func() error {
		_, err := Ask("TCP", netip.MustParseAddrPort("127.0.0.1:80"), 50*time.Millisecond)
		return err
	}); !errors.Is(err, ErrSilent) {
		t.Errorf("a server that says nothing: %v", err)
	}
	if _, err := ask(t, h, "TCP", 81); err == nil || errors.Is(err, ErrSilent) || errors.Is(err, ErrRefused) {
		t.Errorf("a server that is not ours: %v", err)
	}
}

func TestControl(t *testing.T) {
	h := world.NewHost(t, "pod")
	socket := filepath.Join(t.TempDir(), "serve.sock")
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- Run(ctx, socket) }()
	set := func(pods []Pod) error {
		for deadline := time.Now().Add(5 * time.Second); ; time.Sleep(time.Millisecond) {
			err := Set(t.Context(), socket, pods)
			if !errors.Is(err, os.ErrNotExist) && !errors.Is(err, syscall.ECONNREFUSED) || time.Now().After(deadline) {
				return err
			}
		}
	}
	if err := set([]Pod{pod(h, "a", Port{"TCP", 80})}); err != nil {
		t.Fatal(err)
	}
	if got, err := ask(t, h, "TCP", 80); got != "a" {
		t.Errorf("answered by %q: %v", got, err)
	}
	_, refused := errors.AsType[*SetError](set([]Pod{pod(h, "a", Port{"TCP", 80}), pod(h, "b", Port{"TCP", 80})}))
	if !refused {
		t.Error("a port that is taken is no SetError")
	}
	cancel()
	if err := <-done; err != nil {
		t.Error(err)
	}
	if _, err := ask(t, h, "TCP", 80); !errors.Is(err, ErrRefused) {
		t.Errorf("still served: %v", err)
	}
}

// A datagram that gets lost is sent again.
func TestAskUDPAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		client, server := net.Pipe()
		defer func() { _ = client.Close() }()
		go func() {
			buf := make([]byte, 64)
			for i := 0; ; i++ {
				if _, err := server.Read(buf); err != nil {
					return
				}
				if i > 0 { // the first is lost
					_, _ = server.Write([]byte(`{"pod": "a"}`))
				}
			}
		}()
		began := time.Now()
		answer, err := askUDP(client, began.Add(time.Minute))
		if err != nil || string(answer) != `{"pod": "a"}` || time.Since(began) != resend {
			t.Errorf("%q after %s: %v", answer, time.Since(began), err)
		}
	})
}
