package archtest_test

import (
	"bytes"
	"fmt"
	"go/ast"
	"go/parser"
	"go/scanner"
	"go/token"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// What comments call by a name in the spelling of code is somewhere in the code: as a name, in a
// string, or in a file that is no Go code, such as a manifest.
func TestCommentsNameWhatThereIs(t *testing.T) {
	out, err := exec.Command("git", "-C", "../..", "ls-files", "-z").Output()
	if err != nil {
		t.Skipf("the files of the project are not known: git ls-files: %v", err)
	}
	known, comments := words{}, map[string][]comment{}
	for name := range strings.SplitSeq(strings.Trim(string(out), "\x00"), "\x00") {
		b, err := os.ReadFile(filepath.Join("../..", name))
		switch {
		case err != nil || bytes.IndexByte(b, 0) >= 0 || strings.HasPrefix(name, "docs/benchmarks/") || name == "CHANGELOG.md":
		case strings.HasSuffix(name, ".go"):
			comments[name] = known.read(b)
			for _, wrong := range misnamed(b) {
				t.Errorf("%s:%s", name, wrong)
			}
		default:
			known.add(string(b))
		}
	}
	for name, list := range comments {
		for _, c := range list {
			for _, word := range spelled.FindAllString(c.text, -1) {
				if !known[word] && !known[strings.TrimSuffix(word, "s")] && !foreignNames[word] {
					t.Errorf("%s:%d: there is no %s in the code: %s", name, c.line, word, strings.TrimSpace(c.text))
				}
			}
		}
	}
}

// spelled is a word with a capital inside, as names in code are.
var spelled = regexp.MustCompile(`\b[A-Za-z][a-z0-9]+[A-Z][A-Za-z0-9]*\b`)

// foreignNames are names of other projects' code, and of theirs alone.
var foreignNames = map[string]bool{
	"BusyBox": true, "CloneSet": true, "CustomResourceDefinitions": true, "DaemonSets": true, "DetectLocalModes": true, "EntityRule": true,
	"FailsafeInboundHostPorts": true, "FailsafeOutboundHostPorts": true, "LoggingConfiguration": true, "PolKVLess": true, "ReplicaSets": true,
	"TextUnmarshaler": true, "successThreshold": true,
}

// misnamed says which functions, types and values have a name in lower case and a comment that
// begins with another: a sentence would begin with a capital.
func misnamed(src []byte) (wrong []string) {
	files := token.NewFileSet()
	f, err := parser.ParseFile(files, "", src, parser.ParseComments|parser.SkipObjectResolution)
	if err != nil {
		return []string{err.Error()}
	}
	check := func(name *ast.Ident, doc *ast.CommentGroup) {
		lower := func(s string) bool { return s != "" && s[0] >= 'a' }
		if first := word.FindString(doc.Text()); lower(first) && lower(name.Name) && first != name.Name {
			wrong = append(wrong, fmt.Sprintf("%d: the comment of %s begins with %s", files.Position(name.Pos()).Line, name.Name, first))
		}
	}
	for _, d := range f.Decls {
		switch d := d.(type) {
		case *ast.FuncDecl:
			check(d.Name, d.Doc)
		case *ast.GenDecl:
			if len(d.Specs) != 1 {
				continue
			}
			switch spec := d.Specs[0].(type) {
			case *ast.TypeSpec:
				check(spec.Name, d.Doc)
			case *ast.ValueSpec:
				if len(spec.Names) == 1 {
					check(spec.Names[0], d.Doc)
				}
			}
		}
	}
	return wrong
}

// words are those of code.
type words map[string]bool

var word = regexp.MustCompile(`[A-Za-z][A-Za-z0-9]*`)

func (w words) add(text string) {
	for _, s := range word.FindAllString(text, -1) {
		w[s] = true
	}
}

type comment struct {
	line int
	text string
}

// read adds the words of a file of Go, and returns its comments by line.
func (w words) read(src []byte) (list []comment) {
	var s scanner.Scanner
	files := token.NewFileSet()
	file := files.AddFile("", files.Base(), len(src))
	s.Init(file, src, nil, scanner.ScanComments)
	for {
		pos, tok, lit := s.Scan()
		switch tok {
		case token.EOF:
			return list
		case token.IDENT, token.STRING:
			w.add(lit)
		case token.COMMENT:
			for i, line := range strings.Split(lit, "\n") {
				list = append(list, comment{file.Line(pos) + i, line})
			}
		}
	}
}

func TestWordsOfComments(t *testing.T) {
	w := words{}
	list := w.read([]byte("package p\n// newThing makes one, as oldThing did.\nfunc newThing() { print(\"aField\") }\n"))
	if got := fmt.Sprint(list, w["newThing"], w["oldThing"], w["aField"]); got != "[{2 // newThing makes one, as oldThing did.}] true false true" {
		t.Error(got)
	}
}
