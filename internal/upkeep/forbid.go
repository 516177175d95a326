package upkeep

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"sync/atomic"
	"time"

	"sluice.dev/sluice/internal/kernel/conntrack"
	"sluice.dev/sluice/internal/kernel/link"
	"sluice.dev/sluice/internal/kernel/passes"
	"sluice.dev/sluice/internal/policy/verdict"
	"sluice.dev/sluice/internal/state"
)

// cutter labels the connections that policy has come to forbid, and takes the label from those that
// it allows again. The ruleset drops what is labelled, in both directions.
type cutter struct {
	*passes.Passes[state.About]
	ct        *conntrack.Conn // its own: what reads the whole table holds up no cut
	answering *answering      // nil: the driver does not tell of any
	total     atomic.Uint64   // connections cut, or given back
	early     atomic.Uint64   // those that the next pass counts, as they were before it
}

// cutPause is the time between two passes for which nobody waits.
const cutPause = 200 * time.Millisecond

func newCutter(d *Driver) (*cutter, error) {
	ct, err := conntrack.Open()
	if err != nil {
		return nil, err
	}
	c := &cutter{ct: ct}
	if d.Capabilities().Answerer != nil {
		if c.answering, err = newAnswering(d, c); err != nil {
			return nil, errors.Join(err, ct.Close())
		}
	}
	c.Passes = passes.Start(passes.Work[state.About]{
		Merge: (*state.About).Merge,
		Pass:  func(about state.About) error { return d.cutForbidden(c, about) },
		Pause: func(state.About) time.Duration { return cutPause },
	})
	return c, nil
}

func (c *cutter) close() error {
	c.Passes.Close()
	return errors.Join(c.answering.close(), c.ct.Close())
}

// suspect has connections looked at.
func (c *cutter) suspect(about state.About) {
	if c != nil && !about.Empty() {
		c.Ask(about)
		c.answering.begin()
	}
}

// cutForbidden is a pass of the cutter's.
func (d *Driver) cutForbidden(c *cutter, about state.About) error {
	var of []netip.Addr // all
	if !about.All {
		of = slices.Collect(maps.Keys(about.Addresses))
	}
	n, err := d.relabel(c.ct, of)
	n += int(c.early.Swap(0))
	c.total.Add(uint64(n))
	if n > 0 {
		d.log.Info("cut connections that policies forbid since they were opened, or gave back what they allow again", "connections", n)
	}
	if err == nil {
		err = d.calm(c)
	}
	if err != nil {
		err = fmt.Errorf("cut connections that policies forbid since they were opened: %w", err)
		d.log.Warn("could not cut all connections that policies forbid", "error", err)
	}
	return err
}

// calm stops judging packets again, unless another change was applied meanwhile.
func (d *Driver) calm(c *cutter) error {
	d.applying.Lock()
	defer d.applying.Unlock()
	r := d.Capabilities().Rejudger
	if r == nil || !c.Idle() {
		return nil
	}
	c.answering.end()
	return r.Calm(d.life)
}

// relabel labels the flows of the addresses, or all, as policies say. A packet on its way may have
// put a flow into a flowtable although it was labelled: then all flows are recalled from there.
func (d *Driver) relabel(ct *conntrack.Conn, of []netip.Addr) (changed int, err error) {
	locator, err := newLocator(d.links)
	if err != nil {
		return 0, err
	}
	label := func() (int, bool, error) {
		return ct.Relabel(d.life, of, func(f conntrack.Flow) bool { return d.forbids(f, locator) })
	}
	changed, offloaded, err := label()
	o := d.Capabilities().Offloader
	if o == nil || err != nil {
		return changed, err
	}
	if changed > 0 && !offloaded {
		passes.AwaitPackets()
		_, offloaded, err = label()
	}
	if offloaded {
		err = errors.Join(err, o.Recall(d.life))
	}
	return changed, err
}

// locator tells where addresses are: the node's own, or behind an interface.
type locator struct {
	routes *link.Reader
	own    map[netip.Addr]bool
	known  map[netip.Addr]int // the device of each, looked up once in a pass
}

func newLocator(routes *link.Reader) (*locator, error) {
	list, err := routes.Addresses()
	if err != nil {
		return nil, err
	}
	l := &locator{routes, map[netip.Addr]bool{}, map[netip.Addr]int{}}
	for _, a := range list {
		l.own[a.Prefix.Addr()] = true
	}
	return l, nil
}

// device is the interface by which an address is reached; 0: none.
func (l *locator) device(a netip.Addr) int {
	device, known := l.known[a]
	if !known {
		route, _ := l.routes.Route(a)
		device = route.Link
		l.known[a] = device
	}
	return device
}

// forbids reports whether policies forbid that the connection is opened now. A pod or an interface
// that is not known forbids nothing: it may become known at any time, and its new connections are
// dropped anyway. A connection that rules judge which are only kept stays as it is, unless others
// that judge it forbid it.
func (d *Driver) forbids(f conntrack.Flow, l *locator) bool {
	d.applying.Lock()
	defer d.applying.Unlock()
	return d.forbidsNow(f, l)
}

// forbidsNow is the same for who holds applying.
func (d *Driver) forbidsNow(f conntrack.Flow, l *locator) bool {
	is := f.Cut()
	d.Held(func(s *state.State) {
		if s.Policy != nil {
			is = d.kept.forbids(s.Policy, f, l)
		}
	})
	return is
}

func (k *kept) forbids(p *state.Policy, f conntrack.Flow, l *locator) bool {
	flow := policyFlow(f)
	if k.members.Contains(flow.Source) || k.members.Contains(flow.Destination) {
		return f.Cut()
	}
	var in, out int
	if len(p.Hosts)+len(k.Hosts) > 0 { // interfaces matter to host endpoints alone; a pod's is known
		in, out = l.devices(p, flow)
	}
	steps := slices.DeleteFunc(l.walk(p, f, in, out), func(s verdict.Step) bool { return k.mayJudge(s.Stage, flow, in, out) })
	if _, is := deniedByPolicy(steps); is {
		return true
	}
	return f.Cut() && k.mayJudgeAny(flow, in, out) && !l.within(flow)
}

// within reports whether the node talks to itself.
func (l *locator) within(f verdict.Flow) bool { return l.own[f.Source] && l.own[f.Destination] }

// devices are the interfaces by which a new connection comes and goes; 0 for that of a pod, which
// is known.
func (l *locator) devices(p *state.Policy, f verdict.Flow) (in, out int) {
	if p.Workloads[f.Source] == nil {
		in = l.device(f.Source)
	}
	return in, l.device(f.Destination)
}

// walk returns what the connection would meet if it were opened now.
func (l *locator) walk(p *state.Policy, f conntrack.Flow, in, out int) []verdict.Step {
	flow := policyFlow(f)
	original := flow
	original.Destination, original.DestinationPort = f.Orig.Dst.Addr(), f.Orig.Dst.Port()
	switch from, to := l.own[flow.Source], l.own[flow.Destination]; {
	case from && to:
		return nil
	case from:
		return verdict.Output(p, flow, out)
	case to:
		return append(verdict.Arrive(p, original, in), verdict.Input(p, flow, in)...)
	}
	return append(verdict.Arrive(p, original, in), verdict.Forward(p, flow, in, out)...)
}

// deniedByPolicy returns the step at which policy denies, if it is what denies.
func deniedByPolicy(steps []verdict.Step) (verdict.Step, bool) {
	denied, is := verdict.Denial(steps)
	return denied, is && (denied.Drop == state.DropPolicy || denied.Drop == state.DropHost)
}

// Forbidden is a connection that policy would not let be opened.
type Forbidden struct {
	verdict.Flow
	By verdict.Step // what denies it
}

// FindForbidden returns the connections of this network namespace that Driver would cut if p were
// in force, and how many connections there are in all. It changes nothing. Unanswered connections
// do not count; ended ones do as long as connection tracking knows them, which is two minutes for
// TCP.
func FindForbidden(ctx context.Context, p *state.Policy) (list []Forbidden, of int, err error) {
	ct, err := conntrack.Open()
	if err != nil {
		return nil, 0, err
	}
	defer func() { err = errors.Join(err, ct.Close()) }()
	routes, err := link.Open()
	if err != nil {
		return nil, 0, err
	}
	defer routes.Close()
	l, err := newLocator(routes)
	if err != nil {
		return nil, 0, err
	}
	_, err = ct.Sweep(ctx, func(f conntrack.Flow) (drop bool) {
		if f.Status&conntrack.StatusSeenReply == 0 {
			return false
		}
		of++
		flow := policyFlow(f)
		in, out := l.devices(p, flow)
		if by, is := deniedByPolicy(l.walk(p, f, in, out)); is {
			list = append(list, Forbidden{flow, by})
		}
		return false
	})
	return list, of, err
}

// policyFlow is the connection as policy judges it: from the client's own address to the
// backend that it was translated to.
func policyFlow(f conntrack.Flow) verdict.Flow {
	return verdict.Flow{
		Source: f.Orig.Src.Addr(), Destination: f.Reply.Src.Addr(), Protocol: uint8(f.Protocol),
		SourcePort: f.Orig.Src.Port(), DestinationPort: f.Reply.Src.Port(),
		ICMPType: f.Orig.ICMP.Type, ICMPCode: f.Orig.ICMP.Code,
	}
}
