package upkeep

import (
	"net/netip"

	"sluice.dev/sluice/internal/driver"
	"sluice.dev/sluice/internal/verdict"
)

// unsure is whom the kernel may judge otherwise than the driver's state says, as an adoption keeps
// something.
type unsure struct {
	driver.Kept
	lengths [2][129]bool // of the members' prefixes, by family
}

func newUnsure(kept driver.Kept) *unsure {
	u := &unsure{Kept: kept}
	for p := range kept.Members {
		u.lengths[familyOf(p.Addr())][p.Bits()] = true
	}
	return u
}

func familyOf(a netip.Addr) int {
	if a.Is6() {
		return 1
	}
	return 0
}

// mayBeMember reports whether the address may be in a group or on a list of which the state does
// not know it.
func (u *unsure) mayBeMember(a netip.Addr) bool {
	for bits := range a.BitLen() + 1 {
		if !u.lengths[familyOf(a)][bits] {
			continue
		}
		if p, err := a.Prefix(bits); err == nil && u.Members[p] {
			return true
		}
	}
	return false
}

// judges reports whether the kernel's program for the step may be another than the state's.
func (u *unsure) judges(stage verdict.Stage, flow verdict.Flow, in, out int) bool {
	switch stage {
	case verdict.Egress:
		return u.Senders[flow.Source]
	case verdict.Ingress:
		return u.Receivers[flow.Destination]
	case verdict.HostOutput, verdict.HostForwardOut:
		return u.Hosts[out]
	case verdict.UntrackedIn, verdict.UntrackedOut:
		return u.Untracked
	}
	return u.Hosts[in]
}

// concerns reports whether a program that may be another than the state's judges the flow.
func (u *unsure) concerns(flow verdict.Flow, in, out int) bool {
	return u.Untracked || u.Senders[flow.Source] || u.Receivers[flow.Destination] || u.Hosts[in] || u.Hosts[out]
}
