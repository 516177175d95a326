package preflight

import (
	"bufio"
	"context"
	"errors"
	"net"
	"net/http"
	"strings"
	"syscall"
	"time"
)

const health = "127.0.0.1:10256"

// addresses are where the agent serves unless it is told otherwise; kube-proxy serves there, too.
var addresses = []string{"127.0.0.1:10249", health}

// taken returns which of some addresses another program listens on.
func taken(ctx context.Context, addresses []string) (busy []string) {
	for _, address := range addresses {
		l, err := new(net.ListenConfig).Listen(ctx, "tcp", address)
		if errors.Is(err, syscall.EADDRINUSE) {
			busy = append(busy, address)
		}
		if err == nil {
			_ = l.Close()
		}
	}
	return busy
}

// lacksLivez reports whether the server on an address has no /livez.
func lacksLivez(ctx context.Context, address string) bool {
	resp, err := Get(ctx, time.Second, address, "/livez")
	return err == nil && resp.StatusCode == http.StatusNotFound
}

// Get asks a server for a page and returns its answer, whose body is closed. It connects from the
// calling thread's network namespace, as an HTTP client need not.
func Get(ctx context.Context, limit time.Duration, address, page string) (*http.Response, error) {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+address+page, nil)
	if err != nil {
		return nil, err
	}
	conn, err := new(net.Dialer).DialContext(ctx, "tcp", address)
	if err != nil {
		return nil, err
	}
	defer func() { _ = conn.Close() }()
	defer context.AfterFunc(ctx, func() { _ = conn.SetDeadline(time.Unix(1, 0)) })()
	if err := req.Write(conn); err != nil {
		return nil, err
	}
	resp, err := http.ReadResponse(bufio.NewReader(conn), req)
	if err == nil {
		_ = resp.Body.Close()
	}
	return resp, err
}

// ports says where the agent could not serve its metrics and its health.
func ports(f *Facts) []Result {
	const name = "ports"
	switch {
	case f.Alive:
		return nil // they are that agent's
	case len(f.Taken) == 0:
		return one(name, OK, strings.Join(addresses, " and ")+" are free", "")
	}
	where := strings.Join(f.Taken, " and ")
	results := one(name, OK, "kube-proxy has "+where+": the agent serves metrics and health there once it has ended", "")
	if len(kubeProxy(f)) == 0 {
		results = one(name, Warn, "another program listens on "+where+": the agent works, but serves metrics or health there only once it is free",
			"stop that program (kube-proxy listens there), or choose others with --metrics-address and --healthz-address")
	}
	if f.NoLivez {
		results = append(results, Result{name, Warn, "what listens on " + health + " has no /livez, as kube-proxy before 1.28: probes of the agent's pod, which ask there, would make the kubelet restart it again and again",
			"install Sluice with healthzAddress=:10266 until that program has gone"})
	}
	return results
}

// addressesOfServices says what services have that the agent does not serve.
func addressesOfServices(f *Facts) []Result {
	const name = "services' addresses"
	if f.RefuseErr != nil {
		return cannotTell(name, f.RefuseErr)
	}
	var results []Result
	for _, what := range f.Refused {
		results = append(results, Result{name, Warn, what,
			"give the service another address or port; or see --allow-node-addresses, --reserved-ports and --external-ip-cidrs in 'sluice run --help'"})
	}
	return results
}
