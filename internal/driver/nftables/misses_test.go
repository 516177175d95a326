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
	"sluice.dev/sluice/internal/model"
	"sluice.dev/sluice/internal/state"
	"sluice.dev/sluice/test/netns"
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

	asked, missed := floodWhile(t, ns, "10.96.200.1:53", unix.EPERM, func() {
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
	})
	if missed > 0 || asked < changes {
		t.Errorf("%d of %d packets passed while the list changed %d times", missed, asked, changes)
	}
	t.Logf("%d packets", asked)
}

// A service is found at every moment while what its key leads to changes: one that is not is
// rejected, as its address is a service's.
func TestNoServiceIsMissed(t *testing.T) {
	t.Parallel()
	host := world.NewHost(t, "node")
	host.IP(`link set lo up`, `addr add 192.0.2.1/32 dev lo`, `addr add 192.0.2.2/32 dev lo`, `route add default dev lo`)
	d := openIn(t, host.NS, Options{})
	k := state.FrontendKey{Addr: netip.MustParseAddr("10.96.0.10"), Protocol: model.UDP, Port: 53}
	versions := make([]*state.Frontend, 3) // of three size classes
	for i := range versions {
		b := addrPorts("192.0.2.1:53", "192.0.2.1:54", "192.0.2.1:55")[:i+1]
		versions[i] = &state.Frontend{Service: model.Name{Namespace: "default", Name: "dns"}, Backends: b, Alive: b, Serving: b}
	}
	want := state.New()
	want.Services.ClusterIPs[k.Addr] = struct{}{}
	want.Services.Frontends[k] = versions[0]
	adopt(t, d, want)
	host.Exec("nft", "add table ip probe; add chain ip probe in { type filter hook output priority 200; }; "+
		"add rule ip probe in udp dport 53-55 ip daddr 192.0.2.1 drop") // so that each packet is a connection's first one
	changes := 5 * *raceCommits
	asked, missed := floodWhile(t, host.NS, "10.96.0.10:53", unix.EPERM, func() {
		for i := range changes {
			update(t, d, state.Delta{Services: state.ServicesDelta{Frontends: map[state.FrontendKey]*state.Frontend{k: versions[(i+1)%3]}}})
		}
	})
	if missed > 0 || asked == 0 {
		t.Errorf("%d of %d packets were not sent to a backend while the service changed %d times", missed, asked, changes)
	}
	t.Logf("%d packets", asked)
}

// floodWhile sends datagrams by two threads while something is done, and returns how many were
// sent, and for how many that did not end in the error that is right.
func floodWhile(t *testing.T, ns *netns.NS, to string, right error, while func()) (int64, int64) {
	t.Helper()
	var asked, missed atomic.Int64
	var over atomic.Bool
	var senders sync.WaitGroup
	send := func() error {
		for !over.Load() {
			c, err := net.Dial("udp4", to)
			if err != nil {
				return err
			}
			asked.Add(1)
			if _, err := c.Write([]byte("x")); !errors.Is(err, right) {
				missed.Add(1)
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
	while()
	over.Store(true)
	senders.Wait()
	return asked.Load(), missed.Load()
}
