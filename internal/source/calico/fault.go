package calico

import (
	"encoding/json"
	"errors"
	"fmt"
	"reflect"
	"strings"

	kjson "sigs.k8s.io/json"
)

// maxReasons bounds how much an error says of one object.
const maxReasons = 10

// faults collects what is wrong with one object.
type faults struct {
	reasons []string
	unknown int // how many of them are about fields that there are not
}

// reject records what is wrong with a field, or with the whole if it is "".
func (f *faults) reject(field, format string, args ...any) {
	reason := fmt.Sprintf(format, args...)
	if field != "" {
		reason = field + ": " + reason
	}
	f.reasons = append(f.reasons, reason)
}

// err is all of it, nil if nothing is wrong.
func (f *faults) err() error {
	list := f.reasons
	if len(list) == 0 {
		return nil
	}
	if more := len(list) - maxReasons; more > 0 {
		list = append(list[:maxReasons:maxReasons], fmt.Sprintf("and %d more", more))
	}
	return errors.New(strings.Join(list, "; "))
}

// strict decodes JSON whose keys must all be fields of v, in their exact
// spelling and each but once. Where is the place of data in the object, "" for
// the object itself. It returns false if a value does not fit its field, so that
// v is not to be relied on.
func strict(data []byte, v any, where string, f *faults) bool {
	wrong, err := kjson.UnmarshalStrict(data, v)
	if err != nil {
		field, reason := readError(err)
		f.reject(join(where, field), "%s", reason)
		return false
	}
	for _, w := range wrong {
		field := join(where, w.(kjson.FieldError).FieldPath())
		if strings.HasPrefix(w.Error(), "duplicate") {
			f.reject(field, "is there twice")
		} else {
			f.reject(field, "is not supported")
			f.unknown++
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
		return field, t.Value + " found where " + kindOf(t.Type) + " belongs"
	}
	return "", err.Error()
}

func kindOf(t reflect.Type) string {
	switch t.Kind() {
	case reflect.String:
		return "a string"
	case reflect.Bool:
		return "true or false"
	case reflect.Slice:
		return "a list"
	case reflect.Struct, reflect.Map:
		return "an object"
	case reflect.Float64:
		return "a number"
	}
	return "a whole number"
}

// join puts a place before a field within it.
func join(where, field string) string {
	if where == "" || field == "" {
		return where + field
	}
	return where + "." + field
}
