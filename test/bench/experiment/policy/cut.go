package policy

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"sluice.dev/sluice/internal/kernel/conntrack"
	"sluice.dev/sluice/internal/store"
	"sluice.dev/sluice/test/bench/chart"
	"sluice.dev/sluice/test/bench/cluster"
	"sluice.dev/sluice/test/bench/harness"
	"sluice.dev/sluice/test/bench/peer"
	"sluice.dev/sluice/test/bench/report"
	"sluice.dev/sluice/test/bench/testbed"
	"sluice.dev/sluice/test/netns"
)

// Cut is the experiment policy-cut.
var Cut = harness.Experiment{
	Name:  "policy-cut",
	Title: "What policy forbids ends",
	How: "Two pods of a node talk UDP over ten connections: either one asks and the other answers, or the one that was asked once sends on and on; a packet each millisecond and connection. " +
		"A label of one pod changes, and a policy forbids all of them. The clock runs from the kernel's acknowledgement of the change to the last packet that either pod receives, and to the moment when the driver says that the cut is done; packets after that are counted. " +
		"Connection tracking holds as many other connections. In the modes nftables and iptables; the latter does not look for connections of which answers alone come.",
	Run:    runCut,
	Charts: cutCharts,
}

// What the pods do.
const (
	asking    = "asking"
	streaming = "streaming"
)

const (
	lastPacket = "last packet"
	cutDone    = "cut done"
	cutFlows   = 10
)

func runCut(ctx context.Context, r *harness.Run) error {
	tries := 50
	if r.Full() {
		tries = 100
	}
	for _, entries := range []int{10_000, 250_000} {
		for _, mode := range []peer.Mode{"", peer.IptablesLegacy} {
			if err := cutAmong(ctx, r, mode, entries, tries); err != nil {
				return fmt.Errorf("%s, among %d connections: %w", mode.Name(), entries, err)
			}
		}
	}
	return nil
}

// cutAmong measures beside so many connections of others.
func cutAmong(ctx context.Context, r *harness.Run, mode peer.Mode, entries, tries int) (err error) {
	t := cluster.Tenants{Pods: PodsOnNode, Local: PodsOnNode, Policies: cluster.PoliciesPerPod}
	l, n, err := newNode(ctx, r, mode, t)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, n.Close(), l.Close()) }()
	if err := fill(l.Node, entries); err != nil {
		return err
	}
	for _, variant := range []string{asking, streaming} {
		late := 0
		var last, done []time.Duration
		for range tries {
			c, err := cutOnce(ctx, l, n, t, variant)
			if err != nil {
				return err
			}
			last, done = append(last, c.last), append(done, c.done)
			late += c.late
		}
		r.Logf("%s, %d connections, %s: %d packets after the cut was done", mode.Name(), entries, variant, late)
		cutResults(r, mode, entries, variant, last, done, late)
	}
	return nil
}

// cutResults adds the percentiles of one case, and its goals.
func cutResults(r *harness.Run, mode peer.Mode, entries int, variant string, last, done []time.Duration, late int) {
	for metric, took := range map[string][]time.Duration{lastPacket: last, cutDone: done} {
		slices.Sort(took)
		for _, p := range []struct {
			name string
			of   int
		}{{harness.Half, 50}, {harness.NinetyNine, 99}} {
			r.Add(cutMeasurement(mode, entries, variant, metric+", "+p.name), harness.Millis(took[len(took)*p.of/100]))
		}
	}
	most := map[int]float64{10_000: 10, 250_000: 50}[entries]
	p99 := harness.Millis(last[len(last)*99/100])
	what := fmt.Sprintf("%s, %s, %s connections", mode.Name(), variant, chart.Number(float64(entries)))
	r.Goal(what+": from the kernel's acknowledgement to the last forbidden packet, "+harness.NinetyNine, fmt.Sprintf("≤ %g ms", most), fmt.Sprintf("%.2f ms", p99), p99 <= most)
	r.Goal(what+": forbidden packets after the cut is said to be done", "0", fmt.Sprint(late), late == 0)
}

func cutMeasurement(mode peer.Mode, entries int, variant, metric string) report.Measurement {
	return report.Measurement{Dataplane: mode.Name(), Addresses: entries, Variant: variant, Metric: metric, Unit: "ms"}
}

// cutting is one try.
type cutting struct {
	last, done time.Duration // since the kernel's acknowledgement
	late       int           // packets after done
}

// cutOnce forbids connections that are allowed, and allows them again.
func cutOnce(ctx context.Context, l *testbed.Testbed, n *peer.Node, t cluster.Tenants, variant string) (c cutting, err error) {
	talk, err := newTalk(l, t, variant)
	if err != nil {
		return c, err
	}
	defer talk.end()
	if err := talk.flowing(ctx); err != nil {
		return c, err
	}
	labelled := t.Pod(0)
	labelled.Labels = map[string]string{"set-0": "other"}
	if _, err := n.Apply(ctx, []store.Event{cluster.PodEvent(labelled)}); err != nil {
		return c, err
	}
	acknowledged := time.Now()
	if err := n.AwaitCuts(ctx); err != nil {
		return c, err
	}
	done := time.Now()
	if err := harness.Wait(ctx, 50*time.Millisecond); err != nil {
		return c, err
	}
	c.late = talk.since(done)
	c.last, c.done = max(0, talk.last().Sub(acknowledged)), done.Sub(acknowledged)
	if _, err := n.Apply(ctx, []store.Event{cluster.PodEvent(t.Pod(0))}); err != nil {
		return c, err
	}
	return c, n.AwaitCuts(ctx)
}

// talk is what two pods say to each other.
type talk struct {
	conns    []*net.UDPConn
	server   *net.UDPConn
	working  sync.WaitGroup
	stop     chan struct{}
	mu       sync.Mutex
	arrivals []time.Time
	answered [cutFlows]atomic.Bool
}

// newTalk opens connections between the first two pods to the port that the first policy opens.
func newTalk(l *testbed.Testbed, t cluster.Tenants, variant string) (*talk, error) {
	k := &talk{stop: make(chan struct{})}
	at := netip.AddrPortFrom(cluster.PodAddr(1, t.Local), cluster.TenantPort)
	err := l.Backend.Do(func() (err error) {
		k.server, err = net.ListenUDP("udp4", net.UDPAddrFromAddrPort(at))
		return errors.Join(err, stamp(k.server))
	})
	if err != nil {
		return nil, err
	}
	err = l.Client.Do(func() error {
		for range cutFlows {
			c, err := net.DialUDP("udp4", nil, net.UDPAddrFromAddrPort(at))
			if err = errors.Join(err, stamp(c)); err != nil {
				return err
			}
			k.conns = append(k.conns, c)
		}
		return nil
	})
	k.working.Go(func() { k.serve(variant) })
	for i, c := range k.conns {
		k.working.Go(func() { k.hear(c, &k.answered[i]) })
	}
	k.working.Go(func() { k.ask(variant) })
	return k, err
}

func (k *talk) end() {
	close(k.stop)
	for _, c := range k.conns {
		_ = c.Close()
	}
	_ = k.server.Close()
	k.working.Wait()
}

// stamp has the kernel say when packets arrive: whoever reads them may be late.
func stamp(c *net.UDPConn) error {
	raw, err := c.SyscallConn()
	if err != nil {
		return err
	}
	var failed error
	err = raw.Control(func(fd uintptr) { failed = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_TIMESTAMPNS, 1) })
	return errors.Join(err, failed)
}

// receive waits for a packet, and notes when it arrived.
func (k *talk) receive(c *net.UDPConn) (from netip.AddrPort, err error) {
	var buf [8]byte
	var notes [64]byte
	_, n, _, from, err := c.ReadMsgUDPAddrPort(buf[:], notes[:])
	if err != nil {
		return from, err
	}
	messages, err := unix.ParseSocketControlMessage(notes[:n])
	if err != nil || len(messages) != 1 || len(messages[0].Data) < 16 {
		return from, fmt.Errorf("a packet without a time stamp: %w", err)
	}
	at := messages[0].Data
	arrived := time.Unix(int64(binary.NativeEndian.Uint64(at)), int64(binary.NativeEndian.Uint64(at[8:])))
	k.mu.Lock()
	k.arrivals = append(k.arrivals, arrived)
	k.mu.Unlock()
	return from, nil
}

// ask sends on each connection in turn until it has been answered, or for good.
func (k *talk) ask(variant string) {
	k.inTurn(func(i int) {
		if variant == asking || !k.answered[i].Load() {
			_, _ = k.conns[i].Write([]byte("?"))
		}
	})
}

// inTurn calls f for each connection once a millisecond.
func (k *talk) inTurn(f func(i int)) {
	pause := unix.NsecToTimespec(int64(time.Millisecond) / cutFlows)
	for i := 0; ; i = (i + 1) % cutFlows {
		select {
		case <-k.stop:
			return
		default:
		}
		f(i)
		_ = unix.Nanosleep(&pause, nil)
	}
}

func (k *talk) hear(c *net.UDPConn, answered *atomic.Bool) {
	for {
		if _, err := k.receive(c); errors.Is(err, net.ErrClosed) {
			return
		} else if err == nil {
			answered.Store(true)
		}
	}
}

// serve answers; streaming, it goes on sending to whoever has asked.
func (k *talk) serve(variant string) {
	var mu sync.Mutex
	var clients []netip.AddrPort
	if variant == streaming {
		k.working.Go(func() {
			k.inTurn(func(i int) {
				mu.Lock()
				defer mu.Unlock()
				if i < len(clients) {
					_, _ = k.server.WriteToUDPAddrPort([]byte("!"), clients[i])
				}
			})
		})
	}
	for {
		from, err := k.receive(k.server)
		if errors.Is(err, net.ErrClosed) {
			return
		}
		if err != nil {
			continue
		}
		_, _ = k.server.WriteToUDPAddrPort([]byte("!"), from)
		mu.Lock()
		if !slices.Contains(clients, from) {
			clients = append(clients, from)
		}
		mu.Unlock()
	}
}

// flowing returns once all connections are answered.
func (k *talk) flowing(ctx context.Context) error {
	for i := range k.answered {
		for !k.answered[i].Load() {
			if err := harness.Wait(ctx, time.Millisecond); err != nil {
				return err
			}
		}
	}
	return harness.Wait(ctx, 5*time.Millisecond)
}

func (k *talk) last() (t time.Time) {
	k.mu.Lock()
	defer k.mu.Unlock()
	for _, a := range k.arrivals {
		if a.After(t) {
			t = a
		}
	}
	return t
}

func (k *talk) since(t time.Time) (n int) {
	k.mu.Lock()
	defer k.mu.Unlock()
	for _, a := range k.arrivals {
		if a.After(t) {
			n++
		}
	}
	return n
}

// fill makes entries of connections that others than the pods have.
func fill(ns *netns.NS, entries int) error {
	return ns.Do(func() (err error) {
		ct, err := conntrack.Open()
		if err != nil {
			return err
		}
		defer func() { err = errors.Join(err, ct.Close()) }()
		for i := range entries {
			from, to := net.IPv4(172, 20, byte(i>>14), byte(i>>6)).To4(), net.IPv4(172, 30, 0, 1).To4()
			port := uint16(1024 + i&63)
			f := &netlink.ConntrackFlow{FamilyType: unix.AF_INET, TimeOut: 3600,
				Forward: netlink.IPTuple{SrcIP: from, DstIP: to, Protocol: unix.IPPROTO_UDP, SrcPort: port, DstPort: 53},
				Reverse: netlink.IPTuple{SrcIP: to, DstIP: from, Protocol: unix.IPPROTO_UDP, SrcPort: 53, DstPort: port}}
			if err := netlink.ConntrackCreate(netlink.ConntrackTable, unix.AF_INET, f); err != nil {
				return fmt.Errorf("make connection %d: %w", i, err)
			}
		}
		made, err := ct.Count()
		if err == nil && made < entries {
			err = fmt.Errorf("connection tracking has %d of %d connections", made, entries)
		}
		return err
	})
}

func cutCharts(r *report.Result) []report.Figure {
	return []report.Figure{report.Draw(r, "p99", chart.Chart{
		Kind: chart.Bars, Title: "From the kernel's acknowledgement to the last forbidden packet, 99th percentile",
		Subtitle: "lower is better", XLabel: "connections in the table", YLabel: "ms",
	}, report.ByAddresses, lastPacket+", "+harness.NinetyNine, asking, streaming)}
}
