package agent

import (
	"net/netip"
	"strings"
	"testing"

	"sluice.dev/sluice/internal/model"
	"sluice.dev/sluice/internal/policy/question"
	"sluice.dev/sluice/internal/policy/verdict"
	"sluice.dev/sluice/internal/store"
)

// A policy that waits for its tier is named where it is about the sender or a receiver, in the
// direction that it has rules for.
func TestNotInForce(t *testing.T) {
	s := store.New()
	web, db := netip.MustParseAddr("10.1.0.1"), netip.MustParseAddr("10.1.0.2")
	var events []store.Event
	for name, addr := range map[string]netip.Addr{"web": web, "db": db} {
		pod := &model.Pod{Name: model.Name{Namespace: "shop", Name: name}, Labels: map[string]string{"app": name}, IPs: []netip.Addr{addr}}
		events = append(events, store.Event{Kind: model.PodKind, Name: pod.Name, Object: pod})
	}
	made := func(name, app, tier string, ingress, egress bool) {
		p := &model.Policy{Key: model.PolicyKey{Kind: model.GlobalNetworkPolicy, Name: model.Name{Name: name}}, Tier: tier, Subject: model.Equal("app", app), Ingress: ingress, Egress: egress}
		events = append(events, store.Event{Kind: p.Key.Kind, Name: p.Key.Name, Object: p})
	}
	made("again", "db", model.DefaultTier.Name, true, false)
	s.Apply(events)
	events = nil
	made("again", "db", "own", true, false)
	made("from-web", "web", "own", false, true)
	made("to-db", "db", "own", true, false)
	made("from-db", "db", "own", false, true)
	made("to-web", "web", "own", true, false)
	made("other", "cache", "own", true, true)
	s.Apply(events)
	c := &question.Case{Objects: s, Connections: []verdict.Question{{From: web, To: db}}}
	got := strings.Join(notInForce(c, s.WaitingPolicies()), "\n")
	const text = " is about this connection and not in force: it waits for Tier own"
	if want := "GlobalNetworkPolicy again" + text + "; its version before decides\nGlobalNetworkPolicy from-web" + text + "\nGlobalNetworkPolicy to-db" + text; got != want {
		t.Errorf("named:\n%s\nwant:\n%s", got, want)
	}
}

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

// A port that no container declares is said of a way that passes, where they declare others.
func TestUndeclared(t *testing.T) {
	s := store.New()
	var events []store.Event
	for name, ports := range map[string][]model.ContainerPort{"web": {{Name: "http", Protocol: model.TCP, Port: 8080}, {Protocol: model.UDP, Port: 53}}, "silent": nil} {
		pod := &model.Pod{Name: model.Name{Namespace: "shop", Name: name}, Ports: ports}
		events = append(events, store.Event{Kind: model.PodKind, Name: pod.Name, Object: pod})
	}
	s.Apply(events)
	for _, c := range []struct {
		pod, protocol string
		port          uint16
		outcome       verdict.Outcome
		want          string
	}{
		{"web", "TCP", 8080, verdict.Allowed, ""},
		{"web", "TCP", 8888, verdict.Allowed, "no container of the pod declares TCP 8888 (they declare http 8080): if nothing listens there, it is refused"},
		{"web", "UDP", 54, verdict.Allowed, "no container of the pod declares UDP 54 (they declare 53): if nothing listens there, it is refused"},
		{"web", "ICMP 8", 0, verdict.Allowed, ""},
		{"web", "TCP", 8888, verdict.Denied, "no container of the pod declares TCP 8888 (they declare http 8080): if nothing listens there, it is refused"},
		{"silent", "TCP", 8888, verdict.Allowed, ""},
	} {
		paths := []verdict.Path{{To: verdict.Party{Port: c.port, Object: model.Ref{Kind: model.PodKind, Name: model.Name{Namespace: "shop", Name: c.pod}}}, Outcome: c.outcome}}
		s.Read(func(v *store.View) { undeclared(v, paths, c.protocol) })
		if got := strings.Join(paths[0].Notes, "\n"); got != c.want {
			t.Errorf("%+v: %q", c, got)
		}
	}
}
