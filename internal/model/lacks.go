package model

import (
	"slices"
	"strings"
)

// Lack is a term of a selector that does not hold for an object, for people.
type Lack struct {
	Wants string // "namespace label purpose=production", "no label env"
	Has   string // what the object has instead: "purpose=testing", "no label env"
}

// Lacks returns the terms that keep s from selecting an object with the labels; of alternatives
// those of the one that lacks least. None: s selects it.
func (s Selector) Lacks(l Labels) []Lack {
	switch {
	case s.Matches(l):
		return nil
	case s.op == opAnd:
		var all []Lack
		for _, t := range s.terms {
			all = append(all, t.Lacks(l)...)
		}
		return all
	case s.op == opOr:
		return slices.MinFunc(mapped(s.terms, func(t Selector) []Lack { return t.Lacks(l) }),
			func(a, b []Lack) int { return len(a) - len(b) })
	case s.op == opNot && (s.terms[0].op == opAnd || s.terms[0].op == opOr || s.terms[0].key == ""):
		return []Lack{{Wants: "what is not " + s.terms[0].String(), Has: "it is"}}
	case s.op == opNot:
		inner := s.terms[0]
		return []Lack{{Wants: "no " + inner.plain(), Has: hasLabel(inner.key, l)}}
	case s.key == "":
		return []Lack{{Wants: "nothing", Has: "something"}}
	}
	return []Lack{{Wants: s.plain(), Has: hasLabel(s.key, l)}}
}

func mapped[T, U any](list []T, f func(T) U) []U {
	all := make([]U, len(list))
	for i, e := range list {
		all[i] = f(e)
	}
	return all
}

// plain says what a selector of one label wants.
func (s Selector) plain() string {
	what, key := labelKind(s.key)
	switch s.op {
	case opIn:
		switch {
		case key == "" && len(s.values) == 1:
			return what + " " + s.values[0]
		case key == "":
			return what + " " + strings.Join(s.values, " or ")
		case len(s.values) == 1:
			return what + " " + key + "=" + s.values[0]
		}
		return what + " " + key + " in (" + strings.Join(s.values, ", ") + ")"
	case opHas:
		return strings.TrimSpace(what + " " + key)
	}
	return strings.TrimSpace(what+" "+key) + strings.TrimPrefix(s.String(), s.key)
}

// hasLabel says what an object has of a label.
func hasLabel(key string, l Labels) string {
	what, short := labelKind(key)
	value, has := l.Label(key)
	switch {
	case !has:
		return strings.TrimSpace("no " + what + " " + short)
	case short == "":
		return what + " " + value
	}
	return short + "=" + value
}

// labelKind says what a label is of, and its key there; "" where the value says it all.
func labelKind(key string) (what, short string) {
	switch {
	case key == NamespaceLabel, key == NamespaceLabelPrefix+MetadataNameLabel:
		return "namespace", ""
	case key == ServiceAccountLabel:
		return "service account", ""
	case key == OrchestratorLabel:
		return "orchestrator", ""
	case strings.HasPrefix(key, NamespaceLabelPrefix):
		return "namespace label", key[len(NamespaceLabelPrefix):]
	case strings.HasPrefix(key, ServiceAccountLabelPrefix):
		return "service account label", key[len(ServiceAccountLabelPrefix):]
	}
	return "label", key
}
