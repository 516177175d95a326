// Package docs_test runs what README.md, CONTRIBUTING.md, SECURITY.md and the pages of this folder
// tell people to type, as it stands there.
package docs_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	rbacv1 "k8s.io/api/rbac/v1"
	"sigs.k8s.io/yaml"

	"sluice.dev/sluice/internal/model"
)

const root = ".."

// block is a fenced block of a page. What its fence says is its language and how it is tested:
// ```sh KIND WORD…
type block struct {
	page string // its path in the repository
	line int    // of the fence
	lang string
	kind string
	args []string
	text string
}

func (b *block) String() string { return fmt.Sprintf("%s:%d", b.page, b.line) }

var fence = regexp.MustCompile("^( *)```(.*)$")

// blocks returns the fenced blocks of a page, and its other text.
func blocks(t *testing.T, page string) (all []*block, prose string) {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(root, page))
	if err != nil {
		t.Fatal(err)
	}
	var b *block
	var indent string
	var rest strings.Builder
	n := 0
	for line := range strings.Lines(string(text)) {
		n++
		m := fence.FindStringSubmatch(strings.TrimSuffix(line, "\n"))
		switch {
		case m != nil && b == nil:
			words := append(strings.Fields(m[2]), "", "")
			b, indent = &block{page: page, line: n, lang: words[0], kind: words[1], args: strings.Fields(m[2])[min(2, len(words)-2):]}, m[1]
		case m != nil:
			all, b = append(all, b), nil
		case b != nil:
			b.text += strings.TrimPrefix(line, indent)
		default:
			rest.WriteString(line)
		}
	}
	if b != nil {
		t.Fatalf("%s: the block has no end", b)
	}
	return all, rest.String()
}

// pages are the pages that people follow; benchmarks and decisions tell of one day.
func pages(t *testing.T) []string {
	t.Helper()
	all := []string{"README.md", "CONTRIBUTING.md", "SECURITY.md"}
	found, err := filepath.Glob("*.md")
	if err != nil || len(found) == 0 {
		t.Fatalf("no pages: %v", err)
	}
	for _, p := range found {
		all = append(all, "docs/"+p)
	}
	return all
}

// TestBlocks accounts for each block: it is data that is read by what it is for, or TestRun runs
// it, or it says which other test does, or why none can.
func TestBlocks(t *testing.T) {
	for _, page := range pages(t) {
		all, _ := blocks(t, page)
		for _, b := range all {
			if err := b.check(t); err != nil {
				t.Errorf("%s: ```%s %s: %v", b, b.lang, b.kind, err)
			}
		}
	}
}

func (b *block) check(t *testing.T) error {
	switch b.lang {
	case "sh", "console":
		return b.checkRun()
	case "yaml":
		return b.checkYAML(t)
	case "json":
		return json.Unmarshal([]byte(b.text), new(any))
	case "ini":
		return b.checkUnit(t)
	case "dockerfile", "text": // TestVersions has the image; output is for the eye
		return nil
	}
	return errors.New("say what the block is, after the fence: sh (commands), console (commands after '# ', and what they print), yaml, json, ini, dockerfile or text (output); CONTRIBUTING.md tells more")
}

func (b *block) checkRun() error {
	switch b.kind {
	case "lab", "node", "cluster": // TestRun runs it
		return nil
	case "by":
		if len(b.args) < 2 {
			return errors.New("say by which test: by FOLDER TEST…")
		}
		for _, test := range b.args[1:] {
			if !hasTest(b.args[0], "^"+test+"$") {
				return fmt.Errorf("there is no %s in %s", test, b.args[0])
			}
		}
		return nil
	case "unrun":
		if len(b.args) < 2 {
			return errors.New("say why it cannot be run here")
		}
		return nil
	}
	return errors.New("say after the language where to run it: lab (in the checkout), node (on a node of a lab), cluster (beside a lab's API), by FOLDER TEST… (another test runs it), or unrun REASON…; CONTRIBUTING.md tells more")
}

var testFunc = regexp.MustCompile(`(?m)^func (Test\w+)\(`)

// hasTest reports whether a folder, or with "/..." one below, has a test that matches a pattern.
func hasTest(folder, pattern string) bool {
	folder, below := strings.CutSuffix(folder, "/...")
	found := false
	_ = filepath.WalkDir(filepath.Join(root, folder), func(path string, entry os.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if entry.IsDir() && !below && path != filepath.Join(root, folder) {
			return filepath.SkipDir
		}
		if !strings.HasSuffix(path, "_test.go") {
			return nil
		}
		text, err := os.ReadFile(path)
		for _, m := range testFunc.FindAllSubmatch(text, -1) {
			found = found || regexp.MustCompile(pattern).Match(m[1])
		}
		return err
	})
	return found
}

// checkYAML has 'sluice check' read objects, and RBAC's own types rules.
func (b *block) checkYAML(t *testing.T) error {
	switch b.kind {
	case "rules":
		return yaml.UnmarshalStrict([]byte(b.text), new([]rbacv1.PolicyRule))
	case "objects":
		cmd := exec.CommandContext(t.Context(), filepath.Join(programs, "sluice"), "check", "-")
		cmd.Stdin = strings.NewReader(b.text)
		out, err := cmd.CombinedOutput()
		if err != nil {
			return fmt.Errorf("sluice check: %w: %s", err, out)
		}
		if n := model.Count(strings.Count("\n"+b.text, "\nkind:"), "object"); !strings.Contains(string(out), n+" checked") {
			return fmt.Errorf("sluice does not read all of the %s: %s", n, out)
		}
		return nil
	}
	return errors.New("say after yaml what it is: objects (which sluice reads) or rules (of RBAC)")
}

// checkUnit has systemd read a unit, or a drop-in of the agent's.
func (b *block) checkUnit(t *testing.T) error {
	dir := t.TempDir()
	text, file := b.text, filepath.Join(dir, "block.service")
	binary := filepath.Join(programs, "sluice")
	if !strings.Contains(text, "ExecStart=") {
		unit, err := os.ReadFile(filepath.Join(root, "deploy/systemd/sluice.service"))
		if err != nil {
			return err
		}
		dropIn := filepath.Join(file+".d", "block.conf")
		if err := errors.Join(os.Mkdir(file+".d", 0o755), os.WriteFile(dropIn, []byte(text), 0o600)); err != nil {
			return err
		}
		text = string(unit)
	}
	text = strings.Replace(text, "ExecStart=/usr/local/sbin/sluice", "ExecStart="+binary, 1)
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		return err
	}
	out, err := exec.CommandContext(t.Context(), "systemd-analyze", "verify", "--man=no", file).CombinedOutput()
	if err != nil || len(out) > 0 {
		return fmt.Errorf("systemd-analyze verify: %w: %s", err, out)
	}
	return nil
}

// named are names of files and images that have the version in them.
var named = regexp.MustCompile(`(?:sluice-dev/sluice|image|registry\.example/sluice):v?(\d+\.\d+\.\d+)|sluice[_-](\d+\.\d+\.\d+)[-_.]`)

// TestVersions holds the version in names of files and images to that of the chart.
func TestVersions(t *testing.T) {
	var chart struct{ Version string }
	text, err := os.ReadFile(filepath.Join(root, "deploy/helm/sluice/Chart.yaml"))
	if err == nil {
		err = yaml.Unmarshal(text, &chart)
	}
	if err != nil {
		t.Fatal(err)
	}
	seen := false
	for _, page := range pages(t) {
		text, err := os.ReadFile(filepath.Join(root, page))
		if err != nil {
			t.Fatal(err)
		}
		for _, m := range named.FindAllStringSubmatch(string(text), -1) {
			seen = true
			if !slices.Contains(m[1:], chart.Version) {
				t.Errorf("%s names %s, and the version is %s", page, m[0], chart.Version)
			}
		}
	}
	if !seen {
		t.Error("no page names a version")
	}
}
