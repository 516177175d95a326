package model

import "strings"

// Lack is a term of a selector that does not hold for an object, for people.
type Lack struct {
	Wants string // "namespace label purpose=production", "no label env"
	Is    string // what the object is instead: "has purpose=testing", "has no label env", "is in namespace dev"
	// Absent: the object has no such label, so that to give it one changes nothing else about it.
	Absent bool
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
		least := s.terms[0].Lacks(l)
		for _, t := range s.terms[1:] {
			if all := t.Lacks(l); len(all) < len(least) {
				least = all
			}
		}
		return least
	case s.op == opNot && (s.terms[0].op == opAnd || s.terms[0].op == opOr || s.terms[0].key == ""):
		return []Lack{{Wants: "what is not " + s.terms[0].String(), Is: "is"}}
	case s.op == opNot:
		inner := s.terms[0]
		return []Lack{{Wants: "no " + inner.plain(), Is: isLabelled(inner.key, l)}}
	case s.key == "":
		return []Lack{{Wants: "nothing", Is: "is there"}}
	}
	_, has := l.Label(s.key)
	return []Lack{{Wants: s.plain(), Is: isLabelled(s.key, l), Absent: !has}}
}

// plain says what a selector of one label wants.
func (s Selector) plain() string {
	what, key := labelKind(s.key)
	switch {
	case s.key == OrchestratorLabel:
		return "a pod"
	case s.op == opHas:
		return strings.TrimSpace(what + " " + key)
	case s.op != opIn:
		return strings.TrimSpace(what+" "+key) + strings.TrimPrefix(s.String(), s.key)
	case key == "":
		return what + " " + strings.Join(s.values, " or ")
	case len(s.values) == 1:
		return what + " " + key + "=" + s.values[0]
	}
	return what + " " + key + " in (" + strings.Join(s.values, ", ") + ")"
}

// isLabelled says what an object has of a label.
func isLabelled(key string, l Labels) string {
	what, short := labelKind(key)
	value, has := l.Label(key)
	switch {
	case key == OrchestratorLabel && has:
		return "is a pod"
	case key == OrchestratorLabel:
		return "is no pod"
	case what == "namespace" && has:
		return "is in namespace " + value
	case what == "namespace":
		return "is in no namespace"
	case !has:
		return strings.TrimSpace("has no " + what + " " + short)
	case short == "":
		return "has " + what + " " + value
	}
	return "has " + short + "=" + value
}

// labelKind says what a label is of, and its key there; "" where the value says it all.
func labelKind(key string) (what, short string) {
	switch {
	case key == NamespaceLabel, key == NamespaceLabelPrefix+MetadataNameLabel:
		return "namespace", ""
	case key == ServiceAccountLabel:
		return "service account", ""
	case strings.HasPrefix(key, NamespaceLabelPrefix):
		return "namespace label", key[len(NamespaceLabelPrefix):]
	case strings.HasPrefix(key, ServiceAccountLabelPrefix):
		return "service account label", key[len(ServiceAccountLabelPrefix):]
	}
	return "label", key
}
