// Package driver is the contract between the desired state and a kernel that
// carries it out. Drivers live in sub-packages and pass the one table of
// packets in drivertest.
package driver

import (
	"context"
	"errors"

	"sluice.dev/sluice/internal/model"
	"sluice.dev/sluice/internal/state"
)

// ErrNotSupported is wrapped by Probe's error when the kernel lacks something
// the driver needs; the message names it and the version that has it.
var ErrNotSupported = errors.New("not supported by this kernel")

// ErrBusy is wrapped when another process owns the driver's kernel objects.
var ErrBusy = errors.New("owned by another process")

// Driver programs the kernel of the network namespace it was opened in. A
// Driver is not safe for concurrent use.
//
// What the kernel refuses should be set aside part by part, object by object, and hold up nothing else: see Refuser.
type Driver interface {
	// Probe checks that this kernel and these privileges suffice, and
	// changes nothing.
	Probe(ctx context.Context) error
	// Adopt reads what the kernel holds, compares it with want and plans the
	// difference. It serves start-up, recovery after a failed Apply and the periodic audit.
	// The plan is valid until the next call of Adopt or Update.
	Adopt(ctx context.Context, want *state.State) (Plan, error)
	// Update plans a change from what was last applied; its cost grows with
	// d alone. It must not be called before an Adopt's plan was applied, nor
	// after a failed Apply: adopt again first.
	Update(ctx context.Context, d state.Delta) (Plan, error)
	// Purge removes all that the driver owns, and nothing else. Purging
	// what is not there succeeds.
	Purge(ctx context.Context) error
	// Close releases the driver's sockets; what it programmed stays in the kernel.
	Close() error
}

// Auditor is implemented by drivers that can tell cheaply that someone else
// touched what they own. The agent asks twice a second, between its own calls
// of the Driver and from the same goroutine; it answers true with an Adopt.
type Auditor interface {
	// Tampered reports whether what was last applied may be gone or changed in
	// the kernel by anyone but this driver. It costs no more than a few
	// system calls, whatever the size of the state. False positives cost an Adopt;
	// what it cannot see is left to the periodic audit. It stays true until the next Adopt.
	Tampered(ctx context.Context) (bool, error)
}

// Keeper is implemented by drivers that can adopt a kernel without taking
// anything from it. The agent calls it in place of Adopt as long as its
// sources have not been able to read everything.
type Keeper interface {
	// AdoptKeeping is Adopt for a want that may lack something. What want names is
	// brought to what want says, and what an earlier want named is removed; all else
	// that is in the kernel stays, and so do its connections. If the driver cannot
	// keep it in its present layout, it changes nothing.
	//
	// kept is the number of frontends (and addresses that other programs serve) that stay
	// though want does not name them; where it is 0, an Adopt would have done the same. Where
	// it is not, Update may fail after Apply, and the agent adopts again. An
	// ordinary Adopt, by any process, removes what was kept.
	//
	// Where want lacks nothing but single policies, lacking names them, and only what is judged by one of them in
	// the kernel stays; nil: want may lack anything.
	AdoptKeeping(ctx context.Context, want *state.State, lacking []model.PolicyKey) (plan Plan, kept int, err error)
}

// Lister is implemented by drivers that can tell which frontends the kernel holds
// without knowing any desired state: of an agent that runs, or of one that has ended.
type Lister interface {
	// Frontends returns each frontend that the kernel holds, with whether its new
	// connections are sent to backends (they are refused or dropped otherwise). It is empty
	// where the driver has programmed nothing.
	Frontends(ctx context.Context) (map[state.FrontendKey]bool, error)
}

// Rememberer is implemented by drivers that keep clients on their backends.
type Rememberer interface {
	// Remembered returns how many clients of services with session affinity the kernel remembered when the driver last looked. It
	// is safe for concurrent use.
	Remembered() Remembered
}

// Remembered counts clients, of each frontend apart.
type Remembered struct {
	IPv4      int `json:"ipv4"`
	IPv6      int `json:"ipv6"`
	Most      int `json:"most"`      // that the kernel can remember of a family
	Forgotten int `json:"forgotten"` // since the driver was opened, to make room for others
}

// Fullest is the larger number of the two families, in percent of the most.
func (r Remembered) Fullest() int { return 100 * max(r.IPv4, r.IPv6) / max(1, r.Most) }

// Plan is a computed change of the kernel that has not happened yet.
type Plan interface {
	// Len is the number of kernel operations; 0 means that nothing differs.
	Len() int
	// String prints the operations for people, one a line.
	String() string
	// Apply carries the plan out. Safe for traffic at each step. After an
	// error the kernel is in the state before or between safe steps; Adopt finds out.
	Apply(ctx context.Context) error
}
