package main

import (
	"encoding"
	"encoding/json"
	"fmt"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"sluice.dev/sluice/internal/agent"
	"sluice.dev/sluice/internal/model"
	"sluice.dev/sluice/internal/preflight"
	"sluice.dev/sluice/test/lab"
	"sluice.dev/sluice/test/lab/probe"
)

// printed are the types that commands print as JSON beside what an agent answers.
var printed = []any{finding{}, preflight.Result{}, agent.DropReport{}, lab.Status{}, lab.Labs{}, probe.Report{}}

// All JSON is written one way: keys in lower camel case, durations as text, and a key "kind" for
// what an API calls kind alone.
func TestJSONOneWay(t *testing.T) {
	types := []reflect.Type{}
	for _, v := range printed {
		types = append(types, reflect.TypeOf(v))
	}
	client := reflect.TypeFor[*agent.Client]()
	for i := range client.NumMethod() {
		for m, o := client.Method(i).Type, 0; o < m.NumOut(); o++ {
			types = append(types, m.Out(o))
		}
	}
	types = append(types, reflect.TypeFor[struct {
		BadKey  int           `json:"Bad"`
		NoKey   int           //
		Number  time.Duration `json:"number"`
		Seconds float64       `json:"takesSeconds"`
		Kind    string        `json:"kind"`
	}]())
	w := walker{seen: map[reflect.Type]bool{}}
	for _, of := range types {
		w.walk(of, of.String())
	}
	want := []string{`.BadKey: key "Bad"`, `.NoKey: key ""`, ".Number: takes a number for a duration", ".Seconds: takes a number for a duration", ".Kind: a kind that is a string"}
	for _, wrong := range w.wrong {
		if i := slices.IndexFunc(want, func(w string) bool { return strings.HasPrefix(wrong, "struct {") && strings.HasSuffix(wrong, w) }); i >= 0 {
			want = slices.Delete(want, i, i+1)
		} else {
			t.Error(wrong)
		}
	}
	if len(want) > 0 {
		t.Errorf("the test does not find %q", want)
	}
	text, err := json.Marshal(struct {
		Took model.Duration `json:"took,omitempty"`
		None model.Duration `json:"none,omitempty"`
	}{Took: model.Duration(1500 * time.Millisecond)})
	if err != nil || string(text) != `{"took":"1.5s"}` {
		t.Errorf("a duration is %s, %v", text, err)
	}
}

type walker struct {
	seen  map[reflect.Type]bool
	wrong []string
}

var (
	lowerCamel = regexp.MustCompile(`^[a-z][a-zA-Z0-9]*$`)
	leaves     = []reflect.Type{reflect.TypeFor[json.Marshaler](), reflect.TypeFor[encoding.TextMarshaler](), reflect.TypeFor[error]()}
)

func (w *walker) walk(of reflect.Type, at string) {
	if w.seen[of] || slices.ContainsFunc(leaves, of.Implements) {
		return
	}
	w.seen[of] = true
	switch of.Kind() {
	case reflect.Pointer, reflect.Slice, reflect.Array, reflect.Map:
		w.walk(of.Elem(), at)
	case reflect.Struct:
		for i := range of.NumField() {
			w.field(of.Field(i), at)
		}
	}
}

func (w *walker) field(f reflect.StructField, at string) {
	key, _, _ := strings.Cut(f.Tag.Get("json"), ",")
	if at += "." + f.Name; key == "-" || !f.IsExported() {
		return
	}
	switch {
	case f.Anonymous && key == "":
	case !lowerCamel.MatchString(key):
		w.wrong = append(w.wrong, fmt.Sprintf("%s: key %q", at, key))
	case f.Type == reflect.TypeFor[time.Duration]() || strings.HasSuffix(strings.ToLower(key), "seconds"):
		w.wrong = append(w.wrong, at+": takes a number for a duration")
	case key == "kind" && f.Type != reflect.TypeFor[model.Kind]():
		w.wrong = append(w.wrong, at+": a kind that is a string")
	}
	w.walk(f.Type, at)
}
