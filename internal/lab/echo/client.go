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
	"syscall"
	"time"
)

// Why a request got no answer.
var (
	// ErrRefused: turned away at once, by a TCP reset or an ICMP error.
	ErrRefused = errors.New("refused")
	// ErrSilent: nothing came back in time.
	ErrSilent = errors.New("no answer")
)

// Ask sends one request over a connection (or from a port) of its own, through the network of the calling thread, and waits
// for the answer. protocol is TCP (HTTP) or UDP. Errors wrap ErrRefused or ErrSilent where they apply.
func Ask(protocol string, to netip.AddrPort, timeout time.Duration) (Answer, error) {
	d := net.Dialer{Timeout: timeout, KeepAlive: -1}
	d.SetMultipathTCP(false)
	network := "tcp"
	if protocol == "UDP" {
		network = "udp"
	}
	conn, err := d.Dial(network, to.String())
	if err != nil {
		return Answer{}, reason(err)
	}
	defer conn.Close()
	if err := conn.SetDeadline(time.Now().Add(timeout)); err != nil {
		return Answer{}, reason(err)
	}
	ask := askHTTP
	if protocol == "UDP" {
		ask = askUDP
	}
	text, err := ask(conn)
	if err != nil {
		return Answer{}, reason(err)
	}
	var a Answer
	if err := json.Unmarshal(text, &a); err != nil {
		return Answer{}, fmt.Errorf("answered by something that is not the lab's server: %.60q", text)
	}
	return a, nil
}

func askHTTP(conn net.Conn) ([]byte, error) {
	if _, err := fmt.Fprintf(conn, "GET / HTTP/1.1\r\nHost: %s\r\nConnection: close\r\n\r\n", conn.RemoteAddr()); err != nil {
		return nil, err
	}
	resp, err := http.ReadResponse(bufio.NewReader(conn), nil)
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	return io.ReadAll(io.LimitReader(resp.Body, 4096))
}

func askUDP(conn net.Conn) ([]byte, error) {
	if _, err := conn.Write([]byte("who are you?\n")); err != nil {
		return nil, err
	}
	buf := make([]byte, 4096)
	n, err := conn.Read(buf)
	return buf[:n], err
}

// reason adds the sentinel that says what an error means for the one who asked.
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
