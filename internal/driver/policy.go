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

// RefusalGroup is the nflog group to which a driver sends the headers of packets that refuse a
// connection in a backend's place, of farms whose backends are checked: TCP resets with the
// backend's address, and ICMP errors about what was sent there. It sends some hundred a second at
// the most, and ten of a backend.
const RefusalGroup = 0x51e

// PolicyCounter is what a policy has decided since it was first programmed, in packets: those that
// begin a connection, as often as they are sent until they are answered, and all that are not
// tracked.
type PolicyCounter struct {
	Policy          model.PolicyKey
	Allowed, Denied uint64
}
