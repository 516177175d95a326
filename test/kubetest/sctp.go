package kubetest

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"
	"strings"
	"syscall"
	"time"

	corev1 "k8s.io/api/core/v1"

	"sluice.dev/sluice/test/drivertest"
	"sluice.dev/sluice/test/lab/echo"
)

// sctp is the third protocol of services. The lab's pods do not speak it: the step serveSCTP makes
// them answer.
const sctp = corev1.ProtocolSCTP

// serveSCTP makes pods answer on all SCTP ports.
func serveSCTP(pods ...string) Step {
	return action{"pods " + strings.Join(pods, ", ") + " serve SCTP", func(ctx context.Context, e *Env) error {
		for _, n := range pods {
			p, err := e.pod(ctx, n)
			if err != nil {
				return err
			}
			at, err := e.place(ctx, n)
			if err != nil {
				return err
			}
			for _, ip := range p.Status.PodIPs {
				addr := netip.MustParseAddr(ip.IP)
				var stop func() error
				if err := at.Do(func() (err error) {
					stop, err = drivertest.ServeSCTP(addr)
					return err
				}); err != nil {
					return fmt.Errorf("serve SCTP in pod %s: %w", n, err)
				}
				e.undo = append(e.undo, stop)
				e.speakers[addr] = n
			}
		}
		return nil
	}}
}

// askSCTP makes a request through the network of the calling thread.
func (e *Env) askSCTP(from *place, to netip.AddrPort, timeout time.Duration) (echo.Answer, error) {
	i := slices.IndexFunc(from.addrs, func(a netip.Addr) bool {
		return a.Is4() == to.Addr().Is4() && !a.IsLoopback() && !a.IsLinkLocalUnicast()
	})
	if i < 0 {
		return echo.Answer{}, fmt.Errorf("no address to ask %s from", to)
	}
	local := netip.AddrPortFrom(from.addrs[i], uint16(20000+rand.IntN(40000)))
	server, client, err := drivertest.AskSCTP(local, to, timeout)
	if errors.Is(err, syscall.EAGAIN) {
		return echo.Answer{}, fmt.Errorf("%w: %w", echo.ErrSilent, err)
	}
	return echo.Answer{Pod: e.speakers[server.Addr()], Protocol: string(sctp), Port: server.Port(), Client: client}, reason(err)
}
