package calico

import (
	"cmp"
	"encoding/json"
	"errors"
	"reflect"
	"strings"

	kjson "sigs.k8s.io/json"

	"sluice.dev/sluice/internal/source/fault"
)

// strict decodes JSON whose keys must all be fields of v, in their exact
// spelling and each but once. Where is the place of data in the object, "" for
// the object itself. It returns false if a value does not fit its field, so that
// v is not to be relied on. That a field is not known leaves what the others say.
func strict(data []byte, v any, where string, f *fault.List) bool {
	wrong, err := kjson.UnmarshalStrict(data, v)
	if err != nil {
		field, reason := readError(err)
		f.Reject(join(where, field), "%s", reason)
		return false
	}
	for _, w := range wrong {
		field := join(where, w.(kjson.FieldError).FieldPath())
		switch {
		case !strings.HasPrefix(w.Error(), "duplicate"):
			f.Aside(field, "is not supported")
		case field == "spec.order", field == "spec.tier":
			f.Aside(field, "is there twice")
		default:
			f.Reject(field, "is there twice")
		}
	}
	return true
}

// readError says in plain words why JSON does not fit, and where if that is known.
func readError(err error) (field, reason string) {
	var t *json.UnmarshalTypeError
	if errors.As(err, &t) {
		// An embedded struct is no field of the object, though encoding/json counts it as one.
		field = strings.Replace(t.Field, "policySpec.", "", 1)
		return field, t.Value + " found where " + cmp.Or(kindNames[t.Type.Kind()], "a whole number") + " belongs"
	}
	return "", err.Error()
}

var kindNames = map[reflect.Kind]string{
	reflect.String: "a string", reflect.Bool: "true or false", reflect.Slice: "a list",
	reflect.Struct: "an object", reflect.Map: "an object", reflect.Float64: "a number",
}

// join puts a place before a field within it.
func join(where, field string) string {
	if where == "" || field == "" {
		return where + field
	}
	return where + "." + field
}
