package agent

import (
	"testing"

	"sluice.dev/sluice/internal/model"
	"sluice.dev/sluice/internal/store"
)

// TestLeaveOut keeps the policies that apply to a pod or host endpoint of the question, so that
// others cost its nodes nothing.
func TestLeaveOut(t *testing.T) {
	s := store.New()
	pod := &model.Pod{Name: model.Name{Namespace: "shop", Name: "web"}, Labels: map[string]string{"app": "web"}}
	host := &model.HostEndpoint{Name: "uplink", Labels: map[string]string{"role": "uplink"}}
	events := []store.Event{{Kind: model.PodKind, Name: pod.Name, Object: pod}, {Kind: model.HostEndpointKind, Name: model.Name{Name: host.Name}, Object: host}}
	for name, subject := range map[string]model.Selector{
		"pod": model.Equal("app", "web"), "host": model.Equal("role", "uplink"), "none": model.Equal("app", "db"),
		"elsewhere": model.And(model.Equal(model.NamespaceLabel, "other"), model.Equal("app", "web")),
	} {
		p := &model.Policy{Key: model.PolicyKey{Kind: model.CalicoPolicy, Name: model.Name{Name: name}}, Tier: model.DefaultTier.Name, Subject: subject}
		events = append(events, store.Event{Kind: p.Key.Kind, Name: p.Key.Name, Object: p})
	}
	s.Apply(events)
	leaveOut(s)
	s.Read(func(v *store.View) {
		for name, want := range map[string]bool{"pod": true, "host": true, "none": false, "elsewhere": false} {
			if kept := v.Policy(model.PolicyKey{Kind: model.CalicoPolicy, Name: model.Name{Name: name}}) != nil; kept != want {
				t.Errorf("policy %s is kept: %v", name, kept)
			}
		}
	})
}
