package takeover

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"slices"
	"strings"
	"time"

	"sluice.dev/sluice/internal/driver"
	"sluice.dev/sluice/internal/kernel/peer"
	"sluice.dev/sluice/internal/lib/wake"
	"sluice.dev/sluice/internal/model"
)

// Options say what to take over, and how.
type Options struct {
	Socket string // where the agent is reached
	// Sync returns once the agent says that the kernel holds all that is declared, or why it
	// cannot.
	Sync func(ctx context.Context) error
	// Minor reports whether an error of Sync is about some objects, and all others are programmed;
	// false for nil.
	Minor func(error) bool
	// Services names those that the cluster has, "namespace/name", by the agent. nil, or an error:
	// that is not known. From alone calls it.
	Services func(ctx context.Context) (map[string]bool, error)
	// Kernel tells what the agent, whether it runs or not, has programmed in the calling thread's
	// network namespace.
	Kernel driver.Lister
	// Locked reports whether an agent holds the lock of the calling thread's network namespace,
	// whatever its socket; To alone calls it.
	Locked func() (bool, error)
	// Purge removes all that the agent has programmed; To alone calls it.
	Purge func(ctx context.Context) error

	Node  string // the name of this node's Node object, for what is to be typed
	Force bool   // go on where the two differ
	// GiveUp are addresses of the node on which kube-proxy's node ports may end.
	GiveUp []netip.Prefix
	// Wait is how long to wait for a program to stop or to start, and for the agent to have
	// programmed everything.
	Wait time.Duration
	// Drain is how long to wait for connections that IPVS carries.
	Drain  time.Duration
	DryRun bool // say what would be done
	Out    io.Writer

	agentless bool  // it is only said what would be done, and no agent is there to compare with
	differs   error // in a dry run: what would stop the take-over, while it goes on to say the rest
}

// ErrStopped is wrapped by the error of a step that failed. What was done before can stay as it is;
// the next run continues from there.
var ErrStopped = errors.New("stopped")

// poll is the interval at which a condition is checked.
const poll = 200 * time.Millisecond

func (o *Options) line(mark, format string, args ...any) {
	text := strings.ReplaceAll(model.PrintableLines(fmt.Sprintf(format, args...)), "\n", "\n        ")
	_, _ = fmt.Fprintf(o.Out, "%-7s %s\n", mark, text)
}

func (o *Options) ok(format string, args ...any)   { o.line("ok", format, args...) }
func (o *Options) note(format string, args ...any) { o.line("note", format, args...) }

// stop says why it can't go on, and what to do.
func (o *Options) stop(format string, args ...any) error {
	o.line("failed", format, args...)
	first, _, _ := strings.Cut(fmt.Sprintf(format, args...), "\n")
	return fmt.Errorf("%w: %s", ErrStopped, first)
}

// wait asks until there is no obstacle any more. It prints the obstacle once if it has to wait. Its
// error is an ErrStopped with the last answer.
func (o *Options) wait(ctx context.Context, obstacle func() (string, error)) error {
	ctx, cancel := context.WithTimeout(ctx, max(o.Wait, 0))
	defer cancel()
	for told := false; ; {
		why, err := obstacle()
		if err != nil {
			return o.stop("%v", err)
		}
		if why == "" {
			return nil
		}
		if ctx.Err() != nil {
			return o.stop("%s", why)
		}
		if !told && o.Wait > 0 {
			o.line("wait", "for up to %s: %s", o.Wait, why)
			told = true
		}
		wake.Sleep(ctx, poll)
	}
}

// differ prints differences. They stop the take-over unless o.Force is set; a dry run goes on, and
// fails in the end. giveUp are addresses of the node that could be given up.
func (o *Options) differ(what []string, giveUp ...netip.Addr) error {
	for _, d := range what {
		o.line("differs", "%s", d)
	}
	if len(what) == 0 || o.Force {
		return nil
	}
	stops := fmt.Sprintf("%s, see above: connections would be lost; --force goes on all the same", model.Count(len(what), "difference"))
	if len(giveUp) > 0 {
		list := slices.Clone(o.GiveUp)
		for _, a := range giveUp {
			list = append(list, netip.PrefixFrom(a, a.BitLen()))
		}
		stops += "\nwhere nobody uses these addresses of the node: --give-up " + model.Join(list, ",")
	}
	err := o.stop("%s", stops)
	if o.DryRun {
		o.differs, err = err, nil
	}
	return err
}

// agentAt returns the process that listens on the agent's socket: 0 if it is in another pid
// namespace, and false if none does.
func agentAt(socket string) (pid int, alive bool) {
	who, err := peer.At(socket)
	if err != nil {
		return 0, false
	}
	return int(who.Pid), true
}
