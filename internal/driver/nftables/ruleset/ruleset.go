// Package ruleset is the content of the table: which sets and chains there are (sets.go,
// chains.go), which elements the objects of a state become (elements.go, policy_elements.go), which
// chains the rules of policies become (policy_chains.go), and what an element of the kernel says of
// objects (decode.go). It sends and reads nothing.
package ruleset

import (
	"fmt"
	"net/netip"
	"slices"
	"time"

	"github.com/cespare/xxhash/v2"
	"golang.org/x/sys/unix"

	"sluice.dev/sluice/internal/driver/table"
	"sluice.dev/sluice/internal/kernel/attr"
	"sluice.dev/sluice/internal/kernel/nft"
	"sluice.dev/sluice/internal/state"
)

// TableName is the one table, of family inet, that the driver owns.
const TableName = "sluice"

// TableComment is what the table says of itself.
const TableComment = "Sluice's services. It is kept in step by sluice run and removed by sluice cleanup."

// Ruleset is the constant part of the table: its sets and chains with their rules, of list chains
// with those for empty lists. It is the same on every node, whatever is balanced and permitted.
type Ruleset struct {
	table.Layout
	Chains   []nft.Chain
	Families [2]*Family
	Policy   *policySets // nil: without policy
	// Flowtable is where established connections pass by the chains; "": they do not.
	Flowtable string

	ipvs         bool     // see Options.IPVS
	note         string   // what Note returns, once it was asked: to write it all takes a while
	Counters     []string // named, beside those of policies
	limits       limits
	Networks     []*nft.Set      // the sets that are lists of networks
	listChains   map[string]bool // chains with rules for them, or for deny lists
	writtenRules                 // of endpoints
}

// Family returns the half of the ruleset for an address.
func (rs *Ruleset) Family(is4 bool) *Family {
	if is4 {
		return rs.Families[0]
	}
	return rs.Families[1]
}

// AffinitySize bounds the remembered clients of a family. A full map learns no more: new clients
// are balanced without affinity. So that one frontend cannot fill it, each learns a share of it at
// the most, see learnChain, and so that many cannot, the agent forgets the oldest clients of those
// that have most, see forgetter in package nftables.
const AffinitySize = 1 << 20

// Options say what a ruleset is for, beside services.
type Options struct {
	Policy bool
	Fabric bool // the pod network is ours: see state.Settings.OutgoingCIDRs and SNAT
	// IPVS chooses among the Backends of a frontend: connections to it are left untranslated. What
	// clients outside have of their own (LocalOnly) and whom session affinity remembers is still
	// the ruleset's to translate.
	IPVS bool
	// FlowOffload has established connections pass by the chains, see driver.Options.
	FlowOffload bool
	// MayMiss is for kernels that may miss a key while its value changes, see nft.MayMiss.
	MayMiss bool
}

// New returns the ruleset for services and what else is asked for.
func New(o Options) *Ruleset {
	rs := NewSets(o, AffinitySize)
	rs.AddChains()
	return rs
}

// NewSets returns a ruleset that has no chains yet; clients bounds those that a family remembers.
func NewSets(o Options, clients uint32) *Ruleset {
	rs := &Ruleset{Layout: table.Layout{NFProto: unix.NFPROTO_INET, MayMiss: o.MayMiss}, ipvs: o.IPVS, limits: usualLimits, writtenRules: newWrittenRules()}
	for i, f := range []nft.Family{nft.IPv4, nft.IPv6} {
		rs.Families[i] = rs.addFamily(f, clients)
	}
	rs.Notes = rs.AddSet(&nft.Set{
		Name: "notes", Key: []nft.Field{nft.Mark},
		Comment: "what the agent needs to know when it starts: a digest of each set's content",
	})
	if o.Fabric {
		for _, fp := range rs.Families {
			rs.addFabric(fp)
		}
	}
	if o.Policy {
		rs.addPolicySets()
	}
	if o.FlowOffload {
		rs.Flowtable = "established"
	}
	for _, reason := range rs.drops() {
		rs.Counters = append(rs.Counters, DropPrefix+string(reason))
	}
	return rs
}

// HasChain reports whether the chain is one of the ruleset's own.
func (rs *Ruleset) HasChain(name string) bool {
	return slices.ContainsFunc(rs.Chains, func(c nft.Chain) bool { return c.Name == name })
}

// HasPolicy reports whether the ruleset is one for policy, too.
func (rs *Ruleset) HasPolicy() bool { return rs.Policy != nil }

// AskApart has rules asked in chains of their own, as large ones are, however small they are.
func (rs *Ruleset) AskApart() { rs.limits = apartLimits }

// OfPolicy reports whether the set is one of policy's, which come after all others.
func (rs *Ruleset) OfPolicy(s *nft.Set) bool {
	return rs.Policy != nil && s.ID >= rs.Policy.PodDevices.ID
}

// Create adds the ruleset's sets, counters, flowtable and chains that the table lacks, and has the
// rules of all chains be those for the state.
func (rs *Ruleset) Create(b *nft.Batch, have *nft.Table, s *state.State) {
	if have == nil {
		have = &nft.Table{}
	}
	for _, name := range rs.Counters {
		if !have.Counters[name] {
			b.AddCounter(name)
		}
	}
	for _, s := range rs.Sets {
		if _, there := have.Sets[s.Name]; !there {
			b.AddSet(s)
		}
	}
	if rs.Flowtable != "" && !have.Flowtables[rs.Flowtable] {
		b.AddFlowtable(rs.Flowtable)
	}
	chains := rs.ChainsFor(s)
	// All chains before the first rule, as rules refer to chains.
	for _, c := range chains {
		if !have.Chains[c.Name] {
			b.AddChain(c)
		}
	}
	for _, c := range chains {
		if have.Chains[c.Name] {
			b.TurnRules(c)
		} else {
			b.AddRules(c)
		}
	}
}

// ChainsFor are the ruleset's chains with their rules for the state; nil: for an empty one.
func (rs *Ruleset) ChainsFor(s *state.State) []nft.Chain {
	if s == nil {
		return rs.Chains
	}
	changing := map[string]nft.Chain{}
	for _, c := range rs.changingChains(s) {
		changing[c.Name] = c
	}
	chains := slices.Clone(rs.Chains)
	for i, c := range chains {
		if now, ok := changing[c.Name]; ok {
			chains[i] = now
		}
	}
	return chains
}

// changingChains are those whose rules depend on the state.
func (rs *Ruleset) changingChains(s *state.State) []nft.Chain {
	chains := rs.ListChains(rs.Lists(s))
	switch {
	case rs.Policy == nil:
	case s.Policy == nil:
		chains = append(chains, rs.DenyChain(state.Denied{}))
	default:
		chains = append(chains, rs.DenyChain(s.Policy.Denied))
	}
	return chains
}

// Note identifies the ruleset: a digest of all its messages, and of examples of those that come
// and go.
func (rs *Ruleset) Note() string {
	if rs.note == "" {
		rs.note = rs.writeNote()
	}
	return rs.note
}

func (rs *Ruleset) writeNote() string {
	var a attr.Attrs
	for _, s := range rs.Sets {
		if !rs.resized(s) { // those have other names with other lists
			s.Write(&a, TableName)
		}
	}
	for _, c := range rs.Chains {
		c.Write(&a, TableName)
		for _, r := range c.Rules {
			r.Write(&a, TableName, c.Name)
		}
	}
	chains := slices.Concat(rs.ListChains(ExampleLists(rs.Networks)), rs.outerChains())
	for _, fp := range rs.Families {
		chains = append(chains, fp.learnChain(time.Second))
	}
	if rs.Policy != nil {
		in, _ := rs.RawChain(rs.Policy.rawIn)
		out, _ := rs.RawChain(rs.Policy.rawOut)
		chains = append(chains, in, out, denyEntry(state.Device{}))
		denied := state.Denied{Lists: []*state.List{{Prefixes: []netip.Prefix{netip.PrefixFrom(netip.IPv4Unspecified(), 1), netip.PrefixFrom(netip.IPv6Unspecified(), 128)}}}}
		chains = append(chains, rs.DenyChainFor(denied, [2]*nft.Set{newDeniedSet(nft.IPv4, 0), newDeniedSet(nft.IPv6, 0)}))
	}
	for _, c := range chains {
		for _, r := range c.Rules {
			r.Write(&a, TableName, c.Name)
		}
	}
	return fmt.Sprintf("program %016x", xxhash.Sum64(a.B))
}
