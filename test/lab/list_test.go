package lab

import (
	"strings"
	"testing"
	"time"
)

func TestListOfLabs(t *testing.T) {
	since := time.Date(2026, 3, 1, 12, 0, 0, 0, time.Local)
	for _, tc := range []struct {
		labs Labs
		want string
	}{
		{Labs{}, "there is no lab on this machine; 'sluice lab up' starts one\n"},
		{
			Labs{{"a", "up", 3, 14, &since, "running", "Kubernetes"}, {Name: "b", State: "unfinished", Agents: "none", ControlPlane: "none"}},
			"LAB\tSTATE\tNODES\tPODS\tSINCE\tAGENTS\tCONTROL PLANE\n" +
				"a\tup\t3\t14\t2026-03-01 12:00:00\trunning\tKubernetes\nb\tunfinished\t0\t0\t-\tnone\tnone\n",
		},
	} {
		var out strings.Builder
		if tc.labs.Table(&out); out.String() != tc.want {
			t.Errorf("%v:\n%s", tc.labs, out.String())
		}
	}
}
