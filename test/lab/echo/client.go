package echo

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"os"
	"syscall"
	"time"
)

// These errors say why a request got no answer.
var (
	// ErrRefused: refused at once, by a TCP reset or an ICMP error.
	ErrRefused = errors.New("refused")
	// ErrSilent: no answer came in time.
	ErrSilent = errors.New("no answer")
)

// Ask sends one request over its own connection (or from its own port), through the network of the
// calling thread, and waits for the answer. protocol is TCP (HTTP) or UDP. Errors wrap ErrRefused
// or ErrSilent where they apply.
func Ask(protocol string, to netip.AddrPort, timeout time.Duration) (Answer, error) {
	conn, err := dial(protocol, to, timeout)
	if err != nil {
		return Answer{}, reason(err)
	}
	defer conn.Close()
	var text []byte
	if protocol == "UDP" {
		text, err = askUDP(conn, time.Now().Add(timeout))
	} else {
		_, text, err = get(conn)
	}
	if err != nil {
		return Answer{}, reason(err)
	}
	var a Answer
	if err := json.Unmarshal(text, &a); err != nil {
		return Answer{}, fmt.Errorf("answered by a server other than the lab's: %.60q", text)
	}
	return a, nil
}

// Status sends one HTTP request, as Ask does, to any server, and returns the status code.
func Status(to netip.AddrPort, timeout time.Duration) (int, error) {
	conn, err := dial("TCP", to, timeout)
	if err != nil {
		return 0, reason(err)
	}
	defer conn.Close()
	code, _, err := get(conn)
	return code, reason(err)
}

// dial opens a connection that closes after the timeout. The address is literal, so Go opens the
// socket on the calling thread.
func dial(protocol string, to netip.AddrPort, timeout time.Duration) (net.Conn, error) {
	deadline := time.Now().Add(timeout)
	d := net.Dialer{Deadline: deadline, KeepAlive: -1}
	d.SetMultipathTCP(false)
	network := "tcp"
	if protocol == "UDP" {
		network = "udp"
	}
	conn, err := d.Dial(network, to.String())
	if err != nil {
		return nil, err
	}
	return conn, conn.SetDeadline(deadline)
}

func get(conn net.Conn) (code int, body []byte, err error) {
	if _, err := fmt.Fprintf(conn, "GET / HTTP/1.1\r\nHost: %s\r\nConnection: close\r\n\r\n", conn.RemoteAddr()); err != nil {
		return 0, nil, err
	}
	resp, err := http.ReadResponse(bufio.NewReader(conn), nil)
	if err != nil {
		return 0, nil, err
	}
	defer resp.Body.Close()
	body, err = io.ReadAll(io.LimitReader(resp.Body, 4096))
	return resp.StatusCode, body, err
}

// resend is after which time a datagram that is not answered is sent again, as resolvers do: on a
// busy machine one may be lost, as when the kernel's table of connections is full.
const resend = time.Second

func askUDP(conn net.Conn, deadline time.Time) ([]byte, error) {
	buf := make([]byte, 4096)
	for {
		if _, err := conn.Write([]byte("who are you?\n")); err != nil {
			return nil, err
		}
		next := time.Now().Add(resend)
		if deadline.Before(next) {
			next = deadline
		}
		if err := conn.SetReadDeadline(next); err != nil {
			return nil, err
		}
		n, err := conn.Read(buf)
		if err == nil || !errors.Is(err, os.ErrDeadlineExceeded) || !time.Now().Before(deadline) {
			return buf[:n], err
		}
	}
}

// reason adds the sentinel that tells a client what an error means; nil stays nil.
func reason(err error) error {
	for _, e := range []error{syscall.ECONNREFUSED, syscall.ECONNRESET, syscall.EHOSTUNREACH, syscall.ENETUNREACH, syscall.EACCES} {
		if errors.Is(err, e) {
			return fmt.Errorf("%w: %w", ErrRefused, err)
		}
	}
	if e, ok := errors.AsType[net.Error](err); ok && e.Timeout() {
		return fmt.Errorf("%w: %w", ErrSilent, err)
	}
	return err
}
