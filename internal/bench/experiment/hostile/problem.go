package hostile

import (
	"strings"
	"time"
)

// problem is something that hostile objects have done.
type problem struct {
	kind string // one of those below
	what string
	took time.Duration // that a change waited; 0: it is about something else
}

// The kinds of trouble.
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

// problemKinds are all of them, the worst first.
var problemKinds = []string{
	problemPassed, problemLost, problemEnded, problemRefused, problemSlow, problemMemory, problemUnhealthy, problemNotApplied, problemLeftOver, problemRestart,
}

// key is alike for troubles that are the same but for numbers and names.
func (t problem) key() string {
	if t.kind == problemRefused {
		return t.kind + t.what[strings.LastIndex(t.what, ":")+1:]
	}
	return t.kind
}
