package compile

import "sluice.dev/sluice/internal/model"

// checkpoint is where packets are checked against an endpoint's rules.
type checkpoint uint8

// The checkpoints. Those of ingress are even.
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

func (c checkpoint) ingress() bool   { return c%2 == 0 }
func (c checkpoint) host() bool      { return c >= hostInput }
func (c checkpoint) untracked() bool { return c == hostUntrackedIn || c == hostUntrackedOut }

// holds reports whether a policy applies at the checkpoint to what it selects.
//
// Calico's doc of HostEndpoint: doNotTrack and preDNAT policies apply there alone, others to
// connections of the host itself, and to forwarded ones with applyOnForward.
func (c checkpoint) holds(p *model.Policy) bool {
	if c.ingress() && !p.Ingress || !c.ingress() && !p.Egress {
		return false
	}
	switch {
	case c.untracked():
		return p.DoNotTrack
	case c == hostPreDNAT:
		return p.PreDNAT && !p.DoNotTrack
	case p.DoNotTrack || p.PreDNAT:
		return false
	}
	return p.ApplyOnForward || c != hostForwardIn && c != hostForwardOut
}

// held returns those of the policies that apply at the checkpoint.
func (c checkpoint) held(list []*policy) (held []*policy) {
	for _, p := range list {
		if c.holds(p.obj) {
			held = append(held, p)
		}
	}
	return held
}

// isolates reports whether tiers deny what none of their rules matched. Before connection tracking
// and translation they do not: the checkpoints after that decide.
func (c checkpoint) isolates() bool { return c != hostPreDNAT && !c.untracked() }
