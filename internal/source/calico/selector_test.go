package calico

import (
	"strings"
	"testing"

	"sluice.dev/sluice/internal/model"
)

func TestParseSelector(t *testing.T) {
	has, eq, in, not, and, or := model.Has, model.Equal, model.In, model.Not, model.And, model.Or
	for _, c := range []struct {
		text string
		want model.Selector
	}{
		{"", model.Everything()},
		{" \t\n", model.Everything()},
		{"all()", model.Everything()},
		{"all( )", model.Everything()},
		{"(all())", model.Everything()},
		{"has(a)", has("a")},
		{"has( a )", has("a")},
		{"!has(a)", not(has("a"))},
		{"! ! has(a)", has("a")},
		{"!!!has(a)", not(has("a"))},
		{"a == 'b'", eq("a", "b")},
		{`a=="b"`, eq("a", "b")},
		{`a == "it's"`, eq("a", "it's")},
		{`a == 'say "x"'`, eq("a", `say "x"`)},
		{"a == ''", eq("a", "")},
		{"a == '&& || ()'", eq("a", "&& || ()")},
		{"a != 'b'", not(eq("a", "b"))},
		{"a in {'x','y'}", in("a", "x", "y")},
		{`a in { "y" , 'x', }`, in("a", "x", "y")},
		{"a in{'x'}", eq("a", "x")},
		{"a in {}", in("a")},
		{"a not in {'x', 'y'}", not(in("a", "x", "y"))},
		{"a notin {'x'}", not(eq("a", "x"))},
		{"a contains 'b'", model.Contains("a", "b")},
		{"a contains'b'", model.Contains("a", "b")},
		{"a starts with 'b'", model.StartsWith("a", "b")},
		{"a starts  with\t'b'", model.StartsWith("a", "b")},
		{"a ends with 'b'", model.EndsWith("a", "b")},
		{"!a == 'b'", not(eq("a", "b"))},
		{"has(a) && has(b)", and(has("a"), has("b"))},
		{"has(a)&&has(b)", and(has("a"), has("b"))},
		{"has(a) || has(b) && has(c)", or(has("a"), and(has("b"), has("c")))},
		{"(has(a) || has(b)) && has(c)", and(or(has("a"), has("b")), has("c"))},
		{"!(has(a) || has(b)) && !has(c)", and(not(or(has("a"), has("b"))), not(has("c")))},
		{"((((has(a)))))", has("a")},
		{"has(a) ||\n  has(b)\n", or(has("a"), has("b"))},
		{"in in {'in'}", eq("in", "in")},
		{"all == 'x' && has == 'y' && not not in {'z'}", and(eq("all", "x"), eq("has", "y"), not(eq("not", "z")))},
		{"app.kubernetes.io/name-x_y == 'v'", eq("app.kubernetes.io/name-x_y", "v")},
		{"projectcalico.org/orchestrator == 'k8s'", eq(model.OrchestratorLabel, "k8s")},
	} {
		got, err := ParseSelector(c.text)
		if err != nil || got.String() != c.want.String() {
			t.Errorf("ParseSelector(%q) = %q, %v; want %q", c.text, got, err, c.want)
		}
	}
}

func TestParseSelectorErrors(t *testing.T) {
	for _, c := range []struct{ text, want string }{
		{"a", "at 2: expected ==, !=, in, not in, contains, starts with or ends with, found the end"},
		{"a b", `at 3: expected ==, !=, in, not in, contains, starts with or ends with, found "b"`},
		{"a = 'b'", "at 3: expected =="},
		{"a == b", `at 6: expected a value between quotation marks, found "b"`},
		{"a == ", "at 6: expected a value between quotation marks, found the end"},
		{"a == 'b", "at 6: this quotation mark is never closed"},
		{"a == 'b\"", "at 6: this quotation mark is never closed"},
		{"a == 'b\x1b[1m'", "at 8: a value can't have control characters"},
		{"a in 'x'", `at 6: expected {, found "'x'"`},
		{"a in {'x' 'y'}", "at 11: expected }, found"},
		{"a in {'x'", "at 10: expected }, found the end"},
		{"a in {x}", "at 7: expected a value"},
		{"a in {,}", "at 7: expected a value"},
		{"a not {'x'}", "at 7: expected in, found"},
		{"a starts 'x'", "at 10: expected with, found"},
		{"a ends 'x'", "at 8: expected with, found"},
		{"has()", "at 5: expected a label, found"},
		{"has(a", "at 6: expected ), found the end"},
		{"has(a b)", "at 7: expected ), found"},
		{"all(", "at 5: expected ), found the end"},
		{"all(a)", "at 5: expected ), found"},
		{"any()", "at 1: any() is unknown"},
		{"(has(a)", "at 8: expected ), found the end"},
		{"has(a))", `at 7: expected &&, || or the end, found ")"`},
		{"has(a) has(b)", "at 8: expected &&, || or the end"},
		{"has(a) &&", "at 10: expected a label, has(), all(), ! or (, found the end"},
		{"&& has(a)", "at 1: expected a label"},
		{"has(a) & has(b)", "at 8: expected &&"},
		{"!", "at 2: expected a label"},
		{"!= 'a'", "at 2: expected a label"},
		{"'a' == 'b'", "at 1: expected a label"},
		{"ä == 'b'", "at 1: expected a label"},
		{"has(b) && global()", "at 11: global() has a meaning in the namespaceSelector of a rule only"},
		{strings.Repeat("x", 513) + " == 'a'", "at 1: a label has at most 512 characters, not 513"},
		{strings.Repeat("(", maxNesting+1) + "all()" + strings.Repeat(")", maxNesting+1), "at 65: too many parentheses"},
		{strings.Repeat(" ", maxSelector+1), "at most 16384 are allowed"},
	} {
		got, err := ParseSelector(c.text)
		if err == nil || !strings.Contains(err.Error(), c.want) || !got.IsZero() {
			t.Errorf("ParseSelector(%.60q) = %q, error %v; want an error with %q", c.text, got, err, c.want)
		}
	}
	deep := strings.Repeat("(", maxNesting) + "all()" + strings.Repeat(")", maxNesting)
	if _, err := ParseSelector(deep); err != nil {
		t.Errorf("%d parentheses within each other: %v", maxNesting, err)
	}
}

func TestParseNamespaces(t *testing.T) {
	for _, c := range []struct{ text, want string }{
		{"all()", "has(projectcalico.org/namespace)"},
		{"global()", "!(has(projectcalico.org/namespace))"},
		{" ( global( ) ) ", "!(has(projectcalico.org/namespace))"},
		{"team == 'a'", "pcns.team == 'a'"},
		{"has(team) || env in {'x', 'y'}", "has(pcns.team) || pcns.env in {'x', 'y'}"},
		{"projectcalico.org/name == 'shop'", "projectcalico.org/namespace == 'shop'"},
		{"kubernetes.io/metadata.name == 'shop'", "pcns.kubernetes.io/metadata.name == 'shop'"},
		// What has no namespace is selected by no selector of namespaces.
		{"team != 'a'", "!(pcns.team == 'a') && has(projectcalico.org/namespace)"},
		{"!has(team)", "!(has(pcns.team)) && has(projectcalico.org/namespace)"},
	} {
		got, err := parsePeerNamespaces(c.text)
		if err != nil || got.String() != c.want {
			t.Errorf("parsePeerNamespaces(%q) = %q, %v; want %q", c.text, got, err, c.want)
		}
	}
	for _, text := range []string{"!global()", "global() || has(a)", "!(global())", "all() && global()"} {
		if got, err := parsePeerNamespaces(text); err == nil || !strings.Contains(err.Error(), "global() can't be combined") {
			t.Errorf("parsePeerNamespaces(%q) = %q, %v; want an error", text, got, err)
		}
	}
	if got, err := parseNamespaces("global()"); err == nil {
		t.Errorf("global() where it has no meaning: %q", got)
	}
}

func TestParseAccounts(t *testing.T) {
	for _, c := range []struct{ text, want string }{
		{"all()", "has(projectcalico.org/serviceaccount)"},
		{"team == 'a'", "pcsa.team == 'a'"},
		{"projectcalico.org/name in {'x', 'y'}", "projectcalico.org/serviceaccount in {'x', 'y'}"},
		// What has no service account is selected by no selector of service accounts.
		{"team != 'a'", "!(pcsa.team == 'a') && has(projectcalico.org/serviceaccount)"},
		{"!has(team) || all()", "(!(has(pcsa.team)) || has(projectcalico.org/serviceaccount)) && has(projectcalico.org/serviceaccount)"},
	} {
		got, err := parseAccounts(c.text)
		if err != nil || got.String() != c.want {
			t.Errorf("parseAccounts(%q) = %q, %v; want %q", c.text, got, err, c.want)
		}
	}
}

// FuzzParseSelector holds that parsing never panics, that what is parsed
// prints in a form that parses to the same, and that both select the same of
// objects with the labels that the text speaks of.
func FuzzParseSelector(f *testing.F) {
	for _, text := range []string{
		"", "all()", "has(a) && !(b == 'x' || c in {'y', \"z\"})", "a not in {'p','q'} || b != \"it's\"",
		"a contains 'b' && a starts with 'c' || a ends with ''", "((!(!has(a))))", "a in {}", "a == 'b", "global()", "!!!!a == ''",
	} {
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text string) {
		_, _ = parsePeerNamespaces(text)
		_, _ = parseAccounts(text)
		s, err := ParseSelector(text)
		if err != nil {
			if !s.IsZero() {
				t.Errorf("%q selects %q in spite of %v", text, s, err)
			}
			return
		}
		printed := s.String()
		p := parser{text: printed, nesting: 100 * maxNesting, all: model.Everything()} // it prints more parentheses than it needs
		again, err := p.parse(100 * maxSelector)
		if err != nil {
			t.Fatalf("%q prints as %q, which does not parse: %v", text, printed, err)
		}
		if got := again.String(); got != printed {
			t.Fatalf("%q prints as %q, and that as %q", text, printed, got)
		}
		for _, labels := range objects(text) {
			first, second := s.Matches(labels), again.Matches(labels)
			if first != second {
				t.Fatalf("%q and %q differ on %v", text, printed, labels)
			}
			if anchors, ok := s.Anchors(); ok && first && !anchored(anchors, labels) {
				t.Fatalf("%q selects %v, which has none of %v", text, labels, anchors)
			}
		}
	})
}

// objects makes labels of the words in a text: what looks like a key, and what
// looks like a value.
func objects(text string) []model.LabelMap {
	keys := strings.FieldsFunc(text, func(r rune) bool { return r > 0x7f || !isLabel(byte(r)) })
	values := strings.FieldsFunc(text, func(r rune) bool { return r == '\'' || r == '"' })
	keys, values = keys[:min(len(keys), 8)], append(values[:min(len(values), 8)], "")
	all := model.LabelMap{}
	list := []model.LabelMap{{}, all}
	for i, k := range keys {
		all[k] = values[i%len(values)]
		for _, v := range values {
			list = append(list, model.LabelMap{k: v})
		}
	}
	return list
}

func anchored(anchors []model.Anchor, labels model.LabelMap) bool {
	for _, a := range anchors {
		if v, ok := labels[a.Key]; ok && (a.Any || v == a.Value) {
			return true
		}
	}
	return false
}
