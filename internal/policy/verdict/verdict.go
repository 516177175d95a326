// Package verdict says what the desired state does with a connection, and why: the same walk that
// the kernel's rules make, over the same values, with names. It is pure; a test asks it and the
// kernel the same questions.
package verdict

import (
	"fmt"
	"net/netip"

	"sluice.dev/sluice/internal/model"
)

// Flow is the first packet of a connection as policy sees it: after service translation, before
// masquerade.
type Flow struct {
	Source, Destination         netip.Addr
	Protocol                    uint8
	SourcePort, DestinationPort uint16 // TCP, UDP, SCTP; a SourcePort of 0 is any that clients use
	ICMPType, ICMPCode          uint8  // ICMP, ICMPv6
}

// Outcome is what becomes of a flow.
type Outcome uint8

// The outcomes. Unknown: nothing that is known denies it, and not all that decides is known.
const (
	Denied Outcome = iota
	Allowed
	Unknown
)

var outcomes = [...]string{"denied", "allowed", "unknown"}

// String returns "denied", "allowed" or "unknown".
func (o Outcome) String() string { return outcomes[o] }

// MarshalText writes what String returns.
func (o Outcome) MarshalText() ([]byte, error) { return []byte(o.String()), nil }

// UnmarshalText reads what MarshalText wrote.
func (o *Outcome) UnmarshalText(text []byte) error {
	for i, name := range outcomes {
		if name == string(text) {
			*o = Outcome(i)
			return nil
		}
	}
	return fmt.Errorf("%q is none of denied, allowed, unknown", text)
}

// And is the outcome of what has to pass both: denied if one denies it, unknown if it is not known
// of one.
func (o Outcome) And(other Outcome) Outcome {
	switch {
	case o == Denied || other == Denied:
		return Denied
	case o == Unknown || other == Unknown:
		return Unknown
	}
	return Allowed
}

// Verdict is the outcome for a flow, of rules or of a stage of the walk.
type Verdict struct {
	Outcome Outcome `json:"verdict"`
	Decider `json:"by,omitzero"`
	// Isolating are, where a tier's default denies, the policies that make it do so.
	Isolating []model.PolicyKey `json:"isolating,omitempty"`
	// Asked are, where a rule denies, the policies of its tier that were asked, its own as the
	// last.
	Asked []model.PolicyKey `json:"-"`
}

// Decider is what decided: Policy and Rule are empty where a tier's default did, and all where
// nothing applies.
type Decider struct {
	Tier   string          `json:"tier,omitempty"`
	Policy model.PolicyKey `json:"policy,omitzero"`
	Rule   string          `json:"rule,omitempty"`
}

// Allowed reports whether the flow passes.
func (v Verdict) Allowed() bool { return v.Outcome == Allowed }
