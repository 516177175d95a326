package kube

import (
	"context"
	"log/slog"
	"time"
)

// NodeChange makes one change to a Node, whenever it is due. Nothing waits for it; a failure is
// logged once, and tried again.
type NodeChange struct {
	log         *slog.Logger
	node        string
	failure     string // what cannot be done, in the log
	look, retry time.Duration
	write       func(context.Context) error
}

// newNodeChange returns a change that write makes. failure says in the log what cannot be done.
func newNodeChange(config Config, node, failure string, log *slog.Logger, write func(context.Context, *api) error) *NodeChange {
	a := &api{credentials: &credentials{path: config.Kubeconfig, mount: podMount, agent: config.UserAgent, log: log}, timing: usualTiming()}
	return &NodeChange{log: log, node: node, failure: failure, look: time.Second, retry: 10 * time.Second, write: func(ctx context.Context) error { return write(ctx, a) }}
}

// Run makes the change until ctx ends, whenever due says that the Node is there without it.
func (c *NodeChange) Run(ctx context.Context, due func() bool) {
	for failing, pause := false, c.look; ; {
		select {
		case <-ctx.Done():
			return
		case <-time.After(pause):
		}
		if pause = c.look; !due() {
			continue
		}
		pause = c.retry // also for what was written to be told of
		err := c.write(ctx)
		if err != nil && ctx.Err() == nil && !failing {
			c.log.Warn(c.failure+"; trying again", "node", c.node, "error", err)
		}
		failing = err != nil
	}
}
