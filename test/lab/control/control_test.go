package control_test

import (
	"bytes"
	"testing"

	"sluice.dev/sluice/test/lab/control"
	"sluice.dev/sluice/test/lab/control/controltest"
	"sluice.dev/sluice/test/machine"
)

// TestPlane checks that a control plane works: it makes what only its controllers make, survives
// the death of its API server, and leaves nothing behind.
func TestPlane(t *testing.T) {
	machine.ControlPlane.Take(t)
	p := controltest.Start(t, control.Config{Controllers: true, RBAC: true})
	kubectl(t, p, "create", "deployment", "web", "--image=web", "--replicas=2")
	kubectl(t, p, "wait", "--for=jsonpath={.status.replicas}=2", "--timeout=60s", "deployment/web")
	if err := p.Restart(t.Context(), control.APIServer); err != nil {
		t.Fatal(err)
	}
	if out := kubectl(t, p, "get", "pods", "-o", "name"); bytes.Count(out, []byte("pod/web-")) != 2 {
		t.Errorf("after a restart there are not two pods:\n%s", out)
	}
}

func kubectl(t *testing.T, p *control.Plane, args ...string) []byte {
	t.Helper()
	out, err := p.Kubectl(args...)
	if err != nil {
		t.Fatal(err)
	}
	return out
}
