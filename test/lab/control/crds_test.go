package control_test

import (
	"os"
	"path/filepath"
	"testing"

	"sluice.dev/sluice/internal/source/kinds"
	"sluice.dev/sluice/test/lab/control"
)

// Each kind that Sluice reads and a cluster may lack has a definition.
func TestWriteCRDs(t *testing.T) {
	dir := t.TempDir()
	if err := control.WriteCRDs(t.Context(), dir); err != nil {
		t.Fatal(err)
	}
	for _, k := range kinds.All {
		if !k.Optional {
			continue
		}
		at := k.Places[0]
		if _, err := os.Stat(filepath.Join(dir, at.Plural+"."+at.Group+".yaml")); err != nil {
			t.Errorf("%s: %v", k.Kind, err)
		}
	}
}
