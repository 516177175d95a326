package stamp

import (
	"os"
	"path/filepath"
	"testing"
)

func TestStamp(t *testing.T) {
	path := filepath.Join(t.TempDir(), "x")
	if At(path) != (Stamp{}) {
		t.Error("a file that is not there has a stamp")
	}
	seen := map[Stamp]string{{}: "no file"}
	for _, content := range []string{"", "a", "ab"} { // of a size each, as the clock may stand still
		if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
		now := At(path)
		if was, known := seen[now]; known {
			t.Errorf("with %q in it, it has the stamp of %q", content, was)
		}
		if At(path) != now {
			t.Error("the stamp changes though the file doesn't")
		}
		seen[now] = content
	}
}
