package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// The notes of a release are the changelog's section of its version, and their links work
// elsewhere.
func TestChanges(t *testing.T) {
	r := &release{root: t.TempDir(), version: "1.2.0"}
	const log = "# Changelog\n\n## 1.2.0 (2026-02-03)\n\n- New ([how](docs/a.md#b), [more](https://example.org/x)).\n\n## 1.1.0 (2026-01-02)\n\n- Old.\n\n## \n\n- Of no version.\n"
	if err := os.WriteFile(filepath.Join(r.root, "CHANGELOG.md"), []byte(log), 0o644); err != nil {
		t.Fatal(err)
	}
	for version, want := range map[string]string{
		"1.2.0": "- New ([how](https://forge.example/blob/v1/docs/a.md#b), [more](https://example.org/x)).\n",
		"1.1.0": "- Old.\n",
	} {
		r.version = version
		if got, err := r.changes("https://forge.example/blob/v1/"); err != nil || got != want {
			t.Errorf("of %s: %q, %v", version, got, err)
		}
	}
	r.version = "1.1"
	if _, err := r.changes("x"); err == nil || !strings.Contains(err.Error(), "1.1") {
		t.Errorf("of a version that is not there: %v", err)
	}
}

// The changelog has the version that is built now.
func TestChangesOfThisVersion(t *testing.T) {
	r := &release{root: ".."}
	if err := r.identify(t.Context()); err != nil {
		t.Fatal(err)
	}
	if got, err := r.changes("https://forge.example"); err != nil || strings.Contains(got, "\n## ") {
		t.Errorf("%v: %s", err, got)
	}
}
