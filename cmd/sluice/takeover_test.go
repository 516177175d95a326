package main

import (
	"bytes"
	"strings"
	"testing"

	"sluice.dev/sluice/internal/cli"
)

func TestTakeoverWantsOneDirection(t *testing.T) {
	for _, args := range [][]string{{}, {"--from", "cilium"}, {"--from", "kube-proxy", "--to", "kube-proxy"}, {"--to", ""}, {"--from", "kube-proxy", "--to", "x"}} {
		var out, errs bytes.Buffer
		status := execute(t.Context(), append([]string{"takeover"}, args...), &out, &errs)
		if status != cli.ExitUsage || !strings.Contains(errs.String(), "say --from kube-proxy, or --to kube-proxy") {
			t.Errorf("%q: status %d: %s", args, status, errs.String())
		}
	}
}
