// Package keys has what a balancer's configuration is made of: objects, and what is known of
// their kinds, whoever reads or writes them.
package keys

import (
	"bytes"
	"encoding/json"
	"fmt"
	"slices"
)

// Kind is a kind of object: its keys.
type Kind struct {
	Key    string             // names an object
	Keys   []string           // of values, in the order in which they are printed
	Nftlb  map[string]Meaning // by key; nil: nftlb does not have it
	Values map[string]*Kind   // of values that are objects
	Lists  []List             // of objects, which are printed after the values
}

// List is a key whose value is a list of objects.
type List struct {
	Key string
	Of  *Kind
}

// Meaning is what nftlb makes of a value: what it takes it for, and why that is another value, or
// none.
type Meaning func(value string) (keep, why string)

// List is the kind of the objects in a list; nil: there is no such list.
func (k *Kind) List(key string) *Kind {
	for _, l := range k.Lists {
		if l.Key == key {
			return l.Of
		}
	}
	return nil
}

// Anywhere reports whether nftlb has a key in objects of the kind, or in those inside them.
func (k *Kind) Anywhere(key string) bool {
	return k.Nftlb[key] != nil || slices.ContainsFunc(k.Lists, func(l List) bool { return l.Key == key || l.Of.Anywhere(key) })
}

// Object is an object by its keys: strings, lists of strings and of Objects, and Objects. A string
// that is empty says nothing, unless it stands for all addresses or ports.
type Object map[string]any

// everything are keys of which an empty value says something.
var everything = []string{"virtual-addr", "virtual-ports", "ports"}

// Text is the value of a key; empty: there is none.
func (o Object) Text(key string) string {
	text, _ := o[key].(string)
	return text
}

// Objects are those of a list.
func (o Object) Objects(key string) []Object {
	all, _ := o[key].([]Object)
	return all
}

// Add adds to a list.
func (o Object) Add(key string, one Object) { o[key] = append(o.Objects(key), one) }

// JSON writes an object, with its keys in the order in which they are printed. It has none but those
// of the kind: that would be a fault of whoever made it.
func (k *Kind) JSON(o Object) []byte {
	var b bytes.Buffer
	left := len(o)
	put := func(key string, write func(value any)) {
		value, ok := o[key]
		if !ok {
			return
		}
		if left--; value != "" || slices.Contains(everything, key) {
			fmt.Fprintf(&b, ",%q:", key)
			write(value)
		}
	}
	for _, key := range k.Keys {
		put(key, func(value any) {
			if inner, ok := value.(Object); ok {
				b.Write(k.Values[key].JSON(inner))
				return
			}
			text, _ := json.Marshal(value) // a string, or a list of strings: neither can fail
			b.Write(text)
		})
	}
	for _, l := range k.Lists {
		put(l.Key, func(any) {
			for i, one := range o.Objects(l.Key) {
				b.WriteByte("[,"[min(i, 1)])
				b.Write(l.Of.JSON(one))
			}
			b.WriteByte(']')
		})
	}
	if left > 0 {
		panic(fmt.Sprintf("one of these is no key of such an object: %v", o))
	}
	return append(append([]byte("{"), bytes.TrimPrefix(b.Bytes(), []byte(","))...), '}')
}
