package config

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"
	"unicode"
	"unicode/utf8"

	"sluice.dev/sluice/internal/balancer/keys"
)

// How much a document may hold.
const (
	mostBody  = 16 << 20 // bytes of a request
	mostFile  = 1 << 30  // bytes of a file
	mostDepth = 16       // objects and lists in each other
	mostName  = 255      // bytes
)

// failure is an error of a request with its HTTP status.
type failure struct {
	status int
	text   string
}

func (f *failure) Error() string { return f.text }

func malformed(format string, args ...any) error {
	return &failure{400, "the structure is invalid. " + fmt.Sprintf(format, args...)}
}

// wrong is a value at fault, at a path such as farms[web].backends[b1].weight.
func wrong(path, format string, args ...any) error {
	return &failure{400, "error parsing buffer. " + path + ": " + fmt.Sprintf(format, args...)}
}

func unknown(format string, args ...any) error {
	return &failure{404, "the object to modify is unknown. " + fmt.Sprintf(format, args...)}
}

// reader applies a document to a change, object by object.
type reader struct {
	*revision
	// dropElements has elements be taken from policies instead of added.
	dropElements bool
	// replaceElements and replaceLists name a policy whose elements, and a farm whose policies, are
	// those of the document alone, if it has any.
	replaceElements, replaceLists string
}

// errForeign is of a state file that no balancer wrote: taken for an empty one it would remove all.
var errForeign = malformed("A balancer writes an object with a list \"farms\", if an empty one: this is none")

// read reads a document: an object with lists of farms, addresses and policies. Nothing, and an
// empty list, is an empty document.
func (r *reader) read(in io.Reader) error {
	d := json.NewDecoder(in)
	d.UseNumber()
	first, err := d.Token()
	if _, bad := errors.AsType[*json.SyntaxError](err); bad || err == io.ErrUnexpectedEOF {
		err = nil // something that begins with no brace
	}
	switch {
	case first == json.Delim('{'):
		err = r.lists(d)
	case r.ofState && (err == nil || err == io.EOF):
		return errForeign
	case err == io.EOF:
		return nil
	case err == nil && (first != json.Delim('[') || d.More()):
		return malformed("a document is an object with lists of farms, addresses and policies")
	case err == nil:
		_, err = d.Token()
		err = syntax(d, err)
	}
	if err != nil {
		return err
	}
	if _, err := d.Token(); err != io.EOF {
		return malformed("something follows the document, at byte %d", d.InputOffset())
	}
	return nil
}

func (r *reader) lists(d *json.Decoder) error {
	hasFarms := false
	for d.More() {
		key, err := d.Token()
		if err != nil {
			return syntax(d, err)
		}
		var each readObject
		switch key {
		case "farms":
			each, hasFarms = r.farm, true
		case "addresses":
			each = r.address
		case "policies":
			each = r.policy
		default:
			return &failure{400, fmt.Sprintf("error parsing buffer. Unknown key '%.60v'; a document has farms, addresses and policies", key)}
		}
		if err := r.list(d, key.(string), each); err != nil {
			return err
		}
	}
	_, err := d.Token()
	if err == nil && r.ofState && !hasFarms {
		return errForeign
	}
	return syntax(d, err)
}

// readObject reads an object that is named, at a path such as farms[web].
type readObject func(path, name string, o map[string]any) error

// list reads the objects of a list one by one, so that a document of any size needs no more memory
// than what comes of it.
func (r *reader) list(d *json.Decoder, key string, each readObject) error {
	if t, err := d.Token(); err != nil {
		return syntax(d, err)
	} else if t != json.Delim('[') {
		return malformed("%s is no list", key)
	}
	for i := 0; d.More(); i++ {
		var o map[string]any
		if err := decode(d, &o); err != nil {
			return err
		}
		path := key + "[" + itoa(i) + "]"
		if o == nil {
			return malformed("%s is no object", path)
		}
		if depth(o) > mostDepth {
			return malformed("%s has more than %d objects and lists in each other", path, mostDepth)
		}
		if err := readNamed(path, Document.List(key), o, each); err != nil {
			return err
		}
	}
	_, err := d.Token()
	return syntax(d, err)
}

func decode(d *json.Decoder, into any) error {
	err := d.Decode(into)
	if wrongType, ok := errors.AsType[*json.UnmarshalTypeError](err); ok {
		return malformed("there is a %s where an object belongs, before byte %d", wrongType.Value, d.InputOffset())
	}
	return syntax(d, err)
}

func syntax(d *json.Decoder, err error) error {
	if err == nil {
		return nil
	}
	if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
		return malformed("the document ends too early")
	}
	if fault, ok := errors.AsType[*json.SyntaxError](err); ok {
		return malformed("byte %d: %v", fault.Offset, err)
	}
	return fmt.Errorf("read document at byte %d: %w", d.InputOffset(), err)
}

func depth(v any) (deepest int) {
	switch v := v.(type) {
	case map[string]any:
		for _, e := range v {
			deepest = max(deepest, depth(e))
		}
	case []any:
		for _, e := range v {
			deepest = max(deepest, depth(e))
		}
	default:
		return 0
	}
	return deepest + 1
}

// scalar is the text of a value: strings as they are, numbers as written, true is on.
func scalar(value any) (string, error) {
	switch v := value.(type) {
	case string:
		return v, nil
	case json.Number:
		return v.String(), nil
	case bool:
		if v {
			return "on", nil
		}
		return "off", nil
	case nil:
		return "", errors.New("it has no value; leave it out, or give a string")
	case []any:
		return "", errors.New("a list is no value here; give a string")
	}
	return "", errors.New("an object is no value here; give a string")
}

// checkName says what is wrong with a name.
func checkName(name string) error {
	switch {
	case name == "":
		return errors.New("it is empty")
	case len(name) > mostName:
		return fmt.Errorf("it has more than %d bytes", mostName)
	case name == "." || name == ".." || !utf8.ValidString(name):
		return fmt.Errorf("%q can't be a name", name)
	}
	if i := strings.IndexFunc(name, func(r rune) bool {
		return !unicode.IsGraphic(r) || unicode.IsSpace(r) || strings.ContainsRune(`/"\`, r)
	}); i >= 0 {
		return fmt.Errorf("%.60q can't be a name: no spaces, slashes, quotes, backslashes and control characters are in one", name)
	}
	return nil
}

// readNamed reads an object of a kind. In its path, what it is named by takes the place of its
// number.
func readNamed(path string, k *keys.Kind, o map[string]any, read readObject) error {
	value, ok := o[k.Key]
	if !ok {
		return wrong(path, "%s is missing", k.Key)
	}
	if _, odd := value.(bool); odd {
		value = nil
	}
	name, err := scalar(value)
	if err == nil && k.Key == "name" {
		err = checkName(name)
	}
	if err == nil && len(name) > mostName {
		err = fmt.Errorf("it has more than %d bytes", mostName)
	}
	if err != nil {
		return wrong(path+"."+k.Key, "%v", err)
	}
	path = path[:strings.LastIndexByte(path, '[')] + "[" + name + "]"
	for key := range o {
		if _, ok := k.Nftlb[key]; !ok && k.List(key) == nil {
			return &failure{400, fmt.Sprintf("error parsing buffer. Unknown key '%.60s' in %s", key, path)}
		}
	}
	return read(path, name, o)
}

// readAttributes reads all that is no list, in the order of the table.
func readAttributes[T any](r *reader, table *object[T], t T, path string, given map[string]any) error {
	for i := range table.attributes {
		a := &table.attributes[i]
		value, ok := given[a.name]
		if !ok || a.name == table.Key {
			continue
		}
		if err := readValue(a, t, value); err != nil {
			if err = r.attribute(err, path+"."+a.name); err != nil {
				return err
			}
		}
	}
	return nil
}

func readValue[T any](a *attribute[T], t T, value any) error {
	given, isList := value.([]any)
	o, isObject := value.(map[string]any)
	switch {
	case a.object != nil && isObject:
		return a.object(t, o)
	case a.object != nil:
		return errors.New("it is no object")
	case a.list != nil && isList:
		list := make([]string, len(given))
		for i, v := range given {
			text, err := scalar(v)
			if err != nil {
				return err
			}
			list[i] = text
		}
		*a.list(t) = list
		return nil
	}
	text, err := scalar(value)
	if err != nil || a.read == nil {
		return err
	}
	return a.read(t, text)
}

// attribute turns what is wrong with a value into a warning or an error.
func (r *reader) attribute(err error, path string) error {
	odd, ok := errors.AsType[*unknownValueError](err)
	if !ok || !r.options.Lenient && !(odd.key == "state" && odd.value == "available") {
		return wrong(path, "%v", err)
	}
	if odd.instead != "" {
		r.warn("%s", odd.warning())
	}
	return nil
}

// objects reads the objects of a list inside another object.
func (r *reader) objects(path, key string, of *keys.Kind, parent map[string]any, each readObject) error {
	value, ok := parent[key]
	if !ok {
		return nil
	}
	list, ok := value.([]any)
	if !ok {
		return malformed("%s.%s is no list", path, key)
	}
	for i, v := range list {
		at := path + "." + key + "[" + itoa(i) + "]"
		o, ok := v.(map[string]any)
		if !ok {
			return malformed("%s is no object", at)
		}
		if err := readNamed(at, of, o, each); err != nil {
			return err
		}
	}
	return nil
}
