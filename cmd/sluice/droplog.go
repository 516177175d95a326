package main

import (
	"context"
	"iter"
	"log/slog"
	"strings"

	"sluice.dev/sluice/internal/agent"
	"sluice.dev/sluice/internal/driver"
	"sluice.dev/sluice/internal/kernel/nflog"
	"sluice.dev/sluice/internal/policy/verdict"
	"sluice.dev/sluice/internal/state"
)

// openDrops opens the kernel's log of dropped packets in the calling thread's network namespace.
// Tests replace it.
var openDrops = func() (dropConn, error) { return nflog.Open(driver.DropGroup) }

// dropConn has the methods of *nflog.Conn that are used here.
type dropConn interface {
	Next(ctx context.Context) (nflog.Packet, error)
	Close() error
}

// readDrops yields the packets that the kernel logs until ctx ends, and then closes the log.
func readDrops(log *slog.Logger) func(ctx context.Context) (iter.Seq[agent.Packet], error) {
	return func(ctx context.Context) (iter.Seq[agent.Packet], error) {
		conn, err := openDrops()
		if err != nil {
			return nil, err
		}
		return func(yield func(agent.Packet) bool) {
			defer func() { _ = conn.Close() }()
			p, err := conn.Next(ctx)
			for err == nil && yield(dropped(p)) {
				p, err = conn.Next(ctx)
			}
			if err != nil && ctx.Err() == nil {
				log.Warn("the log of dropped packets cannot be read any more", "error", err)
			}
		}, nil
	}
}

func dropped(p nflog.Packet) agent.Packet {
	reason, _ := strings.CutPrefix(p.Prefix, driver.DropPrefix)
	return agent.Packet{Time: p.Time, Reason: state.Drop(reason), In: p.In, Out: p.Out, Lost: p.Lost, Flow: verdict.Flow{
		Source: p.Source, Destination: p.Destination, Protocol: p.Protocol,
		SourcePort: p.SourcePort, DestinationPort: p.DestinationPort, ICMPType: p.ICMPType, ICMPCode: p.ICMPCode,
	}}
}
