package nft

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"

	"golang.org/x/sys/unix"

	"sluice.dev/sluice/internal/kernel/attr"
)

// Table is what the kernel holds of a table except for the elements.
type Table struct {
	Flags, Owner uint32             // owner is a socket's port
	Chains       map[string]bool    // by name
	Hooks        map[string]Hook    // of base chains, by name
	Rules        map[string]int     // by chain
	Counters     map[string]bool    // by name
	Flowtables   map[string]bool    // by name
	Sets         map[string]SetType // by name
}

// ReadTable returns all of a table except for the elements, or nil if there is none.
func (s *Socket) ReadTable(ctx context.Context, name string) (*Table, error) {
	have, err := s.ReadFlags(ctx, name)
	if have == nil || err != nil {
		return nil, err
	}
	if err := s.CountRules(ctx, name, have.Rules); err != nil {
		return nil, fmt.Errorf("count rules: %w", err)
	}
	err = s.ReadChains(ctx, name, func(chain string, hook *Hook) {
		have.Chains[chain] = true
		if hook != nil {
			have.Hooks[chain] = *hook
		}
	})
	if err != nil {
		return nil, fmt.Errorf("list chains: %w", err)
	}
	err = s.get(ctx, unix.NFT_MSG_GETSET, unix.NLM_F_DUMP, s.Family, inTable(unix.NFTA_SET_TABLE, name), func(b []byte) {
		have.Sets[attr.Text(attr.Find(b, unix.NFTA_SET_NAME))] = SetType{
			keyType: attr.Uint32(attr.Find(b, unix.NFTA_SET_KEY_TYPE)), keyLen: attr.Uint32(attr.Find(b, unix.NFTA_SET_KEY_LEN)),
			dataType: attr.Uint32(attr.Find(b, unix.NFTA_SET_DATA_TYPE)), dataLen: attr.Uint32(attr.Find(b, unix.NFTA_SET_DATA_LEN)),
			flags: attr.Uint32(attr.Find(b, unix.NFTA_SET_FLAGS)),
		}
	})
	if err != nil {
		return nil, fmt.Errorf("list sets: %w", err)
	}
	if err := s.ReadCounters(ctx, name, func(counter string, _ uint64) { have.Counters[counter] = true }); err != nil {
		return nil, fmt.Errorf("list counters: %w", err)
	}
	if err := s.ReadFlowtables(ctx, name, func(flowtable string, _ []string) { have.Flowtables[flowtable] = true }); err != nil {
		return nil, fmt.Errorf("list flowtables: %w", err)
	}
	return have, nil
}

// ReadFlags returns a table's flags and owner alone, or nil if there is no table.
func (s *Socket) ReadFlags(ctx context.Context, name string) (*Table, error) {
	have := &Table{Chains: map[string]bool{}, Hooks: map[string]Hook{}, Rules: map[string]int{}, Counters: map[string]bool{}, Flowtables: map[string]bool{}, Sets: map[string]SetType{}}
	err := s.get(ctx, unix.NFT_MSG_GETTABLE, 0, s.Family, inTable(unix.NFTA_TABLE_NAME, name), func(b []byte) {
		have.Flags = attr.Uint32(attr.Find(b, unix.NFTA_TABLE_FLAGS))
		have.Owner = attr.Uint32(attr.Find(b, tableAttrOwner))
	})
	if errors.Is(err, unix.ENOENT) {
		return nil, nil
	}
	return have, err
}

func inTable(typ uint16, name string) []byte {
	var a attr.Attrs
	a.String(typ, name)
	return a.B
}

// CountRules counts the rules of each chain.
func (s *Socket) CountRules(ctx context.Context, table string, counts map[string]int) error {
	clear(counts)
	return s.get(ctx, unix.NFT_MSG_GETRULE, unix.NLM_F_DUMP, s.Family, inTable(unix.NFTA_RULE_TABLE, table), func(b []byte) {
		counts[attr.Text(attr.Find(b, unix.NFTA_RULE_CHAIN))]++
	})
}

// ReadChains yields the chains; hook is nil of regular ones.
func (s *Socket) ReadChains(ctx context.Context, table string, yield func(name string, hook *Hook)) error {
	return s.get(ctx, unix.NFT_MSG_GETCHAIN, unix.NLM_F_DUMP, s.Family, nil, func(b []byte) {
		if attr.Text(attr.Find(b, unix.NFTA_CHAIN_TABLE)) != table {
			return
		}
		var hook *Hook
		if h := attr.Find(b, unix.NFTA_CHAIN_HOOK); h != nil {
			hook = &Hook{attr.Text(attr.Find(b, unix.NFTA_CHAIN_TYPE)), attr.Uint32(attr.Find(h, unix.NFTA_HOOK_HOOKNUM)),
				int32(attr.Uint32(attr.Find(h, unix.NFTA_HOOK_PRIORITY))), attr.Text(attr.Find(h, unix.NFTA_HOOK_DEV))}
		}
		yield(attr.Text(attr.Find(b, unix.NFTA_CHAIN_NAME)), hook)
	})
}

// ReadCounters yields the named counters; none if there is no table.
func (s *Socket) ReadCounters(ctx context.Context, table string, yield func(name string, packets uint64)) error {
	return s.get(ctx, unix.NFT_MSG_GETOBJ, unix.NLM_F_DUMP, s.Family, inTable(unix.NFTA_OBJ_TABLE, table), func(b []byte) {
		if packets := attr.Find(attr.Find(b, unix.NFTA_OBJ_DATA), unix.NFTA_COUNTER_PACKETS); len(packets) == 8 {
			yield(attr.Text(attr.Find(b, unix.NFTA_OBJ_NAME)), binary.BigEndian.Uint64(packets))
		}
	})
}

// RuleInfo is what a rule refers to.
type RuleInfo struct {
	Chain, Comment string
	Counters       []string
	To             []string // chains that it jumps or goes to
}

// ReadRules yields all rules.
func (s *Socket) ReadRules(ctx context.Context, table string, yield func(RuleInfo)) error {
	return s.get(ctx, unix.NFT_MSG_GETRULE, unix.NLM_F_DUMP, s.Family, inTable(unix.NFTA_RULE_TABLE, table), func(b []byte) {
		r := RuleInfo{Chain: attr.Text(attr.Find(b, unix.NFTA_RULE_CHAIN)), Comment: udataString(attr.Find(b, unix.NFTA_RULE_USERDATA), udataComment)}
		for _, e := range attr.All(attr.Find(b, unix.NFTA_RULE_EXPRESSIONS)) {
			data := attr.Find(e, unix.NFTA_EXPR_DATA)
			switch attr.Text(attr.Find(e, unix.NFTA_EXPR_NAME)) {
			case "objref":
				r.Counters = append(r.Counters, attr.Text(attr.Find(data, unix.NFTA_OBJREF_IMM_NAME)))
			case "immediate":
				verdict := attr.Find(attr.Find(data, unix.NFTA_IMMEDIATE_DATA), unix.NFTA_DATA_VERDICT)
				if to := attr.Text(attr.Find(verdict, unix.NFTA_VERDICT_CHAIN)); to != "" {
					r.To = append(r.To, to)
				}
			}
		}
		yield(r)
	})
}

// ReadSet yields each element that the kernel holds in the set.
func (s *Socket) ReadSet(ctx context.Context, table string, of *Set, yield func(Element)) error {
	var a attr.Attrs
	a.String(unix.NFTA_SET_ELEM_LIST_TABLE, table)
	a.String(unix.NFTA_SET_ELEM_LIST_SET, of.Name)
	return s.get(ctx, unix.NFT_MSG_GETSETELEM, unix.NLM_F_DUMP, s.Family, a.B, func(b []byte) {
		for _, v := range attr.All(attr.Find(b, unix.NFTA_SET_ELEM_LIST_ELEMENTS)) {
			yield(ReadElement(of, v))
		}
	})
}

// Generation is the number of the last nftables transaction in this namespace.
func (s *Socket) Generation(ctx context.Context) (gen uint32, err error) {
	err = s.get(ctx, unix.NFT_MSG_GETGEN, 0, unix.NFPROTO_UNSPEC, nil, func(b []byte) {
		gen = attr.Uint32(attr.Find(b, unix.NFTA_GEN_ID))
	})
	if err != nil {
		return 0, fmt.Errorf("read nftables generation: %w", err)
	}
	return gen, nil
}
