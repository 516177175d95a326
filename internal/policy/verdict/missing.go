package verdict

import (
	"fmt"
	"net/netip"
	"slices"

	"sluice.dev/sluice/internal/model"
	"sluice.dev/sluice/internal/state"
)

// allMissing says it for each step that denies.
func (c *Cluster) allMissing(steps []Step, f Flow) (all []string) {
	for _, s := range steps {
		if s.Outcome != Denied {
			continue
		}
		if m := c.missing(s, f); m != "" {
			all = append(all, m)
		}
	}
	return all
}

// missing says what rule would have had to exist where nothing allows a flow; "" where a rule
// denies it, or no rule could help.
func (c *Cluster) missing(s Step, f Flow) string {
	if s.Rule != "" || s.Drop != state.DropPolicy && s.Drop != state.DropHost || s.Tier == "" && s.Text != "no policy allows it" {
		return ""
	}
	direction, other := "ingress", "from "+c.label(f.Source)
	if s.Stage.Outward() {
		direction, other = "egress", "to "+c.label(f.Destination)
	}
	if !f.Ported() && len(s.Isolating) > 0 && !slices.ContainsFunc(s.Isolating, beyondPorts) {
		return fmt.Sprintf("an %s rule that allows %s %s in a policy of another kind: NetworkPolicy knows TCP, UDP and SCTP alone",
			direction, f.What(), other)
	}
	return fmt.Sprintf("an %s rule in %s that allows %s %s", direction, c.candidates(s), f.What(), other)
}

// beyondPorts reports whether policies of this kind can allow protocols without ports.
func beyondPorts(k model.PolicyKey) bool { return k.Kind != model.NetworkPolicy }

// Outward reports whether egress rules decide at the stage.
func (s Stage) Outward() bool {
	return s == Egress || s == HostOutput || s == HostForwardOut || s == UntrackedOut
}

// candidates names the policies that could have had the rule.
func (c *Cluster) candidates(s Step) string {
	if len(s.Isolating) == 0 {
		return "a policy that selects " + s.subject()
	}
	another := "another that selects " + s.subject()
	if s.Tier != model.DefaultTier.Name {
		another += " in tier " + s.Tier
	}
	return model.Join(s.Isolating, ", ") + " (or " + another + ")"
}

// What names protocol and port: "TCP 5432", "ICMP 8".
func (f Flow) What() string {
	if !f.Ported() {
		return f.ProtocolName()
	}
	return fmt.Sprintf("%s %d", f.ProtocolName(), f.DestinationPort)
}

// Ping is an echo request to an address: its protocol, and its type (RFC 792, RFC 4443).
func Ping(to netip.Addr) (protocol, icmpType uint8) {
	const echo, echo6 = 8, 128
	if to.Is6() {
		return icmpv6, echo6
	}
	return icmp, echo
}

// ProtocolName is the protocol for people, without ports: "TCP", "ICMP 8", "protocol 47".
func (f Flow) ProtocolName() string {
	switch {
	case f.Ported():
		return model.Protocol(f.Protocol).String()
	case f.Protocol == icmp:
		return fmt.Sprintf("ICMP %d", f.ICMPType)
	case f.Protocol == icmpv6:
		return fmt.Sprintf("ICMPv6 %d", f.ICMPType)
	}
	return fmt.Sprintf("protocol %d", f.Protocol)
}
