package nftables_test

import (
	"context"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/nftables"
	"golang.org/x/sys/unix"

	farms "sluice.dev/sluice/internal/balancer/nftables"
	"sluice.dev/sluice/internal/driver"
	"sluice.dev/sluice/internal/driver/table"
	"sluice.dev/sluice/internal/kernel/nft"
	"sluice.dev/sluice/internal/model"
	"sluice.dev/sluice/test/nfttest"
	"sluice.dev/sluice/test/world"
)

// TestOtherRuleset has a driver find the tables of another release, and the other way round, while
// clients connect. A packet meets one of the tables at each moment, and finds there what the rules
// look up.
func TestOtherRuleset(t *testing.T) {
	t.Parallel()
	w, _ := newDirectSite(t, 3)
	direct, translated := dsr(virtual4, true, port(80)), &model.Farm{Name: "snat", Mode: model.SNAT, Scheduler: model.RoundRobin,
		Addresses: []model.FarmAddress{at(virtual4, port(81))}, Backends: backends(3, true, 81)}
	w.set(direct, translated)
	open := map[bool]func(farms.Options) (*farms.Driver, error){false: farms.Open, true: farms.OpenOther}
	load := w.load(hostPort(virtual4, "80"), hostPort(virtual4, "81"))
	for i := range 4 {
		w.close()
		var d *farms.Driver
		w.balancer.In(func() (err error) { d, err = open[i%2 == 0](farms.Options{}); return err })
		w.driver = d
		for _, s := range d.Sockets() {
			nfttest.Watch(t, w.balancer.NS, s, func(*nftables.Chain) bool { return true })
		}
		p, err := d.Adopt(t.Context(), w.state, driver.Keep{})
		w.must(err)
		if p.Len() == 0 || !strings.Contains(p.String(), "replace table") {
			t.Errorf("of a table with another ruleset:\n%s", p)
		}
		w.must(p.Apply(t.Context()))
		for _, s := range d.Sockets() {
			s.Refuse = nil
		}
		w.settled()
		if out, err := w.balancer.Run("nft", "list", "tables"); err != nil || strings.Contains(string(out), "next") {
			t.Errorf("%v\n%s", err, out)
		}
	}
	load()
}

// TestOtherRulesetRemembers has clients stay on their backends when a driver with another ruleset
// follows.
func TestOtherRulesetRemembers(t *testing.T) {
	t.Parallel()
	both(t, func(t *testing.T, w *site, is4 bool, virtual, _ string) {
		w.set(&model.Farm{Name: "web", Mode: model.DNAT, Persist: model.SrcIP, PersistFor: time.Minute, Backends: backends(3, is4, 8080),
			Addresses: []model.FarmAddress{at(virtual, port(80))}})
		// Another client is first, and would be given the first backend again.
		other := netip.MustParseAddr(map[bool]string{true: "10.0.0.3", false: "fd00::3"}[is4])
		_, err := w.client.Ask("tcp", other.String(), hostPort(virtual, "80"), world.Patience)
		w.must(err)
		before := w.answers(1, "tcp", hostPort(virtual, "80"))
		for _, open := range []func(farms.Options) (*farms.Driver, error){farms.OpenOther, farms.Open} {
			w.close()
			w.balancer.In(func() (err error) { w.driver, err = open(farms.Options{}); return err })
			w.apply(w.driver.Adopt(t.Context(), w.state, driver.Keep{}))
			for server, n := range w.answers(6, "tcp", hostPort(virtual, "80")) {
				if before[server] == 0 {
					t.Errorf("%s answers %d, and before it was %v", server, n, before)
				}
			}
		}
	})
}

// TestOtherRulesetRemembersFewer has a ruleset follow that has no room for all remembered clients.
func TestOtherRulesetRemembersFewer(t *testing.T) {
	t.Parallel()
	w := newSite(t, 1)
	w.set(persistent())
	w.askAs("10.0.0.2", "10.0.0.3")
	w.close()
	w.balancer.In(func() (err error) { w.driver, err = farms.Open(farms.Options{Clients: 1}); return err })
	w.apply(w.driver.Adopt(t.Context(), w.state, driver.Keep{}))
	if n := len(w.remembered()); n != 1 {
		t.Errorf("%d clients are remembered", n)
	}
	w.settled()
}

// TestOtherRulesetRemembersLate has a client come when the table beside serves alone.
func TestOtherRulesetRemembersLate(t *testing.T) {
	t.Parallel()
	w := newSite(t, 1)
	w.set(persistent())
	w.askAs("10.0.0.2")
	w.close()
	var d *farms.Driver
	w.balancer.In(func() (err error) { d, err = farms.OpenOther(farms.Options{}); return err })
	w.driver = d
	for _, s := range d.Sockets() {
		s.Refuse = func(_ [][]byte, labels []string) error {
			if slices.Contains(labels, "delete table inet "+farms.TableName) {
				w.askAs("10.0.0.3")
			}
			return nil
		}
	}
	w.apply(d.Adopt(t.Context(), w.state, driver.Keep{}))
	if have := w.remembered(); !have["10.0.0.2"] || !have["10.0.0.3"] {
		t.Errorf("remembered are %v", have)
	}
}

// TestOtherRulesetInterrupted has the change to another ruleset fail at each of its transactions:
// farms are served all the same, and the next driver finishes it. A client stays remembered.
func TestOtherRulesetInterrupted(t *testing.T) {
	t.Parallel()
	w := newSite(t, 1)
	w.set(persistent())
	w.askAs("10.0.0.2")
	open := map[bool]func(farms.Options) (*farms.Driver, error){false: farms.Open, true: farms.OpenOther}
	for fails, done := 1, false; !done; fails++ {
		w.close()
		var d *farms.Driver
		w.balancer.In(func() (err error) { d, err = open[fails%2 == 1](farms.Options{}); return err })
		w.driver = d
		p, err := d.Adopt(t.Context(), w.state, driver.Keep{})
		w.must(err)
		transactions := 0
		for _, s := range d.Sockets() {
			s.Refuse = func([][]byte, []string) error {
				if transactions++; transactions == fails {
					return context.Canceled
				}
				return nil
			}
		}
		done = p.Apply(t.Context()) == nil
		w.answers(3, "tcp", hostPort(virtual4, "80"))
		for _, s := range d.Sockets() {
			s.Refuse = nil
		}
		w.apply(d.Adopt(t.Context(), w.state, driver.Keep{}))
		if !w.remembered()["10.0.0.2"] {
			t.Errorf("the client is forgotten where transaction %d fails", fails)
		}
		w.answers(3, "tcp", hostPort(virtual4, "80"))
		w.settled()
	}
}

// TestAdoptionsThatFail has something keep adoptions from succeeding: a fresh table takes the place
// of ours, while clients connect, with what that remembers.
func TestAdoptionsThatFail(t *testing.T) {
	t.Parallel()
	w := newSite(t, 1)
	w.set(persistent())
	w.askAs("10.0.0.2")
	w.close()
	f := persistent()
	f.Addresses = append(f.Addresses, at(virtual4, port(81)))
	w.state.Apply(w.farms(f))
	w.start()
	d := w.rules()
	d.Sock.Refuse = func(_ [][]byte, labels []string) error {
		fresh := slices.ContainsFunc(labels, func(l string) bool { return strings.HasPrefix(l, "create table ") })
		if slices.Contains(labels, "add elements to ip-slots") && !fresh {
			return nft.Answer("commit", unix.EEXIST)
		}
		return nil
	}
	load := w.load(hostPort(virtual4, "80"))
	failed := table.Failures(0)
	for ; failed < 2*table.RebuildAfter; failed++ {
		p, err := d.Adopt(t.Context(), w.state, driver.Keep{})
		w.must(err)
		if p.Apply(t.Context()) == nil {
			break
		}
	}
	load()
	if failed != table.RebuildAfter {
		t.Errorf("%d adoptions failed", failed)
	}
	d.Sock.Refuse = nil
	w.settled()
	if !w.remembered()["10.0.0.2"] {
		t.Error("the client is forgotten")
	}
	w.answers(1, "tcp", hostPort(virtual4, "81"))
}

// persistent is a farm that remembers clients.
func persistent() *model.Farm {
	return &model.Farm{Name: "web", Mode: model.DNAT, Persist: model.SrcIP, PersistFor: time.Hour,
		Addresses: []model.FarmAddress{at(virtual4, port(80))}, Backends: backends(1, true, 80)}
}

// askAs asks the persistent farm from these addresses.
func (w *site) askAs(clients ...string) {
	w.t.Helper()
	for _, c := range clients {
		_, err := w.client.Ask("tcp", c, hostPort(virtual4, "80"), world.Patience)
		w.must(err)
	}
}

// remembered are the clients that the persistent farm remembers.
func (w *site) remembered() map[string]bool {
	w.t.Helper()
	sessions, err := w.rules().Sessions(w.t.Context(), "web")
	w.must(err)
	have := map[string]bool{}
	for _, s := range sessions {
		have[s.Client.SrcIP.String()] = true
	}
	return have
}

// load has a client connect again and again to each of these, until what it returns is called. No
// connection may fail.
func (w *site) load(all ...string) (finish func()) {
	var running sync.WaitGroup
	var ended atomic.Bool
	for _, to := range all {
		running.Go(func() {
			for n := 0; !ended.Load() || n == 0; n++ {
				if _, err := w.ask("tcp", to); err != nil {
					w.t.Errorf("connection %d to %s: %v", n, to, err)
				}
			}
		})
	}
	finish = sync.OnceFunc(func() { ended.Store(true); running.Wait() })
	w.t.Cleanup(finish)
	return finish
}

// TestStepFails has one of the steps of a change fail. What the steps before did is ours: the
// next adoption goes on from there, in the same table.
func TestStepFails(t *testing.T) {
	t.Parallel()
	w := newSite(t, 1)
	for fails, done := 1, false; !done; fails++ {
		w.set(persistent())
		delta := w.farms()
		p, err := w.driver.Update(t.Context(), delta)
		w.must(err)
		sock, transactions := w.rules().Sockets()[1], 0
		sock.Refuse = func([][]byte, []string) error {
			if transactions++; transactions >= fails {
				return context.Canceled
			}
			return nil
		}
		done = p.Apply(t.Context()) == nil
		sock.Refuse = nil
		w.state.Apply(delta)
		p, err = w.driver.Adopt(t.Context(), w.state, driver.Keep{})
		w.must(err)
		if strings.Contains(p.String(), "replace table") {
			t.Errorf("after transaction %d failed:\n%s", fails, p)
		}
		w.must(p.Apply(t.Context()))
		w.settled()
	}
}
