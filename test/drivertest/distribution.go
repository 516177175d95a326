package drivertest

import (
	"fmt"
	"net"
	"net/netip"
	"testing"

	"sluice.dev/sluice/internal/model"
)

// distribution checks that every backend gets a fair share: over that many flows, the chi-square
// statistic of a fair balancer exceeds its bound once in a million.
func (r *run) distribution(t *testing.T) {
	const flows = 3000
	bound := map[int]float64{5: 33.4, 12: 48.6} // at 4 and 11 degrees of freedom
	r.start(t, config{})
	for i, n := range []int{5, 12} {
		r.step(t, i, step{services: []svc{{at: "vip", ports: []port{dns}, on: many(n)}}})
		count, err := r.spread(20000+i*flows, flows, r.addrPort("vip:53", r.family))
		if err != nil {
			t.Fatalf("%d backends: %v", n, err)
		}
		chi, fair := 0.0, float64(flows)/float64(n)
		for b := range n {
			d := float64(count[r.addr(fmt.Sprint("m", b+1), r.family)]) - fair
			chi += d * d / fair
		}
		if chi > bound[n] {
			t.Errorf("%d backends do not share fairly: chi-square %.1f, at most %.1f expected: %v", n, chi, bound[n], count)
		}
	}
}

// spread sends one datagram for each flow, each from a new port: a port used before would reach its
// old backend. Some are on their way at the same time.
func (r *run) spread(firstPort, flows int, to netip.AddrPort) (map[netip.Addr]int, error) {
	type outcome struct {
		answer
		err error
	}
	const atOnce = 16
	outcomes, free := make(chan outcome, flows), make(chan struct{}, atOnce)
	c := r.client("a")
	err := c.host.ns.Do(func() error {
		for i := range flows {
			from := netip.AddrPortFrom(c.from, uint16(firstPort+i))
			nc, err := net.DialUDP("udp", net.UDPAddrFromAddrPort(from), net.UDPAddrFromAddrPort(to))
			if err != nil {
				return fmt.Errorf("dial %v: %w", to, err)
			}
			free <- struct{}{}
			go func() {
				a, err := (&conn{Conn: nc, proto: model.UDP}).exchange(1, patience)
				_ = nc.Close()
				outcomes <- outcome{a, err}
				<-free
			}()
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	count := map[netip.Addr]int{}
	for i := range flows {
		o := <-outcomes
		if o.err != nil {
			return nil, fmt.Errorf("flow %d: %w", i+1, o.err)
		}
		count[o.server.Addr()]++
	}
	return count, nil
}
