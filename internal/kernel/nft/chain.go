package nft

import (
	"slices"

	"golang.org/x/sys/unix"

	"sluice.dev/sluice/internal/kernel/attr"
)

// Chain is a chain with its rules. Hook is nil for regular chains.
type Chain struct {
	Name, Comment string
	Hook          *Hook
	Rules         []Rule
	Helpers       []Helper // that its rules refer to, and no other chain's
}

// SameRules reports whether another chain has the same rules.
func (c Chain) SameRules(o Chain) bool { return slices.EqualFunc(c.Rules, o.Rules, Rule.equal) }

// Helper is an object that gives connections a helper of connection tracking.
type Helper struct {
	Name, Helper string // of the object, and of the helper: "ftp"
	Protocol     uint8
}

// Hook is where the kernel calls a base chain.
type Hook struct {
	Type     string // of the chain
	Number   uint32 // unix.NF_INET_…, or Ingress
	Priority int32
	Device   string // of an ingress hook
}

// Ingress is the hook number NF_INET_INGRESS of linux/netfilter.h (Linux 5.10).
const Ingress = 5

// TypeNAT is the type of base chains that see the first packet of a connection alone, and may
// translate it; those of typeFilter see all packets.
const (
	TypeNAT    = "nat"
	typeFilter = "filter"
)

// NATHook and FilterHook are hooks of the two types, by number (unix.NF_INET_…) and priority.
func NATHook(num uint32, priority int32) *Hook    { return &Hook{TypeNAT, num, priority, ""} }
func FilterHook(num uint32, priority int32) *Hook { return &Hook{typeFilter, num, priority, ""} }

// IngressHook is called for what arrives by the interface, before all other hooks.
func IngressHook(device string, priority int32) *Hook {
	return &Hook{typeFilter, Ingress, priority, device}
}

// NetdevHook is the same for tables of the family netdev, whose hooks have numbers of their own.
func NetdevHook(device string, priority int32) *Hook {
	return &Hook{typeFilter, netdevIngress, priority, device}
}

const netdevIngress = 0 // NF_NETDEV_INGRESS of linux/netfilter.h

// Write appends the attributes that create the chain.
func (c Chain) Write(a *attr.Attrs, table string) {
	a.String(unix.NFTA_CHAIN_TABLE, table)
	a.String(unix.NFTA_CHAIN_NAME, c.Name)
	if c.Hook != nil {
		h := a.Begin(unix.NFTA_CHAIN_HOOK)
		a.Uint32(unix.NFTA_HOOK_HOOKNUM, c.Hook.Number)
		a.Uint32(unix.NFTA_HOOK_PRIORITY, uint32(c.Hook.Priority))
		if c.Hook.Device != "" {
			a.String(unix.NFTA_HOOK_DEV, c.Hook.Device)
		}
		a.End(h)
		a.Uint32(unix.NFTA_CHAIN_POLICY, chainPolicyAccept)
		a.String(unix.NFTA_CHAIN_TYPE, c.Hook.Type)
	}
	putComment(a, chainAttrUserdata, c.Comment)
}
