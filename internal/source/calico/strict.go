package calico

import (
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
		misfit(data, err, where, f)
		return false
	}
	for _, w := range wrong {
		field := join(where, w.(kjson.FieldError).FieldPath())
		switch {
		case !strings.HasPrefix(w.Error(), "duplicate"):
			f.Aside(field, "%s", unsupported(field))
		case field == "spec.order", field == "spec.tier":
			f.Aside(field, "is there twice")
		default:
			f.Reject(field, "is there twice")
		}
	}
	return true
}

// whyUnsupported says of fields that Calico has, by their last parts, why they are not supported
// here.
var whyUnsupported = map[string]string{
	"http":                 "rules are about addresses, protocols and ports, and Sluice does not see what HTTP says in a connection",
	"allowedEgressDomains": noNames,
	"domains":              noNames,
}

const noNames = "rules are about addresses, and Sluice does not see what a name stands for; list the networks in nets, or in a NetworkSet"

func unsupported(field string) string {
	text := "is not supported"
	if why := whyUnsupported[field[strings.LastIndexByte(field, '.')+1:]]; why != "" {
		text += ": " + why
	}
	return text
}

// misfit records why JSON does not fit, and where if that is known.
func misfit(data []byte, err error, where string, f *fault.List) {
	field, reason, ok := fault.Misfit(data, err)
	if !ok {
		reason = err.Error()
	}
	f.Reject(join(where, field), "%s", reason)
}

// join puts a place before a field within it.
func join(where, field string) string {
	if where == "" || field == "" {
		return where + field
	}
	return where + "." + field
}
