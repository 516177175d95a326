package nftables

import (
	"bytes"
	"fmt"
	"net/netip"
	"slices"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"sluice.dev/sluice/internal/driver"
	"sluice.dev/sluice/internal/kernel/nft"
	"sluice.dev/sluice/internal/model"
	"sluice.dev/sluice/internal/state"
	"sluice.dev/sluice/test/world"
)

// large is a node with 10,000 services of 10 endpoints, and 100 pods with policies.
func large() *state.State {
	s := state.New()
	s.Services.Settings = state.Settings{ServiceCIDRs: prefixes("10.96.0.0/12"), ClusterCIDRs: prefixes("10.0.0.0/12")}
	for i := range 10_000 {
		f := &state.Frontend{Service: model.Name{Namespace: "bench", Name: fmt.Sprint("s", i)}}
		for j := range 10 {
			n := i*10 + j
			f.Backends = append(f.Backends, netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, byte(n >> 16), byte(n >> 8), byte(n)}), 80))
		}
		slices.SortFunc(f.Backends, netip.AddrPort.Compare)
		f.Alive, f.Serving = f.Backends, f.Backends
		a := netip.AddrFrom4([4]byte{10, 96, byte(i >> 8), byte(i)})
		s.Services.Frontends[state.FrontendKey{Addr: a, Protocol: model.TCP, Port: 80}] = f
		s.Services.ClusterIPs[a] = struct{}{}
	}
	s.Policy = state.NewPolicy()
	s.Policy.HostDevices[1] = struct{}{}
	for i := range 100 {
		id := state.RulesID(fmt.Sprint("rules-", i))
		k := key(fmt.Sprint("policy-", i))
		s.Policy.Rules[id] = &state.Rules{ID: id, Tiers: []state.Tier{{Name: "default", Default: model.Deny, Policies: []*state.PolicyRules{{Policy: k,
			Rules: []state.Rule{{Name: "ingress[0]", Action: model.Allow, Protocol: 6}}}}}}}
		s.Policy.Workloads[netip.AddrFrom4([4]byte{10, 1, 0, byte(i)})] = &state.Workload{Pod: model.Name{Namespace: "bench", Name: fmt.Sprint("p", i)}, Device: 10 + i, Ingress: id, Egress: id}
		s.Policy.PodDevices[10+i] = struct{}{}
	}
	return s
}

func cpuTime(b *testing.B) time.Duration {
	var u unix.Rusage
	if err := unix.Getrusage(unix.RUSAGE_SELF, &u); err != nil {
		b.Fatal(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// What is refused holds up the rest for so long.
func BenchmarkRefused(b *testing.B) {
	bad := state.FrontendKey{Addr: netip.MustParseAddr("10.100.0.1"), Protocol: model.TCP, Port: 80}
	good, all := large(), large()
	all.Services.Frontends[bad] = &state.Frontend{Service: model.Name{Namespace: "bench", Name: "bad"}, Reject: true}
	id := state.RulesID("poison")
	all.Policy.Rules[id] = &state.Rules{ID: id, Tiers: []state.Tier{{Name: "default", Default: model.Deny,
		Policies: []*state.PolicyRules{{Policy: key("poison"), Rules: []state.Rule{{Name: "ingress[0]", Action: model.Allow}}}}}}}
	a, w := netip.MustParseAddr("10.1.0.7"), &state.Workload{Pod: model.Name{Namespace: "bench", Name: "p7"}, Device: 17, Ingress: id}
	all.Policy.Workloads[a] = w
	var e nft.Element
	e.AppendDestination(nft.IPv4, bad.Addr, uint8(bad.Protocol), bad.Port)
	poisoned := [][]byte{e.Key[:e.KeyLen], []byte(key("poison").String())}
	refused := 2
	run := func(name string, first *state.State, restart bool, change func(d *Driver) error) {
		b.Run(name, func(b *testing.B) {
			var cpu time.Duration
			defer func() { b.ReportMetric(cpu.Seconds()/float64(b.N), "cpu-s/op") }() // on a machine that others use, too
			h := world.NewHost(b, "refused")
			for range b.N {
				b.StopTimer()
				var d *Driver
				open := func() {
					h.In(func() (err error) { d, err = Open(Options{Options: driver.Options{Policy: true}}); return err })
				}
				open()
				apply := func(s *state.State) error {
					p, err := d.Adopt(b.Context(), s, driver.Keep{})
					if err != nil {
						return err
					}
					return p.Apply(b.Context())
				}
				if first != nil {
					if err := apply(first); err != nil {
						b.Fatal(err)
					}
				}
				if restart {
					_ = d.Close()
					open()
				}
				d.Sock.Refuse = func(messages [][]byte, _ []string) error {
					for _, m := range messages {
						if slices.ContainsFunc(poisoned, func(p []byte) bool { return bytes.Contains(m, p) }) {
							return nft.Answer("commit", unix.EINVAL)
						}
					}
					return nil
				}
				before := cpuTime(b)
				b.StartTimer()
				var err error
				if change == nil {
					err = apply(all)
				} else {
					err = change(d)
				}
				b.StopTimer()
				cpu += cpuTime(b) - before
				if err != nil || len(d.SetAside()) != refused {
					b.Fatalf("%v; set aside: %v", err, d.SetAside())
				}
				_ = d.Close()
				h.Exec("nft", "flush", "ruleset")
				b.StartTimer()
			}
		})
	}
	run("empty kernel", nil, false, nil)
	run("restart", good, true, nil)
	run("change", good, false, func(d *Driver) error {
		p, err := d.Update(b.Context(), state.Delta{Services: state.ServicesDelta{Frontends: map[state.FrontendKey]*state.Frontend{bad: all.Services.Frontends[bad]}},
			Policy: state.PolicyDelta{Rules: map[state.RulesID]*state.Rules{id: all.Policy.Rules[id]}, Workloads: map[netip.Addr]*state.Workload{a: w}}})
		if err != nil {
			return err
		}
		return p.Apply(b.Context())
	})
	poisoned, refused = nil, 0
	run("empty kernel, nothing refused", nil, false, nil)
}
