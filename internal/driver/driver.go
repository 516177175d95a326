// Package driver is the contract between the desired state and a kernel that carries it out.
// Drivers live in sub-packages and pass the one table of packets in drivertest, except for what
// they say that they lack.
package driver

import (
	"context"
	"errors"
	"log/slog"
	"maps"
	"net/netip"

	"sluice.dev/sluice/internal/model"
	"sluice.dev/sluice/internal/state"
)

// ErrBusy is wrapped when another process owns the driver's kernel objects.
var ErrBusy = errors.New("owned by another process")

// ErrLocked is wrapped when another program holds a lock that every change needs: while it does,
// all of them fail, and nothing is wrong with any.
var ErrLocked = errors.New("another program holds the lock")

// ErrWhole is returned by Adopt where the driver cannot adopt some parts of the state without the
// others, as it programs them for the first time, or anew.
var ErrWhole = errors.New("all parts of the state are needed at once")

// Options configure any driver; the zero value carries out services.
type Options struct {
	// Log receives what happens in the background; nil: slog.Default().
	Log *slog.Logger
	// Policy has the driver judge what may pass; states have a Policy then, and none otherwise.
	Policy bool
	// KeepEstablished lets connections go on that policy has come to forbid.
	KeepEstablished bool
	// Fabric says that the pod network is ours. The driver masquerades what pods send to the
	// outside, and connections of services go on when the way to another node changes:
	// OutgoingCIDRs and SNAT of the settings count.
	Fabric bool
	// FlowOffload has packets of established connections pass by what judges packets, where the
	// driver and the kernel can do so. Devices are the interfaces at which they do: the names of
	// all, at first and after each change; nil: none.
	FlowOffload bool
	Devices     <-chan []string
	// Remembered, if set, is asked where another program has sent clients of services with session
	// affinity, by an adoption that finds nothing of the driver's in the kernel, so that those
	// clients stay where they are. It is called from the goroutine that adopts. What it returns
	// beside an error counts, and what it says of backends that are none is left out.
	Remembered func(context.Context) ([]state.Remembered, error)
}

// Driver programs the kernel of the network namespace it was opened in. A Driver is not safe for
// concurrent use, except where a method says so.
//
// What the kernel refuses is set aside, part by part and object by object: it is not in the kernel,
// and all else is. A plan that sets something aside is applied without an error. What was set aside
// is tried again when a delta names it, and by later adoptions. A service is set aside with the
// address and port that the kernel refuses. Of a pod or host endpoint whose policies it refuses,
// nothing passes but the failsafe ports.
type Driver interface {
	// Capabilities returns what the driver can do; always the same. Safe for concurrent use.
	Capabilities() Capabilities
	// Probe checks that this kernel and these privileges suffice, and changes nothing. Its error
	// wraps probe.ErrNotSupported and names each requirement that the kernel does not meet, with
	// the version that does.
	Probe(ctx context.Context) error
	// Adopt reads what the kernel holds, compares it with want and plans the difference. It serves
	// start-up, recovery after a failed Apply and the periodic audit. A part that want does not
	// have stays as it is; ErrWhole: the driver cannot leave it so. Nothing that keep names is
	// taken from the kernel; where the driver cannot keep it in its present layout, the plan
	// changes nothing. The plan is valid until the next call of Adopt or Update.
	Adopt(ctx context.Context, want *state.State, keep Keep) (Plan, error)
	// Update plans a change from what was last applied; its cost grows with d alone. What d says
	// that is so already is no change. It must not be called for a part before an Adopt's plan with
	// that part was applied, nor after one that kept something of the part or a failed Apply: adopt
	// again first.
	Update(ctx context.Context, d state.Delta) (Plan, error)
	// Tampered reports whether what was last applied may be gone or changed in the kernel by anyone
	// but this driver. It costs no more than a few system calls, whatever the size of the state.
	// False positives cost an Adopt; what it cannot see is left to the periodic audit. It stays
	// true until the next Adopt. Always false without AuditsCheaply.
	Tampered(ctx context.Context) (bool, error)
	// Held calls f with what the kernel holds as far as the driver knows: without what is set
	// aside. f only reads, keeps nothing, and calls no method of the driver. It is not called
	// before anything was adopted. Safe for concurrent use.
	Held(f func(*state.State))
	// SetAside returns what is set aside now, sorted and each once. Safe for concurrent use.
	SetAside() []SetAside
	// Purge removes all that the driver owns, and nothing else. Purging
	// what is not there succeeds.
	Purge(ctx context.Context) error
	// Close releases the driver's sockets; what it programmed stays in the kernel.
	Close() error
}

// Whole is the change that leads from no services to these.
func Whole(s *state.Services) state.ServicesDelta {
	members := func(set map[netip.Addr]struct{}) map[netip.Addr]bool {
		all := make(map[netip.Addr]bool, len(set))
		for a := range set {
			all[a] = true
		}
		return all
	}
	return state.ServicesDelta{
		Settings: &s.Settings, Frontends: maps.Clone(s.Frontends),
		ClusterIPs: members(s.ClusterIPs), OtherIPs: members(s.OtherIPs), Hairpins: members(s.Hairpins), Peers: members(s.Peers),
	}
}

// Keep says what the wanted state may lack, so that what the kernel has of it stays. What want
// names is brought to what want says all the same, and what an earlier want named is removed. The
// zero Keep keeps nothing.
type Keep struct {
	Services bool // frontends, and addresses that other programs serve
	Policy   bool // whatever judges by policies
	// Policies, where Policy is not set, are all policies that may be lacking: what is judged by
	// one of them in the kernel stays.
	Policies []model.PolicyKey
	Fabric   bool // routes and tunnels
}

// Any reports whether there is something to keep.
func (k Keep) Any() bool { return k.Services || k.Policy || k.Fabric || len(k.Policies) > 0 }

// Kept is what a plan of Adopt leaves in the kernel though want does not name it. Where something
// of a part is kept, an ordinary Adopt of the part, by any process, removes it.
type Kept struct {
	Services int // frontends, and addresses that other programs serve
	Policy   int // elements of policy
	Fabric   int // routes, and far ends of tunnels

	// Where policy is kept, the kernel may judge otherwise than the state says:
	Senders, Receivers map[netip.Addr]bool   // pods, in what they send, and in what reaches them
	Hosts              map[int]bool          // host endpoints, by the index of the interface
	Untracked          bool                  // doNotTrack policies
	Members            map[netip.Prefix]bool // addresses that may be in a group or on a list
}

// Elements is how much is kept; 0: nothing.
func (k Kept) Elements() int { return k.Services + k.Policy + k.Fabric }

// Plan is a computed change of the kernel that has not happened yet.
type Plan interface {
	// Len is the number of kernel operations; 0 means that nothing differs.
	Len() int
	// String prints the operations for people, one a line.
	String() string
	// Kept is what an adoption keeps; nothing for an update. The caller only reads it.
	Kept() Kept
	// Apply carries the plan out. Safe for traffic at each step. After an
	// error the kernel is in the state before or between safe steps; Adopt finds out.
	Apply(ctx context.Context) error
}
