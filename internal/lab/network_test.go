package lab

import (
	"errors"
	"net/netip"
	"testing"

	"sluice.dev/sluice/internal/lab/echo"
)

// A node says each refusal, however many there are in a second.
func TestNodesRefuseWithoutLimit(t *testing.T) {
	l := up(t, "testrefuse")
	for _, addr := range l.Cluster.Nodes[0].IPs {
		for i := range 20 { // the kernel's limit grants six at once
			if _, err := ask(t, l, "outside", "UDP", netip.AddrPortFrom(addr, 9).String()); !errors.Is(err, echo.ErrRefused) {
				t.Errorf("request %d to %s: %v, want a refusal", i, addr, err)
				break
			}
		}
	}
}
