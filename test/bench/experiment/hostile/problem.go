package hostile

import (
	"strings"
	"time"
)

// problem is a harmful effect of hostile objects.
type problem struct {
	kind string // one of those below
	what string
	took time.Duration // how long a change waited, if that is the problem
}

// The kinds of problems.
const (
	problemPassed     = "something passed where policy forbids it"
	problemLost       = "a bystander's connection failed"
	problemEnded      = "the agent ended"
	problemRefused    = "the kernel refused something, and everything waited"
	problemSlow       = "a bystander's change waited for more than a second"
	problemMemory     = "the agent's memory was over its bound"
	problemUnhealthy  = "the agent reported that it was not healthy"
	problemNotApplied = "objects were not in the kernel after two minutes"
	problemLeftOver   = "something was left over or missing in the kernel"
	problemRestart    = "the agent could not be restarted"
)

// problemKinds are all kinds, the worst first.
var problemKinds = []string{
	problemPassed, problemLost, problemEnded, problemRefused, problemSlow, problemMemory, problemUnhealthy, problemNotApplied, problemLeftOver, problemRestart,
}

// key is the same for problems that differ only in numbers and names.
func (t problem) key() string {
	if t.kind == problemRefused {
		return t.kind + t.what[strings.LastIndex(t.what, ":")+1:]
	}
	return t.kind
}
