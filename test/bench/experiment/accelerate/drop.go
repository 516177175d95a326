package accelerate

import (
	"bufio"
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net/http"
	"net/netip"
	"os"
	"time"

	"sluice.dev/sluice/test/bench/chart"
	"sluice.dev/sluice/test/bench/cluster"
	"sluice.dev/sluice/test/bench/harness"
	"sluice.dev/sluice/test/bench/inject"
	"sluice.dev/sluice/test/bench/peer"
	"sluice.dev/sluice/test/bench/report"
	"sluice.dev/sluice/test/bench/testbed"
)

// Drop is the experiment accelerate-drop.
var Drop = harness.Experiment{
	Name:  "accelerate-drop",
	Title: "Packets from addresses on a list, by XDP, by nftables and by iptables",
	How: "Datagrams to a farm from random addresses, all of them on a list of single addresses of the farm, as XDP live frames on the client's device, on one core, of three runs the fastest. " +
		"iptables has one rule in its table raw. The generator alone: a program at the device drops every packet. Net: without what that takes.",
	Run:    runDrop,
	Charts: dropCharts,
}

const rawRule = "iptables raw"

// listed is a way to drop packets from so many addresses.
type listed struct {
	name      string
	addresses int // a power of two
	run       *harness.Run
	alone     *float64 // what the generator took in this round
}

func (d listed) String() string { return fmt.Sprintf("%s, %d addresses", d.name, d.addresses) }

// SkipReason implements harness.Case.
func (d listed) SkipReason() string { return "" }

// NewTestbed implements harness.Case.
func (d listed) NewTestbed(prefix string) (*testbed.Testbed, error) { return testbed.New(prefix) }

// firstListed is an even address; those on the list are even, so that no two make a prefix.
var firstListed = netip.MustParseAddr("33.0.0.0")

func (d listed) scatter() uint32 { return uint32(d.addresses-1) << 1 }

// Load implements harness.Case.
func (d listed) Load(ctx context.Context, l *testbed.Testbed) (*peer.Loaded, error) {
	switch d.name {
	case generator:
		return dropAll(l)
	case rawRule:
		_, err := l.Node.Run("iptables-legacy", "-w", "-t", "raw", "-A", "PREROUTING", "-s", firstListed.String(), "-j", "DROP")
		return &peer.Loaded{Close: func() error { return nil }}, err
	}
	s, err := peer.StartBalance(ctx, l.Node, d.run.Binary, "--accelerate", map[string]string{nftables: "none", byXDP: "drop"}[d.name])
	if err != nil {
		return nil, err
	}
	all := peer.FarmsOf(cluster.Cluster{Services: 1, Endpoints: backend}, peer.DNAT, "udp")
	file, err := d.writeList()
	if err != nil {
		return nil, errors.Join(err, s.Close())
	}
	end := func() error { return errors.Join(ending(l, s)(), os.Remove(file)) }
	all.Policies = []peer.FarmPolicy{{Name: "bad", Type: "blacklist", Feed: map[string]string{"file": file}}}
	all.Farms[0].Verdict, all.Farms[0].Policies = "drop", []peer.FarmPolicyName{{Name: "bad"}}
	if _, err := s.Call(ctx, http.MethodPost, "/farms", all); err != nil {
		return nil, errors.Join(err, end())
	}
	// The file is read beside; a change that is answered comes after it.
	last := d.address(d.addresses - 1).String()
	for end := time.Now().Add(time.Minute); ; time.Sleep(100 * time.Millisecond) {
		text, err := s.Call(ctx, http.MethodGet, "/policies/bad", nil)
		if err != nil || bytes.Contains(text, []byte(last)) || time.Now().After(end) {
			break
		}
	}
	_, err = s.Call(ctx, http.MethodPut, "/farms", peer.Farms{Farms: []peer.Farm{{Name: all.Farms[0].Name, State: "up"}}})
	if err != nil {
		return nil, errors.Join(err, end())
	}
	return &peer.Loaded{Close: end}, nil
}

func (d listed) address(i int) netip.Addr {
	first := firstListed.As4()
	return netip.AddrFrom4([4]byte(binary.BigEndian.AppendUint32(nil, binary.BigEndian.Uint32(first[:])+2*uint32(i))))
}

// writeList writes the addresses into a file.
func (d listed) writeList() (name string, err error) {
	f, err := os.CreateTemp("", "sluice-bench-list")
	if err != nil {
		return "", err
	}
	w := bufio.NewWriter(f)
	for i := range d.addresses {
		_, _ = fmt.Fprintln(w, d.address(i)) // Flush has its error
	}
	return f.Name(), errors.Join(w.Flush(), f.Close())
}

func runDrop(ctx context.Context, r *harness.Run) error {
	const many, most = 1 << 17, 1 << 20
	cases := []listed{{name: generator, addresses: 1}, {name: rawRule, addresses: 1}, {name: nftables, addresses: 1}, {name: byXDP, addresses: 1}, {name: byXDP, addresses: many}}
	if r.Full() {
		cases = append(cases, listed{name: byXDP, addresses: most})
	}
	alone := new(float64)
	for i := range cases {
		cases[i].run, cases[i].alone = r, alone
	}
	if err := harness.InTurns(ctx, r, cases, measureDrop); err != nil {
		return err
	}
	if a, b := r.Find(rawRule, 1, "", netTime), r.Find(byXDP, 1, "", netTime); a != nil && b != nil {
		got := report.Ratios(a, b)
		r.Goal("time a packet, net, by iptables raw over XDP, one address", "≥ 3", got.String(), got.Median >= 3)
	}
	for _, g := range []struct {
		addresses int
		most      float64 // µs
	}{{many, 0.3}, {most, 0.55}} {
		if m := r.Find(byXDP, g.addresses, "", micros); m != nil {
			r.Goal(fmt.Sprintf("time a packet that XDP drops, random of %s addresses", chart.Number(float64(g.addresses))),
				"≤ "+chart.Number(g.most)+" µs", fmt.Sprintf("%.2f (%.2f–%.2f)", m.Median, m.Min, m.Max), m.Median <= g.most)
		}
	}
	return nil
}

func measureDrop(_ context.Context, r *harness.Run, s *harness.Setup[listed]) (err error) {
	c, err := inject.NewCounter(s.Backend, testbed.Uplink, cluster.Endpoints)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, c.Close()) }()
	g, err := inject.New(s.Node, testbed.NodeIn)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, g.Close()) }()
	err = errors.Join(g.Aim(inject.Target{Base: cluster.ServiceAddr(0), Count: 1, Port: cluster.ServicePort}),
		g.From(inject.Origin{Base: firstListed, Scatter: s.Case.scatter(), Flows: flows, UDP: true}))
	if s.Case.addresses > 1 {
		err = errors.Join(err, g.From(inject.Origin{Base: firstListed, Scatter: s.Case.scatter(), UDP: true}))
	}
	if err != nil {
		return err
	}
	ns, err := dropped(g, c)
	if err != nil {
		return err
	}
	m := report.Measurement{Dataplane: s.Case.name, Services: s.Case.addresses, Endpoints: backend, Metric: micros, Unit: "µs"}
	if r.Add(m, ns/1000); s.Case.name == generator {
		*s.Case.alone = ns
		return nil
	}
	m.Metric = netTime
	r.Add(m, (ns-*s.Case.alone)/1000)
	return nil
}

func dropCharts(r *report.Result) []report.Figure {
	return []report.Figure{report.Draw(r, "time", chart.Chart{
		Kind: chart.Bars, Title: "Time to drop a packet from an address on a list, one core", Subtitle: "lower is better", XLabel: "addresses on the list", YLabel: "µs",
	}, report.ByServices, micros, "")}
}
