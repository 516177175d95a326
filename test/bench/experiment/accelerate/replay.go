package accelerate

import (
	"context"
	"errors"
	"fmt"
	"math"
	"os"
	"strconv"
	"strings"
	"sync"
	"time"

	"sluice.dev/sluice/test/bench/cluster"
	"sluice.dev/sluice/test/bench/cpuaffinity"
	"sluice.dev/sluice/test/bench/harness"
	"sluice.dev/sluice/test/bench/inject"
	"sluice.dev/sluice/test/bench/testbed"
)

// segments are those of a short HTTP connection that ends without an error, in their order.
var segments = []inject.Segment{
	{Flags: inject.SYN},
	{Flags: inject.SYN | inject.ACK, Ack: 1, Answer: true},
	{Flags: inject.ACK, Seq: 1, Ack: 1},
	{Flags: inject.PSH | inject.ACK, Seq: 1, Ack: 1},
	{Flags: inject.PSH | inject.ACK, Seq: 1, Ack: 1, Answer: true},
	{Flags: inject.ACK, Seq: 1, Ack: 1},
	{Flags: inject.FIN | inject.ACK, Seq: 1, Ack: 1, Answer: true},
	{Flags: inject.FIN | inject.ACK, Seq: 1, Ack: 2},
	{Flags: inject.ACK, Seq: 2, Ack: 2, Answer: true},
}

// stage has generators on both sides of a node. Close it.
type stage struct {
	program
	*testbed.Testbed
	cores   []*core
	closers []func() error
}

// core is a CPU with its generators.
type core struct {
	cpu  int
	by   map[bool]*inject.Generator // of the client's segments (false), and of the answers
	next uint32                     // the flow that begins next
}

func newStage(s *harness.Setup[program], cores int) (_ *stage, err error) {
	st := &stage{program: s.Case, Testbed: s.Testbed}
	for i := range cores {
		cpu := (harness.PacketCPU + i) % cores
		st.cores = append(st.cores, &core{cpu: cpu, by: map[bool]*inject.Generator{}, next: uint32(i) << 31})
	}
	for _, answers := range []bool{false, true} {
		device, to := testbed.NodeIn, s.Case.target()
		if answers {
			device, to = testbed.NodeOut, s.Case.backend(0)
		}
		g, err := inject.New(s.Node, device)
		for i, c := range st.cores {
			if err == nil && i > 0 {
				g, err = g.Beside()
			}
			if err == nil {
				st.closers = append(st.closers, g.Close)
				c.by[answers] = g
				err = g.Aim(inject.Target{Base: to.Addr(), Count: 1, Port: to.Port()})
			}
			if err != nil {
				return nil, errors.Join(err, st.Close())
			}
		}
	}
	return st, nil
}

// Close ends the generators.
func (st *stage) Close() (err error) {
	for i := range st.closers {
		err = errors.Join(err, st.closers[len(st.closers)-1-i]())
	}
	return err
}

// send has a segment sent of each of the next n flows of some cores, at once, and returns
// nanoseconds each.
func (st *stage) send(cores []*core, s inject.Segment, n int) (float64, error) {
	took, errs := make([]float64, len(cores)), make([]error, len(cores))
	var ready, done sync.WaitGroup
	ready.Add(len(cores))
	for i, c := range cores {
		done.Go(func() {
			g := c.by[s.Answer]
			errs[i] = errors.Join(g.Make(s), g.Start(c.next))
			ready.Done()
			ready.Wait()
			res, err := g.Send(n, c.cpu)
			took[i], errs[i] = res.PerFlow(), errors.Join(errs[i], err)
		})
	}
	done.Wait()
	sum := 0.0
	for _, ns := range took {
		sum += ns
	}
	return sum / float64(len(cores)), errors.Join(errs...)
}

// costs are nanoseconds for each segment of a connection, and for the end of its entry.
type costs struct {
	segments []float64
	end      float64
}

// replay sends all segments of n connections on each core, several times, and returns the least
// that each took. Those of a program that drops everything are lost; of any other no more than one
// in a thousand may be.
func (st *stage) replay(ctx context.Context, cores []*core, n, times int) (least costs, err error) {
	sinks := map[bool]*inject.Counter{}
	for answers, device := range map[bool]string{false: testbed.NodeOut, true: testbed.NodeIn} {
		if sinks[answers], err = st.sink(device, answers); err != nil {
			return least, err
		}
		defer func() { err = errors.Join(err, sinks[answers].Close()) }()
	}
	if st.early {
		time.Sleep(time.Second) // the balancer sees that the far end takes frames now
	}
	least = costs{make([]float64, len(segments)), math.Inf(1)}
	for i := range segments {
		least.segments[i] = math.Inf(1)
	}
	empty, err := st.flush()
	if err != nil {
		return least, err
	}
	for range times {
		sent := map[bool]int{}
		for i, s := range segments {
			if st.direct && s.Answer || ctx.Err() != nil {
				least.segments[i] = 0
				continue
			}
			ns, err := st.send(cores, s, n)
			if err != nil {
				return least, err
			}
			least.segments[i] = min(least.segments[i], ns)
			sent[s.Answer] += n * len(cores)
		}
		for answers, sink := range sinks {
			got, err := sink.Read()
			if err := errors.Join(err, sink.Reset()); err != nil {
				return least, err
			}
			if lost := sent[answers] - got.Backend; st.name != making && float64(lost) > 0.001*float64(sent[answers]) {
				return least, fmt.Errorf("%w: %d of %d packets", harness.ErrLost, lost, sent[answers])
			}
		}
		entries, err := st.entries()
		if err != nil {
			return least, err
		}
		took, err := st.flush()
		if err != nil {
			return least, err
		}
		empty = min(empty, took)
		if entries >= n/2 { // otherwise they are not tracked, or a busy machine took so long that most have ended
			least.end = min(least.end, float64(took-empty)/float64(entries))
			if took, err = st.flush(); err != nil {
				return least, err
			}
			empty = min(empty, took)
		}
		for _, c := range cores {
			c.next += uint32(n)
		}
	}
	if math.IsInf(least.end, 1) {
		least.end = 0
	}
	return least, ctx.Err()
}

// sink counts and drops what is about to leave by a device of the node, or what has just arrived at
// its far end.
func (st *stage) sink(device string, answers bool) (*inject.Counter, error) {
	if st.early && !answers {
		return inject.NewCounter(st.Backend, testbed.Uplink, cluster.Services)
	}
	s, err := inject.NewSink(st.Node, device)
	if err != nil {
		return nil, err
	}
	return &s.Counter, nil
}

// flush empties the table of connections, and tells how long that took.
func (st *stage) flush() (took time.Duration, err error) {
	var done sync.WaitGroup
	done.Go(func() {
		if err = cpuaffinity.BindThread(harness.PacketCPU); err == nil {
			began := time.Now()
			err = st.FlushConntrack()
			took = time.Since(began)
		}
	})
	done.Wait()
	return took, err
}

// entries is how many connections the node knows.
func (st *stage) entries() (n int, err error) {
	err = st.Node.Do(func() error {
		b, err := os.ReadFile("/proc/sys/net/netfilter/nf_conntrack_count")
		if err != nil {
			return fmt.Errorf("count connections: %w", err)
		}
		n, err = strconv.Atoi(strings.TrimSpace(string(b)))
		return err
	})
	return n, err
}
