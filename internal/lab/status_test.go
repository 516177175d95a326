package lab

import (
	"context"
	"os"
	"slices"
	"testing"

	"sluice.dev/sluice/internal/lab/plan"
)

// The notes of a status are what does not work now: where the lab deviates from its manifests, and
// the faults that agents find, without those of earlier commands.
func TestStatusNotesWhatHolds(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root, to make network namespaces")
	}
	name := named("testnote")
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := Down(name); err != nil {
			t.Error(err)
		}
	})
	faults := []string{"NetworkPolicy a is refused"}
	agent := &Agent{
		Command: func(AgentConfig) []string { return []string{"sleep", "600"} },
		Sync:    func(context.Context, string) ([]string, error) { return faults, nil },
	}
	const left = "Service default/web is left out: it has no ports"
	l, err := Up(t.Context(), Config{Name: name, Nodes: 2, Objects: &plan.Objects{Faults: []string{left}}, Executable: exe, Sluice: sluice(t), Agent: agent})
	if err != nil {
		t.Fatal(err)
	}
	if want := []string{left, "agents: NetworkPolicy a is refused"}; !slices.Equal(l.Warnings, want) {
		t.Errorf("brought up with %q, want %q", l.Warnings, want)
	}
	for _, now := range [][]string{{"Service b is refused"}, nil} {
		faults = now
		if l, err = Open(name, agent); err != nil {
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
