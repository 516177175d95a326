// Package pagetest lets tests write parts of the pages in docs/, so that they cannot go stale.
package pagetest

import (
	"flag"
	"os"
	"strings"
	"testing"
)

var update = flag.Bool("update-pages", false, "write the parts of docs/ that tests check")

// Check fails unless the page has the text between the line "<!-- mark -->" and the next line
// "<!-- end -->", with an empty line around it. With -update-pages it writes the text there.
func Check(t testing.TB, path, mark, text string) {
	t.Helper()
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	begin, end := "<!-- "+mark+" -->\n\n", "\n<!-- end -->"
	before, rest, found := strings.Cut(string(data), begin)
	has, after, ended := strings.Cut(rest, end)
	switch {
	case !found || !ended:
		t.Fatalf("%s has no part between %q and %q", path, begin, end)
	case has == text:
	case !*update:
		t.Errorf("%s does not say what is so; go test -run '^%s$' -update-pages writes it:\n%s", path, t.Name(), text)
	default:
		if err := os.WriteFile(path, []byte(before+begin+text+end+after), 0o644); err != nil {
			t.Fatal(err)
		}
	}
}
