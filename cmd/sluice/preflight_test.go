package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"strings"
	"testing"

	"sluice.dev/sluice/internal/cli"
	"sluice.dev/sluice/internal/netns"
	"sluice.dev/sluice/internal/preflight"
)

// preflightIn runs the command in an empty namespace. It fails, as there is no route.
func preflightIn(t *testing.T, args ...string) (status int, out, errs string) {
	t.Helper()
	useKernel(t)
	ns, err := netns.New(fmt.Sprintf("cmd-preflight-%d", os.Getpid()))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := ns.Delete(); err != nil {
			t.Error(err)
		}
	})
	var stdout, stderr bytes.Buffer
	err = ns.Do(func() error {
		status = execute(t.Context(), append([]string{"preflight", "--socket", t.TempDir() + "/s"}, args...), &stdout, &stderr)
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return status, stdout.String(), stderr.String()
}

func TestPreflightTable(t *testing.T) {
	status, out, errs := preflightIn(t, "--service-cidr", "10.96.0.0/12,fd00::/108")
	if status != cli.ExitError || !strings.Contains(errs, "cannot carry services and policy yet") {
		t.Errorf("status %d, %q", status, errs)
	}
	words := strings.Join(strings.Fields(out), " ")
	for _, want := range []string{"fail route IPv4", "fail route IPv6", "> add a default route", "ok kernel Linux", "ok program"} {
		if !strings.Contains(words, want) {
			t.Errorf("%q is not in\n%s", want, out)
		}
	}
}

func TestPreflightJSON(t *testing.T) {
	status, out, _ := preflightIn(t, "-o", "json")
	var results []preflight.Result
	if err := json.Unmarshal([]byte(out), &results); err != nil {
		t.Fatal(err)
	}
	if status != cli.ExitError || !preflight.Failed(results) {
		t.Errorf("status %d of %+v", status, results)
	}
}

func TestPreflightRefusesUnknownFormats(t *testing.T) {
	if status, _, errs := preflightIn(t, "-o", "xml"); status != cli.ExitUsage || !strings.Contains(errs, "choose table, json or yaml") {
		t.Errorf("status %d, %q", status, errs)
	}
}
