package upkeep

import (
	"net/netip"

	"sluice.dev/sluice/internal/driver"
	"sluice.dev/sluice/internal/policy/verdict"
)

// kept is what the last adoption of policy kept: there the kernel may judge otherwise than the
// driver's state says.
type kept struct {
	driver.Kept
	lengths [2][129]bool // of the members' prefixes, by family
}

func newKept(of driver.Kept) *kept {
	k := &kept{Kept: of}
	for p := range of.Members {
		k.lengths[familyOf(p.Addr())][p.Bits()] = true
	}
	return k
}

func familyOf(a netip.Addr) int {
	if a.Is6() {
		return 1
	}
	return 0
}

// mayBeMember reports whether the address may be in a group or on a list of which the state does
// not know it.
func (k *kept) mayBeMember(a netip.Addr) bool {
	for bits := range a.BitLen() + 1 {
		if !k.lengths[familyOf(a)][bits] {
			continue
		}
		if p, err := a.Prefix(bits); err == nil && k.Members[p] {
			return true
		}
	}
	return false
}

// mayJudge reports whether the kernel's rules for the step may differ from the state's.
func (k *kept) mayJudge(stage verdict.Stage, flow verdict.Flow, in, out int) bool {
	switch stage {
	case verdict.Egress:
		return k.Senders[flow.Source]
	case verdict.Ingress:
		return k.Receivers[flow.Destination]
	case verdict.HostOutput, verdict.HostForwardOut:
		return k.Hosts[out]
	case verdict.UntrackedIn, verdict.UntrackedOut:
		return k.Untracked
	}
	return k.Hosts[in]
}

// mayJudgeAny reports whether that is so of any step.
func (k *kept) mayJudgeAny(flow verdict.Flow, in, out int) bool {
	return k.Untracked || k.Senders[flow.Source] || k.Receivers[flow.Destination] || k.Hosts[in] || k.Hosts[out]
}
