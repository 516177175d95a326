package config

import (
	"errors"
	"net/netip"
	"strconv"
	"strings"
	"unicode"

	"sluice.dev/sluice/internal/balancer/keys"
	"sluice.dev/sluice/internal/model"
)

// attribute is a field of an object T: how it is read, printed and described. A table of them, in
// the order of printing, is all that is known of an object's fields.
type attribute[T any] struct {
	name   string
	about  string
	values []string // all that there are; nil: see pattern and about
	// pattern is a regular expression that values match; empty: any text.
	pattern string
	// nftlb is what nftlb makes of a value; nil: it has no such key.
	nftlb keys.Meaning
	// read takes a value; nil: it is accepted, and has no effect. After an error, the object is
	// given up.
	read func(T, string) error
	// object takes a value that is a JSON object, and within and properties describe it; nil: there
	// is none.
	object     func(T, map[string]any) error
	within     *keys.Kind
	properties schema
	// print returns the value; nil: it is never printed. shown reports whether it is; nil: always.
	print func(T) string
	shown func(T) bool
	// fields stands for print where the value is an object, and list where it may be a list.
	fields func(*printer, T)
	list   func(T) *[]string
}

const (
	patternNumber = `^[0-9]+$`
	patternMark   = `^(0[xX])?[0-9a-fA-F]*$`
	patternRate   = `^[0-9]*(/(second|minute|hour|day|week))?$`
	patternPorts  = `^([0-9]+(-[0-9]+)?(, ?[0-9]+(-[0-9]+)?)*)?$`
)

// choice is an attribute that is one of some words. Leniently, instead stands for any other.
func choice[T any, E comparable](name string, words []word[E], instead E, field func(T) *E) attribute[T] {
	a := attribute[T]{name: name, print: func(t T) string { return textOf(words, *field(t)) }}
	for _, w := range words {
		a.values = append(a.values, w.text)
	}
	a.nftlb = nftlbWord(textOf(words, instead), a.values...)
	a.read = func(t T, text string) error {
		v, ok := valueOf(words, text)
		if !ok {
			*field(t) = instead
			return &unknownValueError{text, name, textOf(words, instead), known(words)}
		}
		*field(t) = v
		return nil
	}
	return a
}

// flags is an attribute that is a set of words, of which all but the last few are printed with a
// space behind.
func flags[T any, E ~uint8](name string, words []word[E], spaced int, field func(T) *E) attribute[T] {
	return attribute[T]{
		name: name, about: "any of " + known(words) + ", with spaces between them, or none", nftlb: nftlbWords("none", words),
		print: func(t T) string { return setText(words, *field(t), spaced) },
		read: func(t T, text string) error {
			set, unknown := readSet(words, text)
			*field(t) = set
			if unknown == "" {
				return nil
			}
			e := &unknownValueError{value: unknown, key: name, known: known(words)}
			if set == 0 {
				e.value, e.instead = text, "none"
			}
			return e
		},
	}
}

// toggle is an attribute that is on or off.
func toggle[T any](name string, field func(T) *bool) attribute[T] {
	return choice(name, switchWords, false, field)
}

func number[T any, N int | uint32](name string, least, most uint64, field func(T) *N) attribute[T] {
	return attribute[T]{
		name: name, pattern: patternNumber, nftlb: nftlbNumber(int64(least), int64(least)),
		about: "a number from " + strconv.FormatUint(least, 10) + " to " + strconv.FormatUint(most, 10),
		print: func(t T) string { return strconv.FormatUint(uint64(*field(t)), 10) },
		read: func(t T, text string) error {
			n, err := readNumber(text, least, most)
			*field(t) = N(n)
			return err
		},
	}
}

func rate[T any](name string, field func(T) *model.FarmRate) attribute[T] {
	return attribute[T]{
		name: name, pattern: patternRate, nftlb: nftlbRate, about: "packets in a unit of time, such as 20/second; 0 is no limit",
		print: func(t T) string { return rateText(*field(t)) },
		read: func(t T, text string) error {
			r, err := readRate(text)
			r.Burst = field(t).Burst
			*field(t) = r
			return err
		},
	}
}

// mostPrefix is the longest prefix of a log message that the kernel takes.
const mostPrefix = 127

// logPrefix is a prefix of log messages, which is printed unless it is the default.
func logPrefix[T any](name, standard string, field func(T) *map[string]string) attribute[T] {
	return attribute[T]{
		name: name, nftlb: nftlbPrefix, about: "prefix of log messages; KNAME, TYPE, FNAME, ANAME, PNAME and BNAME in it are replaced",
		print: func(t T) string { return (*field(t))[name] },
		shown: func(t T) bool { _, own := (*field(t))[name]; return own },
		read: func(t T, text string) error {
			if len(text) > mostPrefix || strings.ContainsFunc(text, unicode.IsControl) {
				return errors.New("a prefix has at most 127 bytes and no control characters")
			}
			m := field(t)
			if text == standard {
				delete(*m, name)
				return nil
			}
			if *m == nil {
				*m = map[string]string{}
			}
			(*m)[name] = text
			return nil
		},
	}
}

func ip[T any](name, about string, field func(T) *netip.Addr) attribute[T] {
	return attribute[T]{
		name: name, about: about, nftlb: nftlbAddrOrNone,
		print: func(t T) string { return addrText(*field(t)) },
		read: func(t T, text string) (err error) {
			*field(t), err = readAddr(text)
			return err
		},
	}
}

// readAddr reads an address; empty is none.
func readAddr(text string) (netip.Addr, error) {
	if text == "" {
		return netip.Addr{}, nil
	}
	return model.ParseAddr(text)
}

func addrText(a netip.Addr) string {
	if !a.IsValid() {
		return ""
	}
	return a.String()
}

// ignored is an attribute that is accepted and has no effect.
func ignored[T any](name, why string) attribute[T] {
	return attribute[T]{name: name, about: "accepted, without effect: " + why, nftlb: nftlbText}
}

// when has an attribute be printed only under a condition.
func (a attribute[T]) when(shown func(T) bool) attribute[T] {
	a.shown = shown
	return a
}

// saying describes an attribute.
func (a attribute[T]) saying(about string) attribute[T] {
	a.about = about
	return a
}

// inNftlb says what nftlb makes of an attribute; nil: it does not have it.
func (a attribute[T]) inNftlb(m keys.Meaning) attribute[T] {
	a.nftlb = m
	return a
}

// object is the table of an object's attributes.
type object[T any] struct {
	keys.Kind
	attributes []attribute[T]
	properties schema
	fresh      T // without anything that was configured
}

func newObject[T any](key string, fresh T, lists []keys.List, attributes ...attribute[T]) *object[T] {
	o := &object[T]{attributes: attributes, properties: schema{}, fresh: fresh}
	o.Kind = keys.Kind{Key: key, Lists: lists, Nftlb: map[string]keys.Meaning{}, Values: map[string]*keys.Kind{}}
	for _, a := range attributes {
		o.Keys = append(o.Keys, a.name)
		o.Nftlb[a.name], o.Values[a.name], o.properties[a.name] = a.nftlb, a.within, a.schema()
	}
	return o
}

// Document is the kind of a whole configuration.
var Document = &keys.Kind{Lists: []keys.List{{Key: "farms", Of: &farmTable.Kind}, {Key: "addresses", Of: &addressTable.Kind}, {Key: "policies", Of: &policyTable.Kind}}}
