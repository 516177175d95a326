package fault

import (
	"errors"
	"strings"
	"testing"

	kjson "sigs.k8s.io/json"
)

func TestList(t *testing.T) {
	object := new(int)
	for _, c := range []struct {
		name  string
		enter func(l *List)
		err   string
		good  bool
		known bool
	}{
		{"nothing", func(*List) {}, "", true, true},
		{"left out", func(l *List) { l.Leave("a", "is %d", 1) }, "a: is 1", true, true},
		{"beside the point", func(l *List) { l.Aside("a", "is odd") }, "a: is odd", false, true},
		{"in full", func(l *List) { l.Reject("", "is odd"); l.Leave("b", "too") }, "is odd; b: too", false, false},
		{"in a part", func(l *List) {
			l.Reject("a", "x")
			mark := l.Mark()
			l.Reject("b", "y")
			l.Under(mark, "list[%d]", 2)
		}, "a: x; list[2].b: y", false, false},
		{"many", func(l *List) {
			for range maxReasons + 2 {
				l.Leave("a", "x")
			}
		}, strings.Repeat("a: x; ", maxReasons) + "and 2 more", true, true},
	} {
		var l List
		c.enter(&l)
		got, err := Result(object, &l)
		if err == nil && c.err != "" || err != nil && err.Error() != c.err {
			t.Errorf("%s: %v, want %q", c.name, err, c.err)
		}
		if (got == object) != c.good || l.Known() != c.known || l.Any() != (c.err != "") {
			t.Errorf("%s: object %v, known %t, any %t", c.name, got, l.Known(), l.Any())
		}
	}
}

// What does not fit is named by its place in the object, in words that are not the decoder's.
func TestMisfit(t *testing.T) {
	var object struct {
		Spec struct {
			Rules []struct {
				Ports []struct {
					Port     int32             `json:"port"`
					Name     string            `json:"name"`
					On       bool              `json:"on"`
					Selector map[string]string `json:"selector"`
				} `json:"ports"`
			} `json:"rules"`
		} `json:"spec"`
	}
	for text, want := range map[string]string{
		`{"spec": 5}`:             "spec: number found where an object belongs",
		`[]`:                      ": list found where an object belongs",
		`{"spec": {"rules": {}}}`: "spec.rules: object found where a list belongs",
		`{"spec": {"rules": [{}, {"ports": 80}]}}`:                                       "spec.rules[1].ports: number found where a list belongs",
		`{"spec": {"rules": [{"ports": []}, {"ports": [{"port": 1}, {"port": "80"}]}]}}`: "spec.rules[1].ports[1].port: string found where a whole number belongs",
		`{"spec": {"rules": [{"ports": [{"port": 80}, {"port": 6.5}]}]}}`:                "spec.rules[0].ports[1].port: number 6.5 found where a whole number belongs",
		`{"spec": {"rules": [{"ports": [{"name": [80]}]}]}}`:                             "spec.rules[0].ports[0].name: list found where a string belongs",
		`{"spec": {"rules": [{"ports": [{"on": "yes"}]}]}}`:                              "spec.rules[0].ports[0].on: string found where true or false belongs",
		`{"spec": {"rules": [{"ports": [{"selector": true}]}]}}`:                         "spec.rules[0].ports[0].selector: true or false found where an object belongs",
	} {
		field, reason, ok := Misfit([]byte(text), kjson.UnmarshalCaseSensitivePreserveInts([]byte(text), &object))
		if got := field + ": " + reason; !ok || got != want {
			t.Errorf("%s: %q, want %q", text, got, want)
		}
	}
	if _, _, ok := Misfit([]byte("{"), errors.New("unexpected end of JSON input")); ok {
		t.Error("a text that is no JSON has a value that does not fit")
	}
}
