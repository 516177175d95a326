package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"

	"sluice.dev/sluice/internal/accelerate/xdp"
	"sluice.dev/sluice/internal/agent"
	farms "sluice.dev/sluice/internal/balancer/nftables"
	"sluice.dev/sluice/internal/cli"
	"sluice.dev/sluice/internal/driver"
	"sluice.dev/sluice/internal/driver/ipvs"
	"sluice.dev/sluice/internal/kernel/sysctl"
	"sluice.dev/sluice/internal/model"
	"sluice.dev/sluice/internal/upkeep"
)

// farmDriver carries out the farms of a balancer.
type farmDriver interface {
	driver.Driver
	// Check says what of a farm the driver cannot carry out; nil: it can do all.
	Check(*model.Farm) error
	// Sessions are the clients that a farm remembers now, and Forget forgets some of them.
	Sessions(ctx context.Context, farm string) ([]model.LiveSession, error)
	Forget(ctx context.Context, farm string, clients []model.FlowValues) error
}

const ipvsFarms = "ipvs"

// farmModes are the modes in which farms are carried out.
var farmModes = []string{defaultMode, ipvsFarms}

// openFarms opens the driver of a mode in the calling thread's network namespace.
func (o *balanceOptions) openFarms(mode string, log *slog.Logger) (farmDriver, error) {
	switch mode {
	case ipvsFarms:
		return ipvs.OpenFarms(sysctl.RecordPath(o.agent.Socket))
	case defaultMode:
		return farms.Open(farms.Options{Log: log, Clients: o.clients})
	}
	return nil, cli.Usage(fmt.Errorf("--mode %s: choose %s", mode, strings.Join(farmModes, " or ")))
}

// purgeFarms removes what balancers have left in the kernel in other modes than that of now; "":
// in all. It goes on after a mode that fails.
func (o *balanceOptions) purgeFarms(ctx context.Context, now string, log *slog.Logger) error {
	var all []error
	if now == "" {
		all = append(all, xdp.Remove())
	}
	for _, mode := range farmModes {
		if mode == now {
			continue
		}
		d, err := o.openFarms(mode, log)
		if err == nil {
			err = errors.Join(d.Purge(ctx), d.Close())
		}
		all = append(all, wrap("mode "+mode, err))
	}
	return errors.Join(all...)
}

// ruleCounter counts what farms serve that are carried out by nftables.
type ruleCounter struct {
	rules  xdp.Base
	kernel *upkeep.Driver
}

var (
	_ agent.FarmCounter = ruleCounter{}
	_ agent.FarmCounter = (*ipvs.Farms)(nil)
)

// Traffic implements agent.FarmCounter. Rules know what was chosen, and connection tracking what is
// sent.
func (c ruleCounter) Traffic(ctx context.Context) (map[driver.Backend]driver.Traffic, error) {
	all, err := c.rules.Traffic(ctx)
	if err != nil {
		return nil, fmt.Errorf("read how often backends were chosen: %w", err)
	}
	flows, err := c.kernel.FarmTraffic(ctx)
	for b, flow := range flows {
		sum := all[b]
		sum.Active, sum.Bytes, sum.TotalBytes = flow.Active, flow.Bytes, sum.TotalBytes+flow.TotalBytes
		all[b] = sum
	}
	return all, err
}
