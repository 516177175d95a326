// Package source is the contract between where objects are declared and the
// store that holds them. Sources live in sub-packages.
package source

import (
	"context"
	"net/netip"
	"slices"
	"strings"

	"sluice.dev/sluice/internal/model"
	"sluice.dev/sluice/internal/store"
)

// Sink is where objects go; *store.Store is one.
type Sink interface {
	// Apply takes a batch of events, in which no object occurs twice.
	Apply(events []store.Event)
	// SetSynced is called once, after everything that was there at the start.
	SetSynced()
}

// Source delivers objects to a store.
type Source interface {
	// Run delivers objects until ctx ends. It calls the store's SetSynced once
	// everything that existed at the start has been delivered, and not before; a
	// source that cannot be read keeps trying and says so in Issues. It
	// returns nil when ctx ends and an error only if it can never work.
	Run(ctx context.Context) error
	// Flush returns once everything the source holds at the time of the call
	// has been delivered to the store; an error says why it can't be.
	Flush(ctx context.Context) error
	// Status is a snapshot; safe for concurrent use.
	Status() Status
}

// Dialer is a Source that reads its objects from other machines.
type Dialer interface {
	// Dialed returns where it connected to lately, or tried to, sorted; what is read from there is in the store later than
	// it is told here. Safe for concurrent use.
	Dialed() []netip.AddrPort
}

// Status is what a source says of itself.
type Status struct {
	Name    string         `json:"name"`  // "manifests"
	Where   string         `json:"where"` // the folder, the API's address
	Synced  bool           `json:"synced"`
	Objects map[string]int `json:"objects"` // by kind, those delivered
	Skipped map[string]int `json:"skipped"` // by kind, those passed over
	Issues  []model.Issue  `json:"issues"`
	// Reconnects counts how often a connection that tells of changes had to be made anew.
	Reconnects uint64 `json:"reconnects,omitempty"`
	// Kinds says how each kind is followed, where that is done kind by kind.
	Kinds []Following `json:"kinds,omitempty"`
	// Lacking says, an item each, what a synced source has not been able to read
	// ever since it started, so that what became of it is not known. It is
	// empty, from then on for good, once all has been read. What it tells is
	// in the store before it is told here.
	Lacking []string `json:"lacking,omitempty"`
	// LackingPolicies are set where single policies are all that is lacking: they are there, and at fault in such a way that
	// not even whom they select can be told. One that may be known by either of two names is there with both.
	LackingPolicies []model.PolicyKey `json:"-"`
	// Unread are those of the kinds that every cluster has of which nothing at all was read
	// since the start; Lacking says why. While Pod is among them, whose a packet is can't be told.
	Unread []string `json:"unread,omitempty"`
}

// Following says how the objects of one kind are followed.
type Following struct {
	Kind        string  `json:"kind"`
	Synced      bool    `json:"synced"`                // all there was has been delivered once; or it is known that there are none
	Behind      float64 `json:"behind,omitempty"`      // seconds since when changes may not come; 0: they do
	Faults      int     `json:"faults,omitempty"`      // objects at fault
	Reconnects  uint64  `json:"reconnects,omitempty"`  // how often what tells of changes had to be made anew
	Lists       uint64  `json:"lists,omitempty"`       // how often all was read
	ListSeconds float64 `json:"listSeconds,omitempty"` // how long that took the last time
}

// IsRefused tells whether an object stands in for one that is at fault: a policy
// that denies, or a network set that nobody knows the networks of. It is there
// as long as no good version is known, and never takes the place of one.
func IsRefused(object any) bool {
	switch o := object.(type) {
	case *model.Policy:
		return o.Refused != ""
	case *model.NetworkSet:
		return o.Refused != ""
	}
	return false
}

// PolicyKeys are what a policy at fault may be known by, under whose name an API has it; none for objects that are no policies. Calico stores
// the policies of its default tier under other names than those that they are known by, see calico.Decode.
func PolicyKeys(kind model.Kind, name model.Name) []model.PolicyKey {
	if !slices.Contains(model.PolicyKinds, kind) {
		return nil
	}
	key := model.PolicyKey{Kind: kind, Name: name}
	keys := []model.PolicyKey{key}
	if short, stored := strings.CutPrefix(name.Name, model.DefaultTier.Name+"."); stored {
		key.Name.Name = short
		keys = append(keys, key)
	}
	return keys
}

// InForce says, for an Issue, what is in force of an object at fault. Delivered is
// what was delivered of it, nil for nothing; present tells that this was made of the
// object as it is now, and not of an earlier version.
func InForce(delivered any, present bool) string {
	_, isSet := delivered.(*model.NetworkSet)
	policy, isPolicy := delivered.(*model.Policy)
	switch {
	case delivered == nil:
		return model.InForceNothing
	case IsRefused(delivered) && isSet:
		return model.InForceDoubt
	case IsRefused(delivered) && isPolicy && policy.Key.Kind == model.NetworkPolicy:
		return model.InForceIsolate
	case IsRefused(delivered):
		return model.InForceDeny
	case present:
		return model.InForceRest
	}
	return model.InForceLast
}
