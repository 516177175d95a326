// Package drivertest is the one table of packets and their expected fate that every driver passes.
// What a user declares goes through the real store and compiler into the driver, and real packets
// between network namespaces show what the kernel does.
//
// The table starts no programs and reads no files except /proc, so that a static test binary is
// enough to run it, for example in an otherwise empty virtual machine.
package drivertest

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"sluice.dev/sluice/internal/driver"
	"sluice.dev/sluice/internal/kernel/link"
	"sluice.dev/sluice/internal/model"
	"sluice.dev/sluice/internal/upkeep"
)

// Open opens the driver under test in the network namespace of the calling thread.
type Open func() (driver.Driver, error)

// Run runs the whole table on the driver that open opens, for both families, and rows side by side:
// most of the time is waiting. It needs root, and fails if the kernel lacks what the driver's Probe
// requires.
func Run(t *testing.T, open Open) {
	t.Parallel()
	runs(t, open, func(int, family) bool { return true })
}

// RunHalf is Run for one of two modes of a driver, 0 or 1, which carry out what is the same in both
// of them: each row runs with each mode, and for each family, but not with each mode for each
// family.
func RunHalf(t *testing.T, open Open, mode int) {
	t.Parallel()
	runs(t, open, half(mode))
}

// half chooses the tests of a mode, by their number and family.
func half(mode int) func(int, family) bool {
	return func(i int, f family) bool { return (i+int(f)+mode)%2 == 0 }
}

// runs runs those tests that are chosen by their number and family.
func runs(t *testing.T, open Open, chosen func(int, family) bool) {
	type test struct {
		name string
		run  func(*run, *testing.T)
	}
	tests := []test{ // the longest first
		{"restarts", (*run).restarts}, {"rolling update", (*run).rolling}, {"distribution", (*run).distribution}, {"too early", (*run).tooEarly},
	}
	var shared []test // after those that have a driver of their own
	for _, row := range table() {
		if row.shares() {
			shared = append(shared, test{row.name, func(r *run, t *testing.T) { r.row(t, row) }})
		} else {
			tests = append(tests, test{row.name, func(r *run, t *testing.T) { r.row(t, row) }})
		}
	}
	lent := &topologies{parent: t}
	for _, f := range []family{ipv4, ipv6} {
		t.Run(f.String(), func(t *testing.T) {
			t.Parallel()
			apart := func(x test) {
				t.Run(x.name, func(t *testing.T) {
					t.Parallel()
					x.run(&run{topology: lent.lend(t), family: f, open: open}, t)
				})
			}
			apart(test{"nothing is left", (*run).nothingLeft})
			for i, x := range slices.Concat(tests, shared) {
				if chosen(i, f) {
					apart(x)
				}
			}
		})
	}
}

// table returns all rows, in the order of the files.
func table() []row {
	return slices.Concat(clusterIPRows(), externalRows(), policyRows(), endpointRows(), sequenceRows(), nodeRows(), bystanderRows())
}

// A run is one row running for one family.
type run struct {
	*topology
	family  family
	open    Open
	driver  *upkeep.Driver
	adopted bool // the kernel holds what the driver was last given
	cluster *cluster
	flows   map[string]*conn
	clients map[string]*client
	plan    string
}

// start opens a driver of the test's own on a kernel without earlier connections.
func (r *run) start(t *testing.T, c config) {
	t.Helper()
	r.end(t)
	r.prepare(t, c)
	r.reopen(t)
	t.Cleanup(r.stop(t))
}

// adoptEvery is how many rows go by until one replaces what a row before it has left by an
// adoption.
const adoptEvery = 4

// join goes on with the driver that a row before this one has left on the topology, or opens one.
// What there is of that row is replaced by an update; now and then by an adoption, as after
// changes that nobody followed.
func (r *run) join(t *testing.T) {
	t.Helper()
	before := r.shared
	r.prepare(t, config{})
	if r.driver, r.left = r.left, nil; r.driver == nil {
		r.reopen(t)
	} else if r.joined++; before != nil && r.joined%adoptEvery != 0 {
		r.cluster, r.adopted = before, true
	}
	if !r.adopted {
		t.Log("the first programming of this row is an adoption")
	}
	t.Cleanup(func() {
		r.hangUp()
		r.left, r.shared = r.driver, nil
		if r.adopted { // a row that is skipped declares nothing
			r.shared = r.cluster
		}
		if t.Failed() {
			r.end(t)
		}
	})
}

// prepare has a kernel without earlier connections.
func (r *run) prepare(t *testing.T, c config) {
	t.Helper()
	if err := r.node.ConntrackTableFlush(netlink.ConntrackTable); err != nil {
		t.Fatalf("flush connection tracking: %v", err)
	}
	r.flows, r.clients = map[string]*conn{}, map[string]*client{}
	r.cluster = newCluster(r.topology, c)
	err := r.node.Do(func() error {
		underlay, err := link.Here.Underlay()
		r.cluster.compiler.SetUnderlay(underlay)
		return err
	})
	if err != nil {
		t.Fatalf("read the node's addresses: %v", err)
	}
	r.bind(t, c.bound)
}

// nothingLeft shows that the kernel has what the driver needs, and that neither a probe nor a purge
// leaves anything, even a repeated one.
func (r *run) nothingLeft(t *testing.T) {
	r.start(t, config{})
	if err := r.driver.Probe(t.Context()); err != nil {
		t.Fatalf("probe the kernel: %v", err)
	}
	r.foreign.check(t)
	r.step(t, 0, step{services: []svc{{at: "vip", ports: []port{http, dns}, on: "a b x"}}, sends: []send{tcp("c", "vip:80", by("a b x"))}})
	if err := r.driver.Purge(t.Context()); err != nil {
		t.Errorf("purge: %v", err)
	}
	r.foreign.check(t)
}

// stop ends the driver of the test.
func (r *run) stop(t *testing.T) func() {
	return func() {
		r.hangUp()
		r.left = r.driver
		r.end(t)
	}
}

// hangUp closes the connections that the test left open.
func (r *run) hangUp() {
	for _, c := range r.flows {
		_ = c.Close()
	}
}

// end purges and closes the driver that is left on the topology, if any. It shows that a purge
// removes everything of the driver's and nothing of others.
func (w *topology) end(t testing.TB) {
	if w.left == nil {
		return
	}
	if err := w.left.Purge(context.WithoutCancel(t.Context())); err != nil {
		t.Errorf("purge: %v", err)
	}
	if err := w.left.Close(); err != nil {
		t.Errorf("close the driver: %v", err)
	}
	w.left = nil
	w.foreign.check(t)
}

func (r *run) reopen(t *testing.T) {
	t.Helper()
	err := r.node.Do(func() (err error) {
		d, err := r.open()
		if err != nil {
			return err
		}
		r.driver, err = upkeep.Open(d, driver.Options{})
		return err
	})
	if err != nil {
		t.Fatalf("open the driver: %v", err)
	}
}

// row runs the steps. In the end the driver compares the kernel with what it was given: an adoption
// must find nothing to do.
func (r *run) row(t *testing.T, row row) {
	if row.shares() {
		r.join(t)
	} else {
		r.start(t, row.config)
	}
	row.steps = r.without(r.driver.Capabilities().Can, row.steps)
	r.needs(t, r.neededBy(row))
	for i, s := range row.steps {
		r.step(t, i, s)
	}
	r.adopt(t, true)
}

// without returns the steps without what the driver lacks and there is enough beside: restarts, and
// SCTP.
func (r *run) without(can driver.Capability, steps []step) []step {
	steps = slices.Clone(steps)
	for i := range steps {
		s := &steps[i]
		s.restart = s.restart && can&driver.Survives != 0
		others := slices.DeleteFunc(slices.Clone(s.sends), func(s send) bool { return s.proto == model.SCTP })
		if can&driver.SCTP != 0 || len(others) == 0 {
			continue
		}
		s.sends, s.services = others, slices.Clone(s.services)
		for j := range s.services {
			svc := &s.services[j]
			svc.ports = slices.DeleteFunc(slices.Clone(svc.ports), func(p port) bool { return p.proto == model.SCTP })
		}
	}
	return steps
}

// needs skips rows that need what the driver does not support.
func (r *run) needs(t *testing.T, all driver.Capability) {
	t.Helper()
	can := r.driver.Capabilities()
	if lacks := all &^ can.Can; lacks != 0 {
		t.Skipf("the driver %s does not support this row: it lacks %s", can.Name, lacks)
	}
}

// neededBy returns the capabilities that a row needs of a driver.
func (r *run) neededBy(row row) driver.Capability {
	need := driver.Services | row.needs
	if row.config.outgoing {
		need |= driver.Outgoing
	}
	for i, s := range row.steps {
		if s.restart || s.missed {
			need |= driver.Survives
		}
		if s.away && i > 0 {
			need |= driver.Outlasts
		}
		for _, object := range r.declare(r.family, s) {
			if svc, is := object.(*model.Service); is {
				need |= neededByService(svc)
			}
		}
	}
	return need
}

func neededByService(svc *model.Service) (need driver.Capability) {
	if svc.Affinity > 0 {
		need |= driver.Affinity
	}
	if svc.ExternalLocal {
		need |= driver.LocalTraffic
	}
	if svc.SourceRanges != nil {
		need |= driver.SourceRanges
	}
	for _, p := range svc.Ports {
		if p.Protocol == model.SCTP {
			need |= driver.SCTP
		}
	}
	return need
}

func (r *run) step(t *testing.T, i int, s step) {
	t.Helper()
	if s.restart {
		if err := r.driver.Close(); err != nil {
			t.Fatalf("close the driver: %v", err)
		}
		r.reopen(t)
		r.adopt(t, true)
	}
	if err := r.serveAll(r.family, s.services); err != nil {
		t.Fatal(err)
	}
	r.lose(t, s.blackhole, unix.RTN_BLACKHOLE)
	r.lose(t, s.unreachable, unix.RTN_UNREACHABLE)
	r.detour(t, s.detour)
	r.leadByNode(t, s.oneWay)
	delta := r.cluster.declare(r.declare(r.family, s))
	switch {
	case s.away:
		r.leave(t)
	case s.missed:
		if err := r.driver.Close(); err != nil {
			t.Fatalf("close the driver: %v", err)
		}
		r.reopen(t)
		r.adopt(t, false)
	case !r.adopted:
		r.adopt(t, false)
	default:
		plan, err := r.driver.Update(t.Context(), delta)
		if err != nil {
			t.Fatalf("step %d: plan the update: %v", i+1, err)
		}
		r.apply(t, plan)
	}
	time.Sleep(s.pause)
	for _, send := range s.sends {
		if err := r.send(send); err != nil {
			t.Errorf("step %d: %v\n  expected: %v\n  got:      %v%s\n%s", i+1, send, send.fate, err, r.lacking(send), r.plan)
		}
	}
}

// leave ends the driver and removes what it has in the kernel; the next adoption is a new driver's
// first.
func (r *run) leave(t *testing.T) {
	t.Helper()
	if err := r.driver.Purge(t.Context()); err != nil {
		t.Fatalf("purge: %v", err)
	}
	if err := r.driver.Close(); err != nil {
		t.Fatalf("close the driver: %v", err)
	}
	r.reopen(t)
	r.adopted = false
}

// lacking returns what the send needs and this kernel does not have.
func (r *run) lacking(s send) (note string) {
	if s.proto != model.SCTP {
		return ""
	}
	_ = r.node.Do(func() error {
		if _, err := os.Stat("/proc/sys/net/netfilter/nf_conntrack_sctp_timeout_established"); err != nil {
			note = " (this kernel's connection tracking knows no SCTP: CONFIG_NF_CT_PROTO_SCTP)"
		}
		return nil
	})
	return note
}

func (r *run) adopt(t *testing.T, wantEmpty bool) {
	t.Helper()
	if lacks := r.driver.Capabilities().Lacks(r.cluster.state()); len(lacks) > 0 {
		t.Fatalf("the row needs more than it says: %v", lacks)
	}
	plan, err := r.driver.Adopt(t.Context(), r.cluster.state(), driver.Keep{})
	if err != nil {
		t.Fatalf("plan the adoption: %v", err)
	}
	if wantEmpty && plan.Len() > 0 {
		t.Errorf("nothing changed, but adoption plans %d operations:\n%s", plan.Len(), plan)
	}
	r.apply(t, plan)
	r.adopted = true
}

func (r *run) apply(t *testing.T, plan driver.Plan) {
	t.Helper()
	if text := plan.String(); text != "" {
		r.plan = "  plan:\n" + text
	}
	err := plan.Apply(t.Context())
	if err == nil {
		err = r.driver.AwaitCuts(t.Context())
	}
	if err != nil {
		t.Fatalf("apply: %v\n%s", err, r.plan)
	}
}

// send makes the connections of one send until their outcome is certain.
func (r *run) send(s send) error {
	clients := r.turns(s.from)
	to := r.addrPort(s.to, r.family)
	var err error
	inside := clients[0].host.ns.Do(func() error {
		switch {
		case s.flow != "":
			err = r.expectOfFlow(clients[0], s, to)
		case s.fate.outcome == answered:
			err = r.expectAnswers(clients, s, to)
		default:
			err = r.expectNone(clients[0], s, to)
		}
		return nil
	})
	return errors.Join(inside, err)
}

// turns returns the clients of a send.
func (r *run) turns(from string) (clients []*client) {
	for name := range strings.FieldsSeq(from) {
		clients = append(clients, r.client(name))
	}
	return clients
}

func (r *run) client(name string) *client {
	c := r.clients[name]
	if c == nil {
		h := r.hostOf(name)
		c = &client{host: h, from: r.addr(name, r.family), bind: name != h.name, next: uint16(rand.N(60000))}
		r.clients[name] = c
	}
	return c
}

// This is how often a client tries: often enough to meet a backend that it must not meet, and to
// meet each that it may.
const (
	fewestTries = 10
	mostTries   = 500
)

func (r *run) expectAnswers(clients []*client, s send, to netip.AddrPort) error {
	seen := r.backends(r.family, s)
	missing := len(seen)
	var first netip.AddrPort
	for try := range mostTries {
		res := clients[try%len(clients)].once(s, to, patience)
		if err := r.judge(s, res, seen); err != nil {
			return fmt.Errorf("try %d: %w", try+1, err)
		}
		if !seen[res.server] {
			seen[res.server] = true
			missing--
		}
		if !first.IsValid() {
			first = res.server
		}
		if s.fate.sticky && res.server != first {
			return fmt.Errorf("try %d: answered by %s, before by %s", try+1, r.show(res.server), r.show(first))
		}
		if try+1 >= max(fewestTries, len(clients)) && (s.fate.sticky || missing == 0) {
			return nil
		}
	}
	return fmt.Errorf("%d of the backends never answered in %d tries", missing, mostTries)
}

// judge compares one try with a fate that expects an answer.
func (r *run) judge(s send, res result, seen map[netip.AddrPort]bool) error {
	if res.err != nil {
		return r.explain(res.err)
	}
	if _, known := seen[res.server]; !known {
		return fmt.Errorf("answered by %s", r.show(res.server))
	}
	server, node := r.owner[res.server.Addr()], r.hosts["node"]
	toItself := server == r.owner[res.local.Addr()]
	right := res.client.Addr() == res.local.Addr()
	shown := r.driver.Capabilities().Can&driver.ClientAddress != 0 || !r.cluster.serves(s.proto, r.addrPort(s.to, r.family))
	if !shown || server != node && s.fate.source == "node" || s.fate.source == "hairpin" && toItself {
		right = r.owner[res.client.Addr()] == node
	}
	client := r.owner[res.local.Addr()]
	own := res.client.Addr() == res.local.Addr() && client.node == "node"
	if !right && !(own && shown && r.driver.Capabilities().Can&driver.InPackets == 0) {
		return fmt.Errorf("answered by %s, seen from %s by a client at %s", r.show(res.server), r.show(res.client), r.show(res.local))
	}
	return nil
}

// expectNone makes two connections that must be refused at once, or one to which no answer comes,
// not even after another packet on the same path got through.
func (r *run) expectNone(c *client, s send, to netip.AddrPort) error {
	if s.fate.outcome == rejected {
		for range 2 {
			if res := c.once(s, to, patience); !refused(res.err) {
				return r.notNone(res)
			}
		}
		return nil
	}
	before := r.arrivals.Load()
	if res := c.once(s, to, silence); !silent(res.err) {
		return r.notNone(res)
	}
	if r.arrivals.Load() > before {
		return errors.New("no answer, but a server was reached")
	}
	return nil
}

func (r *run) notNone(res result) error {
	if res.err != nil {
		return r.explain(res.err)
	}
	return fmt.Errorf("answered by %s", r.show(res.server))
}

func (r *run) explain(err error) error {
	switch {
	case refused(err):
		return fmt.Errorf("rejected: %w", err)
	case silent(err):
		return fmt.Errorf("no answer: %w", err)
	}
	return err
}

// show prints a socket address with the name of its address.
func (r *run) show(p netip.AddrPort) string {
	return fmt.Sprintf("%s:%d (%v)", r.nameOf(p.Addr()), p.Port(), p.Addr())
}
