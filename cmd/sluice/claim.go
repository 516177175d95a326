package main

import (
	"context"
	"log/slog"
	"time"

	"sluice.dev/sluice/internal/agent"
)

// rivalPatience is how long an agent waits for another one in its network namespace to end, before it ends itself. It is
// longer than one needs to end that was told to.
const rivalPatience = 30 * time.Second

// claimNamespace makes this the only agent of the calling thread's network namespace. Tests whose agents program no
// kernel do without.
var claimNamespace = func(ctx context.Context, log *slog.Logger) (*agent.Claim, error) {
	return agent.ClaimNamespace(ctx, rivalPatience, log)
}
