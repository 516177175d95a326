package lab

import (
	"context"
	"slices"
	"testing"

	"sluice.dev/sluice/test/lab/plan"
)

// The notes of a status are what does not work now: where the lab deviates from its manifests, and
// the faults that agents find, without those of earlier commands.
func TestStatusNotesWhatHolds(t *testing.T) {
	faults := []string{"NetworkPolicy a is refused"}
	agent := &Agent{
		Command: func(AgentConfig) []string { return []string{"sleep", "600"} },
		Sync:    func(context.Context, string) ([]string, error) { return faults, nil },
	}
	const left = "Service default/web is left out: it has no ports"
	l := upWith(t, Config{Name: "testnote", Nodes: 2, Objects: &plan.Objects{Faults: []string{left}}, Agent: agent})
	if want := []string{left, "agents: NetworkPolicy a is refused"}; !slices.Equal(l.Warnings, want) {
		t.Errorf("brought up with %q, want %q", l.Warnings, want)
	}
	for _, now := range [][]string{{"Service b is refused"}, nil} {
		faults = now
		l, err := Open(l.Name, agent)
		if err != nil {
			t.Fatal(err)
		}
		want := []string{left}
		for _, f := range now {
			want = append(want, "agents: "+f)
		}
		if got := l.Status(t.Context()).Warnings; !slices.Equal(got, want) {
			t.Errorf("status notes %q, want %q", got, want)
		}
	}
}
