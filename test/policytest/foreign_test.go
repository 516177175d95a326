package policytest

import (
	"context"
	"net/netip"
	"slices"
	"testing"

	"sluice.dev/sluice/internal/driver"
	"sluice.dev/sluice/internal/kernel/link"
	"sluice.dev/sluice/internal/kernel/nflog"
	"sluice.dev/sluice/internal/model"
	"sluice.dev/sluice/internal/policy/verdict"
	"sluice.dev/sluice/internal/state"
	"sluice.dev/sluice/test/drivertest"
)

// testNeighbourDiscoveryOffTheLink shows that what passes on a link, for a pod that may send
// nothing, does not pass from it to another host.
func testNeighbourDiscoveryOffTheLink(t *testing.T, p plane) {
	k := p.kernel(t, map[string][2]netip.Addr{"a": names["a"], "b": names["b"]})
	for _, isolate := range []bool{false, true} {
		var r row
		if isolate {
			r.policies = isolated("a", "out egress: []")
		}
		k.declare(t, r)
		for _, to := range []string{"b", "outside"} {
			for _, icmpType := range []uint8{130, 131, 132, 133, 135, 136, 143} {
				k.carries(t, "a", to, verdict.Flow{Source: names["a"][1], Destination: names[to][1], Protocol: 58, ICMPType: icmpType}, !isolate)
			}
		}
	}
}

// carries sends a datagram and compares what becomes of it with what is expected and with what the
// walk says.
func (k *kernel) carries(t *testing.T, from, to string, f verdict.Flow, want bool) verdict.Step {
	t.Helper()
	payload := make([]byte, 64)
	payload[0], payload[1] = f.ICMPType, f.ICMPCode
	arrived, err := k.mesh.Carry(drivertest.Datagram{From: f.Source, To: f.Destination, Protocol: f.Protocol, Payload: payload})
	if err != nil {
		t.Fatal(err)
	}
	in, _ := k.route(names[from][0])
	steps := verdict.Input(k.Policy(), f, in)
	if to != "node" {
		out, _ := k.route(names[to][0])
		steps = verdict.Forward(k.Policy(), f, in, out)
	}
	step, denied := verdict.Denial(steps)
	if arrived != want || denied == want {
		t.Errorf("%s -> %s: %+v arrives: %v, want %v; the walk denies: %v: %+v", from, to, f, arrived, want, denied, step)
	}
	return step
}

// testTunnels shows that pods do not send what tunnels carry, and do where they may.
func testTunnels(t *testing.T, p plane) {
	k := p.kernel(t, map[string][2]netip.Addr{"a": names["a"]})
	log := k.listen(t)
	for _, may := range []bool{false, true} {
		k.Policy().PodTunnels = may
		plan, err := k.driver.Adopt(t.Context(), k.Compiler.State(), driver.Keep{})
		k.carryOut(t, plan, err)
		k.declare(t, row{})
		for family := range Families {
			for _, to := range []string{"node", "outside"} {
				for _, protocol := range []uint8{4, 41, 47} {
					f := verdict.Flow{Source: names["a"][family], Destination: names[to][family], Protocol: protocol}
					if step := k.carries(t, "a", to, f, may); !may {
						isTold(t, log, state.DropTunnel, f, step)
					}
				}
				for _, port := range []uint16{4789, 8472, 6081, 4790} {
					open := may || port == 4790
					p := packet{from: "a", proto: udp, to: to, port: port}
					if open {
						p.at = to
					}
					k.follow(t, p, family)
					if !open {
						isTold(t, log, state.DropTunnel, verdict.Flow{Source: names["a"][family], Destination: names[to][family]}, verdict.Step{Drop: state.DropTunnel})
					}
				}
			}
		}
	}
}

// isTold checks the reason that the kernel and the walk give for a drop.
func isTold(t *testing.T, log *nflog.Conn, reason state.Drop, f verdict.Flow, step verdict.Step) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), drivertest.Patient)
	defer cancel()
	got, err := log.Next(ctx)
	if err != nil {
		t.Fatalf("%+v: nothing is told of the drop: %v", f, err)
	}
	if got.Prefix != driver.DropPrefix+string(reason) || got.Header.Source != f.Source || got.Header.Destination != f.Destination || string(step.Drop) != string(reason) {
		t.Errorf("%+v: told %+v, the walk says %+v, want %s", f, got, step, reason)
	}
}

// testUndeclaredPodElsewhere shows that a pod whose address is in none of the node's prefixes gets
// nothing, and sends nothing, before it is declared.
func testUndeclaredPodElsewhere(t *testing.T, p plane) {
	foreign := pair("203.0.113.77", "2001:db8:113::77")
	k := p.kernel(t, map[string][2]netip.Addr{"a": names["a"], "e": foreign})
	k.declare(t, row{})
	for family := range Families {
		for _, from := range []string{"a", "outside"} {
			for _, proto := range []model.Protocol{tcp, udp, sctp} {
				for _, end := range [][2]string{{from, "e"}, {"e", from}} {
					at := func(name string) netip.Addr {
						if name == "e" {
							return foreign[family]
						}
						return names[name][family]
					}
					sent := drivertest.Packet{Host: end[0], From: at(end[0]), To: at(end[1]), Protocol: proto, Port: 80}
					trail, err := k.mesh.Trace(sent)
					if err != nil {
						t.Fatal(err)
					}
					if answer := k.why(sent); trail.At != "" || answer.Outcome != verdict.Denied {
						t.Errorf("%+v: %+v; why says %s", sent, trail, answer)
					}
				}
			}
		}
	}
}

// testNewPod shows that policies hold for a pod from its first packet on, though the agent comes to
// know of its interface and of its routes later than of the pod.
func testNewPod(t *testing.T, p plane) {
	k := p.kernel(t, map[string][2]netip.Addr{"a": names["a"], "b": names["b"], "c": names["c"]})
	device, _ := k.route(names["b"][0])
	without := k.links
	without.Routes = slices.DeleteFunc(slices.Clone(k.links.Routes), func(r model.LinkRoute) bool { return r.Link == device })
	nothing := without
	nothing.Links = slices.DeleteFunc(slices.Clone(k.links.Links), func(l model.Link) bool { return l.Index == device })
	r := row{policies: isolated("b", "ingress: [{from: [{podSelector: {matchLabels: {app: c}}}]}], egress: []")}
	for _, step := range []struct {
		name  string
		links model.Links
	}{{"neither", nothing}, {"the interface", without}, {"both", k.links}, {"neither any more", nothing}} {
		t.Run(step.name, func(t *testing.T) {
			k.Compiler.SetLinks(step.links)
			k.declare(t, r)
			for family := range Families {
				for _, packet := range []struct {
					from, to string
					passes   bool
				}{{"a", "b", false}, {"outside", "b", false}, {"b", "a", false}, {"b", "outside", false}, {"b", "node", false}, {"c", "b", true}, {"a", "c", true}} {
					trail, err := k.mesh.Trace(drivertest.Packet{Host: packet.from, From: names[packet.from][family], To: names[packet.to][family], Protocol: tcp, Port: 80})
					if err != nil {
						t.Fatal(err)
					}
					if (trail.At == packet.to) != packet.passes {
						t.Errorf("%s to %s: %+v, passes: want %v", packet.from, packet.to, trail, packet.passes)
					}
				}
			}
		})
	}
}

// testBridge shows that a pod behind a bridge sends from its own address, and from none that is not
// behind the bridge.
func testBridge(t *testing.T, p plane) {
	k := p.kernel(t, map[string][2]netip.Addr{"a": names["a"]})
	k.mesh.AddBridge(t, "br0", "c", [2]netip.Prefix(PodCIDRs), names["c"])
	err := k.mesh.Node.Do(func() (err error) {
		k.links, err = link.Here.Links()
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	k.Compiler.SetLinks(k.links)
	k.declare(t, row{})
	log := k.listen(t)
	for family := range Families {
		for _, to := range []string{"a", "node", "outside"} {
			for _, as := range []string{"c", "nobody", "a", "outside", "node"} {
				if as == to {
					continue
				}
				sent := drivertest.Packet{Host: "c", From: names[as][family], To: names[to][family], Protocol: udp, Port: 80}
				trail, err := k.mesh.Trace(sent)
				if err != nil {
					t.Fatal(err)
				}
				if arrived := trail.At == to; arrived != (as == "c") {
					t.Errorf("%+v: %+v", sent, trail)
				} else if !arrived {
					isTold(t, log, state.DropSpoofed, verdict.Flow{Source: sent.From, Destination: sent.To}, verdict.Step{Drop: state.DropSpoofed})
				}
			}
		}
	}
}
