package health

import (
	"bytes"
	"context"
	"crypto/tls"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
)

const userAgent = "sluice-health-check"

// get is an HTTP or HTTPS check. It follows no redirect, uses no proxy, and keeps no
// connection.
func get(ctx context.Context, p *probe) outcome {
	r, err := p.request(ctx)
	if err != nil {
		return down(line(err.Error()))
	}
	answer, err := p.transport().RoundTrip(r)
	if err != nil {
		return p.broken(ctx, err)
	}
	defer answer.Body.Close()
	if answer.StatusCode < p.StatusFirst || answer.StatusCode > p.StatusLast {
		return down(fmt.Sprintf("status %d, wanted %s", answer.StatusCode, p.statuses()))
	}
	if p.Body == "" {
		return up(fmt.Sprintf("status %d", answer.StatusCode))
	}
	body, err := io.ReadAll(io.LimitReader(answer.Body, maxAnswer))
	switch {
	case bytes.Contains(body, []byte(p.Body)):
		return up(fmt.Sprintf("status %d", answer.StatusCode))
	case err != nil:
		return p.broken(ctx, err)
	}
	return down(lacks("body", p.Body))
}

// request makes the request. Its URL says what the Host header and TLS are about; where the
// connection goes to is not for the URL to say.
func (p *probe) request(ctx context.Context) (*http.Request, error) {
	host := p.Host
	if host == "" {
		host = netip.AddrPortFrom(p.at.Addr().WithZone(""), p.at.Port()).String()
	}
	r, err := http.NewRequestWithContext(ctx, p.Method, p.Type+"://"+host+p.Path, nil)
	if err != nil {
		return nil, err
	}
	r.Header.Set("User-Agent", userAgent)
	return r, nil
}

func (p *probe) statuses() string {
	if p.StatusFirst == p.StatusLast {
		return fmt.Sprint(p.StatusFirst)
	}
	return fmt.Sprintf("%d-%d", p.StatusFirst, p.StatusLast)
}

// transport is for one request to the target. The certificate is checked, and its name asked for,
// by the Host header, or by the address if there is none.
func (p *probe) transport() *http.Transport {
	name := p.at.Addr().WithZone("").String()
	if p.Host != "" {
		name = p.Host
		if host, _, err := net.SplitHostPort(p.Host); err == nil {
			name = host
		}
	}
	var http1 http.Protocols
	http1.SetHTTP1(true)
	return &http.Transport{
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			return (&net.Dialer{}).DialContext(ctx, "tcp", p.at.String())
		},
		Protocols:              &http1,
		DisableKeepAlives:      true,
		DisableCompression:     true,
		MaxResponseHeaderBytes: maxAnswer,
		TLSClientConfig:        &tls.Config{ServerName: name, InsecureSkipVerify: p.Insecure},
	}
}

// broken is the outcome of a request without a whole answer.
func (p *probe) broken(ctx context.Context, err error) outcome {
	if late(err) || ctx.Err() != nil {
		return down(silence(p.Timeout))
	}
	return failed(err)
}
