package nftables

import (
	"errors"
	"net"
	"net/netip"
	"sync"
	"sync/atomic"
	"testing"

	"golang.org/x/sys/unix"

	"sluice.dev/sluice/internal/driver"
	"sluice.dev/sluice/internal/state"
	"sluice.dev/sluice/test/world"
)

// An address that is in a list of networks before a change and after it is found at every moment,
// whatever network it is in. New flows to an address of the service CIDR that no service has are
// dropped; one that is sent was not found.
func TestNoAddressOfAListIsMissed(t *testing.T) {
	t.Parallel()
	const changes = 200
	host := world.NewHost(t, "node")
	host.IP(`link set lo up`, `addr add 192.0.2.1/32 dev lo`, `route add default dev lo`)
	ns := host.NS
	d := openIn(t, ns, Options{Options: driver.Options{Policy: true, Fabric: true}})
	lists := [][]netip.Prefix{
		prefixes("10.96.0.0/16"), prefixes("10.0.0.0/8", "172.16.0.0/12"), prefixes("10.96.0.0/17", "10.96.128.0/17"),
		prefixes("10.96.200.0/24", "10.97.0.0/16", "10.98.0.0/15"), prefixes("10.96.0.0/15", "172.17.0.0/16", "192.168.0.0/16"),
	}
	want := state.New()
	want.Policy = state.NewPolicy()
	want.Services.Settings.ServiceCIDRs = lists[0]
	adopt(t, d, want)

	var asked, missed atomic.Int64
	var over atomic.Bool
	var senders sync.WaitGroup
	send := func() error {
		for !over.Load() {
			c, err := net.DialUDP("udp4", nil, &net.UDPAddr{IP: net.IPv4(10, 96, 200, 1), Port: 53})
			if err != nil {
				return err
			}
			asked.Add(1)
			switch _, err := c.Write([]byte("x")); {
			case err == nil:
				missed.Add(1)
			case !errors.Is(err, unix.EPERM):
				return errors.Join(err, c.Close())
			}
			if err := c.Close(); err != nil {
				return err
			}
		}
		return nil
	}
	for range 2 {
		senders.Go(func() {
			if err := ns.Do(send); err != nil {
				t.Error(err)
			}
		})
	}
	for i := range changes {
		settings := want.Services.Settings
		settings.ServiceCIDRs = lists[i%len(lists)]
		if i%10 == 9 {
			want.Services.Settings = settings
			adopt(t, d, want)
			continue
		}
		update(t, d, state.Delta{Services: state.ServicesDelta{Settings: &settings}})
	}
	over.Store(true)
	senders.Wait()
	if n := missed.Load(); n > 0 || asked.Load() < changes {
		t.Errorf("%d of %d packets passed while the list changed %d times", n, asked.Load(), changes)
	}
	t.Logf("%d packets", asked.Load())
}
