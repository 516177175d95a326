package upkeep

import (
	"github.com/gaissmai/bart"

	"sluice.dev/sluice/internal/driver"
	"sluice.dev/sluice/internal/policy/verdict"
)

// kept is what the last adoption of policy kept: there the kernel may judge otherwise than the
// driver's state says.
type kept struct {
	driver.Kept
	// members holds the addresses that may be in groups or on lists of which the state does not know
	// them.
	members bart.Lite
}

func newKept(of driver.Kept) *kept {
	k := &kept{Kept: of}
	for p := range of.Members {
		k.members.Insert(p)
	}
	return k
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
