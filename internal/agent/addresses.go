package agent

import (
	"context"
	"errors"
	"net/netip"

	address "sluice.dev/sluice/internal/addresses/compile"
	"sluice.dev/sluice/internal/model"
)

// Addresses carries out what the compiler says of the addresses of Services.
type Addresses interface {
	// Follow follows a change, after the kernel has its frontends. It returns at once.
	Follow(address.Delta)
	// Silent delivers, after each change, the nodes that are not heard from, and with false those
	// that are heard from and do not hear this one.
	Silent() <-chan map[string]bool
	// Answered returns the addresses that this node is to answer for, with the interfaces on which
	// it does; nil: they are not known yet. It is safe for concurrent use.
	Answered() map[netip.Addr][]string
	// Run works until ctx ends.
	Run(ctx context.Context)
	// Counts is safe for concurrent use.
	Counts() AddressCounts
}

// addressing is the subject of addresses of Services.
func (a *Agent) addressing() subject {
	return subject{
		run: []func(context.Context){a.Addresses.Run, hear(a, a.Addresses.Silent(), func(l *loop, ctx context.Context, nodes map[string]bool) {
			l.compiling.Lock()
			l.Compiler.Addresses.SetSilent(nodes)
			l.compiling.Unlock()
			l.attempt(ctx)
		})},
		follow: func() {
			a.compiling.Lock()
			changes := a.Compiler.Addresses.Changes()
			a.compiling.Unlock()
			a.Addresses.Follow(changes)
		},
		issues:  a.unanswered,
		collect: collector{a}.collectAddresses,
	}
}

// AddressCounts are counts for metrics.
type AddressCounts struct {
	Announced int    // that this node answers for
	Answers   uint64 // to those who asked for one
	Unasked   uint64 // frames that told all neighbours of one
	Nodes     int    // others that may announce some
	Silent    int    // of them, those that are not heard from
	Unwritten int    // statuses of Services that do not say yet what they should
}

// errNoAddresses is the answer of an agent that does not deal with addresses.
var errNoAddresses = errors.New("the agent gives Services no addresses, and announces none: it runs without --service-addresses")

// addresses returns the addresses of pools that Services have, or keep without one.
func (a *Agent) addresses() ([]address.Address, error) {
	if a.Addresses == nil {
		return nil, errNoAddresses
	}
	a.compiling.Lock()
	defer a.compiling.Unlock()
	list, answered := a.Compiler.AddressList(), a.Addresses.Answered()
	for i := range list {
		if on, known := answered[list[i].Address]; known && list[i].Here {
			list[i].AnsweredOn(on)
		}
	}
	return list, nil
}

// unanswered names the addresses that this node is to answer for and has no interface for.
func (a *Agent) unanswered() []model.Issue {
	var list []netip.Addr
	for addr, on := range a.Addresses.Answered() {
		if len(on) == 0 {
			list = append(list, addr)
		}
	}
	a.compiling.Lock()
	defer a.compiling.Unlock()
	return a.Compiler.Addresses.Unanswered(list)
}

var (
	descAddresses = desc("addresses", "Addresses of pools that Services have, in the cluster, and those that they keep without a pool.")
	descAnnounced = desc("addresses_announced", "Addresses of Services that this node answers for by ARP and NDP.")
	descAnswers   = desc("address_answers_total", "Answers to ARP requests and neighbour solicitations for addresses of Services.")
	descUnasked   = desc("address_announcements_total", "Frames that told all neighbours where an address of a Service is.")
	descUnwritten = desc("addresses_unwritten", "Services whose status does not say yet which address they have.")
	descNodes     = desc("address_nodes", "Other nodes that may announce addresses, by whether they are heard from.", "state")
)

// collectAddresses makes the metrics of addresses.
func (c collector) collectAddresses(s samples) {
	list, _ := c.addresses()
	n := c.Addresses.Counts()
	s.put(descAddresses, float64(len(list)))
	s.put(descAnnounced, float64(n.Announced))
	s.put(descUnwritten, float64(n.Unwritten))
	s.put(descNodes, float64(n.Nodes-n.Silent), "heard")
	s.put(descNodes, float64(n.Silent), "silent")
	s.put(descAnswers, float64(n.Answers))
	s.put(descUnasked, float64(n.Unasked))
}
