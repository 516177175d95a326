package takeover

import (
	"errors"
	"strings"
	"testing"
)

// Of two take-overs at once, one says that there is another, and changes nothing; to look does no
// harm.
func TestOneAtATime(t *testing.T) {
	t.Parallel()
	ns, run := emptyNamespace(t)
	run("table ip kube-proxy {}")
	release := func() {}
	ns.In(func() (err error) { release, err = lockOut(); return err })
	out, err := fromIn(t, ns)(Options{})
	if !errors.Is(err, ErrStopped) || !strings.Contains(out, "another 'sluice takeover' is at work") || !strings.Contains(run("list", "ruleset"), "kube-proxy") {
		t.Errorf("%v\n%s", err, out)
	}
	if out, err := fromIn(t, ns)(Options{DryRun: true}); err != nil {
		t.Errorf("dry run: %v\n%s", err, out)
	}
	release()
	if out, err := fromIn(t, ns)(Options{}); err != nil {
		t.Errorf("%v\n%s", err, out)
	}
}

// A transaction that fails has an error for each message; one line is told.
func TestFailedTransactionIsOneLine(t *testing.T) {
	t.Parallel()
	ns, run := emptyNamespace(t)
	run("table ip nat { chain KUBE-SVC-A {}; chain KUBE-SVC-B {}; chain KUBE-SVC-C {}; }")
	err := ns.Do(func() error {
		footprints, err := findNftables(t.Context())
		if err != nil {
			return err
		}
		run("delete table ip nat")
		return footprints[0].remove(t.Context(), drain{})
	})
	if err == nil || strings.Contains(err.Error(), "\n") || !strings.Contains(err.Error(), "no such file") {
		t.Errorf("%v", err)
	}
}
