package nftables_test

import (
	"fmt"
	"net/netip"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	farms "sluice.dev/sluice/internal/balancer/nftables"
	"sluice.dev/sluice/internal/driver"
	"sluice.dev/sluice/internal/model"
	"sluice.dev/sluice/internal/state"
)

// A client that a farm serves before a change and after it is served at every moment, also where
// other farms ask for the chains that the change leads to and from. First packets, of which no
// connection comes to be, are counted as they come and once they are translated.
func TestNoFirstPacketIsLost(t *testing.T) {
	t.Parallel()
	const changes = 200
	w := newSite(t, 0)
	farm := func(name string, servers int, port uint16, persist model.FlowKey) *model.Farm {
		return &model.Farm{Name: name, Mode: model.DNAT, Persist: persist, PersistFor: time.Minute, Backends: backends(servers, true, 8080),
			Addresses: []model.FarmAddress{at(virtual4, model.PortSpan{First: port, Last: port})}}
	}
	others := []*model.Farm{farm("a", 3, 81, model.SrcIP), farm("b", 3, 82, 0), farm("c", 2, 83, 0), farm("d", 2, 84, model.SrcIP)}
	turns := []*model.Farm{farm("web", 3, 80, 0), farm("web", 3, 80, model.SrcIP), farm("web", 2, 80, model.SrcIP), farm("web", 2, 80, 0)}
	w.set(append(others, turns[0])...)
	w.balancer.Exec("nft", `
table inet watch {
	counter in {}
	counter out {}
	chain arrival {
		type filter hook prerouting priority -310
		ip daddr `+virtual4+` udp dport 80 counter name in
	}
	chain sent {
		type filter hook postrouting priority 310
		ct original ip daddr `+virtual4+` counter name out drop
	}
	chain untranslated {
		type filter hook input priority 310
		ip daddr `+virtual4+` drop
	}
}`)
	counted := func(counter string) (packets int) {
		out := w.balancer.Exec("nft", "list", "counter", "inet", "watch", counter)
		if _, err := fmt.Sscanf(out[strings.Index(out, "packets"):], "packets %d", &packets); err != nil {
			t.Fatalf("%v: %s", err, out)
		}
		return packets
	}
	var over atomic.Bool
	var senders sync.WaitGroup
	for range 2 {
		senders.Go(func() {
			w.client.In(func() error {
				sock, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
				if err != nil {
					return err
				}
				defer func() { _ = unix.Close(sock) }()
				for !over.Load() {
					if err := unix.Sendto(sock, []byte("x"), 0, &unix.SockaddrInet4{Addr: [4]byte{10, 0, 0, 100}, Port: 80}); err != nil && err != unix.ENOBUFS && err != unix.ECONNREFUSED {
						return err
					}
				}
				return nil
			})
		})
	}
	for i := range changes {
		delta := w.farms(append(others, turns[(i+1)%len(turns)])...)
		delta.Farms = state.FarmsDelta{Farms: map[string]*state.Farm{"web": delta.Farms.Farms["web"]}}
		w.state.Apply(delta)
		w.apply(w.driver.Update(t.Context(), delta))
	}
	over.Store(true)
	senders.Wait()
	time.Sleep(100 * time.Millisecond) // the last are under way
	if in, out := counted("in"), counted("out"); in != out || in < changes {
		t.Errorf("%d of %d packets were lost in %d changes", in-out, in, changes)
	} else {
		t.Logf("%d packets", in)
	}
}

// TestStandInIsLeft has a driver find what a killed one has left in a map that stood in for another
// while values changed: it would be found where the map itself has nothing. It may be what stands
// in for the next change, too, or something else.
func TestStandInIsLeft(t *testing.T) {
	t.Parallel()
	w := newSite(t, 1)
	w.open = func() (driver.Driver, error) { return farms.Open(farms.Options{MayMiss: true, Shared: true}) }
	w.must(w.driver.Purge(t.Context()))
	w.restart()
	farm := func(backends ...model.FarmBackend) *model.Farm {
		return &model.Farm{Name: "range", Mode: model.DNAT, Addresses: []model.FarmAddress{at(virtual4, model.PortSpan{First: 80, Last: 90})}, Backends: backends}
	}
	const standIn = "ip-farms-range-next"
	w.set(farm(backends(1, true, 80)...))
	for _, f := range []*model.Farm{farm(), farm(backends(1, true, 80)...)} { // values change: the first one drops
		w.balancer.Exec("nft", "add", "element", "inet", farms.TableName, standIn, "{ "+virtual4+" . tcp . 80-90 : drop }")
		w.restart()
		w.state.Farms.Apply(w.farms(f).Farms)
		w.apply(w.driver.Adopt(t.Context(), w.state, driver.Keep{}))
		if out := w.balancer.Exec("nft", "list", "map", "inet", farms.TableName, standIn); strings.Contains(out, virtual4) {
			t.Error(out)
		}
		w.settled()
	}
	if g, err := w.ask("tcp", hostPort(virtual4, "90")); err != nil || g.Port != 80 {
		t.Errorf("the farm: %+v, %v", g, err)
	}
}

// TestFarmTakesThePlaceOfAnother has a farm be renamed in one change, which keeps all elements that
// both have, also where chains come and go with it.
func TestFarmTakesThePlaceOfAnother(t *testing.T) {
	t.Parallel()
	w := newSite(t, 2)
	for _, base := range []model.Farm{
		{Mode: model.SNAT, Scheduler: model.RoundRobin, Addresses: []model.FarmAddress{at(virtual4, port(80))}, SourceAddrs: []netip.Addr{netip.MustParseAddr("10.1.0.1")}},
		{Mode: model.DNAT, Scheduler: model.Weighted, Persist: model.SrcIP, PersistFor: time.Minute, Addresses: []model.FarmAddress{at(virtual4, port(80))}},
		{Mode: model.DNAT, Scheduler: model.RoundRobin, Addresses: []model.FarmAddress{at(virtual4, model.PortSpan{First: 80, Last: 90})}},
		{Mode: model.StatelessDNAT, Scheduler: model.RoundRobin, Addresses: []model.FarmAddress{at(virtual4, port(80))}},
	} {
		base.Backends = backends(2, true, 8080)
		for _, name := range []string{"web", "shop", "awe"} {
			f := base
			f.Name = name
			w.set(&f) // and fails unless the kernel holds what is wanted
			if base.Mode != model.StatelessDNAT {
				w.answers(2, "tcp", hostPort(virtual4, "80"))
			}
		}
	}
}
