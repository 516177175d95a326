package kernel_test

import (
	"context"
	"fmt"
	"log/slog"
	"maps"
	"net/netip"
	"testing"
	"time"

	"sluice.dev/sluice/internal/fabric/heard"
	"sluice.dev/sluice/internal/model"
	"sluice.dev/sluice/internal/state"
	"sluice.dev/sluice/internal/store"
)

// What a firewall between nodes drops is found out before there is a tunnel, and while there is
// one.
func TestHeard(t *testing.T) {
	all, objects := across(t)
	here, near, far := all[0], all[1], all[2]
	rule := map[state.Encapsulation]string{state.VXLAN: "udp dport 4789", state.IPIP: "meta l4proto 4", state.WireGuard: "udp dport 51820"}
	for _, x := range all {
		x.d = open(t, x.ns)
		x.ns.In(func() error { return x.d.Encrypt(private(x.n)) })
		x.ns.Exec("nft", "add table inet fw; add chain inet fw in { type filter hook prerouting priority -400; }")
	}
	for _, mode := range underlays(t) {
		mode.v4.Name, mode.v4.CIDR = "v4", netip.MustParsePrefix("10.244.0.0/16")
		mode.v6.Name, mode.v6.CIDR = "v6", netip.MustParsePrefix("fd00:10:244::/48")
		now := objects
		for _, p := range []*model.IPPool{&mode.v4, &mode.v6} {
			now = append(now, store.Event{Kind: model.IPPoolKind, Name: model.Name{Name: p.Name}, Object: p})
		}
		c := compiler(t, here, now, mode.encrypt)
		adopt(t, here.d, state.NewFabric())
		adopt(t, near.d, state.NewFabric())
		adopt(t, far.d, compiled(t, far, now, mode.encrypt))
		try := func() (found map[string]heard.Trial) {
			found = map[string]heard.Trial{}
			here.ns.In(func() error {
				trials, err := heard.Try(t.Context(), c.Fabric(), c.FarEnds())
				for of, what := range trials {
					found[fmt.Sprint(of.Node, " ", of.Device)] = what
				}
				return err
			})
			return found
		}
		tunnel := c.Fabric().Tunnels[mode.device]
		dropped := func(of model.FarEnd) bool {
			return of.Node == "node3" && of.Carrier != (model.Carrier{}) && c.Fabric().Tunnels[of.Device].Encapsulation == tunnel.Encapsulation
		}
		want, less := map[string]heard.Trial{}, map[string]heard.Trial{} // once far drops what the tunnel is made of
		for _, of := range c.FarEnds() {
			if of.Carrier == (model.Carrier{}) {
				continue
			}
			what := heard.Answers
			switch {
			case of.Node == "node2": // has no tunnel yet
				what = heard.Arrives
			case mode.encrypt:
				what = heard.Unknown
			}
			name := fmt.Sprint(of.Node, " ", of.Device)
			want[name] = heard.Trial{Came: what}
			if less[name] = want[name]; dropped(of) && !mode.encrypt {
				less[name] = heard.Trial{}
			}
		}
		if got := try(); !maps.Equal(got, want) {
			t.Errorf("%s: tried: %v, want %v", mode.name, got, want)
		}
		far.ns.Exec("nft", "add rule inet fw in "+rule[tunnel.Encapsulation]+" drop")
		if got := try(); !maps.Equal(got, less) {
			t.Errorf("%s, dropped: tried: %v, want %v", mode.name, got, less)
		}
		for _, x := range []*node{here, near} {
			adopt(t, x.d, compiled(t, x, now, mode.encrypt))
		}
		var p *heard.Prober
		here.ns.In(func() error { p = heard.Open("node1", slog.New(slog.DiscardHandler)); return nil })
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan struct{})
		go func() { defer close(done); p.Run(ctx, c.FarEnds) }()
		await := func(what string, right func(of model.FarEnd, h model.Heard) bool) {
			t.Helper()
			for begin := time.Now(); ; time.Sleep(10 * time.Millisecond) {
				h := p.Heard()
				ok := len(h) == len(c.FarEnds())
				for of, h := range h {
					ok = ok && right(of, h)
				}
				if ok {
					return
				}
				if time.Since(begin) > time.Minute {
					t.Fatalf("%s: %s: %v, %v", mode.name, what, h, p.Issues())
				}
			}
		}
		await("one is dropped", func(of model.FarEnd, h model.Heard) bool {
			return dropped(of) == h.Silent() && dropped(of) == h.Last.IsZero()
		})
		far.ns.Exec("nft", "flush chain inet fw in")
		await("none is", func(of model.FarEnd, h model.Heard) bool { return !h.Last.IsZero() && !h.Silent() })
		cancel()
		<-done
	}
}
