package compile

import "sluice.dev/sluice/internal/model"

// checkpoint is where packets are checked against a program.
type checkpoint uint8

// The stages. Those of ingress are even.
const (
	podIngress checkpoint = iota
	podEgress
	hostInput
	hostOutput
	hostForwardIn
	hostForwardOut
	hostUntrackedIn
	hostUntrackedOut
	hostPreDNAT
	checkpoints // how many there are
)

func (s checkpoint) ingress() bool   { return s%2 == 0 }
func (s checkpoint) host() bool      { return s >= hostInput }
func (s checkpoint) untracked() bool { return s == hostUntrackedIn || s == hostUntrackedOut }

// holds reports whether a policy applies at the stage to what it selects.
//
// Calico's doc of HostEndpoint: doNotTrack and preDNAT policies apply there alone, others to
// connections of the host itself, and to forwarded ones with applyOnForward.
func (s checkpoint) holds(p *model.Policy) bool {
	if s.ingress() && !p.Ingress || !s.ingress() && !p.Egress {
		return false
	}
	switch {
	case s.untracked():
		return p.DoNotTrack
	case s == hostPreDNAT:
		return p.PreDNAT && !p.DoNotTrack
	case p.DoNotTrack || p.PreDNAT:
		return false
	}
	return p.ApplyOnForward || s != hostForwardIn && s != hostForwardOut
}

// held returns those of the policies that apply at the stage.
func (s checkpoint) held(list []*policy) (held []*policy) {
	for _, p := range list {
		if s.holds(p.obj) {
			held = append(held, p)
		}
	}
	return held
}

// isolates reports whether tiers deny what none of their rules matched. Before connection tracking
// and translation they do not: the stages after that decide.
func (s checkpoint) isolates() bool { return s != hostPreDNAT && !s.untracked() }
