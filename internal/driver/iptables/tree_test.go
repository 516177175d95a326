package iptables

import (
	"fmt"
	"maps"
	"math"
	"math/rand/v2"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"sluice.dev/sluice/internal/model"
	"sluice.dev/sluice/internal/state"
)

// walk follows a new connection through the chains that find its backend.
type walk struct {
	t      *testing.T
	image  *image
	rules  map[string]*rule // by their text: connections meet the same ones
	key    state.FrontendKey
	to     map[netip.AddrPort]float64 // how likely each backend is
	most   int                        // rules met on the longest way
	depth  int                        // chains on the longest way
	beyond float64                    // how likely no backend is
}

// follow meets the rules of a chain, with a probability, after some others.
func (w *walk) follow(name string, likely float64, met, depth int) {
	rules, is := w.image.chains[chain{"nat", name}]
	if !is {
		w.t.Fatalf("chain %s is not there", name)
	}
	w.depth = max(w.depth, depth)
	for _, text := range rules {
		met++
		w.most = max(w.most, met)
		r := w.rules[text]
		if r == nil {
			r = read(w.t, text)
			w.rules[text] = r
		}
		if !r.matches(w.key) {
			continue
		}
		taken := likely * r.chance
		likely -= taken
		if to, is := strings.CutPrefix(r.action, "-g "); is {
			w.follow(to, taken, met, depth+1)
		} else {
			w.to[netip.MustParseAddrPort(strings.TrimPrefix(r.action, "-j DNAT --to-destination "))] += taken
		}
		if r.chance == 1 {
			return
		}
	}
	w.beyond += likely
}

// rule is what a rule asks, how likely it then acts, and what it does.
type rule struct {
	to          netip.Prefix // invalid: any
	protocol    string       // "": any
	first, last uint16
	chance      float64
	action      string
}

func (r *rule) matches(k state.FrontendKey) bool {
	return (!r.to.IsValid() || r.to.Contains(k.Addr)) && (r.protocol == "" || r.protocol == protocol(k.Protocol)) &&
		r.first <= k.Port && k.Port <= r.last
}

func read(t *testing.T, text string) *rule {
	r := &rule{last: math.MaxUint16, chance: 1}
	for words := strings.Fields(text); len(words) > 0; words = words[2:] {
		switch words[0] {
		case "-g", "-j":
			r.action = strings.Join(words, " ")
			return r
		case "-d":
			r.to = netip.MustParsePrefix(words[1])
		case "-p":
			r.protocol = words[1]
		case "--dport":
			if n, _ := fmt.Sscanf(words[1], "%d:%d", &r.first, &r.last); n < 2 {
				r.last = r.first
			}
		case "--probability":
			if _, err := fmt.Sscan(words[1], &r.chance); err != nil {
				t.Fatal(err)
			}
		case "-m", "--mode":
		default:
			t.Fatalf("rule %q", text)
		}
	}
	t.Fatalf("rule %q does nothing", text)
	return nil
}

// check shows that a new connection to each frontend goes to each of its backends as likely as to
// any other, and nowhere else, by chains of which there are not too many one behind the other. It
// returns the most rules met.
func check(t *testing.T, i *image, frontends map[state.FrontendKey]*state.Frontend) (most int) {
	t.Helper()
	rules := map[string]*rule{}
	for k, f := range frontends {
		w := &walk{t: t, image: i, rules: rules, key: k, to: map[netip.AddrPort]float64{}}
		w.follow(treeChain, 1, 0, 3)
		most = max(most, w.most)
		if w.depth > 16 { // built-in chain included: where nftables ends
			t.Fatalf("%v is %d chains deep", k, w.depth)
		}
		if len(w.to) != len(f.Backends) || w.beyond > 1e-9 {
			t.Fatalf("%v reaches %d of %d backends, and with %g none", k, len(w.to), len(f.Backends), w.beyond)
		}
		for _, b := range f.Backends {
			if fair := 1 / float64(len(f.Backends)); math.Abs(w.to[b]-fair) > 1e-6 {
				t.Fatalf("%v reaches %v with %g, fair is %g", k, b, w.to[b], fair)
			}
		}
	}
	return most
}

// drawn is a frontend with some backends.
func drawn(r *rand.Rand, v6 bool, most int) *state.Frontend {
	f := &state.Frontend{Kind: state.Kind(r.IntN(4)), Reject: true}
	for range 1 + r.IntN(most) {
		a := netip.AddrFrom4([4]byte{10, 244, byte(r.IntN(256)), byte(r.IntN(256))})
		if v6 {
			a = netip.AddrFrom16([16]byte{0: 0xfd, 14: byte(r.IntN(256)), 15: byte(r.IntN(256))})
		}
		f.Backends = append(f.Backends, netip.AddrPortFrom(a, 8080))
	}
	slices.SortFunc(f.Backends, netip.AddrPort.Compare)
	f.Backends = slices.Compact(f.Backends)
	return f
}

// drawnKey is a frontend's address and port: often on an address that others have.
func drawnKey(r *rand.Rand, v6 bool, addresses int) state.FrontendKey {
	n := r.IntN(addresses)
	k := state.FrontendKey{Addr: netip.AddrFrom4([4]byte{10, 96, byte(n >> 8), byte(n)}), Protocol: protocols[r.IntN(3)], Port: uint16(r.IntN(1 << 16))}
	if v6 {
		k.Addr = netip.AddrFrom16([16]byte{0: 0xfd, 10: 0x96, 14: byte(n >> 8), 15: byte(n)})
	}
	if r.IntN(2) == 0 {
		k.Protocol, k.Port = model.TCP, 80
	}
	return k
}

// With ten thousand services a new connection meets fewer than 64 rules, whatever their addresses
// and ports are: five are met before the tree.
func TestRulesMet(t *testing.T) {
	t.Parallel()
	const before, most = 5, 64
	node := netip.MustParseAddr("192.168.1.1")
	for name, key := range map[string]func(*rand.Rand, int) state.FrontendKey{
		"one after the other": func(_ *rand.Rand, i int) state.FrontendKey {
			return state.FrontendKey{Addr: addr(i), Protocol: model.TCP, Port: 80}
		},
		"scattered": func(r *rand.Rand, _ int) state.FrontendKey {
			return state.FrontendKey{Addr: netip.AddrFrom4([4]byte{10, byte(96 + r.IntN(16)), byte(r.IntN(256)), byte(r.IntN(256))}), Protocol: model.TCP, Port: 80}
		},
		"node ports": func(r *rand.Rand, _ int) state.FrontendKey {
			return state.FrontendKey{Addr: node, Protocol: protocols[r.IntN(2)], Port: uint16(30000 + r.IntN(32768))}
		},
		"some ports": func(r *rand.Rand, i int) state.FrontendKey {
			return state.FrontendKey{Addr: addr(i / 3), Protocol: protocols[i%2], Port: uint16(i)}
		},
		"many of everything": func(r *rand.Rand, i int) state.FrontendKey {
			if i%2 == 0 {
				return state.FrontendKey{Addr: netip.AddrFrom4([4]byte{10, 96, 17, 33}), Protocol: protocols[r.IntN(3)], Port: uint16(r.IntN(1 << 16))}
			}
			return state.FrontendKey{Addr: netip.AddrFrom4([4]byte{10, 96, byte(r.IntN(256)), byte(r.IntN(256))}), Protocol: model.TCP, Port: 80}
		},
		"IPv6": func(r *rand.Rand, _ int) state.FrontendKey { return drawnKey(r, true, 1<<16) },
	} {
		t.Run(name, func(t *testing.T) {
			r := rand.New(rand.NewPCG(1, 2))
			s := state.New()
			for i := range 10000 {
				k := key(r, i)
				s.Services.Frontends[k] = drawn(r, k.Addr.Is6(), 16)
			}
			i := newImage()
			family{v6: name == "IPv6"}.whole(s.Services, i)
			if got := before + check(t, i, s.Services.Frontends); got >= most {
				t.Errorf("%d rules are met, fewer than %d expected", got, most)
			} else {
				t.Logf("%d rules are met at the most", got)
			}
		})
	}
}

// However frontends come, change and go, a change writes what differs between the images before and
// after it, and no more.
func TestChanges(t *testing.T) {
	t.Parallel()
	for seed := range uint64(4) {
		r := rand.New(rand.NewPCG(seed, 0))
		f := family{v6: seed%2 == 1}
		d := &Driver{state: state.New()}
		d.families[0] = f
		before := newImage()
		all := f.whole(d.state.Services, before)
		d.shared[0] = all
		addresses := 1 + r.IntN(400)
		for step := range 20 {
			delta := state.ServicesDelta{Frontends: map[state.FrontendKey]*state.Frontend{}, ClusterIPs: map[netip.Addr]bool{}}
			known := slices.SortedFunc(maps.Keys(d.state.Services.Frontends), state.FrontendKey.Compare)
			for range []int{1, 3, 70}[r.IntN(3)] {
				k := drawnKey(r, f.v6, addresses)
				if len(known) > 0 && r.IntN(2) == 0 {
					k = known[r.IntN(len(known))]
				}
				delta.Frontends[k] = nil
				if r.IntN(3) > 0 {
					fe := drawn(r, f.v6, 40)
					fe.LocalOnly, fe.Affinity = r.IntN(5) == 0, time.Duration(r.IntN(4)/3)*time.Hour
					delta.Frontends[k] = fe
					delta.ClusterIPs[k.Addr] = true
				}
			}
			from, to := newImage(), newImage()
			next := f.update(d.state.Services, d.shared[0], delta, from, to)
			d.state.Services.Apply(delta)
			after := newImage()
			whole := f.whole(d.state.Services, after)
			got, want := diffImages(f.v6, from, to), diffImages(f.v6, before, after)
			if got.String() != want.String() {
				t.Fatalf("seed %d, step %d: the change is\n%s\nand should be\n%s", seed, step, got, want)
			}
			if !maps.Equal(next.uses, whole.uses) {
				t.Fatalf("seed %d, step %d: shared by %v, and not by %v", seed, step, next.uses, whole.uses)
			}
			before, d.shared[0] = after, next
		}
	}
}
