package agent

import (
	"context"
	"net/netip"
	"strings"
	"testing"

	"sluice.dev/sluice/internal/compile"
	"sluice.dev/sluice/internal/model"
	services "sluice.dev/sluice/internal/services/compile"
	"sluice.dev/sluice/internal/store"
)

// paths is a prober that finds a fault in each way that there is.
type paths struct{ asked chan []model.Path }

func (p paths) Run(ctx context.Context, of func() []model.Path) {
	select {
	case p.asked <- of():
	case <-ctx.Done():
	}
	<-ctx.Done()
}

func (paths) Issues() []model.Issue {
	return []model.Issue{model.Ref{Kind: model.NodeKind, Name: model.Name{Name: "far"}}.Issue("packets of 1500 bytes do not reach it")}
}

func (paths) Missing() map[netip.Addr]int {
	return map[netip.Addr]int{netip.MustParseAddr("192.0.2.2"): 107}
}

// What is found out of the ways to other nodes is a fault that the status shows.
func TestPaths(t *testing.T) {
	p := paths{make(chan []model.Path)}
	b := start(t, func(c *Config) {
		own := model.HostAddress{Prefix: netip.MustParsePrefix("192.0.2.1/24"), Device: "eth0", MTU: 1500}
		underlay := make(chan []model.HostAddress, 1)
		underlay <- []model.HostAddress{own}
		all := &model.IPPool{Name: "--fabric", CIDR: netip.MustParsePrefix("0.0.0.0/0"), VXLAN: model.Always}
		c.Paths, c.Underlay, c.Compiler = p, underlay, compile.New(compile.Config{Config: services.Config{Node: c.Node, Fabric: true}, Pools: []*model.IPPool{all}})
	})
	if got := <-p.asked; len(got) != 0 {
		t.Errorf("ways of a node that has none: %v", got)
	}
	b.source.sync()
	eventually(t, "the fault is told", func() bool {
		s := b.Status()
		return len(s.Issues) == 1 && !s.OK && strings.Contains(s.Issues[0].Reason, "1500 bytes")
	})
	for i, name := range []string{"node-a", "far"} {
		n := &model.Node{Name: name, IPs: []netip.Addr{netip.AddrFrom4([4]byte{192, 0, 2, byte(i + 1)})}, PodCIDRs: []netip.Prefix{netip.PrefixFrom(netip.AddrFrom4([4]byte{10, 1, byte(i), 0}), 24)}}
		b.source.deliver(store.Event{Kind: model.NodeKind, Name: model.Name{Name: name}, Object: n})
	}
	eventually(t, "the largest packet that pods can send is what the way carries, without the tunnel's headers", func() bool {
		r, err := b.fabricReport()
		return err == nil && len(r.Blocks) == 2 && r.Blocks[0].MTU == 1500-107-50
	})
}
