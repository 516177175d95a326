// Package verdict says what the desired state does with a connection, and why: the same walk that
// the kernel's rules make, over the same values, with names. It is pure; a test asks it and the
// kernel the same questions.
package verdict

import (
	"net/netip"

	"sluice.dev/sluice/internal/model"
)

// Flow is the first packet of a connection as policy sees it: after service translation, before
// masquerade.
type Flow struct {
	Source, Destination         netip.Addr
	Protocol                    uint8
	SourcePort, DestinationPort uint16 // TCP, UDP, SCTP
	ICMPType, ICMPCode          uint8  // ICMP, ICMPv6
}

// Verdict is the outcome for a flow, of a program or of a stage of the walk.
type Verdict struct {
	Allowed bool `json:"allowed"`
	// Tier, Policy and Rule are what decided; Policy and Rule are empty where a default did, and
	// all where nothing applies.
	Tier   string          `json:"tier,omitempty"`
	Policy model.PolicyKey `json:"policy,omitzero"`
	Rule   string          `json:"rule,omitempty"`
	// Isolating are, where a tier's default denies, the policies that make it do so.
	Isolating []model.PolicyKey `json:"isolating,omitempty"`
}
