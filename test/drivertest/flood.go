package drivertest

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"os"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"sluice.dev/sluice/internal/driver"
	"sluice.dev/sluice/internal/model"
	"sluice.dev/sluice/test/machine"
)

// floodFlows is how many new flows each family's flood has, unless the kernel's connection table is
// too small.
const floodFlows = 9000

// Flood sends new flows to a service from a pod, from the node and from outside, while its backends
// and their number change as fast as the driver can. No packet may leave the node untranslated.
func Flood(t *testing.T, open Open) {
	t.Parallel()
	floods(t, open, func(int, family) bool { return true })
}

// FloodHalf is to Flood what RunHalf is to Run.
func FloodHalf(t *testing.T, open Open, mode int) {
	t.Parallel()
	floods(t, open, half(mode))
}

func floods(t *testing.T, open Open, chosen func(int, family) bool) {
	machine.Conntrack.Take(t)
	w := newTopology(t)
	for _, f := range []family{ipv4, ipv6} {
		for i, options := range []bool{false, true} {
			if !chosen(i, f) {
				continue
			}
			name := f.String() + " backends"
			if options {
				name += " and options"
			}
			t.Run(name, func(t *testing.T) { (&run{topology: w, family: f, open: open}).flood(t, options) })
		}
	}
}

// flood changes the backends and, if options is set, the other settings of the service, which lead
// its packets through other chains.
func (r *run) flood(t *testing.T, options bool) {
	var watches []*watch
	for _, name := range []string{"vip", "ext"} {
		w, err := startWatch(r.wire, "to-node", r.addr(name, r.family))
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(w.close)
		watches = append(watches, w)
	}
	r.start(t, config{})
	// A driver that is a program itself, and no more than that, answers a first packet itself.
	need := driver.Services | driver.Survives
	if options {
		need |= driver.Affinity | driver.LocalTraffic
	}
	r.needs(t, need)
	services := func(n int) []svc {
		s := svc{at: "vip", ext: "ext", ports: []port{http, dns}, on: shuffled(n)}
		if options {
			s.edit = func(s *model.Service) {
				s.Affinity, s.ExternalLocal, s.InternalLocal = time.Duration(rand.N(2))*time.Hour, rand.N(2) == 0, rand.N(2) == 0
			}
		}
		return []svc{s}
	}
	r.proveWatches(t, watches)
	r.cluster.declare(r.declare(r.family, step{services: services(5)}))
	r.adopt(t, false)

	flows, before := floodSize(), r.received(t, "m")
	sent := make(chan error, 1)
	var updates atomic.Int64
	go func() { sent <- r.sendFlood(t.Context(), flows, &updates) }()
	for {
		select {
		case err := <-sent:
			if err != nil {
				t.Fatalf("send the flood: %v", err)
			}
			// With affinity, a packet to a removed backend is lost.
			least := flows * 99 / 100
			if options {
				least = flows / 2
			}
			r.judgeFlood(t, watches, flows, int(updates.Load()), r.received(t, "m")-before, least)
			return
		default:
		}
		plan, err := r.driver.Update(t.Context(), r.cluster.declare(r.declare(r.family, step{services: services(1 + rand.N(20))})))
		if err != nil {
			t.Fatalf("plan the update: %v", err)
		}
		r.apply(t, plan)
		updates.Add(1)
	}
}

// judgeFlood also checks that at least that many flows reached a backend: few may meet a chain that
// changes while they pass.
func (r *run) judgeFlood(t *testing.T, watches []*watch, flows, updates, arrived, least int) {
	time.Sleep(silence) // the path of the last packet is short
	escaped := watches[0].seen.Load() + watches[1].seen.Load()
	t.Logf("%d new flows during %d updates: %d packets reached the backends' pod, %d escaped untranslated", flows, updates, arrived, escaped)
	if escaped > 0 {
		t.Errorf("%d packets escaped untranslated", escaped)
	}
	if arrived < least {
		t.Errorf("only %d of %d flows reached a backend", arrived, flows)
	}
	if updates < fewestUpdates {
		t.Errorf("only %d updates fell into the flood", updates)
	}
}

// shuffled returns n of the addresses of the pod that has many.
func shuffled(n int) string {
	all := strings.Fields(many(mostClients))
	rand.Shuffle(len(all), func(i, j int) { all[i], all[j] = all[j], all[i] })
	return strings.Join(all[:n], " ")
}

// proveWatches shows that the watches notice an untranslated packet.
func (r *run) proveWatches(t *testing.T, watches []*watch) {
	t.Helper()
	for i, name := range []string{"vip", "ext"} {
		to := netip.AddrPortFrom(r.addr(name, r.family), 53)
		if err := r.client("c").host.ns.Do(func() error { return sendRaw(r.addr("c", r.family), to, model.UDP, 1, 1) }); err != nil {
			t.Fatal(err)
		}
		for end := time.Now().Add(patience); watches[i].seen.Load() == 0; time.Sleep(time.Millisecond) {
			if time.Now().After(end) {
				t.Fatalf("a packet to %s escaped, as it should with nothing programmed, but no watch noticed it", to)
			}
		}
	}
	time.Sleep(silence) // what escaped goes back and forth until its hop limit ends it
	for _, w := range watches {
		w.seen.Store(0)
	}
}

// floodSize returns a number of flows that leaves room in the connection table.
func floodSize() int {
	var limit int
	b, err := os.ReadFile("/proc/sys/net/netfilter/nf_conntrack_max")
	if err == nil {
		_, err = fmt.Sscan(string(b), &limit)
	}
	if err != nil {
		return floodFlows
	}
	return min(floodFlows, limit/2/6*6)
}

// fewestUpdates must fall into a flood.
const fewestUpdates = 20

// sendFlood sends the first packets of that many flows, in turns from a pod, from the node and from
// outside, each with its own source port. Each turn waits for an update that was not there at the
// one before.
func (r *run) sendFlood(ctx context.Context, flows int, updates *atomic.Int64) error {
	each := flows / 6
	turn := (each + fewestUpdates - 1) / fewestUpdates
	for first := 0; first < each; first += turn {
		for updates.Load() <= int64(first/turn) {
			select {
			case <-ctx.Done():
				return ctx.Err()
			case <-time.After(time.Millisecond):
			}
		}
		for _, from := range []string{"c", "node", "outside"} {
			tcp := func() error {
				return sendRaw(r.addr(from, r.family), r.addrPort("vip:80", r.family), model.TCP, 1024+first, min(turn, each-first))
			}
			udp := func() error {
				return sendRaw(r.addr(from, r.family), r.addrPort("ext:53", r.family), model.UDP, 1024+first, min(turn, each-first))
			}
			if err := errors.Join(r.hostOf(from).ns.Do(tcp), r.hostOf(from).ns.Do(udp)); err != nil {
				return err
			}
		}
	}
	return nil
}

// sendRaw sends the first packet of each of that many flows, in the calling thread's namespace,
// slowly enough that no queue on the path overflows.
func sendRaw(from netip.Addr, to netip.AddrPort, proto model.Protocol, firstPort, flows int) error {
	fd, err := rawSocket(int(proto), from, time.Second)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	for i := range flows {
		src := netip.AddrPortFrom(from, uint16(firstPort+i))
		packet := datagram(src, to, []byte("flood"))
		if proto == model.TCP {
			packet = segment(src, to, tcpSYN, 1, 0, nil)
		}
		err := unix.Sendto(fd, packet, 0, sockaddr(to.Addr()))
		// Refused: nothing listens behind an earlier one, which is fine. No buffers: the path is
		// full, as on a slow machine.
		for errors.Is(err, unix.ECONNREFUSED) || errors.Is(err, unix.ENOBUFS) {
			if errors.Is(err, unix.ENOBUFS) {
				time.Sleep(time.Millisecond)
			}
			err = unix.Sendto(fd, packet, 0, sockaddr(to.Addr()))
		}
		// A dropped packet of the node itself is an error here, but not a fault of the flood.
		if err != nil && !errors.Is(err, unix.EPERM) {
			return fmt.Errorf("send from %v to %v: %w", src, to, err)
		}
		if i%200 == 199 {
			time.Sleep(time.Millisecond)
		}
	}
	return nil
}

// received returns the number of packets that a host's interface has received.
func (r *run) received(t *testing.T, name string) int {
	t.Helper()
	link, err := r.hosts[name].ns.LinkByName("eth0")
	if err != nil {
		t.Fatalf("read the counters of %s: %v", name, err)
	}
	return int(link.Attrs().Statistics.RxPackets)
}
