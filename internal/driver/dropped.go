package driver

import "context"

// DropCounter is implemented by drivers that count what they drop.
type DropCounter interface {
	// DropCounts returns how many packets were dropped for each reason, those included that
	// were not sent to DropGroup, since the driver first programmed the kernel. Safe
	// for concurrent use with the Driver's methods.
	DropCounts(ctx context.Context) (map[Drop]uint64, error)
}
