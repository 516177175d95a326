package model

// FarmScheduler is how a backend is chosen for a new connection.
type FarmScheduler uint8

// The schedulers. Weights count in all of them.
const (
	// RoundRobin takes one backend after the other.
	RoundRobin FarmScheduler = iota
	// Weighted takes a random one.
	Weighted
	// Hash takes the one that the hash of HashBy leads to.
	Hash
	// SymHash takes the one that a hash leads to which is the same for both directions of a flow.
	SymHash
	// Maglev is Hash over a table of which a change of the backends moves as little as possible
	// (Eisenbud et al., Maglev, NSDI 2016).
	Maglev
	// LeastConnections takes the one with the fewest connections in proportion to its weight.
	LeastConnections
)

// schedulers is what is known of each. One more is a constant, a line here, and what the compiler
// and the rules of nftables make of it.
var schedulers = [...]struct {
	word  string // nftlb's, or ours where nftlb has none
	nftlb bool
	by    bool   // HashBy matters
	draws bool   // it chooses for a connection apart from all others
	ipvs  string // what IPVS calls it; empty: IPVS has none like it
}{
	RoundRobin:       {word: "rr", nftlb: true, draws: true, ipvs: "wrr"},
	Weighted:         {word: "weight", nftlb: true, draws: true, ipvs: "wrr"},
	Hash:             {word: "hash", nftlb: true, by: true, ipvs: "sh"},
	SymHash:          {word: "symhash", nftlb: true},
	Maglev:           {word: "maglev", by: true, ipvs: "mh"},
	LeastConnections: {word: "least", ipvs: "wlc"},
}

// FarmSchedulers are all schedulers.
func FarmSchedulers() (all []FarmScheduler) {
	for s := range schedulers {
		all = append(all, FarmScheduler(s))
	}
	return all
}

// String returns the word for the scheduler in configurations, and InNftlb whether it is nftlb's.
func (s FarmScheduler) String() string { return schedulers[s].word }
func (s FarmScheduler) InNftlb() bool  { return schedulers[s].nftlb }

// Hashes reports whether the scheduler chooses by HashBy.
func (s FarmScheduler) Hashes() bool { return schedulers[s].by }

// Draws reports whether the scheduler chooses for each connection apart from all others, so that
// packets that are not tracked would not stay at a backend.
func (s FarmScheduler) Draws() bool { return schedulers[s].draws }

// IPVS is what IPVS calls the scheduler; empty: it has none like it.
func (s FarmScheduler) IPVS() string { return schedulers[s].ipvs }
