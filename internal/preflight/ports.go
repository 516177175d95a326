package preflight

import (
	"context"
	"errors"
	"net"
	"strings"
	"syscall"
)

// addresses are where the agent serves unless it is told otherwise; kube-proxy serves there, too.
var addresses = []string{"127.0.0.1:10249", "127.0.0.1:10256"}

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

// ports says where the agent could not serve its metrics and its health.
func ports(f *Facts) []Result {
	const name = "ports"
	switch {
	case f.Alive:
		return nil // they are that agent's
	case len(f.Taken) == 0:
		return one(name, OK, strings.Join(addresses, " and ")+" are free", "")
	}
	return one(name, Warn, "another program listens on "+strings.Join(f.Taken, " and ")+": the agent works, but serves metrics or health there only once it is free",
		"stop that program (kube-proxy listens there), or choose others with --metrics-address and --healthz-address")
}
