package hostile

import (
	"strings"
	"time"
)

// problem is something bad that hostile objects have caused.
type problem struct {
	kind string // one of those below
	what string
	took time.Duration // how long a change waited; 0: the problem is another one
}

// The kinds of problems.
const (
	problemPassed     = "something passed where policy forbids it"
	problemLost       = "a bystander's connection failed"
	problemEnded      = "the agent ended"
	problemRefused    = "the kernel refused something, and all waited"
	problemSlow       = "a bystander's change waited for more than a second"
	problemMemory     = "the agent's memory was over its bound"
	problemUnhealthy  = "the agent said that it was not well"
	problemNotApplied = "objects were not taken in two minutes"
	problemLeftOver   = "something was left over or missing in the kernel"
	problemRestart    = "the agent could not be started anew"
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
