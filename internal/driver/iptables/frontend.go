package iptables

import (
	"crypto/sha256"
	"fmt"
	"net/netip"
	"strings"
	"time"

	"sluice.dev/sluice/internal/model"
	"sluice.dev/sluice/internal/state"
)

// bundle is the chains that serve a frontend, and sets that they use. A chain is named after its
// rules, so that frontends that ask for the same share theirs.
type bundle struct {
	goal   goal
	chains map[string][]string
	sets   map[string]bool // of clients that stay on a backend
}

// served reports whether some connections to the frontend are translated.
func served(f *state.Frontend) bool {
	return f != nil && (len(f.Backends) > 0 || f.LocalOnly && len(f.Local) > 0)
}

// bundle returns what serves a frontend.
func (f family) bundle(k state.FrontendKey, fe *state.Frontend) *bundle {
	b := &bundle{chains: map[string][]string{}, sets: map[string]bool{}}
	if !served(fe) {
		return b
	}
	plain := fe.Affinity < time.Second && len(fe.SourceRanges) == 0 && !fe.LocalOnly
	if plain && !fe.External() && len(fe.Backends) <= slotsMost {
		b.goal.backends = fe.Backends // an external one shares its chain with others of its service
		return b
	}
	p := picker{family: f, bundle: b, protocol: k.Protocol, affinity: fe.Affinity.Truncate(time.Second)}
	var rules []string
	if len(fe.SourceRanges) > 0 {
		rules = append(rules, f.notIn(setSources, "dst,dst,src")+" -j RETURN")
	}
	if fe.LocalOnly {
		inside := "-j RETURN"
		if len(fe.Backends) > 0 {
			inside = "-g " + b.add(p.pick(fe.Backends))
		}
		rules = append(rules, "-j "+keepChain, f.in(setCluster, "src")+" "+inside, "-m addrtype --src-type LOCAL "+inside)
		rules = append(rules, p.pick(fe.Local)...)
	} else {
		rules = append(rules, p.pick(fe.Backends)...)
	}
	b.goal.chain = b.add(rules)
	return b
}

// add adds a chain and returns its name.
func (b *bundle) add(rules []string) string {
	name := named("F", strings.Join(rules, "\n"))
	b.chains[name] = rules
	return name
}

// picker writes the rules that choose a backend.
type picker struct {
	family
	*bundle
	protocol model.Protocol
	affinity time.Duration
}

// pick returns rules that send a connection to one of the backends: to that on which its client
// stays, or to a random one.
func (p picker) pick(backends []netip.AddrPort) (rules []string) {
	if p.affinity > 0 {
		for _, b := range backends {
			p.sets[p.clients(b)] = true
			rules = append(rules, "-m set --match-set "+p.clients(b)+" dst,dst,src -g "+p.remember(b))
		}
	}
	return append(rules, p.random(backends, 0)...)
}

// group is how many backends a chain has, and groups how many chains of more backends.
const group, groups = 16, 8

// random returns rules that choose one of the backends. Many are parted by a digest of their own,
// into chains that stay as they are when others come and go.
func (p picker) random(backends []netip.AddrPort, depth int) (rules []string) {
	c := choice{left: len(backends)}
	if len(backends) <= group || depth == len(sha256.Sum256(nil)) {
		for _, b := range backends {
			if p.affinity > 0 {
				rules = append(rules, c.rule("", 1, "-g "+p.remember(b)))
			} else {
				rules = append(rules, c.rule("-p "+protocol(p.protocol)+" ", 1, dnat(b)))
			}
		}
		return rules
	}
	var parts [groups][]netip.AddrPort
	for _, b := range backends {
		digest := sha256.Sum256([]byte(b.String()))
		i := int(digest[depth]) % len(parts)
		parts[i] = append(parts[i], b)
	}
	for _, part := range parts {
		if len(part) > 0 {
			rules = append(rules, c.rule("", len(part), "-g "+p.add(p.random(part, depth+1))))
		}
	}
	return rules
}

// clients is the set of clients that stay on a backend, by the frontends that they ask for.
func (f family) clients(b netip.AddrPort) string {
	return f.name(strings.TrimPrefix(named("A", b.String()), prefix))
}

// remember returns a chain that remembers the client, and translates.
func (p picker) remember(b netip.AddrPort) string {
	return p.add([]string{
		fmt.Sprintf("-j SET --add-set %s dst,dst,src --exist --timeout %d", p.clients(b), int(p.affinity.Seconds())),
		"-p " + protocol(p.protocol) + " " + dnat(b),
	})
}

// frontend adds the elements of a frontend.
func (f family) frontend(k state.FrontendKey, fe *state.Frontend, i *image) {
	if fe == nil {
		return
	}
	put := func(of string) {
		i.set(f.name(of), kinds[of]).elements[element{addr: k.Addr, protocol: k.Protocol, port: k.Port}] = true
	}
	refused := fe.Reject && len(fe.Backends) == 0
	if served(fe) {
		put(setFrontends)
	}
	if refused {
		put(setRefused)
	}
	if len(fe.SourceRanges) > 0 || !refused && (len(fe.Backends) == 0 || fe.LocalOnly && len(fe.Local) == 0) {
		put(setDropped)
	}
	if fe.External() && !fe.LocalOnly {
		put(setMasquerade)
	}
	for _, r := range fe.SourceRanges {
		if !f.holds(r.Addr()) {
			continue
		}
		for _, r := range halves(r) {
			i.set(f.name(setSources), kinds[setSources]).elements[element{addr: k.Addr, protocol: k.Protocol, port: k.Port, net: r}] = true
		}
	}
}
