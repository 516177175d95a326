package main

import (
	"context"
	"errors"
	"log/slog"
	"net/netip"

	"sluice.dev/sluice/internal/balancer/health"
	"sluice.dev/sluice/internal/driver"
	"sluice.dev/sluice/internal/kernel/nflog"
)

// readRefusals has backends that refuse connections be checked until ctx ends. It reads the
// kernel's log of these in the calling thread's network namespace.
func readRefusals(ctx context.Context, checks *health.Checker, log *slog.Logger) {
	c, err := nflog.Open(driver.RefusalGroup)
	if err == nil {
		err = errors.Join(suspectRefusers(ctx, c, checks), c.Close())
	}
	if ctx.Err() == nil {
		log.Warn("a backend that refuses connections is noticed at its next check only", "error", err)
	}
}

// suspectRefusers returns when no more can be read.
func suspectRefusers(ctx context.Context, c *nflog.Conn, checks *health.Checker) error {
	for {
		p, err := c.Next(ctx)
		if err != nil {
			return err
		}
		checks.Suspect(refuser(p.Header))
	}
}

// refuser is the backend that a packet says a connection is refused by.
func refuser(h nflog.Header) netip.AddrPort {
	if h.About != nil {
		return netip.AddrPortFrom(h.About.Destination, h.About.DestinationPort)
	}
	return netip.AddrPortFrom(h.Source, h.SourcePort)
}
