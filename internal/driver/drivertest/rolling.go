package drivertest

import (
	"fmt"
	"testing"

	"sluice.dev/sluice/internal/model"
)

// rolling replaces the backends of a service one after the other, as a Deployment
// does, while a pod and a client outside keep opening connections and exchange
// data over each: none may fail.
func (r *run) rolling(t *testing.T) {
	r.start(t, config{})
	services := func(i int) []svc {
		on := fmt.Sprintf("m%d!draining m%d m%d m%d", i, i+1, i+2, i+3)
		return []svc{{at: "vip", ports: []port{httpNode}, on: on}}
	}
	r.step(t, 0, step{services: services(1)})
	stop := make(chan struct{})
	pod := r.keepConnecting("c", "vip:80", stop)
	outside := r.keepConnecting("outside", "node:30080", stop)
	for i := 2; i+3 <= mostClients; i++ {
		r.step(t, i, step{services: services(i), pause: silence / 4})
	}
	close(stop)
	for _, done := range []<-chan error{pod, outside} {
		if err := <-done; err != nil {
			t.Errorf("while backends were replaced: %v", err)
		}
	}
}

// keepConnecting makes one connection after the other until stop is closed or one fails.
func (r *run) keepConnecting(from, to string, stop <-chan struct{}) <-chan error {
	c, dst := r.client(from), r.addrPort(to, r.family)
	done := make(chan error, 1)
	go func() {
		done <- c.host.ns.Do(func() error {
			for n := 1; ; n++ {
				select {
				case <-stop:
					return nil
				default:
				}
				if res := c.once(send{proto: model.TCP, size: 4096}, dst, patience); res.err != nil {
					return fmt.Errorf("connection %d from %s to %s: %w", n, from, to, res.err)
				}
			}
		})
	}()
	return done
}
