package iptables

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"sluice.dev/sluice/internal/driver"
	"sluice.dev/sluice/internal/kernel/xtables"
	"sluice.dev/sluice/internal/model"
	"sluice.dev/sluice/internal/state"
)

// policed is a node with pods, each behind an interface of its own, and with a policy of its own
// that lets some others reach one of its ports.
func policed(pods int, address func(int) netip.Addr) *state.State {
	s := state.New()
	p := state.NewPolicy()
	s.Policy = p
	for d := range 3 {
		p.HostDevices[d+1] = struct{}{}
	}
	for i := range pods {
		group, id := state.SetID(i+1), state.RulesID(fmt.Sprint("rules ", i))
		own := &state.PolicyRules{ID: string(id), Policy: model.PolicyKey{Kind: model.NetworkPolicy, Name: model.Name{Namespace: "shop", Name: fmt.Sprint("p", i)}},
			Rules: []state.Rule{{Action: model.Allow, Protocol: uint8(model.TCP), Source: state.End{In: []state.Term{{Groups: []state.SetID{group}}}},
				Destination: state.End{Ports: &state.Ports{Ranges: []state.PortRange{{Protocol: model.TCP, First: 80, Last: 80}}}}}}}
		p.Rules[id] = &state.Rules{ID: id, Tiers: []state.Tier{{Name: "default", Default: model.Deny, Policies: []*state.PolicyRules{own}}}}
		p.Groups[group] = map[netip.Addr]struct{}{address(i + 1): {}}
		p.Workloads[address(i)] = &state.Workload{Pod: model.Name{Namespace: "shop", Name: fmt.Sprint("pod-", i)}, Device: 100 + i, Ingress: id, Egress: id}
		p.PodDevices[100+i] = struct{}{}
	}
	return s
}

// met follows a packet through chains until it is dropped or has met all, and counts the rules and
// how deep they are nested. It takes the way that has the most of them.
type met struct {
	image       *image
	from, to    netip.Addr
	in          string
	port        int
	rules, deep int
	marked      bool // it came to where packets are marked
}

// follow returns whether the packet leaves the chain by its end.
func (m *met) follow(name string, depth int) {
	m.deep, m.marked = max(m.deep, depth), m.marked || name == matchedChain
	for _, r := range m.image.chains[chain{"filter", name}] {
		m.rules++
		words := strings.Fields(r)
		if !m.matches(words) {
			continue
		}
		switch n := len(words); {
		case words[n-2] == "-g":
			m.follow(words[n-1], depth+1)
			return
		case strings.HasPrefix(words[n-1], prefix):
			m.follow(words[n-1], depth+1)
		case words[n-1] == "RETURN":
			return
		}
	}
}

// matches looks at addresses, interfaces, and TCP of a new connection to port 80. What is in sets
// is so.
func (m *met) matches(words []string) bool {
	for i, w := range words[:len(words)-1] {
		not := i > 0 && words[i-1] == "!"
		v, holds := words[i+1], true
		switch w {
		case "-s":
			holds = netip.MustParsePrefix(v).Contains(m.from)
		case "-d":
			holds = netip.MustParsePrefix(v).Contains(m.to)
		case "-i":
			holds = v == m.in || strings.HasSuffix(v, "+") && strings.HasPrefix(m.in, v[:len(v)-1])
		case "-p":
			holds = v == "tcp"
		case "--ctstate":
			holds = strings.Contains(v, "NEW")
		case "--dport", "--dports":
			holds = slices.ContainsFunc(strings.Split(v, ","), func(ports string) bool {
				var first, last int
				if n, _ := fmt.Sscanf(ports, "%d:%d", &first, &last); n < 2 {
					last = first
				}
				return first <= m.port && m.port <= last
			})
		case "--bytecode", "--label", "--mark":
			holds = false
		}
		if holds == not {
			return false
		}
	}
	return true
}

// However many pods and policies there are, a new connection meets a bounded number of rules, and
// the chains are no deeper than nftables follows.
func TestPolicyRulesMet(t *testing.T) {
	t.Parallel()
	for name, address := range map[string]func(int) netip.Addr{
		"IPv4": func(i int) netip.Addr { return netip.AddrFrom4([4]byte{10, 244, byte(i >> 8), byte(i)}) },
		"IPv6": func(i int) netip.Addr {
			r := rand.New(rand.NewPCG(uint64(i), 1))
			return netip.AddrFrom16([16]byte{0xfd, 8: byte(r.Int()), 9: byte(r.Int()), 10: byte(r.Int()), 14: byte(i >> 8), 15: byte(i)})
		},
	} {
		t.Run(name, func(t *testing.T) {
			for _, pods := range []int{10, 250, 10_000} {
				s := policed(pods, address)
				j := &judge{family: family{v6: name == "IPv6"}, written: map[writtenAt]*written{}, names: map[int]string{1: "lo", 2: "eth0", 3: "cni0"}}
				for i := range pods {
					j.names[100+i] = fmt.Sprintf("veth%08x", i*2654435761)
				}
				image := j.enforce(s.Policy, nil).image
				most, deep := 0, 0
				for i := range pods {
					m := &met{image: image, from: address(i), to: address((i * 7) % pods), in: j.names[100+i], port: 80}
					m.follow("FORWARD", 1)
					most, deep = max(most, m.rules), max(deep, m.deep)
				}
				t.Logf("%d pods: %d rules are met at the most, in chains %d deep", pods, most, deep)
				if most > 96 || deep > 16 {
					t.Errorf("%d pods: %d rules are met, in chains %d deep", pods, most, deep)
				}
			}
		})
	}
}

// Many ranges of ports are parted by chains, and what is in none of them may still be a port with a
// name.
func TestManyPorts(t *testing.T) {
	t.Parallel()
	for _, named := range [][]state.SetID{nil, {7}} {
		ports := &state.Ports{ID: 1, Named: named}
		for i := range 3000 {
			ports.Ranges = append(ports.Ranges, state.PortRange{Protocol: model.TCP, First: uint16(10*i + 1), Last: uint16(10*i + 3)})
		}
		own := &state.PolicyRules{Rules: []state.Rule{{Action: model.Allow, Destination: state.End{Ports: ports}}}}
		w := family{}.write(podSite, &state.Rules{Tiers: []state.Tier{{Default: model.Deny, Policies: []*state.PolicyRules{own}}}})
		i := newImage()
		for name, rules := range w.chains {
			i.rule("filter", name, rules...)
		}
		for port, in := range map[int]bool{0: false, 1: true, 3: true, 4: false, 29_991: true, 29_994: false, 60_000: false} {
			m := &met{image: i, port: port}
			m.follow(w.entry, 1)
			if want := in || named != nil; m.marked != want || m.rules > 80 {
				t.Errorf("port %d matches: %v, want %v, after %d rules", port, m.marked, want, m.rules)
			}
		}
	}
}

// Many interfaces of the node's own are found by the letters of their names.
func TestManyDevices(t *testing.T) {
	t.Parallel()
	for _, n := range []int{1, 20, 3000} {
		i := newImage()
		names := []string{"eth", "eth0"}
		for v := range n {
			names = append(names, fmt.Sprint("eth0.", v))
		}
		slices.Sort(names)
		i.devices("filter", "SLUICE-P-X", "-i ", 0, names, "-g OTHERS")
		for _, name := range append(slices.Clone(names), "eth0.x", "et", "eth01") {
			m := &met{image: i, in: name}
			at := "SLUICE-P-X"
			for leads := true; leads; {
				leads = false
				for _, r := range i.chains[chain{"filter", at}] {
					m.rules++
					words := strings.Fields(r)
					if !m.matches(words) {
						continue
					}
					if at = words[len(words)-1]; strings.HasPrefix(at, prefix) {
						leads = true
					}
					break
				}
			}
			if own := slices.Contains(names, name); own != (at == "RETURN") || m.rules > 100 {
				t.Errorf("of %d, %s meets %d rules and ends in %s", len(names), name, m.rules, at)
			}
		}
	}
}

// What others put before our rules, and accept, does not pass them: an adoption puts ours first.
func TestBeforeOthers(t *testing.T) {
	t.Parallel()
	eachVariant(t, func(t *testing.T, v xtables.Variant) {
		d := inside(t, Options{Variant: v, Options: driver.Options{Policy: true}})
		s := policed(3, func(i int) netip.Addr { return netip.AddrFrom4([4]byte{10, 244, 0, byte(i)}) })
		adopt(t, d, s)
		if p := adopt(t, d, s); p.Len() > 0 {
			t.Errorf("adopted again:\n%s", p)
		}
		run(t, d, "iptables-"+string(v), "-I", "FORWARD", "-j", "ACCEPT")
		adopt(t, d, s)
		rules := strings.Split(strings.TrimSpace(run(t, d, "iptables-"+string(v), "-S", "FORWARD")), "\n")
		if last := rules[len(rules)-1]; !strings.Contains(last, prefix+"FORWARD") && last != "-A FORWARD -j ACCEPT" {
			t.Errorf("rules: %v", rules)
		}
		for i, r := range rules {
			if strings.Contains(r, policyPrefix) && slices.Index(rules, "-A FORWARD -j ACCEPT") < i {
				t.Errorf("another program's rule comes before %s", r)
			}
		}
	})
}
