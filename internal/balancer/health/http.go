package health

import (
	"bufio"
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"strconv"
)

const userAgent = "sluice-health-check"

// get is an HTTPS check.
func get(ctx context.Context, p *probe) outcome {
	question, err := p.request()
	if err != nil {
		return down(line(err.Error()))
	}
	dialer := tls.Dialer{Config: &tls.Config{ServerName: p.serverName(), InsecureSkipVerify: p.Insecure}}
	conn, err := dialer.DialContext(ctx, "tcp", p.at.String())
	if err != nil {
		return p.broken(ctx, err)
	}
	defer conn.Close()
	stop := context.AfterFunc(ctx, func() { _ = conn.Close() })
	defer stop()
	if _, err := conn.Write(question); err != nil {
		return p.broken(ctx, err)
	}
	var answer []byte
	buffer := make([]byte, 4096)
	for {
		n, err := conn.Read(buffer)
		answer = append(answer, buffer[:n]...)
		if o, ended := p.compare(answer, errors.Is(err, io.EOF)); ended {
			return o
		}
		if err != nil {
			return p.broken(ctx, err)
		}
	}
}

// request returns the request of an HTTP or HTTPS check, as it is sent.
func (p *probe) request() ([]byte, error) {
	host := p.Host
	if host == "" {
		host = netip.AddrPortFrom(p.at.Addr().WithZone(""), p.at.Port()).String()
	}
	r, err := http.NewRequest(p.Method, p.Type+"://"+host+p.Path, nil)
	if err != nil {
		return nil, err
	}
	r.Header.Set("User-Agent", userAgent)
	r.Close = true
	var text bytes.Buffer
	err = r.Write(&text)
	return text.Bytes(), err
}

// serverName is whose certificate an HTTPS check asks for: that of the Host header, or of the
// address if there is none.
func (p *probe) serverName() string {
	if p.Host == "" {
		return p.at.Addr().WithZone("").String()
	}
	if host, _, err := net.SplitHostPort(p.Host); err == nil {
		return host
	}
	return p.Host
}

// compare judges what has come of the answer to an HTTP or HTTPS check; whole is whether that is
// all. It reports whether that decides the check. Redirects are not followed.
func (c *Check) compare(answer []byte, whole bool) (o outcome, ended bool) {
	status, body, err := parseHead(answer)
	for err == nil && status/100 == 1 && status != http.StatusSwitchingProtocols {
		answer = body
		status, body, err = parseHead(answer)
	}
	switch {
	case err != nil:
		return down(line(err.Error())), true
	case status == 0 && whole:
		return down(reason(io.ErrUnexpectedEOF)), true
	case status == 0 && len(answer) >= maxAnswer:
		return down(fmt.Sprintf("the header is longer than %d bytes", maxAnswer)), true
	case status == 0:
		return outcome{}, false
	case status < c.StatusFirst || status > c.StatusLast:
		return down(fmt.Sprintf("status %d, wanted %s", status, c.statuses())), true
	case c.Body == "":
		return up(fmt.Sprintf("status %d", status)), true
	}
	r, err := http.ReadResponse(bufio.NewReader(bytes.NewReader(answer)), &http.Request{Method: c.Method})
	if err != nil {
		return down(line(err.Error())), true
	}
	text, err := io.ReadAll(io.LimitReader(r.Body, maxAnswer))
	switch {
	case bytes.Contains(text, []byte(c.Body)):
		return up(fmt.Sprintf("status %d", status)), true
	case err == nil && (whole || r.ContentLength >= 0 || r.TransferEncoding != nil), len(body) >= maxAnswer:
		return down(lacks("body", c.Body)), true
	case whole:
		return down(reason(err)), true
	}
	return outcome{}, false
}

// parseHead returns the status of an answer, and what follows its header. While the header is not
// complete, the status is 0.
func parseHead(answer []byte) (status int, body []byte, err error) {
	first, rest, complete := bytes.Cut(answer, []byte("\n"))
	first = bytes.TrimSuffix(first, []byte("\r"))
	const protocol = "HTTP/"
	if n := min(len(first), len(protocol)); string(first[:n]) != protocol[:n] || complete && n < len(protocol) {
		return 0, nil, fmt.Errorf("not HTTP: %q", first)
	}
	for row := first; complete && len(bytes.TrimSuffix(row, []byte("\r"))) > 0; {
		row, rest, complete = bytes.Cut(rest, []byte("\n"))
	}
	if !complete {
		return 0, nil, nil
	}
	_, code, _ := bytes.Cut(first, []byte(" "))
	code, _, _ = bytes.Cut(bytes.TrimSpace(code), []byte(" "))
	if status, err = strconv.Atoi(string(code)); err != nil || len(code) != 3 || status < 100 {
		return 0, nil, fmt.Errorf("not HTTP: %q", first)
	}
	return status, rest, nil
}

func (c *Check) statuses() string {
	if c.StatusFirst == c.StatusLast {
		return fmt.Sprint(c.StatusFirst)
	}
	return fmt.Sprintf("%d-%d", c.StatusFirst, c.StatusLast)
}

// broken is the outcome of a request without a whole answer.
func (p *probe) broken(ctx context.Context, err error) outcome {
	if late(err) || ctx.Err() != nil {
		return down(silence(p.Timeout))
	}
	return failed(err)
}
