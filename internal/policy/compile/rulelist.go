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

// ruleLists are those of all endpoints.
type ruleLists struct {
	variants *variants
	all      map[string]*ruleList
	unused   map[*ruleList]struct{} // may have no user any more
	unbuilt  map[*ruleList]struct{}
	uses     map[state.RulesID]int // lists that come to the same rules
	table    diff.Map[state.RulesID, state.Rules]
}

// ruleList is the policies that apply to some endpoints at a checkpoint, and the Rules that they
// become, whose sets have ids only at the end of an update. It never changes; endpoints with the
// same policies share it.
type ruleList struct {
	key        string
	checkpoint checkpoint
	policies   []*policy
	fallback   model.Action
	variants   []*variant
	rules      *state.Rules // nil: everything passes
	users      int          // how many endpoints use it
}

// list returns the list of the policies that hold at the checkpoint, of those given in their order,
// with others before them; nil if everything passes.
func (ls *ruleLists) list(at checkpoint, first, given []*policy, fallback model.Action) *ruleList {
	held := at.held(given)
	if len(held) == 0 && fallback == model.Allow {
		return nil
	}
	held = slices.Concat(first, held)
	var key strings.Builder
	key.WriteString(strconv.Itoa(int(at)) + fallback.String())
	for _, p := range held {
		key.WriteString(" " + strconv.FormatUint(p.serial, 36))
	}
	l := ls.all[key.String()]
	if l == nil {
		l = &ruleList{key: key.String(), checkpoint: at, policies: held, fallback: fallback}
		for i, p := range held {
			l.variants = append(l.variants, ls.variants.hold(p, at, allowsAfter(held, i, at)))
		}
		ls.all[l.key] = l
		ls.unbuilt[l] = struct{}{}
	}
	return l
}

// replace counts that an endpoint uses a list in place of another one; either may be nil.
func (ls *ruleLists) replace(old, next *ruleList) {
	if next != nil {
		next.users++
	}
	if old != nil {
		old.users--
		ls.unused[old] = struct{}{}
	}
}

// sweep ends the lists that no endpoint uses any more.
func (ls *ruleLists) sweep() {
	for l := range ls.unused {
		if l.users > 0 {
			continue
		}
		delete(ls.all, l.key)
		delete(ls.unbuilt, l)
		for i, p := range l.policies {
			ls.variants.release(p, variantOf(l.checkpoint, allowsAfter(l.policies, i, l.checkpoint)))
		}
		ls.count(l.rules, -1)
	}
	clear(ls.unused)
}

// build makes the Rules of lists that have none yet, and again those of lists whose sets have other
// ids, or other prefix lengths. It returns the lists that have other Rules now.
func (ls *ruleLists) build() (changed map[*ruleList]struct{}) {
	if ls.variants.unresolve() {
		for _, l := range ls.all {
			if slices.ContainsFunc(l.variants, func(v *variant) bool { return v.resolved == nil }) {
				ls.unbuilt[l] = struct{}{}
			}
		}
	}
	if len(ls.unbuilt) == 0 {
		return nil
	}
	changed = map[*ruleList]struct{}{}
	for l := range ls.unbuilt {
		next := ls.resolve(l)
		if idOf(next) == idOf(l.rules) {
			continue
		}
		ls.count(next, 1)
		ls.count(l.rules, -1)
		l.rules = next
		changed[l] = struct{}{}
	}
	clear(ls.unbuilt)
	return changed
}

// count counts the lists that come to the same rules.
func (ls *ruleLists) count(r *state.Rules, by int) {
	if r == nil {
		return
	}
	if ls.uses[r.ID] += by; ls.uses[r.ID] <= 0 {
		delete(ls.uses, r.ID)
		ls.table.Set(r.ID, nil)
	} else if ls.uses[r.ID] == by {
		ls.table.Set(r.ID, r)
	}
}

// resolve makes the Rules of a list.
func (ls *ruleLists) resolve(l *ruleList) *state.Rules {
	rules := &state.Rules{Default: l.fallback}
	for i, p := range l.policies {
		if i == 0 || l.policies[i-1].tier != p.tier {
			t := state.Tier{Name: p.tier.Name, Default: model.Deny}
			if p.tier.DefaultPass || !l.checkpoint.isolates() {
				t.Default = model.Pass
			}
			rules.Tiers = append(rules.Tiers, t)
		}
		t := &rules.Tiers[len(rules.Tiers)-1]
		t.Policies = append(t.Policies, ls.variants.resolve(l.variants[i]))
	}
	rules.ID = state.RulesID(digestOf(rules))
	return rules
}

func idOf(r *state.Rules) state.RulesID {
	if r == nil {
		return ""
	}
	return r.ID
}

// digestOf identifies what v points to by all that it holds; PolicyRules, which many Rules share,
// by their own digest.
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
