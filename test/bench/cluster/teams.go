package cluster

import (
	"fmt"
	"net/netip"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"sluice.dev/sluice/internal/model"
	"sluice.dev/sluice/internal/store"
)

// Teams is a cluster of many pods in teams, and of many selectors, ten for each team, all of them
// in policies of the node's own pods: each is a set in the node's kernel, and a pod is in ten.
type Teams struct {
	Pods      int
	Local     int // so many pods, the first, are on the node
	Selectors int // a multiple of a hundred
}

// PerTeam is the number of selectors that select each pod of a team.
const PerTeam = 10

// String returns "100000 pods, 10000 selectors".
func (t Teams) String() string { return fmt.Sprintf("%d pods, %d selectors", t.Pods, t.Selectors) }

func (t Teams) teams() int { return t.Selectors / PerTeam }

// Pod is pod i as it is after so many changes of its team and of its address; the latter are for
// pods elsewhere alone.
func (t Teams) Pod(i, moves, addresses int) *model.Pod {
	p := newPod(i, t.Local, map[string]string{
		"team": fmt.Sprintf("team-%d", (i+moves)%t.teams()), "pod": fmt.Sprintf("p%d", i),
	})
	if addresses > 0 {
		p.IPs = []netip.Addr{nth(Endpoints, 1<<22+i+(addresses%2)*t.Pods)}
	}
	return p
}

// rulesPerPolicy is how many selectors a policy has.
const rulesPerPolicy = 100

// Events are all objects.
func (t Teams) Events() []store.Event {
	events := podPrerequisites()
	for i := range t.Pods {
		events = append(events, PodEvent(t.Pod(i, 0, 0)))
	}
	for j := range t.Selectors / rulesPerPolicy {
		var peers []metav1.LabelSelector
		for i := j * rulesPerPolicy; i < (j+1)*rulesPerPolicy; i++ {
			peers = append(peers, selector(i))
		}
		selected := metav1.LabelSelector{MatchLabels: map[string]string{"pod": fmt.Sprintf("p%d", j%t.Local)}}
		events = append(events, policyEvent(newPolicy(fmt.Sprintf("policy-%06d", j), selected, peers, TargetPort)))
	}
	return events
}

// selector number i, one of those of team i/PerTeam.
func selector(i int) metav1.LabelSelector {
	return metav1.LabelSelector{
		MatchLabels: map[string]string{"team": fmt.Sprintf("team-%d", i/PerTeam)},
		MatchExpressions: []metav1.LabelSelectorRequirement{
			{Key: "stage", Operator: metav1.LabelSelectorOpNotIn, Values: []string{fmt.Sprintf("s%d", i%PerTeam)}},
		},
	}
}

// PodEvent is a pod's current version.
func PodEvent(p *model.Pod) store.Event {
	return store.Event{Kind: model.PodKind, Name: p.Name, Object: p}
}
