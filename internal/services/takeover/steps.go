package takeover

import (
	"context"
	"errors"
	"fmt"
	"strings"
)

// step is one step of a take-over, or of giving back. It checks first and may be repeated, so that
// a run continues where the last one ended. A list of steps is undone by the other list.
type step struct {
	name string
	do   func(*Options, context.Context) error
	dry  func(*Options, context.Context) error // tells what do would do; nil: do changes nothing, and a dry run does it, too
}

// fromSteps take a node over from kube-proxy.
var fromSteps = []step{
	{"find what kube-proxy has programmed", (*Options).findProxy, nil},
	{"wait until the agent has programmed all that is declared", (*Options).agentReady, (*Options).agentReadyIfThere},
	{"compare what both serve", (*Options).coversProxy, nil},
	{"wait until kube-proxy is stopped, and say how to stop it", (*Options).proxyGone, (*Options).wouldStopProxy},
	{"ask the agent once more: it may have ended meanwhile", (*Options).agentStillReady, nothing},
	{"remove kube-proxy's rules, whichever its mode", (*Options).removeProxy, (*Options).wouldRemoveProxy},
	{"see that nothing of kube-proxy is left", (*Options).proxyRemoved, nothing},
}

// toSteps give it back.
var toSteps = []step{
	{"wait until the agent is stopped, and say how to stop it", (*Options).agentGone, (*Options).wouldStopAgent},
	{"find what the agent has programmed", (*Options).findOurs, nil},
	{"wait until kube-proxy runs and is healthy", (*Options).proxyRuns, nil},
	{"compare what both serve", (*Options).coversAgent, nil},
	{"remove what the agent has programmed", (*Options).removeOurs, (*Options).wouldRemoveOurs},
}

func nothing(*Options, context.Context) error { return nil }

// FromSteps and ToSteps name what From and To do, one step a line.
func FromSteps() string { return names(fromSteps) }
func ToSteps() string   { return names(toSteps) }

func names(steps []step) string {
	var b strings.Builder
	for i, s := range steps {
		fmt.Fprintf(&b, "  %d. %s\n", i+1, s.name)
	}
	return b.String()
}

// errDone ends the steps early: there is nothing more to do.
var errDone = errors.New("nothing to do")

// From takes the node over from kube-proxy, and tells o.Out of each step. It returns nil once
// nothing of kube-proxy is left in the calling thread's network namespace. It must not change
// threads: hold it with runtime.LockOSThread.
func From(ctx context.Context, o Options) error { return o.walk(ctx, fromSteps) }

// To gives the node back to a kube-proxy that runs there, and tells o.Out of each step. It returns
// nil once the agent has nothing more in the calling thread's network namespace. It must not change
// threads: hold it with runtime.LockOSThread.
func To(ctx context.Context, o Options) error { return o.walk(ctx, toSteps) }

// walk does the steps in order until one fails.
func (o *Options) walk(ctx context.Context, steps []step) error {
	if !o.DryRun { // to look needs no lock
		release, err := lockOut()
		if err != nil {
			return o.stop("%v", err)
		}
		defer release()
	}
	for _, s := range steps {
		do := s.do
		if o.DryRun && s.dry != nil {
			do = s.dry
		}
		if err := do(o, ctx); errors.Is(err, errDone) {
			return nil
		} else if err != nil {
			return err
		}
	}
	return o.differs
}
