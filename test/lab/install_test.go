package lab

import (
	"bytes"
	"slices"
	"testing"

	"sluice.dev/sluice/test/lab/plan"
)

// Installed agents get the rights that their accelerators need, whether they are named alone or
// with others.
func TestInstallAccelerated(t *testing.T) {
	for _, tc := range []struct {
		flags      []string
		want       []string
		privileged bool
	}{
		{nil, []string{}, false},
		{[]string{"--accelerate=none"}, []string{}, false},
		{[]string{"--accelerate=sockets"}, []string{"sockets"}, false},
		{[]string{"--accelerate=auto"}, []string{"sockets", "drop"}, false},
		{[]string{"--accelerate=none", "--accelerate=sockets,drop,established"}, []string{"sockets", "drop", "established"}, true},
		{[]string{"--conntrack-min=0"}, []string{}, true},
	} {
		l := &Lab{
			Cluster: &plan.Cluster{}, AgentFlags: tc.flags, Kubernetes: &Kubernetes{AgentImage: "sluice:1"},
			agent: &Agent{Flags: func(c AgentConfig) []string { return c.Flags }},
		}
		values := l.values()
		if got := values["accelerate"].([]string); !slices.Equal(got, tc.want) || values["privileged"] != tc.privileged {
			t.Errorf("%q: the chart's values are accelerate %q, privileged %v; want %q, %v", tc.flags, got, values["privileged"], tc.want, tc.privileged)
		}
		overlay, err := l.overlay()
		if err != nil {
			t.Fatal(err)
		}
		has := func(text string) bool { return bytes.Contains(overlay, []byte(text)) }
		if accelerates, privileged := has("kustomize/accelerate"), has("privileged"); accelerates != (len(tc.want) > 0) || privileged != tc.privileged {
			t.Errorf("%q: the overlay has the component %v, privileged %v; want %q, %v: %s", tc.flags, accelerates, privileged, tc.want, tc.privileged, overlay)
		}
	}
}
