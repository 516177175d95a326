package driver

import "sluice.dev/sluice/internal/model"

// DropGroup is the nflog group to which a driver sends the headers of packets
// that it drops, some hundred a second at the most. The prefix of a message is
// DropPrefix and the state.Drop.
const (
	DropGroup  = 0x51c
	DropPrefix = "sluice "
)

// ClaimGroup is the nflog group that the one agent of a network namespace holds. Nothing is sent to
// it.
const ClaimGroup = 0x51d

// PolicyCounter is what a policy has decided since it was first programmed, in packets: those that
// begin a connection, as often as they are sent until they are answered, and all that are not
// tracked.
type PolicyCounter struct {
	Policy          model.PolicyKey
	Allowed, Denied uint64
}
