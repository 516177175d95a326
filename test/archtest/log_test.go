package archtest

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// The same event has the same words wherever it is logged, and attributes have the same names: in
// lower camel case, and an error is "error".
func TestLog(t *testing.T) {
	root := "../.."
	var all logged
	for _, dir := range []string{"cmd", "internal"} {
		err := filepath.WalkDir(filepath.Join(root, dir), func(path string, entry fs.DirEntry, err error) error {
			if err != nil || entry.IsDir() || !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go") {
				return err
			}
			files := token.NewFileSet()
			f, err := parser.ParseFile(files, path, nil, parser.SkipObjectResolution)
			if err == nil {
				all.read(files, f)
			}
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	for _, wrong := range all.wrong() {
		t.Error(wrong)
	}
	if len(all.calls) < 100 {
		t.Errorf("only %d calls were found", len(all.calls))
	}
}

func TestLogRulesCatch(t *testing.T) {
	const text = `package p
func f() {
	log.Info("object is at fault", "object", o, "in force", x)
	s.log.Warn("Objects are at fault.", "object", o)
	l.Log.Error("programming failed", "reason", err)
	log.With("Kind", k).Info("it is heard", "n")
	log.Info("it is not heard", "n", 1)
	t.Error("no log", "a b", 1)
}`
	files := token.NewFileSet()
	f, err := parser.ParseFile(files, "p.go", text, 0)
	if err != nil {
		t.Fatal(err)
	}
	var all logged
	all.read(files, f)
	want := []string{
		`p.go:3: attribute "in force": want lower camel case`,
		`p.go:4: "Objects are at fault.": a message begins in lower case and ends without a full stop`,
		`p.go:4: "Objects are at fault." says what "object is at fault" (p.go:3) does, in other words`,
		`p.go:5: attribute "reason" of err: call it "error"`,
		`p.go:6: "it is heard": an attribute without a value`,
		`p.go:6: attribute "Kind": want lower camel case`,
	}
	if got := all.wrong(); !slices.Equal(got, want) {
		t.Errorf("got %s\nwant %s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
}

// logged are the calls of loggers whose message, or first key, is a literal.
type logged struct {
	calls  []logCall
	faults []string
}

type logCall struct{ at, message string }

func (l *logged) read(files *token.FileSet, f *ast.File) {
	ast.Inspect(f, func(n ast.Node) bool {
		call, ok := n.(*ast.CallExpr)
		if !ok || len(call.Args) == 0 {
			return true
		}
		method, ok := call.Fun.(*ast.SelectorExpr)
		if !ok || !isLogger(method.X) {
			return true
		}
		position := files.Position(call.Pos())
		at := fmt.Sprintf("%s:%d", position.Filename, position.Line)
		switch method.Sel.Name {
		case "Debug", "Info", "Warn", "Error":
			message, _ := literal(call.Args[0])
			if message != "" {
				l.calls = append(l.calls, logCall{at, message})
			}
			l.attributes(at, message, call.Args[1:])
		case "With":
			l.attributes(at, "", call.Args)
		}
		return true
	})
}

// isLogger reports whether an expression is called log, or is what With returns.
func isLogger(x ast.Expr) bool {
	switch x := x.(type) {
	case *ast.Ident:
		return strings.EqualFold(x.Name, "log")
	case *ast.SelectorExpr:
		return strings.EqualFold(x.Sel.Name, "log")
	case *ast.CallExpr:
		method, ok := x.Fun.(*ast.SelectorExpr)
		return ok && method.Sel.Name == "With" && isLogger(method.X)
	}
	return false
}

var (
	attributeKey = regexp.MustCompile(`^[a-z][a-zA-Z0-9]*$`)
	messageText  = regexp.MustCompile(`^[^A-Z]|^[A-Z]{2}|^Pods `) // "CNI plugin …"
)

func (l *logged) attributes(at, message string, args []ast.Expr) {
	for i := 0; i < len(args); i += 2 {
		key, ok := literal(args[i])
		switch {
		case !ok:
			return // slog.Attr, or a list
		case !attributeKey.MatchString(key):
			l.fault(at, "attribute %q: want lower camel case", key)
		case i+1 == len(args):
			l.fault(at, "%q: an attribute without a value", message)
		default:
			if id, is := args[i+1].(*ast.Ident); is && id.Name == "err" && key != "error" {
				l.fault(at, `attribute %q of err: call it "error"`, key)
			}
		}
	}
}

func (l *logged) fault(at, format string, args ...any) {
	l.faults = append(l.faults, at+": "+fmt.Sprintf(format, args...))
}

// wrong lists all that is, sorted by place.
func (l *logged) wrong() []string {
	first := map[string]logCall{}
	for _, c := range l.calls {
		if strings.HasSuffix(c.message, ".") || !messageText.MatchString(c.message) {
			l.fault(c.at, "%q: a message begins in lower case and ends without a full stop", c.message)
		}
		if before, ok := first[gist(c.message)]; !ok {
			first[gist(c.message)] = c
		} else if before.message != c.message {
			l.fault(c.at, "%q says what %q (%s) does, in other words", c.message, before.message, before.at)
		}
	}
	slices.SortStableFunc(l.faults, func(a, b string) int {
		return strings.Compare(strings.SplitN(a, " ", 2)[0], strings.SplitN(b, " ", 2)[0])
	})
	return l.faults
}

// gist are the words of a message up to the first semicolon or colon that bear its meaning, sorted.
func gist(message string) string {
	message, _, _ = strings.Cut(strings.ToLower(message), ";")
	message, _, _ = strings.Cut(message, ": ")
	message = strings.NewReplacer("can't", "cannot", "n't", " not", ".", "", ",", "").Replace(message)
	var words []string
	for _, w := range strings.Fields(message) {
		switch w {
		case "a", "an", "the", "is", "are", "was", "were", "be", "been", "of", "has", "have", "had", "as", "its", "any":
		default:
			words = append(words, strings.TrimSuffix(w, "s"))
		}
	}
	slices.Sort(words)
	return strings.Join(slices.Compact(words), " ")
}

func literal(x ast.Expr) (string, bool) {
	l, ok := x.(*ast.BasicLit)
	if !ok || l.Kind != token.STRING {
		return "", false
	}
	text, err := strconv.Unquote(l.Value)
	return text, err == nil
}
