package accelerate

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"strings"

	"sluice.dev/sluice/test/bench/cluster"
	"sluice.dev/sluice/test/bench/harness"
	"sluice.dev/sluice/test/bench/peer"
	"sluice.dev/sluice/test/bench/testbed"
)

// The names of cases that are no data plane's.
const (
	making = "making of packets" // all are dropped by the first rule that there is
	bare   = "one rule"          // that forwards everything to one backend, without a look-up
)

// program is something that packets are sent through.
type program struct {
	harness.ServiceCase
	name   string
	rule   string // one at ingress that all packets meet, in place of the data plane; "": none
	direct bool   // answers do not pass by, and packets leave as they came
	early  bool   // packets leave from XDP, where nothing of the node sees them
}

func (p program) String() string {
	if n := p.Cluster.Services; n > 1 {
		return fmt.Sprintf("%s, %d services", p.name, n)
	}
	return p.name
}

// NewTestbed implements harness.Case. The backends of the last service are neighbours of the node.
func (p program) NewTestbed(prefix string) (*testbed.Testbed, error) {
	l, err := testbed.New(prefix)
	if err != nil {
		return nil, err
	}
	var used []netip.Addr
	for j := range p.Cluster.Endpoints {
		used = append(used, p.backend(j).Addr())
	}
	if err := l.Direct(used...); err != nil {
		return nil, errors.Join(err, l.Close())
	}
	return l, nil
}

// Load implements harness.Case.
func (p program) Load(ctx context.Context, l *testbed.Testbed) (*peer.Loaded, error) {
	if p.rule == "" {
		return p.ServiceCase.Load(ctx, l)
	}
	_, err := l.Node.Run("nft", "add table netdev first; add chain netdev first ingress { type filter hook ingress devices = { "+
		testbed.NodeIn+", "+testbed.NodeOut+" } priority 0; }; add rule netdev first ingress "+p.rule)
	return &peer.Loaded{Close: func() error { return nil }}, err
}

// backend is one of the last service, which is the one that is used.
func (p program) backend(j int) netip.AddrPort {
	return p.Cluster.Endpoint(p.Cluster.Services-1, j)
}

// target is where clients find the service.
func (p program) target() netip.AddrPort {
	if p.name == (peer.Plain{}).Name() {
		return p.backend(0)
	}
	return netip.AddrPortFrom(cluster.ServiceAddr(p.Cluster.Services-1), cluster.ServicePort)
}

// of is the case of a data plane. Where answers pass by, there is one backend, so that it is known
// whom they come from.
func of(d peer.Dataplane, services int) program {
	p := program{ServiceCase: harness.ServiceCase{Dataplane: d, Cluster: cluster.Cluster{Services: services, Endpoints: 1}}, name: d.Name()}
	if b, own := d.(peer.Balance); own && b.Mode == peer.DSR {
		p.direct, p.early, p.Cluster.Endpoints = true, b.XDP, 3
	}
	return p
}

// ruled is the case of one rule.
func ruled(name, rule string) program {
	p := of(peer.Plain{}, 1)
	p.name, p.rule, p.direct = name, rule, true
	return p
}

func dropFirst() program { return ruled(making, "drop") }

func forwardAll() program {
	return ruled(bare, fmt.Sprintf("fwd ip to %s device %s", of(peer.Plain{}, 1).backend(0).Addr(), testbed.NodeOut))
}

// noteMitigations notes what makes indirect calls dear on this machine, of which rules make many.
func noteMitigations(r *harness.Run) {
	if b, err := os.ReadFile("/sys/devices/system/cpu/vulnerabilities/spectre_v2"); err == nil {
		r.Note("Against indirect calls (spectre_v2) the kernel has: %s.", strings.TrimSpace(string(b)))
	}
}
