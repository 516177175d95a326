package control

import (
	"os"
	"strings"
	"testing"
)

// MetalLB's programs are of the version that the definitions of its kinds are.
func TestMetalLBVersion(t *testing.T) {
	text, err := os.ReadFile("../../kube/metallb-programs/go.mod")
	if err != nil {
		t.Fatal(err)
	}
	for _, m := range published {
		if strings.Contains(m.path, "metallb") && !strings.Contains(string(text), m.path+" "+m.version+" ") {
			t.Errorf("test/kube/metallb-programs does not have %s %s", m.path, m.version)
		}
	}
}
