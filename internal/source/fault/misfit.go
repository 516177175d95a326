package fault

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"reflect"
	"strings"
)

var (
	wanted = map[reflect.Kind]string{
		reflect.String: "a string", reflect.Bool: "true or false", reflect.Slice: "a list",
		reflect.Struct: "an object", reflect.Map: "an object", reflect.Float64: "a number",
	}
	found = map[string]string{"array": "list", "bool": "true or false"}
)

// Misfit says in plain words that a value of the JSON in text does not fit its field, and which
// field that is, with the places in lists on the way there: "spec.ports[1].port". ok is false if
// err, with which the decoder refused the text, says nothing of that kind.
func Misfit(text []byte, err error) (field, reason string, ok bool) {
	t, ok := errors.AsType[*json.UnmarshalTypeError](err)
	if !ok {
		return "", "", false
	}
	// An embedded struct is no field of the object, though encoding/json counts it as one.
	field = strings.Replace(t.Field, "policySpec.", "", 1)
	d := json.NewDecoder(bytes.NewReader(text))
	d.UseNumber()
	var object any
	if d.Decode(&object) == nil && field != "" {
		if path, ok := locate(object, strings.Split(field, "."), t.Value); ok {
			field = strings.TrimPrefix(path, ".")
		}
	}
	return field, cmp.Or(found[t.Value], t.Value) + " found where " + cmp.Or(wanted[t.Type.Kind()], "a whole number") + " belongs", true
}

// locate returns the path to the first value below v that the fields lead to and that is of the
// kind which the decoder names: lists on the way are searched.
func locate(v any, fields []string, kind string) (path string, ok bool) {
	if list, is := v.([]any); is && (len(fields) > 0 || kind != "array") {
		for i, item := range list {
			if path, ok := locate(item, fields, kind); ok {
				return fmt.Sprintf("[%d]%s", i, path), true
			}
		}
		return "", false
	}
	if len(fields) == 0 {
		return "", isA(v, kind)
	}
	object, _ := v.(map[string]any)
	value, ok := object[fields[0]]
	if !ok {
		return "", false
	}
	path, ok = locate(value, fields[1:], kind)
	return "." + fields[0] + path, ok
}

// isA reports whether a value is what the decoder calls kind: "string", "number 6.5".
func isA(v any, kind string) bool {
	switch v := v.(type) {
	case string:
		return kind == "string"
	case bool:
		return kind == "bool"
	case json.Number:
		return kind == "number" || kind == "number "+v.String()
	case []any:
		return kind == "array"
	case map[string]any:
		return kind == "object"
	}
	return false
}
