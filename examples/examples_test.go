package examples

import (
	"testing"
	"time"

	"sluice.dev/sluice/test/lab/plan"
)

// The lab does all that the shop asks for: nothing is left out, and nothing is noted.
func TestShopIsInOrder(t *testing.T) {
	objs, err := plan.ReadFS(Shop())
	if err != nil {
		t.Fatal(err)
	}
	c, err := plan.New(plan.Size{Nodes: 3}, objs, time.Time{})
	if err != nil {
		t.Fatal(err)
	}
	if len(c.Notes) > 0 || len(c.Passed) > 0 {
		t.Errorf("notes %q, passed over %v", c.Notes, c.Passed)
	}
	for _, svc := range c.Services {
		if svc.Namespace == "default" {
			t.Errorf("Service %s has no namespace", svc.Name)
		}
	}
	for _, p := range c.Pods {
		if len(c.Ports(p)) == 0 {
			t.Errorf("pod %s serves nothing", p.Name)
		}
	}
}
