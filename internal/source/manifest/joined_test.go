package manifest

import (
	"fmt"
	"strings"
	"testing"
)

// allowAll is a NetworkPolicy without a line break at its end.
func allowAll(name string) string {
	return `# Copyright
apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata:
  name: ` + name + `
  namespace: shop
spec:
  podSelector: {}
  egress:
  - {}`
}

func TestDocumentsGluedTogether(t *testing.T) {
	const policies = "NetworkPolicy shop/a, NetworkPolicy shop/b"
	glued := "# Copyright\n" + allowAll("a") + "---\n# Copyright\n\n"
	broken := strings.Replace(allowAll("x"), "podSelector: {}", "podSelector: {", 1)
	for _, c := range []struct {
		name, text, objects string
		joined              int
		issues              string // their lines
	}{
		{"two", glued + allowAll("b"), policies, 1, ""},
		{"with line breaks of DOS", strings.ReplaceAll(glued+allowAll("b"), "\n", "\r\n"), policies, 1, ""},
		{"at the end too", glued + allowAll("b") + "---", policies, 2, ""},
		{"one, at the end", allowAll("a") + "---\n", "NetworkPolicy shop/a", 1, ""},
		{"a value", serviceYAML("a", 80) + "  type: ClusterIP---\n" + serviceYAML("b", 80), "Service shop/a, Service shop/b", 1, ""},
		{"a comment", serviceYAML("a", 80) + "# end---\n" + serviceYAML("b", 80), "Service shop/a, Service shop/b", 1, ""},
		{"after a mark", serviceYAML("s", 80) + "---\n" + glued + allowAll("b"), "Service shop/s, " + policies, 1, ""},
		{"and one at fault", glued + broken + "---\n" + allowAll("b"), policies, 2, "22"},
		// None of these is parted.
		{"valid", serviceYAML("a", 80) + "  externalName: x---\n---\n" + serviceYAML("b", 80), "Service shop/a, Service shop/b", 0, ""},
		{"no object behind", strings.Replace(allowAll("a"), "- {}", "- {}---\n  - {}", 1), "", 0, "9"},
		{"half an object", "apiVersion: v1\nmetadata: {name: a} # ---\nkind: Namespace\nmetadata: {name: b}\n", "Namespace b", 0, ""},
		{"a rule of dashes", "# ----\n" + serviceYAML("a", 80) + "# ----\n", "Service shop/a", 0, ""},
		{"text", "apiVersion: v1\nkind: Namespace\nmetadata:\n  name: a\n  annotations:\n    x: |\n      ---\n      a---\n      kind: Pod\n    y: z\n    y: z\n", "Namespace a", 0, ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			got := newParsers(false)[0].parse("x.yaml", []byte(c.text), nil)
			var lines []string
			for _, i := range got.issues {
				lines = append(lines, strings.TrimPrefix(i.Source, "x.yaml:"))
			}
			if names(got) != c.objects || got.joined != c.joined || strings.Join(lines, " ") != c.issues {
				t.Errorf("objects %q, joined %d, issues %v", names(got), got.joined, got.issues)
			}
		})
	}
}

// TestLinesOfGluedDocuments names the lines of the file, not of the parts.
func TestLinesOfGluedDocuments(t *testing.T) {
	text := "\n" + allowAll("a") + "---\n\n" + allowAll("b") + "---\n# x\n" + allowAll("c")
	var lines []int
	for d := range Documents([]byte(text)) {
		lines = append(lines, d.Line)
	}
	if fmt.Sprint(lines) != "[3 14 25]" {
		t.Errorf("got %v", lines)
	}
}
