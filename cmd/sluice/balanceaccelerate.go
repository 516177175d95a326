package main

import (
	"errors"
	"log/slog"

	"sluice.dev/sluice/internal/accelerate/xdp"
	farms "sluice.dev/sluice/internal/balancer/nftables"
	"sluice.dev/sluice/internal/driver"
)

// accelerated gives the driver of farms its accelerators, in the calling thread's network
// namespace. Without them it is the driver itself, and nothing is left of those that a former
// balancer had. If it fails, the driver is closed.
func (o *balanceOptions) accelerated(d farmDriver, log *slog.Logger) (driver.Driver, *xdp.Driver, error) {
	stages := xdp.Stages{DSR: o.accelerate.has(xdp.DSR), Drop: o.accelerate.has(xdp.Drop)}
	base, plain := d.(*farms.Driver)
	if !plain || stages == (xdp.Stages{}) {
		if err := xdp.Remove(); err != nil {
			return nil, nil, errors.Join(err, d.Close())
		}
		return d, nil, nil
	}
	fast, err := xdp.Open(base, xdp.Options{Log: log, Stages: stages})
	return fast, fast, err
}
