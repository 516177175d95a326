package balancer

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"syscall"
	"time"

	"sluice.dev/sluice/test/bench/cluster"
	"sluice.dev/sluice/test/bench/harness"
	"sluice.dev/sluice/test/bench/peer"
)

// byRefusals is from the first connection that a backend refuses to the last.
const byRefusals = "by its refusals"

// enough is how many connections in turn to three backends show that none of these refuses.
const enough = 30

// timeRefusals has a backend of the last farm refuse connections again and again while a client
// connects. Its check would take three intervals to find that out.
func timeRefusals(ctx context.Context, c *changing) (times []time.Duration, err error) {
	last := c.Cluster.Services - 1
	f := &faulty{turned: make(chan time.Time, 1)} // nothing turns
	end, err := f.serve(c.Testbed)
	if err != nil {
		return nil, err
	}
	defer end()
	check := map[string]string{"type": "tcp", "interval": "1", "timeout": "1", "rise": "1", "fall": "3"}
	if _, err := c.Call(ctx, http.MethodPut, "/farms", peer.Farms{Farms: []peer.Farm{{Name: peer.FarmName(last), Check: check}}}); err != nil {
		return nil, err
	}
	nft := func(command string) error {
		_, err := c.Backend.Run("nft", command)
		return err
	}
	if err := nft("add table inet firewall { chain in { type filter hook input priority 0; }; }"); err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, nft("delete table inet firewall")) }()
	refuse := fmt.Sprintf("add rule inet firewall in ip daddr %s tcp dport %d reject with tcp reset", c.Cluster.Endpoint(last, 0).Addr(), cluster.TargetPort)
	for range changesARound / 5 {
		if err := nft(refuse); err != nil {
			return nil, err
		}
		took, err := refusedFor(ctx, c)
		if err := errors.Join(err, nft("flush chain inet firewall in")); err != nil {
			return nil, err
		}
		times = append(times, took)
		if err := harness.Wait(ctx, 3*time.Second/2); err != nil { // its check has succeeded, and it serves again
			return nil, err
		}
	}
	return times, nil
}

// refusedFor connects until nothing is refused any more, and returns the time between the first
// connection that is and the last.
func refusedFor(ctx context.Context, c *changing) (time.Duration, error) {
	var first, last time.Time
	for good := 0; good < enough || first.IsZero(); good++ {
		var conn net.Conn
		err := c.Client.Do(func() (err error) {
			conn, err = net.DialTimeout("tcp", c.target().String(), time.Second)
			return err
		})
		switch now := time.Now(); {
		case ctx.Err() != nil:
			return 0, ctx.Err()
		case errors.Is(err, syscall.ECONNREFUSED):
			if good, last = 0, now; first.IsZero() {
				first = now
			}
		case err != nil:
			return 0, err
		default:
			_ = conn.Close()
		}
	}
	return last.Sub(first), nil
}
