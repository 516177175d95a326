package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"time"

	"sluice.dev/sluice/internal/agent/nslock"
	"sluice.dev/sluice/internal/driver"
	"sluice.dev/sluice/internal/kernel/nflog"
)

// rivalPatience is how long an agent waits until another agent in its network namespace ends; then
// it ends itself. It is longer than an agent needs to shut down.
const rivalPatience = 30 * time.Second

// lockNamespace makes this the only agent of the calling thread's network namespace. Tests whose
// agents program no kernel replace it.
var lockNamespace = func(ctx context.Context, log *slog.Logger) (*nslock.Lock, error) {
	return nslock.Acquire(ctx, rivalPatience, takeGroup, log)
}

// takeGroup takes the nflog group that stands for the right to be the only agent of the calling
// thread's network namespace. The kernel gives a group to one socket at a time, and only with
// CAP_NET_ADMIN.
func takeGroup() (io.Closer, error) {
	c, err := nflog.Open(driver.ClaimGroup)
	if errors.Is(err, nflog.ErrBusy) {
		return nil, fmt.Errorf("%w: %w", driver.ErrBusy, err)
	}
	return c, err
}
