package store

import (
	"iter"
	"slices"

	"sluice.dev/sluice/internal/lib/multimap"
	"sluice.dev/sluice/internal/model"
)

// label is one label of a namespace's pods, and one term of its services' selectors.
type label struct {
	namespace, key, value string
}

// selectorIndex finds the services that select a pod. Each service that has a
// selector is filed under one of its terms, as no pod without that label can match.
type selectorIndex map[label]map[*model.Service]struct{}

// add files svc under the term that the fewest others are filed under.
func (x selectorIndex) add(svc *model.Service) {
	if len(svc.Selector) == 0 {
		return
	}
	var best label
	fewest := -1
	for k, v := range svc.Selector {
		term := label{svc.Name.Namespace, k, v}
		if n := len(x[term]); fewest < 0 || n < fewest {
			best, fewest = term, n
		}
	}
	multimap.Add(x, best, svc)
}

func (x selectorIndex) remove(svc *model.Service) {
	for k, v := range svc.Selector {
		multimap.Remove(x, label{svc.Name.Namespace, k, v}, svc)
	}
}

// matching yields the services whose selector matches the pod's labels.
func (x selectorIndex) matching(pod *model.Pod) iter.Seq[*model.Service] {
	return func(yield func(*model.Service) bool) {
		for k, v := range pod.Labels {
			for svc := range x[label{pod.Name.Namespace, k, v}] {
				if matches(svc.Selector, pod.Labels) && !yield(svc) {
					return
				}
			}
		}
	}
}

// labelIndex finds the pods that have a label.
type labelIndex map[label]map[*model.Pod]struct{}

func (x labelIndex) add(pod *model.Pod) {
	for k, v := range pod.Labels {
		multimap.Add(x, label{pod.Name.Namespace, k, v}, pod)
	}
}

func (x labelIndex) remove(pod *model.Pod) {
	for k, v := range pod.Labels {
		multimap.Remove(x, label{pod.Name.Namespace, k, v}, pod)
	}
}

// selected looks through the pods of the selector's rarest term.
func (x labelIndex) selected(svc *model.Service) []*model.Pod {
	var candidates map[*model.Pod]struct{}
	first := true
	for k, v := range svc.Selector {
		pods := x[label{svc.Name.Namespace, k, v}]
		if first || len(pods) < len(candidates) {
			candidates, first = pods, false
		}
	}
	if len(candidates) == 0 {
		return nil
	}
	list := make([]*model.Pod, 0, len(candidates))
	for pod := range candidates {
		if matches(svc.Selector, pod.Labels) {
			list = append(list, pod)
		}
	}
	slices.SortFunc(list, comparePods)
	return list
}

func matches(selector, labels map[string]string) bool {
	for k, want := range selector {
		if got, ok := labels[k]; !ok || got != want {
			return false
		}
	}
	return true
}
