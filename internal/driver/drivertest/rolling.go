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
// (kubernetes/kubernetes#48719, #101607): they are answered once there is, and while an agent that
// comes back finds it so.
func (r *run) tooEarly(t *testing.T) {
	r.start(t, config{})
	r.needs(t, driver.Services)
	r.swallow(t, "lb ext")
	begin := func(from, to string) func() {
		c, at, answered := r.client(from), netip.AddrPortFrom(r.addr(to, r.family), 80), make(chan error, 1)
		go func() {
			answered <- c.host.ns.Do(func() error {
				flow, err := c.dial(model.TCP, 0, at, patience)
				if err != nil {
					return err
				}
				_, err = flow.exchange(0, patience)
				return errors.Join(err, flow.Close())
			})
		}()
		r.awaitEntry(t, at)
		return func() {
			if err := <-answered; err != nil {
				t.Errorf("%s began to ask %s:80 before it was served: %v\n%s", from, to, err, r.plan)
			}
		}
	}
	services := []svc{{at: "vip", lb: "lb", on: "a"}, {name: "other", at: "vip2", ext: "ext", on: "a"}}
	r.step(t, 0, step{services: []svc{{at: "vip", on: "a"}}})
	outside, pod := begin("outside", "lb"), begin("b", "ext")
	r.step(t, 1, step{services: services})
	outside()
	pod()
	r.step(t, 2, step{services: []svc{{at: "vip", on: "a"}}})
	late := begin("outside2", "ext")
	if err := r.driver.Close(); err != nil {
		t.Fatalf("close the driver: %v", err)
	}
	r.reopen(t)
	r.adopted = false
	r.step(t, 3, step{services: services})
	late()
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
