package ruleset

import (
	"encoding/binary"
	"net/netip"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"sluice.dev/sluice/internal/driver"
	"sluice.dev/sluice/internal/driver/table"
	"sluice.dev/sluice/internal/kernel/nft"
	"sluice.dev/sluice/internal/model"
	"sluice.dev/sluice/internal/state"
)

// This file says which objects an element or a chain of the kernel was made of.

// Frontend is the frontend that the element is about, if it is about one.
func (rs *Ruleset) Frontend(e *nft.Element) (k state.FrontendKey, ok bool) {
	if rs.OfPolicy(e.Set) || int(e.KeyLen) != nft.KeySize(e.Set.Key) {
		return k, false // not of services; or someone else's, in a table without an owner
	}
	fields, b := e.Set.Key, e.Key[:e.KeyLen]
	if m := fields[0].Datatype; m == nft.Number.Datatype || m == nft.Mark.Datatype {
		fields, b = fields[1:], b[4:]
	}
	if len(fields) < 3 || fields[1].Datatype != nft.L4Proto.Datatype {
		return k, false
	}
	return readFrontend(b, fields[0].Size), true
}

func readFrontend(b []byte, addrSize int) state.FrontendKey {
	addr, proto, port := nft.Destination(b, addrSize)
	return state.FrontendKey{Addr: addr, Protocol: model.Protocol(proto), Port: port}
}

// Served reports whether the table sends a client of the frontend that the element is about
// anywhere. Where IPVS is to do that, only IPVS knows.
func (fp *Family) Served(e *nft.Element) bool {
	return e.Verdict.Code == unix.NFT_GOTO && e.Verdict.Chain != fp.IP.Name+"-reject" && e.Verdict.Chain != fp.ipvsName()
}

// Remembered is what an element of the map of affinity says.
func (fp *Family) Remembered(e *nft.Element) (client netip.Addr, k state.FrontendKey, backend netip.AddrPort) {
	addr := func(b []byte) netip.Addr { a, _ := netip.AddrFromSlice(b); return a }
	n := fp.IP.Bits / 8
	return addr(e.Key[:n]), readFrontend(e.Key[n:], n), netip.AddrPortFrom(addr(e.Data[:n]), binary.BigEndian.Uint16(e.Data[n:]))
}

// IsHostMap reports whether the set leads to rules of host endpoints.
func IsHostMap(s *nft.Set) bool {
	return s.Verdict && len(s.Key) == 1 && s.Key[0].Datatype == nft.IIF.Datatype
}

// IsDeviceSet reports whether the set holds interfaces and nothing else.
func IsDeviceSet(s *nft.Set) bool {
	return !s.Verdict && len(s.Key) == 1 && s.Key[0].Datatype == nft.IIF.Datatype
}

// DeviceOf is the interface that an element of host endpoints is about.
func DeviceOf(e *nft.Element) int { return int(nft.NativeUint32(e.Key[:4])) }

// SetOf is the set of policies that the element belongs to, if it is an element of one.
func SetOf(e *nft.Element) (id state.SetID, ok bool) {
	number := nft.NativeUint32(e.Key[:4])
	if e.Set.Key[0].Datatype != nft.Number.Datatype || number <= wholeAddress { // these are not of policies
		return 0, false
	}
	return state.SetID(number >> numbersOfSet), true
}

// NoteKept takes in an element of policy that is kept.
func (rs *Ruleset) NoteKept(k *driver.Kept, e *nft.Element) {
	if _, raw := rs.RawChain(e.Set); raw {
		k.Untracked = true
	} else if IsHostMap(e.Set) {
		k.Hosts[DeviceOf(e)] = true
	}
	for _, fp := range rs.Families {
		address := func(at int) netip.Addr {
			a, _ := netip.AddrFromSlice(e.Key[at : at+fp.IP.Bits/8])
			return a
		}
		switch e.Set {
		case fp.Policy.from:
			k.Senders[address(4)] = true
		case fp.Policy.To:
			k.Receivers[address(0)] = true
		case fp.Policy.members, fp.Policy.named:
			bits := fp.IP.Bits
			if number := int(nft.NativeUint32(e.Key[:4]) & wholeAddress); e.Set == fp.Policy.members && number < bits {
				bits = number
			}
			k.Members[netip.PrefixFrom(address(4), bits)] = true
		}
	}
}

// LearnChainNamed returns what writes the learn chain of the name; nil: no learn chain has that
// name.
func (rs *Ruleset) LearnChainNamed(name string) func() *table.DynamicChain {
	fp := rs.Family(!strings.HasPrefix(name, nft.IPv6.Name+"-"))
	seconds, err := strconv.Atoi(name[strings.LastIndex(name, "-")+1:])
	if err != nil || seconds <= 0 {
		return nil
	}
	return func() *table.DynamicChain {
		return &table.DynamicChain{Chain: fp.learnChain(time.Duration(seconds) * time.Second)}
	}
}

// DeclaredBy is the policy whose rule has the comment.
func DeclaredBy(p *state.Rules, text string) []model.PolicyKey {
	if p == nil {
		return nil
	}
	for _, t := range p.Tiers {
		for _, own := range t.Policies {
			for i := range own.Rules {
				if comment(own, &own.Rules[i]) == text {
					return []model.PolicyKey{own.Policy}
				}
			}
		}
	}
	return nil
}
