package nftables

import (
	"context"
	"errors"
	"fmt"

	"golang.org/x/sys/unix"

	"sluice.dev/sluice/internal/driver/nftables/ruleset"
	"sluice.dev/sluice/internal/kernel/nft"
	"sluice.dev/sluice/internal/kernel/probe"
)

var (
	// Requirements are those of services, PolicyRequirements those of policy beside.
	Requirements       = requirements(ruleset.Requirements)
	PolicyRequirements = requirements(ruleset.PolicyRequirements)
	// FlowOffload is what Options.FlowOffload needs.
	FlowOffload = flowOffload()
)

func flowOffload() *probe.Requirement {
	r := requirements([]ruleset.Requirement{ruleset.FlowOffload})[0]
	r.Without = "every packet of an established connection meets the rules for it, as without --flow-offload; 'modprobe -a nft_flow_offload nf_flow_table_inet' helps where the kernel has these modules"
	return r
}

func requirements(of []ruleset.Requirement) (all []*probe.Requirement) {
	for _, r := range of {
		all = append(all, &probe.Requirement{Name: r.Name, Since: r.Since, Modules: r.Modules, Check: func(context.Context) error {
			p := &ruleset.Ruleset{}
			r.Fill(p)
			return alone(func(s *nft.Socket) error { return try(s, p) })
		}})
	}
	return all
}

// alone tries something through a socket of its own. Closing that waits until the kernel has freed
// what was tried.
func alone(try func(*nft.Socket) error) error {
	s, err := nft.Dial()
	if err != nil {
		return err
	}
	return errors.Join(try(s), s.Close())
}

// try has the kernel build a ruleset in a table that is created and deleted in one transaction: the
// kernel checks all of it, and no packet meets it. The table is dormant, as the kernel drops what
// waits in queues when it takes a chain from a hook.
func try(s *nft.Socket, p *ruleset.Ruleset) error {
	b := nft.NewBatch(ruleset.TableName + "-probe")
	b.AddTable(nft.FlagDormant, ruleset.TableComment)
	p.Create(b, nil, nil)
	b.DeleteTable()
	_, err := b.Send(s)
	return err
}

// Probe implements driver.Driver: it tries the whole ruleset. Where the kernel refuses that, the
// requirements say what it lacks.
func (d *Driver) Probe(ctx context.Context) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	d.CanOwn() // asked now: soon after a trial, the first adoption waits for the kernel to free it
	err := together.Missing(try(d.Sock, d.ruleset))
	switch {
	case err == nil:
		return nil
	case errors.Is(err, unix.EPERM):
		return fmt.Errorf("program nftables: %w: the agent needs the capability CAP_NET_ADMIN in the network namespace it serves", err)
	case errors.Is(err, probe.ErrNotSupported):
		missing := probe.Missing(ctx, Requirements)
		if len(d.ruleset.Counters) > 0 { // it logs and counts what it drops
			missing = errors.Join(missing, probe.Missing(ctx, PolicyRequirements))
		}
		if missing != nil {
			err = missing
		}
	}
	return fmt.Errorf("program nftables: %w", err)
}

// together is told where the kernel refuses the ruleset though it meets each requirement.
var together = &probe.Requirement{Name: "all rules together", Since: "6.1"}
