package heard

import (
	"context"
	"net/netip"
	"testing"
	"time"

	"sluice.dev/sluice/test/world"
)

// Of many ports one answers and the others are silent: all are tried at the same time, as one after
// the other would take longer than preflight has.
func TestManySilentPorts(t *testing.T) {
	node, far := world.NewHost(t, "node"), world.NewHost(t, "far")
	node.Join("eth0", far, "eth0")
	node.Address("eth0", "192.0.2.1/24")
	far.Address("eth0", "192.0.2.2/24")
	far.Exec("nft", "add table inet fw; add chain inet fw in { type filter hook prerouting priority -300; }; add rule inet fw in tcp dport != 179 drop")
	var to []TCP
	for port := range uint16(60) {
		to = append(to, TCP{netip.MustParseAddr("192.0.2.1"), netip.AddrPortFrom(netip.MustParseAddr("192.0.2.2"), 179+port)})
	}
	to[1].From = netip.Addr{}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	node.In(func() error {
		found, err := TryTCP(ctx, to)
		if err != nil {
			t.Fatal(err)
		}
		for i, trial := range found {
			if trial != (Trial{Came: map[bool]Came{true: Answers, false: Silent}[i == 0]}) {
				t.Errorf("%v: %v", to[i].To, trial)
			}
		}
		return nil
	})
}
