package peer

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"time"

	"sluice.dev/sluice/internal/bench/cluster"
	"sluice.dev/sluice/internal/netns"
)

// DenyList is Sluice's list of addresses that are dropped where they arrive.
type DenyList struct{}

// Name implements Blocker.
func (DenyList) Name() string { return Sluice{}.Name() }

// Limit implements Blocker.
func (DenyList) Limit() (int, string) { return 0, "" }

// Block implements Blocker.
func (DenyList) Block(ctx context.Context, node *netns.NS, device string, list []netip.Prefix) (*Blocked, error) {
	return nil, errors.Join(fmt.Errorf("%w: not yet", ErrMissing))
}

var _ = slog.Default
var _ = time.Now
var _ = cluster.Entry

// HostPolicy is a global policy of Sluice's that denies what is forwarded from a
// host endpoint's interface, if a list has it.
type HostPolicy struct{}

// Name implements Blocker.
func (HostPolicy) Name() string { return Sluice{}.Name() + ", a global policy" }

// Limit implements Blocker.
func (HostPolicy) Limit() (int, string) { return 0, "" }

// Block implements Blocker.
func (HostPolicy) Block(ctx context.Context, node *netns.NS, device string, list []netip.Prefix) (*Blocked, error) {
	return DenyList{}.Block(ctx, node, device, list)
}
