package kubeobj

import (
	"fmt"
	"maps"
	"slices"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation"

	"sluice.dev/sluice/internal/model"
	"sluice.dev/sluice/internal/source/fault"
)

// anyPod selects every pod and nothing else: network sets and host endpoints have labels, too.
func anyPod() model.Selector { return model.Equal(model.OrchestratorLabel, "k8s") }

// podsIn selects the pods of one namespace that a selector of pods selects.
func podsIn(namespace string, pods *metav1.LabelSelector, field string, f *fault.List) model.Selector {
	terms := []model.Selector{anyPod(), model.Equal(model.NamespaceLabel, namespace)}
	return model.And(append(terms, labelSelector(pods, "", field, f)...)...)
}

// podsOf selects the pods that pods selects, of the namespaces that namespaces
// selects; a nil selector selects all.
func podsOf(namespaces, pods *metav1.LabelSelector, namespacesField, podsField string, f *fault.List) model.Selector {
	terms := []model.Selector{anyPod()}
	terms = append(terms, labelSelector(namespaces, model.NamespaceLabelPrefix, namespacesField, f)...)
	return model.And(append(terms, labelSelector(pods, "", podsField, f)...)...)
}

// LabelSelectors translates a list of selectors, of which one has to hold, for the labels of
// objects themselves; nothing for an empty list.
func LabelSelectors(list []metav1.LabelSelector, field string, f *fault.List) model.Selector {
	any := make([]model.Selector, len(list))
	for i := range list {
		any[i] = model.And(labelSelector(&list[i], "", fmt.Sprintf("%s[%d]", field, i), f)...)
	}
	return model.Or(any...)
}

// labelSelector translates a selector into terms that must all hold; none for an empty or nil
// selector. The prefix goes before every key.
func labelSelector(s *metav1.LabelSelector, prefix, field string, f *fault.List) []model.Selector {
	if s == nil {
		return nil
	}
	var terms []model.Selector
	for _, key := range slices.Sorted(maps.Keys(s.MatchLabels)) {
		where := fmt.Sprintf("%s.matchLabels[%s]", field, key)
		checkKey(where, key, f)
		checkLabel(where, s.MatchLabels[key], f)
		terms = append(terms, model.Equal(prefix+key, s.MatchLabels[key]))
	}
	for i := range s.MatchExpressions {
		terms = append(terms, requirement(&s.MatchExpressions[i], prefix, fmt.Sprintf("%s.matchExpressions[%d]", field, i), f))
	}
	return terms
}

// requirement translates one item of matchExpressions. A negated one also selects objects without
// the label.
func requirement(r *metav1.LabelSelectorRequirement, prefix, field string, f *fault.List) model.Selector {
	checkKey(field+".key", r.Key, f)
	for i, v := range r.Values {
		checkLabel(fmt.Sprintf("%s.values[%d]", field, i), v, f)
	}
	var s model.Selector
	switch r.Operator {
	case metav1.LabelSelectorOpIn, metav1.LabelSelectorOpNotIn:
		if len(r.Values) == 0 {
			f.Reject(field+".values", "%s needs a value", r.Operator)
		}
		s = model.In(prefix+r.Key, r.Values...)
	case metav1.LabelSelectorOpExists, metav1.LabelSelectorOpDoesNotExist:
		if len(r.Values) != 0 {
			f.Reject(field+".values", "%s takes no values", r.Operator)
		}
		s = model.Has(prefix + r.Key)
	default:
		f.Reject(field+".operator", "%q is none of In, NotIn, Exists and DoesNotExist", string(r.Operator))
		return s
	}
	if r.Operator == metav1.LabelSelectorOpNotIn || r.Operator == metav1.LabelSelectorOpDoesNotExist {
		return model.Not(s)
	}
	return s
}

func checkKey(field, key string, f *fault.List) {
	if len(validation.IsQualifiedName(key)) > 0 {
		f.Reject(field, "%q is no label key: that is a name of at most 63 letters, digits, '-', '_' and '.', which begins and ends with a letter or digit; "+
			"a domain may stand before it, as in example.com/name", key)
	}
}

func checkLabel(field, value string, f *fault.List) {
	if len(validation.IsValidLabelValue(value)) > 0 {
		f.Reject(field, "%q is no label value: that has at most 63 letters, digits, '-', '_' and '.', and begins and ends with a letter or digit", value)
	}
}
