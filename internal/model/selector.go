package model

import (
	"maps"
	"slices"
	"strconv"
	"strings"
)

// Selector is an expression over the labels of pods, network sets and host
// endpoints. The zero Selector selects nothing and is used for "no selector";
// build others with the functions below. Selectors are immutable values; two that print the same
// select the same.
type Selector struct {
	op     selectorOp
	key    string
	values []string
	terms  []Selector
}

type selectorOp uint8

const (
	opNone selectorOp = iota
	opAll
	opHas
	opIn
	opContains
	opStartsWith
	opEndsWith
	opNot
	opAnd
	opOr
)

// Labels looks up labels. The keys that begin with one of the reserved prefixes
// below are given by the cluster and cannot be forged by the labels of the object itself.
type Labels interface {
	Label(key string) (value string, ok bool)
}

// LabelMap is Labels of a plain map.
type LabelMap map[string]string

// Label implements Labels.
func (m LabelMap) Label(key string) (string, bool) { v, ok := m[key]; return v, ok }

// Labels that objects have beside their own, as Calico names them.
const (
	NamespaceLabel       = "projectcalico.org/namespace"      // of pods and namespaced network sets
	OrchestratorLabel    = "projectcalico.org/orchestrator"   // "k8s" for every pod, and nothing else
	ServiceAccountLabel  = "projectcalico.org/serviceaccount" // of pods
	NamespaceLabelPrefix = "pcns."                            // before the labels of the object's namespace
	MetadataNameLabel    = "kubernetes.io/metadata.name"      // a namespace always has this, equal to its name

	ServiceAccountLabelPrefix = "pcsa." // before the labels of a pod's service account
)

// Everything selects every object.
func Everything() Selector { return Selector{op: opAll} }

// Has selects what has the label, whatever its value.
func Has(key string) Selector { return Selector{op: opHas, key: key} }

// Equal selects what has the label with the value.
func Equal(key, value string) Selector { return In(key, value) }

// In selects what has the label with one of the values.
func In(key string, values ...string) Selector {
	v := slices.Clone(values)
	slices.Sort(v)
	return Selector{op: opIn, key: key, values: slices.Compact(v)}
}

// Contains selects what has the label with a value that contains s.
func Contains(key, s string) Selector {
	return Selector{op: opContains, key: key, values: []string{s}}
}

// StartsWith selects what has the label with a value that starts with s.
func StartsWith(key, s string) Selector {
	return Selector{op: opStartsWith, key: key, values: []string{s}}
}

// EndsWith selects what has the label with a value that ends with s.
func EndsWith(key, s string) Selector {
	return Selector{op: opEndsWith, key: key, values: []string{s}}
}

// Not selects what s does not, objects without the label included.
func Not(s Selector) Selector {
	if s.op == opNot {
		return s.terms[0]
	}
	return Selector{op: opNot, terms: []Selector{s}}
}

// And selects what all terms select; Everything without terms.
func And(terms ...Selector) Selector { return combine(opAnd, opAll, terms) }

// Or selects what one of the terms selects; nothing without terms.
func Or(terms ...Selector) Selector { return combine(opOr, opNone, terms) }

// combine flattens nested terms and drops repeated ones, so that equal
// selectors, written in different orders, are equal values.
func combine(op, empty selectorOp, terms []Selector) Selector {
	var flat []Selector
	for _, t := range terms {
		switch {
		case t.op == op:
			flat = append(flat, t.terms...)
		case t.op != empty:
			flat = append(flat, t)
		}
	}
	if len(flat) > 1 {
		flat = distinct(flat)
	}
	switch len(flat) {
	case 0:
		return Selector{op: empty}
	case 1:
		return flat[0]
	}
	return Selector{op: op, terms: flat}
}

// distinct sorts terms by their texts and leaves one of each.
func distinct(terms []Selector) []Selector {
	byText := make(map[string]Selector, len(terms)) // a text is long to make, and tenants choose how many there are
	for _, t := range terms {
		byText[t.String()] = t
	}
	sorted := make([]Selector, 0, len(byText))
	for _, text := range slices.Sorted(maps.Keys(byText)) {
		sorted = append(sorted, byText[text])
	}
	return sorted
}

// IsZero reports whether s is the zero Selector.
func (s Selector) IsZero() bool { return s.op == opNone }

// Matches reports whether s selects an object with the labels.
func (s Selector) Matches(l Labels) bool {
	switch s.op {
	case opAll:
		return true
	case opNot:
		return !s.terms[0].Matches(l)
	case opAnd:
		return !slices.ContainsFunc(s.terms, func(t Selector) bool { return !t.Matches(l) })
	case opOr:
		return slices.ContainsFunc(s.terms, func(t Selector) bool { return t.Matches(l) })
	case opNone:
		return false
	}
	v, ok := l.Label(s.key)
	return ok && s.admits(v)
}

// admits reports whether a selector of one label selects what has it with the value.
func (s Selector) admits(value string) bool {
	switch s.op {
	case opIn:
		return slices.Contains(s.values, value)
	case opContains:
		return strings.Contains(value, s.values[0])
	case opStartsWith:
		return strings.HasPrefix(value, s.values[0])
	case opEndsWith:
		return strings.HasSuffix(value, s.values[0])
	}
	return true // opHas
}

// Anchor is a label that an object must have; with a Value unless Any is set.
type Anchor struct {
	Key, Value string
	Any        bool
}

// Anchors returns labels of which every selected object has at least one, for
// filing selectors by them; ok is false if there is no such list, and every
// object has to be looked at. No anchors and ok: nothing is selected.
func (s Selector) Anchors() (anchors []Anchor, ok bool) {
	switch s.op {
	case opNone:
		return nil, true
	case opHas, opContains, opStartsWith, opEndsWith:
		return []Anchor{{Key: s.key, Any: true}}, true
	case opIn:
		for _, v := range s.values {
			anchors = append(anchors, Anchor{Key: s.key, Value: v})
		}
		return anchors, true
	case opOr:
		for _, t := range s.terms {
			a, ok := t.Anchors()
			if !ok {
				return nil, false
			}
			anchors = append(anchors, a...)
		}
		return anchors, true
	case opAnd:
		return s.bestAnchors()
	}
	return nil, false // opAll, opNot
}

// bestAnchors chooses the term of a conjunction that promises to be the most
// selective: given values before mere keys, an object's own labels before those of
// its service account, of its namespace and of every pod, fewer before more.
func (s Selector) bestAnchors() (best []Anchor, ok bool) {
	bestCost := 0
	for _, t := range s.terms {
		a, has := t.Anchors()
		if !has {
			continue
		}
		if c := anchorCost(a); !ok || c < bestCost {
			best, bestCost, ok = a, c, true
		}
	}
	return best, ok
}

// Namespaces returns the namespaces to which the selected objects are confined; ok is
// false if they are not, or it can't be told.
func (s Selector) Namespaces() (names []string, ok bool) {
	switch s.op {
	case opNone:
		return nil, true
	case opIn:
		if s.key == NamespaceLabel || s.key == NamespaceLabelPrefix+MetadataNameLabel {
			return s.values, true
		}
	case opAnd:
		for _, t := range s.terms {
			if names, ok := t.Namespaces(); ok {
				return names, true
			}
		}
	case opOr:
		for _, t := range s.terms {
			n, ok := t.Namespaces()
			if !ok {
				return nil, false
			}
			names = append(names, n...)
		}
		slices.Sort(names)
		return slices.Compact(names), true
	}
	return nil, false
}

func anchorCost(anchors []Anchor) int {
	cost := len(anchors)
	for _, a := range anchors {
		switch {
		case a.Key == OrchestratorLabel:
			cost += 1_000_000
		case a.Key == NamespaceLabel, strings.HasPrefix(a.Key, NamespaceLabelPrefix):
			cost += 1_000
		case strings.HasPrefix(a.Key, ServiceAccountLabelPrefix):
			cost += 10
		}
		if a.Any {
			cost += 100
		}
	}
	return cost
}

// String returns s in Calico's selector language, in one form for equal
// selectors.
func (s Selector) String() string {
	switch s.op {
	case opAll:
		return "all()"
	case opHas:
		return "has(" + s.key + ")"
	case opIn:
		if len(s.values) == 1 {
			return s.key + " == " + quote(s.values[0])
		}
		quoted := make([]string, len(s.values))
		for i, v := range s.values {
			quoted[i] = quote(v)
		}
		return s.key + " in {" + strings.Join(quoted, ", ") + "}"
	case opContains:
		return s.key + " contains " + quote(s.values[0])
	case opStartsWith:
		return s.key + " starts with " + quote(s.values[0])
	case opEndsWith:
		return s.key + " ends with " + quote(s.values[0])
	case opNot:
		return "!(" + s.terms[0].String() + ")"
	case opAnd, opOr:
		sep := " && "
		if s.op == opOr {
			sep = " || "
		}
		var b strings.Builder
		for i, t := range s.terms {
			if i > 0 {
				b.WriteString(sep)
			}
			if t.op == opAnd || t.op == opOr {
				b.WriteString("(" + t.String() + ")")
			} else {
				b.WriteString(t.String())
			}
		}
		return b.String()
	}
	return ""
}

// quote writes a value between quotation marks that it does not contain; one
// with both kinds, which no selector can be written with, as Go does.
func quote(v string) string {
	switch {
	case !strings.Contains(v, "'"):
		return "'" + v + "'"
	case !strings.Contains(v, `"`):
		return `"` + v + `"`
	}
	return strconv.Quote(v)
}
