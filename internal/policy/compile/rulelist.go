package compile

import (
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"hash"
	"reflect"
	"slices"
	"strconv"
	"strings"

	"sluice.dev/sluice/internal/lib/diff"
	"sluice.dev/sluice/internal/model"
	"sluice.dev/sluice/internal/state"
)

// ruleLists are those of all endpoints, each as a plan until the ids of its sets are known.
type ruleLists struct {
	variants *variants
	lists    map[string]*ruleList
	unused   map[*ruleList]struct{} // may have no user any more
	unbuilt  map[*ruleList]struct{}
	uses     map[state.RulesID]int // plans that come to the program
	table    diff.Map[state.RulesID, state.Rules]
}

// ruleList is a program before its sets have ids: the policies that apply to some endpoints at a
// stage. It never changes; endpoints with the same policies share it.
type ruleList struct {
	key        string
	checkpoint checkpoint
	policies   []*policy
	fallback   model.Action
	variants   []*variant
	rules      *state.Rules // nil: everything passes
	users      int          // how many endpoints use it
}

// list returns the plan of the policies that hold at the stage, of those given in their order, with
// others before them; nil if everything passes.
func (pr *ruleLists) list(s checkpoint, first, list []*policy, fallback model.Action) *ruleList {
	held := s.held(list)
	if len(held) == 0 && fallback == model.Allow {
		return nil
	}
	held = slices.Concat(first, held)
	var key strings.Builder
	key.WriteString(strconv.Itoa(int(s)) + fallback.String())
	for _, p := range held {
		key.WriteString(" " + strconv.FormatUint(p.serial, 36))
	}
	p := pr.lists[key.String()]
	if p == nil {
		p = &ruleList{key: key.String(), checkpoint: s, policies: held, fallback: fallback}
		for i, q := range held {
			p.variants = append(p.variants, pr.variants.hold(q, s, allowsAfter(held, i, s)))
		}
		pr.lists[p.key] = p
		pr.unbuilt[p] = struct{}{}
	}
	return p
}

// replace counts that an endpoint uses a plan in place of another one; either may be nil.
func (pr *ruleLists) replace(old, next *ruleList) {
	if next != nil {
		next.users++
	}
	if old != nil {
		old.users--
		pr.unused[old] = struct{}{}
	}
}

// sweep ends the plans that no endpoint uses any more.
func (pr *ruleLists) sweep() {
	for p := range pr.unused {
		if p.users > 0 {
			continue
		}
		delete(pr.lists, p.key)
		delete(pr.unbuilt, p)
		for i, q := range p.policies {
			pr.variants.release(q, variantOf(p.checkpoint, allowsAfter(p.policies, i, p.checkpoint)))
		}
		pr.count(p.rules, -1)
	}
	clear(pr.unused)
}

// build makes the programs of plans that have none yet, and again those of plans whose sets have
// other ids, or other lists. It returns the plans that have another program now.
func (pr *ruleLists) build() (changed map[*ruleList]struct{}) {
	if pr.variants.unresolve() {
		for _, p := range pr.lists {
			if slices.ContainsFunc(p.variants, func(o *variant) bool { return o.resolved == nil }) {
				pr.unbuilt[p] = struct{}{}
			}
		}
	}
	if len(pr.unbuilt) == 0 {
		return nil
	}
	changed = map[*ruleList]struct{}{}
	for p := range pr.unbuilt {
		next := pr.resolve(p)
		if idOf(next) == idOf(p.rules) {
			continue
		}
		pr.count(next, 1)
		pr.count(p.rules, -1)
		p.rules = next
		changed[p] = struct{}{}
	}
	clear(pr.unbuilt)
	return changed
}

// count counts the plans that come to a program.
func (pr *ruleLists) count(p *state.Rules, by int) {
	if p == nil {
		return
	}
	if pr.uses[p.ID] += by; pr.uses[p.ID] <= 0 {
		delete(pr.uses, p.ID)
		pr.table.Set(p.ID, nil)
	} else if pr.uses[p.ID] == by {
		pr.table.Set(p.ID, p)
	}
}

// resolve makes the program of a plan.
func (pr *ruleLists) resolve(p *ruleList) *state.Rules {
	rules := &state.Rules{Default: p.fallback}
	for i, q := range p.policies {
		if i == 0 || p.policies[i-1].tier != q.tier {
			t := state.Tier{Name: q.tier.Name, Default: model.Deny}
			if q.tier.DefaultPass || !p.checkpoint.isolates() {
				t.Default = model.Pass
			}
			rules.Tiers = append(rules.Tiers, t)
		}
		t := &rules.Tiers[len(rules.Tiers)-1]
		t.Policies = append(t.Policies, pr.variants.resolve(p.variants[i]))
	}
	rules.ID = state.RulesID(digestOf(rules))
	return rules
}

func idOf(p *state.Rules) state.RulesID {
	if p == nil {
		return ""
	}
	return p.ID
}

// digestOf identifies what v points to by all that it holds; rules of policies, which many programs
// share, by their own digest.
func digestOf(v any) string {
	h := sha256.New()
	digest(h, reflect.ValueOf(v).Elem())
	return hex.EncodeToString(h.Sum(nil)[:16])
}

// digest writes all that v holds to h so that different values write different bytes.
func digest(h hash.Hash, v reflect.Value) {
	number := func(n uint64) { h.Write(binary.LittleEndian.AppendUint64(nil, n)) }
	switch v.Kind() {
	case reflect.String:
		number(uint64(v.Len()))
		h.Write([]byte(v.String()))
	case reflect.Slice:
		number(uint64(v.Len()))
		for i := range v.Len() {
			digest(h, v.Index(i))
		}
	case reflect.Struct:
		for i := range v.NumField() {
			digest(h, v.Field(i))
		}
	case reflect.Pointer:
		if v.IsNil() {
			number(0)
			return
		}
		number(1)
		if r, ok := v.Interface().(*state.PolicyRules); ok && r.ID != "" {
			h.Write([]byte(r.ID))
			return
		}
		digest(h, v.Elem())
	case reflect.Int16:
		number(uint64(v.Int()))
	default: // unsigned numbers; anything else panics, in the test of all fields
		number(v.Uint())
	}
}
