package testbed

import (
	"context"
	"net"
	"net/http"

	"sluice.dev/sluice/test/netns"
)

// HTTP returns a client whose connections start inside a namespace.
func HTTP(ns *netns.NS) *http.Client {
	return &http.Client{Transport: &http.Transport{
		DisableKeepAlives: true,
		DialContext: func(ctx context.Context, network, addr string) (conn net.Conn, err error) {
			err = ns.Do(func() error {
				conn, err = new(net.Dialer).DialContext(ctx, network, addr)
				return err
			})
			return conn, err
		},
	}}
}
