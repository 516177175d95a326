// Package source is the contract between where objects are declared and the
// store that holds them. Sources live in sub-packages.
package source

import (
	"context"
	"net/netip"
	"reflect"

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
	// Dialed returns the addresses that it lately connected to, or tried to, sorted. An address is
	// returned here before anything that was read from it is in the store. Safe for concurrent use.
	Dialed() []netip.AddrPort
}

// A Finisher is a source that leaves out pods that have finished.
type Finisher interface {
	// Finished reports whether there is such a pod, and it has finished. Safe for concurrent use.
	Finished(ctx context.Context, pod model.Name) (bool, error)
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
	// Kinds says how each kind is followed, in sources that follow kinds one by one.
	Kinds []Following `json:"kinds,omitempty"`
	// Lacking lists what a synced source has never been able to read since it started, so that
	// nobody knows whether it still exists. Once everything has been read it is empty, and stays
	// so. An item goes only after what was read instead is in the store.
	Lacking []string `json:"lacking,omitempty"`
	// LackingObjects are set if single objects are all that is lacking: they exist, and nothing of
	// them can be used. An object that may be known by either of two names is listed with both.
	LackingObjects []model.Ref `json:"-"`
	// Waiting are the policies among Lacking that have been read and wait for others. No
	// source says it: see agent.Await.
	Waiting []model.Ref `json:"waiting,omitempty"`
	// Unread are the kinds that every cluster has and of which nothing at all was read since the
	// start; Lacking says why.
	Unread []model.Kind `json:"unread,omitempty"`
}

// Following says how the objects of one kind are followed.
type Following struct {
	Kind       model.Kind     `json:"kind"`
	Synced     bool           `json:"synced"`               // all there was has been delivered once; or it is known that there are none
	Behind     model.Duration `json:"behind,omitempty"`     // since when changes may not come; 0: they do
	Faults     int            `json:"faults,omitempty"`     // objects at fault
	Reconnects uint64         `json:"reconnects,omitempty"` // how often what tells of changes had to be made anew
	Lists      uint64         `json:"lists,omitempty"`      // how often all was read
	ListTook   model.Duration `json:"listTook,omitempty"`   // how long that took the last time
}

// IsStandIn tells whether an object stands in for one that is at fault. A source delivers it as
// long as no good version is known, and never in place of one.
func IsStandIn(object any) bool { return standsFor(object) != "" }

func standsFor(object any) string {
	if s, ok := object.(model.StandIn); ok {
		return s.StandIn()
	}
	return ""
}

// Newest returns the version of an object that counts: next, or last where there is no next or
// where it only stands in for a good last. A next that equals last is last. Both may be nil.
func Newest(last, next any) any {
	if next == nil || IsStandIn(next) && last != nil && !IsStandIn(last) || reflect.DeepEqual(last, next) {
		return last
	}
	return next
}

// Fault says, for an Issue, what is wrong with an object, which is err, and what is in force of it.
// Delivered is what was delivered of it, nil for nothing, and read is what its present version came
// to, nil for nothing.
func Fault(delivered, read any, err error) (reason, inForce string) {
	if p, ok := delivered.(*model.Policy); ok && p.Ignored {
		return "ignored: " + err.Error(), model.InForceNothing
	}
	return err.Error(), stateOf(delivered, read)
}

// stateOf says what is in force of an object at fault.
func stateOf(delivered, read any) string {
	if delivered == nil {
		return model.InForceNothing
	}
	switch stands := standsFor(delivered); {
	case stands != "":
		return stands
	case read != nil && !IsStandIn(read):
		return model.InForceRest
	}
	return model.InForceLast
}
