package main

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
)

var (
	// relative are links to files of the checkout.
	relative = regexp.MustCompile(`\]\(([^):]+)\)`)
	heading  = regexp.MustCompile(`(?m)^## (\S*).*\n`) // by version
)

// changes returns what the changelog says of the version. Links to files of the checkout lead below
// an address instead.
func (r *release) changes(base string) (string, error) {
	text, err := os.ReadFile(filepath.Join(r.root, "CHANGELOG.md"))
	if err != nil {
		return "", err
	}
	at := heading.FindAllSubmatchIndex(text, -1)
	for i, from := range at {
		if string(text[from[2]:from[3]]) != r.version {
			continue
		}
		to := len(text)
		if i+1 < len(at) {
			to = at[i+1][0]
		}
		section := strings.TrimSpace(string(text[from[1]:to])) + "\n"
		return relative.ReplaceAllString(section, "]("+strings.TrimSuffix(base, "/")+"/$1)"), nil
	}
	return "", fmt.Errorf("CHANGELOG.md has no section for %s", r.version)
}
