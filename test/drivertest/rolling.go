package drivertest

import (
	"errors"
	"fmt"
	"net/netip"
	"sync/atomic"
	"testing"
	"time"

	"github.com/vishvananda/netlink"

	"sluice.dev/sluice/internal/driver"
	"sluice.dev/sluice/internal/model"
)

// rolling replaces the backends of a service one by one, as a Deployment does, while a pod and a
// client outside keep opening connections and exchange data over each. None may fail. An endpoint
// drains until the connections opened before have ended, however long that takes here: what remains
// when it goes is cut.
func (r *run) rolling(t *testing.T) {
	r.start(t, config{})
	services := func(i int) []svc {
		on := fmt.Sprintf("m%d!draining m%d m%d m%d", i, i+1, i+2, i+3)
		return []svc{{at: "vip", ports: []port{httpNode}, on: on}}
	}
	r.step(t, 0, step{services: services(1)})
	load := r.load()
	for i := 2; i+3 <= mostClients; i++ {
		r.step(t, i, step{services: services(i)})
		load.goOn(10)
	}
	load.finish(t)
}

// restarts ends the driver as a kill does, closing only its sockets, and opens it again. It repeats
// this while clients keep opening connections and existing ones go on. None may fail, with or
// without a driver, and each new driver finds nothing to do.
func (r *run) restarts(t *testing.T) {
	r.start(t, config{})
	r.needs(t, driver.Services|driver.Survives|driver.Affinity|driver.LocalTraffic)
	services := func(i int) []svc {
		on := []string{"m1!draining m2 m3 m4 x", "m1 m2 m3!draining m4 x"}[i%2]
		return []svc{
			{at: "vip", ports: []port{httpNode, dnsNode}, on: on},
			{name: "sticky", at: "vip2", lb: "lb", on: "m6 m7 x", edit: func(s *model.Service) { s.Affinity = time.Hour }},
			{name: "local", at: "vip3", ext: "ext", on: on, edit: externalLocal},
		}
	}
	underWay := []send{
		tcp("b", "vip:80", by("m2")).on("pod"), udp("b", "vip:53", by("m2")).on("datagrams"),
		tcp("outside2", "node:30080", by("m2").masked()).on("outside"), tcp("outside2", "ext:80", by("m2")).on("local"),
	}
	r.step(t, 0, step{services: []svc{
		{at: "vip", ports: []port{httpNode, dnsNode}, on: "m2"},
		{name: "local", at: "vip3", ext: "ext", on: "m2", edit: externalLocal},
	}, sends: underWay})
	r.step(t, 1, step{services: services(0)})
	load := r.load()
	for i := range 4 {
		if err := r.driver.Close(); err != nil {
			t.Fatalf("close the driver: %v", err)
		}
		time.Sleep(silence / 2) // connections begin meanwhile
		r.reopen(t)
		r.adopt(t, true)
		r.step(t, 2+i, step{services: services(1 + i), sends: underWay})
	}
	load.finish(t)
}

// tooEarly is about connections whose first packet comes before there is anyone to serve them
// (kubernetes/kubernetes#48719, #101607), or that wait for an answer of who is gone: they are
// answered once there is, and while an agent that comes back finds it so.
func (r *run) tooEarly(t *testing.T) {
	r.start(t, config{})
	r.needs(t, driver.Services)
	can := r.driver.Capabilities().Can
	ports, first := []port{httpNode}, []port{}
	if can&driver.SCTP != 0 {
		ports, first = append(ports, sig), append(first, port{name: "sig", proto: model.SCTP, port: 36412, to: 8412})
	}
	r.swallow(t, "lb ext m1")
	web := svc{at: "vip", on: "a"}
	balanced := func(on string) svc { return svc{at: "vip", lb: "lb", ports: ports, on: on} }
	external := func(on string) svc { return svc{name: "external", at: "vip2", ext: "ext", on: on} }

	r.step(t, 0, step{services: []svc{web}})
	early := []func(){
		r.begin(t, "outside", "lb:80"), r.begin(t, "b", "ext:80"),
		r.ask(t, model.SCTP, "outside", "lb:36412"), r.ask(t, model.SCTP, "outside", "node:30412"), r.ask(t, model.TCP, "outside", "node:30080"),
	}
	begun := r.ask(t, model.SCTP, "outside2", "ext:36412")
	r.step(t, 1, step{services: []svc{balanced("a"), external("a"), {name: "first", at: "vip3", ext: "ext", ports: first}}})
	finish(early...)
	r.step(t, 2, step{services: []svc{web, {name: "first", at: "vip3", ext: "ext", ports: first, on: "a"}}})
	finish(begun)

	if can&driver.LocalTraffic != 0 {
		local := func(on string) []svc { return []svc{{at: "vip", lb: "lb", on: on, edit: externalLocal}} }
		r.step(t, 3, step{services: local("x")})
		here := r.beginUnheard(t, "outside2", "lb:80")
		r.step(t, 4, step{services: local("x a")})
		finish(here)
	}

	if can&driver.Survives != 0 { // a proxy has answered
		r.step(t, 5, step{services: []svc{balanced("m1"), external("m1")}})
		waits := []func(){r.begin(t, "outside", "lb:80"), r.ask(t, model.SCTP, "outside2", "lb:36412")}
		if can&driver.InPackets != 0 {
			waits = append(waits, r.begin(t, "b", "ext:80"))
		}
		r.step(t, 6, step{services: []svc{web, external("a")}})
		r.step(t, 7, step{services: []svc{balanced("a"), external("a")}})
		finish(waits...)
	}

	r.step(t, 8, step{services: []svc{web}})
	late := r.begin(t, "outside2", "ext:80")
	if err := r.driver.Close(); err != nil {
		t.Fatalf("close the driver: %v", err)
	}
	r.reopen(t)
	r.adopted = false
	r.step(t, 9, step{services: []svc{web, external("a")}})
	finish(late)
}

// finish fails the test unless all that was begun is answered.
func finish(begun ...func()) {
	for _, answered := range begun {
		answered()
	}
}

// begin has a client open a TCP connection of which connection tracking then has an entry. What it
// returns fails the test unless the connection is answered in the end.
func (r *run) begin(t *testing.T, from, to string) (answered func()) {
	t.Helper()
	answered = r.dialOn(t, from, to)
	r.awaitEntry(t, r.addrPort(to, r.family))
	return answered
}

// beginUnheard does the same where the node drops the first packet.
func (r *run) beginUnheard(t *testing.T, from, to string) (answered func()) {
	t.Helper()
	w, err := startWatch(r.node, "eth0", r.addrPort(to, r.family).Addr())
	if err != nil {
		t.Fatal(err)
	}
	defer w.close()
	answered = r.dialOn(t, from, to)
	for end := time.Now().Add(patience); w.seen.Load() == 0; time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("nothing comes from %s to %s", from, to)
		}
	}
	return answered
}

// dialOn has a client go on trying to open a TCP connection, also where it is refused meanwhile:
// for IPVS, an address is the node's a moment before it is served.
func (r *run) dialOn(t *testing.T, from, to string) (answered func()) {
	c, at, done := r.client(from), r.addrPort(to, r.family), make(chan error, 1)
	go func() {
		done <- c.host.ns.Do(func() error {
			flow, err := c.dial(model.TCP, 0, at, patience)
			for end := time.Now().Add(patience); refused(err) && time.Now().Before(end); {
				flow, err = c.dial(model.TCP, 0, at, patience)
			}
			if err != nil {
				return err
			}
			_, err = flow.exchange(0, patience)
			return errors.Join(err, flow.Close())
		})
	}()
	return func() {
		t.Helper()
		if err := <-done; err != nil {
			t.Errorf("%s began to ask %s before it was served: %v\n%s", from, to, err, r.plan)
		}
	}
}

// ask has a client ask in vain, and again from the same port to be answered in the end; nothing of
// SCTP, if the driver has none.
func (r *run) ask(t *testing.T, p model.Protocol, from, to string) (answered func()) {
	t.Helper()
	if p == model.SCTP && r.driver.Capabilities().Can&driver.SCTP == 0 {
		return func() {}
	}
	c, at := r.client(from), r.addrPort(to, r.family)
	c.next++
	own, tag := netip.AddrPortFrom(c.from, 40000+c.next%20000), uint32(c.next)<<8|1
	try := func(timeout time.Duration) (err error) {
		inside := c.host.ns.Do(func() error {
			if p == model.SCTP {
				_, err = initSCTP(own, at, tag, timeout)
			} else {
				err = c.once(send{proto: p, port: own.Port()}, at, timeout).err
			}
			return nil
		})
		return errors.Join(inside, err)
	}
	if err := try(silence); err == nil {
		t.Errorf("%s is answered by %s over %s, though nobody serves it", from, to, p)
	}
	return func() {
		t.Helper()
		if err := try(patience); err != nil {
			t.Errorf("%s asks %s over %s, and asked before it was served: %v\n%s", from, to, p, err, r.plan)
		}
	}
}

// awaitEntry waits until the node's connection tracking has an entry of TCP to an address.
func (r *run) awaitEntry(t *testing.T, to netip.AddrPort) {
	t.Helper()
	family := netlink.InetFamily(socketFamily(to.Addr()))
	for end := time.Now().Add(patience); ; time.Sleep(10 * time.Millisecond) {
		flows, err := r.node.ConntrackTableList(netlink.ConntrackTable, family)
		if err != nil {
			t.Fatalf("list connection tracking: %v", err)
		}
		for _, f := range flows {
			if a, _ := netip.AddrFromSlice(f.Forward.DstIP); a.Unmap() == to.Addr() && f.Forward.DstPort == to.Port() {
				return
			}
		}
		if time.Now().After(end) {
			t.Fatalf("the node has no entry of a connection to %v", to)
		}
	}
}

// A load is a group of clients that open connections until they are stopped.
type load struct {
	stop    chan struct{}
	callers []*caller
}

// A caller makes one connection after the other.
type caller struct {
	made  atomic.Int64  // completed connections
	ended chan struct{} // closed when the caller has stopped, or a connection failed
	err   error         // set by then
}

// load starts clients in a pod, on the node and outside, for every address of the services.
func (r *run) load() *load {
	l := &load{stop: make(chan struct{})}
	for _, way := range [][2]string{{"c", "vip:80"}, {"node", "vip:80"}, {"outside", "node:30080"}, {"c", "vip2:80"}, {"outside", "lb:80"}, {"outside", "ext:80"}} {
		if r.cluster.serves(model.TCP, r.addrPort(way[1], r.family)) {
			l.callers = append(l.callers, r.keepConnecting(way[0], way[1], l.stop))
		}
	}
	return l
}

// goOn returns when each client has completed n more connections, or has stopped. The first of them
// may have begun before.
func (l *load) goOn(n int64) {
	want := make([]int64, len(l.callers))
	for i, c := range l.callers {
		want[i] = c.made.Load() + n
	}
	for i, c := range l.callers {
		for c.made.Load() < want[i] && !c.stopped() {
			time.Sleep(time.Millisecond)
		}
	}
}

// finish stops the clients; none of their connections may have failed.
func (l *load) finish(t *testing.T) {
	t.Helper()
	close(l.stop)
	for _, c := range l.callers {
		if <-c.ended; c.err != nil {
			t.Errorf("under load: %v", c.err)
		}
	}
}

func (c *caller) stopped() bool {
	select {
	case <-c.ended:
		return true
	default:
		return false
	}
}

// keepConnecting makes one connection after the other until stop is closed or one fails.
func (r *run) keepConnecting(from, to string, stop <-chan struct{}) *caller {
	c, dst := r.client(from), r.addrPort(to, r.family)
	caller := &caller{ended: make(chan struct{})}
	go func() {
		defer close(caller.ended)
		caller.err = c.host.ns.Do(func() error {
			for n := 1; ; n++ {
				select {
				case <-stop:
					return nil
				default:
				}
				if res := c.once(send{proto: model.TCP, size: 4096}, dst, patience); res.err != nil {
					return fmt.Errorf("connection %d from %s to %s: %w", n, from, to, res.err)
				}
				caller.made.Add(1)
				time.Sleep(time.Millisecond) // what changes meanwhile needs the processor, too
			}
		})
	}()
	return caller
}
