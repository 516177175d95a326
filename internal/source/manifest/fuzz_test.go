package manifest

import (
	"encoding/json"
	"strings"
	"testing"
)

// seeds are manifests good and bad to start from.
func seeds(f *testing.F) {
	for _, text := range everything {
		f.Add(text, "")
		f.Add(text+text, text[:len(text)/2])
		f.Add(strings.ReplaceAll(text, "\n", " "), text)
	}
	f.Add(serviceYAML("a", 80)+"---\n"+serviceYAML("b", 80), serviceYAML("a", 81))
	f.Add(`{"apiVersion":"v1","kind":"List","items":[{"apiVersion":"v1","kind":"Node","metadata":{"name":"x"}}]}`, "{")
	f.Add("a: &a [x,x]\nb: &b [*a,*a]\nc: [*b,*b]\n", "--- |\n x\n...\n")
	f.Add(allowAll("a")+"---\n# x\n"+allowAll("b")+"---\n", allowAll("a")+"---\nkind: x---\napiVersion: y")
	f.Add(policyOf(`{"podSelector":{},"ingress":[{}]}`), policyOf(`{"podSelector":{},"ingress":[{"x":1}]}`))
	f.Add(`{"kind":"\ud800\u0000","apiVersion":null,"":1e5}`, "%YAML 1.1\n---\n")
}

// FuzzParse reads anything, as JSON and as YAML, first alone and then in place
// of something else. It must neither panic nor lose what can't be read, and
// the same text twice must give the same objects.
func FuzzParse(f *testing.F) {
	seeds(f)
	p := newParsers(false)[0]
	f.Fuzz(func(t *testing.T, first, second string) {
		for _, name := range []string{"a.json", "a.yaml"} {
			before := p.parse(name, []byte(first), nil)
			again := p.parse(name, []byte(first), before.objects)
			if names(before) != names(again) {
				t.Fatalf("%s: the same text gives %q, then %q", name, names(before), names(again))
			}
			for i := range before.objects {
				if before.objects[i].value != again.objects[i].value {
					t.Fatalf("%s: %s changed without a change", name, before.objects[i].Ref)
				}
			}
			after := p.parse(name, []byte(second), before.objects)
			if after.unreadable && len(after.issues) == 0 {
				t.Fatalf("%s: what can't be read is not told", name)
			}
			if !after.unreadable {
				continue
			}
			for i := range before.objects {
				if !strings.Contains(names(after), before.objects[i].Ref.String()) {
					t.Fatalf("%s: %s is lost", name, before.objects[i].Ref)
				}
			}
		}
	})
}

// FuzzScanner holds the scanner against encoding/json: both accept the same.
func FuzzScanner(f *testing.F) {
	for _, text := range everything {
		f.Add([]byte(text))
	}
	for _, text := range []string{`-0.5e+7`, `01`, `"\u00e9\/"`, `"\x"`, "\"\n\"", `[1,]`, `{"a":1,}`, `nul`, ` [ { } ] `, `""x`, `-`, `1.`, `1e`, `"\`, `[null,true,false]`} {
		f.Add([]byte(text))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		s := scanner{data: data}
		err := s.skip()
		valid := err == nil && s.end()
		if e, ok := err.(*syntaxError); ok && e.reason == "values are nested too deep" {
			return
		}
		if want := json.Valid(data); valid != want {
			t.Fatalf("%q: valid %v, encoding/json says %v (%v)", data, valid, want, err)
		}
	})
}
