package objects

import (
	"fmt"
	"iter"
	"maps"
	"slices"
	"strconv"
	"strings"

	"sluice.dev/sluice/internal/model"
	"sluice.dev/sluice/internal/store"
)

// Labels are all that selectors can ask of an object: its own labels, but for those under reserved
// keys, and those that it has from the cluster. They implement model.Labels.
type Labels struct {
	own       map[string]string
	namespace string            // "": it is in none
	around    map[string]string // the labels of the namespace
	pod       bool
	account   string            // of pods
	identity  map[string]string // the labels of the account
}

// LabelsOf returns all that selectors can ask of a pod, network set or host endpoint.
func LabelsOf(v *store.View, o model.Object) model.Labels {
	switch o := o.(type) {
	case *model.Pod:
		return podLabels(o, namespaceLabels(v, o.Name.Namespace), accountLabels(v, accountOf(o)))
	case *model.NetworkSet:
		return setLabels(o, namespaceLabels(v, o.Key.Name.Namespace))
	case *model.HostEndpoint:
		return &Labels{own: o.Labels}
	}
	return &Labels{}
}

func podLabels(p *model.Pod, around, identity map[string]string) *Labels {
	return &Labels{own: p.Labels, pod: true, namespace: p.Name.Namespace, around: around, account: p.ServiceAccount, identity: identity}
}

func setLabels(s *model.NetworkSet, around map[string]string) *Labels {
	return &Labels{own: s.Labels, namespace: s.Key.Name.Namespace, around: around}
}

func accountOf(p *model.Pod) model.Name {
	return model.Name{Namespace: p.Name.Namespace, Name: p.ServiceAccount}
}

// namespaceLabels are the labels of a namespace; none if there is no such.
func namespaceLabels(v *store.View, name string) map[string]string {
	if n := v.Namespace(name); n != nil {
		return n.Labels
	}
	return nil
}

// accountLabels are the labels of a service account; none if there is no such.
func accountLabels(v *store.View, name model.Name) map[string]string {
	if a := v.ServiceAccount(name); a != nil {
		return a.Labels
	}
	return nil
}

// Label implements model.Labels.
func (l *Labels) Label(key string) (string, bool) {
	if strings.HasPrefix(key, model.NamespaceLabelPrefix) {
		switch key = key[len(model.NamespaceLabelPrefix):]; {
		case l.namespace == "":
			return "", false
		case key == model.MetadataNameLabel:
			return l.namespace, true
		}
		v, ok := l.around[key]
		return v, ok
	}
	if key, ofAccount := strings.CutPrefix(key, model.ServiceAccountLabelPrefix); ofAccount {
		v, ok := l.identity[key]
		return v, ok
	}
	switch key {
	case model.NamespaceLabel:
		return l.namespace, l.namespace != ""
	case model.OrchestratorLabel:
		if l.pod {
			return "k8s", true
		}
		return "", false
	case model.ServiceAccountLabel:
		return l.account, l.account != ""
	}
	v, ok := l.own[key]
	return v, ok
}

// text differs between labels that selectors can tell apart.
func (l *Labels) text() string {
	b := make([]byte, 0, 256)
	add := func(s string) { b = append(strconv.AppendInt(b, int64(len(s)), 36), ':'); b = append(b, s...) }
	for _, k := range slices.Sorted(maps.Keys(l.own)) {
		add(k)
		add(l.own[k])
	}
	b = append(b, '/')
	add(l.namespace)
	add(l.account)
	// What changed has another map.
	b = fmt.Appendf(b, "%t %p %p", l.pod, l.around, l.identity)
	return string(b)
}

// all yields every label.
func (l *Labels) all() iter.Seq2[string, string] {
	return func(yield func(k, v string) bool) {
		for k, v := range l.unshared() {
			if !yield(k, v) {
				return
			}
		}
		for k, v := range l.identity {
			if !yield(model.ServiceAccountLabelPrefix+k, v) {
				return
			}
		}
		if l.pod && !yield(model.OrchestratorLabel, "k8s") || l.namespace == "" {
			return
		}
		if !yield(model.NamespaceLabel, l.namespace) || !yield(model.NamespaceLabelPrefix+model.MetadataNameLabel, l.namespace) {
			return
		}
		for k, v := range l.around {
			if k != model.MetadataNameLabel && !yield(model.NamespaceLabelPrefix+k, v) {
				return
			}
		}
	}
}

// unshared yields the labels that are not those of its namespace or of its service account.
func (l *Labels) unshared() iter.Seq2[string, string] {
	return func(yield func(k, v string) bool) {
		for k, v := range l.own {
			if !reserved(k) && !yield(k, v) {
				return
			}
		}
		if l.account != "" {
			yield(model.ServiceAccountLabel, l.account)
		}
	}
}

func reserved(key string) bool {
	return strings.HasPrefix(key, model.NamespaceLabelPrefix) || strings.HasPrefix(key, model.ServiceAccountLabelPrefix) ||
		key == model.NamespaceLabel || key == model.OrchestratorLabel || key == model.ServiceAccountLabel
}
