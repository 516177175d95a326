package trace

import (
	"encoding/binary"
	"fmt"
	"slices"

	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"
)

// event is one step of one packet.
type event struct {
	packet  uint32
	chain   Chain
	policy  bool   // a base chain has ended
	rule    uint64 // handle of the rule that matched; 0 at a chain's end
	verdict int32
	to      string // the chain that a verdict leads to
}

// Verdicts beside those of netfilter, as linux/netfilter/nf_tables.h numbers them.
const (
	verdictContinue = -1
	verdictJump     = -3
	verdictGoto     = -4
	verdictReturn   = -5
)

// typePolicy is NFT_TRACETYPE_POLICY. How the other types are used depends on the kernel.
const typePolicy = 1

func readEvent(m netlink.Message) (event, error) {
	var e event
	err := decode(m, func(ad *netlink.AttributeDecoder) {
		switch ad.Type() {
		case unix.NFTA_TRACE_ID:
			e.packet = ad.Uint32()
		case unix.NFTA_TRACE_TABLE:
			e.chain.Table = ad.String()
		case unix.NFTA_TRACE_CHAIN:
			e.chain.Name = ad.String()
		case unix.NFTA_TRACE_TYPE:
			e.policy = ad.Uint32() == typePolicy
		case unix.NFTA_TRACE_RULE_HANDLE:
			e.rule = ad.Uint64()
		case unix.NFTA_TRACE_VERDICT:
			ad.Nested(func(v *netlink.AttributeDecoder) error {
				v.ByteOrder = binary.BigEndian
				for v.Next() {
					switch v.Type() {
					case unix.NFTA_VERDICT_CODE:
						e.verdict = int32(v.Uint32())
					case unix.NFTA_VERDICT_CHAIN:
						e.to = v.String()
					}
				}
				return v.Err()
			})
		}
	})
	return e, err
}

// frame is a chain that the packet is in, with how many of its rules are done.
type frame struct {
	chain Chain
	done  int
}

// walk is a packet within a base chain.
type walk struct {
	rules map[Chain][]uint64
	met   Met
	base  Chain   // Chain{}: between base chains
	stack []frame // empty once the base chain itself was left by a goto
}

// replay follows each packet through the chains. The kernel makes a packet's number from
// its address in memory, so a later packet may have the same. A packet passes a base chain only
// once.
func replay(rules map[Chain][]uint64, events []event) ([]Met, error) {
	var order []*walk
	walks := map[uint32]*walk{}
	for _, e := range events {
		w := walks[e.packet]
		if w == nil || w.base == (Chain{}) && w.passed(e.chain) {
			w = &walk{rules: rules, met: Met{Rules: map[Chain]int{}}}
			walks[e.packet] = w
			order = append(order, w)
		}
		if err := w.step(e); err != nil {
			return nil, err
		}
	}
	var all []Met
	for _, w := range order {
		all = append(all, w.met)
	}
	return all, nil
}

// passed reports whether the packet has been in a base chain.
func (w *walk) passed(base Chain) bool {
	_, ok := w.met.Rules[base]
	return ok
}

func (w *walk) step(e event) error {
	if w.base == (Chain{}) {
		w.base, w.stack = e.chain, []frame{{chain: e.chain}}
		w.met.Rules[w.base] = 0
	}
	if e.policy {
		if len(w.stack) > 0 {
			w.finish()
		}
		w.base, w.stack = Chain{}, nil
		return nil
	}
	if len(w.stack) == 0 || w.stack[len(w.stack)-1].chain != e.chain {
		return fmt.Errorf("follow a packet: it is in chain %s all at once, after %v", e.chain, w.stack)
	}
	if e.rule == 0 {
		w.finish()
		w.stack = w.stack[:len(w.stack)-1]
		return nil
	}
	if err := w.reach(e.rule); err != nil {
		return err
	}
	top := len(w.stack) - 1
	switch {
	case e.verdict == verdictReturn:
		w.stack = w.stack[:top]
	case e.verdict == verdictJump:
		w.stack = append(w.stack, frame{chain: Chain{e.chain.Table, e.to}})
	case e.verdict == verdictGoto:
		w.stack[top] = frame{chain: Chain{e.chain.Table, e.to}}
	case e.verdict != verdictContinue: // accepted or dropped: the base chain ends
		w.base, w.stack = Chain{}, nil
	}
	return nil
}

// reach counts the rules of the current chain up to a rule.
func (w *walk) reach(handle uint64) error {
	top := &w.stack[len(w.stack)-1]
	i := slices.Index(w.rules[top.chain], handle)
	if i < top.done {
		return fmt.Errorf("follow a packet: chain %s has no rule with handle %d after its first %d", top.chain, handle, top.done)
	}
	w.met.Rules[w.base] += i + 1 - top.done
	top.done = i + 1
	return nil
}

// finish counts the remaining rules of the current chain.
func (w *walk) finish() {
	top := &w.stack[len(w.stack)-1]
	w.met.Rules[w.base] += len(w.rules[top.chain]) - top.done
	top.done = len(w.rules[top.chain])
}
