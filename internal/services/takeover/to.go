package takeover

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"time"

	"sluice.dev/sluice/internal/lib/wake"
	"sluice.dev/sluice/internal/preflight"
)

// findOurs ends the steps if the agent serves nothing; it removes what may be left of its table.
func (o *Options) findOurs(ctx context.Context) error {
	ours, err := o.Kernel.Frontends(ctx)
	switch {
	case err != nil:
		return o.stop("%v", err)
	case len(ours) > 0:
		return nil
	case o.DryRun:
		return errDone
	}
	if err := o.purge(ctx, "sluice serves nothing in this network namespace: nothing to do"); err != nil {
		return err
	}
	return errDone
}

func (o *Options) removeOurs(ctx context.Context) error {
	return o.purge(ctx, "removed what sluice has programmed in this network namespace; its connections go on")
}

func (o *Options) wouldRemoveOurs(context.Context) error {
	o.line("would", "remove what sluice has programmed")
	return nil
}

func (o *Options) purge(ctx context.Context, done string) error {
	if err := o.Purge(ctx); err != nil {
		return o.stop("%v", err)
	}
	o.ok("%s", done)
	return nil
}

// agentGone waits until no agent runs: it would put its rules back.
func (o *Options) agentGone(ctx context.Context) error {
	if err := o.wait(ctx, func() (string, error) { return o.agentRuns(ctx) }); err != nil {
		return err
	}
	o.ok("no agent runs on this node")
	return nil
}

func (o *Options) wouldStopAgent(ctx context.Context) error {
	if why, _ := o.agentRuns(ctx); why != "" {
		o.line("would", "wait: %s", why)
		return nil
	}
	return o.agentGone(ctx)
}

// agentRuns says what is to be done about an agent that runs; empty: there is none.
func (o *Options) agentRuns(ctx context.Context) (string, error) {
	pid, alive := agentAt(o.Socket)
	where := "answers on " + o.Socket
	if !alive {
		locked, err := o.Locked()
		if err != nil || !locked {
			return "", errors.Join(err, ctx.Err())
		}
		where = "is at work in this network namespace, with another --socket than " + o.Socket + ","
	}
	return fmt.Sprintf("an agent %s and would put its rules back: start kube-proxy, if it does not run yet, and stop the agent; what it has programmed goes on\n%s",
		where, agentProcess(pid).stop("sluice", o.Node)), ctx.Err()
}

func agentProcess(pid int) process {
	p := process{pid: pid, name: "sluice"}
	if pid != 0 {
		p.unit, p.pod = supervisor(fmt.Sprintf("/proc/%d", pid))
	}
	return p
}

// proxyRuns waits until a healthy kube-proxy runs on the node.
func (o *Options) proxyRuns(ctx context.Context) error {
	var found process
	err := o.wait(ctx, func() (string, error) {
		agent, _ := agentAt(o.Socket)
		running, err := proxies(agent)
		if err != nil {
			return "", err
		}
		if len(running) == 0 {
			return fmt.Sprintf("no kube-proxy runs on this node: start it\nwhere a DaemonSet runs it: kubectl label node %s %s=kube-proxy --overwrite", o.Node, proxyLabel), ctx.Err()
		}
		found = running[0]
		if agent != 0 && o.DryRun {
			return "", nil // the health port may be the agent's
		}
		if err := healthy(ctx); err != nil {
			return fmt.Sprintf("%s runs, but is not healthy: %v", found, err), ctx.Err()
		}
		return "", nil
	})
	if err != nil {
		return err
	}
	o.ok("%s runs on this node and is healthy", found)
	return nil
}

// healthy asks the health port.
func healthy(ctx context.Context) error {
	resp, err := preflight.Get(ctx, 5*time.Second, healthAddress, "/healthz")
	if err == nil && resp.StatusCode != http.StatusOK {
		err = fmt.Errorf("its health port answers %s", resp.Status)
	}
	return err
}

// coversAgent compares what both serve. The agent has stopped, so its table is no longer updated,
// and kube-proxy's rules are. What only the table has is printed and removed, unless kube-proxy is
// still about to program it.
func (o *Options) coversAgent(ctx context.Context) error {
	var idle, lacks []string
	var ours int
	fewest, since := -1, time.Now() // since when kube-proxy has caught up by nothing
	catchesUp := func() bool { return time.Since(since) < settleFor }
	err := o.settle(ctx, func() (string, error) {
		footprints, frontends, host, err := o.both(ctx)
		if err != nil {
			return "", err
		}
		theirs := frontendsOf(footprints)
		ours, lacks, idle = len(frontends), uncovered(frontends, theirs, host), unprogrammed(frontends, theirs)
		if fewest > len(lacks) {
			since = time.Now()
		}
		fewest = len(lacks)
		if len(idle) == 0 && !catchesUp() {
			return "", nil
		}
		return strings.Join(slices.Concat(idle, lacks), "\n"), nil
	})
	if err != nil {
		return err
	}
	if len(lacks) > 0 && catchesUp() {
		idle = append(idle, fmt.Sprintf("kube-proxy is at work on it, and lacks %s yet: run this again, with a longer --wait", frontendCount(len(lacks))))
	}
	if err := o.differ(idle); err != nil {
		return err
	}
	if len(lacks) == 0 {
		o.ok("kube-proxy serves all %s that sluice does", frontendCount(ours))
		return nil
	}
	o.tellStale(lacks)
	return nil
}

// tellStale prints what will be removed with the agent's table.
func (o *Options) tellStale(lacks []string) {
	const most = 20
	for _, l := range lacks[:min(len(lacks), most)] {
		o.note("%s", l)
	}
	if len(lacks) > most {
		o.note("and %d more", len(lacks)-most)
	}
	o.note("kube-proxy works and follows the cluster: these have changed since the agent stopped, or are outside its configuration")
}

// settle waits for differences to disappear: one program may have seen a change before the other.
// It fails only if it cannot compare.
func (o *Options) settle(ctx context.Context, differences func() (string, error)) error {
	for end := time.Now().Add(max(o.Wait, settleFor)); ; {
		what, err := differences()
		if err != nil {
			return o.stop("%v", err)
		}
		if what == "" || o.Force || !time.Now().Before(end) {
			return nil
		}
		if !wake.Sleep(ctx, poll) {
			return o.stop("%v", ctx.Err())
		}
	}
}

// settleFor is how long two healthy programs may take to agree.
const settleFor = 3 * time.Second
