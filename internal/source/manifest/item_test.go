package manifest

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"sluice.dev/sluice/internal/model"
)

// TestLinesOfItems holds that an issue names the line of an item, not that of the list.
func TestLinesOfItems(t *testing.T) {
	node := func(indent string, labels string) string {
		text := "- apiVersion: v1\n  kind: Node\n  metadata:\n    labels: " + labels + "\n    name: n%d\n"
		return indent + strings.ReplaceAll(strings.TrimSuffix(text, "\n"), "\n", "\n"+indent) + "\n"
	}
	const list = "apiVersion: v1\nitems:\n"
	const end = "kind: List\nmetadata:\n  resourceVersion: \"\"\n"
	for _, c := range []struct {
		name, text string
		places     []string // of the objects n1, n2
	}{
		{"as kubectl writes it", list + fmt.Sprintf(node("", "[]")+node("", "[]"), 1, 2) + end, []string{"3", "8"}},
		{"indented", "# first\n---\n" + list + fmt.Sprintf(node("  ", "[]")+"# more\n\n"+node("  ", "[]"), 1, 2) + end, []string{"5", "12"}},
		{"lists and text within", list + fmt.Sprintf(node("", "[]")+"  spec:\n    podCIDRs:\n    - 10.0.0.0/24\n    x: |\n      - a\n      items:\n      - b\n"+node("", "[]"), 1, 2) + end, []string{"3", "15"}},
		{"a dash alone", list + "-\n  apiVersion: v1\n  kind: Node\n  metadata: {name: n1, labels: []}\n- apiVersion: v1\n  kind: Node\n  metadata: {name: n2, labels: []}\n" + end, []string{"3", "7"}},
		{"in one line", "apiVersion: v1\nkind: List\nitems: [\n{apiVersion: v1, kind: Node, metadata: {name: n1, labels: []}}]\n", []string{"1 items[0]"}},
		{"list of lists", list + "- apiVersion: v1\n  kind: List\n  items:\n  - apiVersion: v1\n    kind: Node\n    metadata: {name: n1, labels: []}\n" + fmt.Sprintf(node("", "[]"), 2) + end, []string{"3 items[0]", "9"}},
		{"two documents", list + fmt.Sprintf(node("", "[]"), 1) + end + "---\n" + list + fmt.Sprintf(node("", "[]"), 2) + end, []string{"3", "14"}},
		{"all in one line", `{"apiVersion":"v1","kind":"List","items":[{"apiVersion":"v1","kind":"Node","metadata":{"name":"n1","labels":[]}},{"apiVersion":"v1","kind":"Node","metadata":{"name":"ok"}},{"apiVersion":"v1","kind":"Node","metadata":{"name":"n2","labels":[]}}]}`, []string{"1 items[0]", "1 items[2]"}},
		{"lists in one line", `{"apiVersion":"v1","kind":"List","items":[{"apiVersion":"v1","kind":"NodeList","items":[{"metadata":{"name":"n1","labels":[]}}]},{"apiVersion":"v1","kind":"Node","metadata":{"name":"n2","labels":[]}}]}`, []string{"1 items[0] items[0]", "1 items[1]"}},
		{"JSON in lines", "{\"apiVersion\":\"v1\",\"kind\":\"List\",\"items\":[\n{\"apiVersion\":\"v1\",\"kind\":\"Node\",\"metadata\":{\"name\":\"n1\",\"labels\":[]}},\n{\"apiVersion\":\"v1\",\"kind\":\"Node\",\"metadata\":{\"name\":\"n2\",\"labels\":[]}}]}", []string{"2", "3"}},
	} {
		got := newParsers(false)[0].parse("x.yaml", []byte(c.text), nil)
		var want []string
		for i, place := range c.places {
			want = append(want, fmt.Sprintf("Node n%d x.yaml:%s", i+1, place))
		}
		var have []string
		for _, issue := range got.issues {
			have = append(have, issue.Object.String()+" "+issue.Source)
		}
		if !slices.Equal(have, want) {
			t.Errorf("%s: issues %v, want those of %q", c.name, got.issues, want)
		}
	}
}

// TestPlaceOfHoles holds that an issue names the item where no object is known, and its name where
// that is.
func TestPlaceOfHoles(t *testing.T) {
	const good = `{"apiVersion":"v1","kind":"Node","metadata":{"name":"n1"}}`
	for item, want := range map[string]string{
		`{"apiVersion":"v1","metadata":{"name":"n2"}}`: "x.json (x.json:1 items[1]): kind: is missing (its metadata.name is n2); in force: nothing of it",
		`{"apiVersion":"v1","kind":"Node"}`:            "x.json (x.json:1 items[1]): Node: metadata.name: is missing; in force: nothing of it",
		`[]`:                                           "x.json (x.json:1 items[1]): is a list, should be an object; in force: nothing of it",
		`{"apiVersion":"v1","kind":"Node","metadata":!`: "x.json (x.json:1 items[1]): no JSON value begins like this; in force: nothing of it",
	} {
		text := `{"apiVersion":"v1","kind":"List","items":[` + good + "," + item + "]}" + good
		got := newParsers(false)[0].parse("x.json", []byte(text), nil)
		if len(got.issues) == 0 || got.issues[0].String() != want {
			t.Errorf("%s: issues %v, want %s", item, got.issues, want)
		}
	}
}

// TestLargeDocument holds that a document of YAML that would take too much memory is refused with
// its line, and nothing else is.
func TestLargeDocument(t *testing.T) {
	filler := "# " + strings.Repeat("x", maxDocument) + "\n"
	large := "---\n" + serviceYAML("large", 80) + filler
	got := newParsers(false)[0].parse("x.yaml", []byte(serviceYAML("a", 80)+large+"---\n"+serviceYAML("b", 80)), nil)
	if names(got) != "Service shop/a, Service shop/b" && len(got.objects) != 2 {
		t.Errorf("objects %s", names(got))
	}
	if len(got.issues) != 1 || !strings.Contains(got.issues[0].Reason, "part it with '---'") || got.issues[0].Source == "x.yaml:1" {
		t.Errorf("issues %v", got.issues)
	}
	asJSON := `{"apiVersion":"v1","kind":"Node","metadata":{"name":"n1","annotations":{"x":"` + strings.Repeat("x", maxDocument) + `"}}}`
	if got := newParsers(false)[0].parse("x.yaml", []byte(asJSON), nil); len(got.issues) > 0 || len(got.objects) != 1 {
		t.Errorf("a large document of JSON in a file of YAML: %v", got.issues)
	}
}

// TestInForce holds that an issue says what is in force in the meantime.
func TestInForce(t *testing.T) {
	service := func(port string) string { return strings.Replace(serviceYAML("a", 80), "port: 80", "port: "+port, 1) }
	refused := policyOf(`{"podSelector":{},"ingress":[{"form":[]}]}`)
	nobody := policyOf(`{"podSelector":{"x":1}}`)
	for _, c := range []struct {
		name, before, now string
		want              string
	}{
		{"never good", "", service("70000"), model.InForceNothing},
		{"good before", service("80"), service("70000"), model.InForceLast},
		{"of a wrong type", service("80"), service("x"), model.InForceLast},
		{"a part left out", "", strings.Replace(serviceYAML("a", 80), "spec:", "spec:\n  trafficDistribution: x", 1), model.InForceRest},
		{"a refused policy", "", refused, model.InForceIsolate},
		{"a policy refused in part", "", policyOf(`{"podSelector":{},"ingress":[{"ports":[{"port":80},{"port":99999}]}]}`), model.InForceIsolateRest},
		{"a policy that was good", policyOf(`{"podSelector":{}}`), refused, model.InForceLast},
		{"a policy of nobody", "", nobody, model.InForceNothing},
		{"a policy of nobody that was refused", refused, nobody, model.InForceIsolate},
		{"a refused set", "", strings.Replace(policyObjects["GlobalNetworkSet bad"], "/24", "/33", 1), model.InForceDoubt},
		{"a version that is not read", "", strings.Replace(refused, "networking.k8s.io/v1", "networking.k8s.io/v2", 1), model.InForceNothing},
		{"no object", "", "- x\n", model.InForceNothing},
		{"no object any more", service("80"), "- x\n", model.InForceLast},
	} {
		p := newParsers(false)[0]
		before := p.parse("x.yaml", []byte(c.before), nil)
		got := p.parse("x.yaml", []byte(c.now), before.objects)
		if len(got.issues) != 1 || got.issues[0].InForce != c.want {
			t.Errorf("%s: issues %v, want in force: %s", c.name, got.issues, c.want)
		}
		again := p.parse("x.yaml", []byte(c.now), got.objects)
		if len(again.issues) != 1 || len(got.objects) > 0 && again.issues[0].InForce != c.want {
			t.Errorf("%s, read again: issues %v, want in force: %s", c.name, again.issues, c.want)
		}
	}
}
