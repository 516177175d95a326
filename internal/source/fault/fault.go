// Package fault collects what is wrong with one object that is being
// translated, in words for those who wrote it.
package fault

import (
	"errors"
	"fmt"
	"strconv"
	"strings"
)

// maxReasons bounds how much an error says of one object.
const maxReasons = 10

// List is what is wrong with one object; the zero List is ready. It is not safe
// for concurrent use.
type List struct {
	reasons []string
	broken  bool // the object can't be used
	unknown bool // by a fault that may change what the object is about
}

// Reject records a fault that makes the whole object unusable. Field is where it
// is, "" for the object itself.
func (l *List) Reject(field, format string, args ...any) {
	l.Aside(field, format, args...)
	l.unknown = true
}

// Aside is Reject for a fault that leaves no doubt about what the object is about.
func (l *List) Aside(field, format string, args ...any) {
	l.Leave(field, format, args...)
	l.broken = true
}

// Leave records a fault that costs no more than the value it is about.
func (l *List) Leave(field, format string, args ...any) {
	reason := fmt.Sprintf(format, args...)
	if field != "" {
		reason = field + ": " + reason
	}
	l.reasons = append(l.reasons, reason)
}

// Read reads the value of a field. A text that can't be read makes the whole object unusable.
func Read[T any](l *List, field, text string, parse func(string) (T, error)) T {
	v, err := parse(text)
	if err != nil {
		l.Reject(field, "%v", err)
	}
	return v
}

// ReadAll is Read for a list; place has "%d" where the number of an item goes.
func ReadAll[T any](l *List, place string, texts []string, parse func(string) (T, error)) []T {
	return readEach(place, texts, parse, func(field string, err error) { l.Reject(field, "%v", err) })
}

// ReadSome is ReadAll for a list of which what can't be read is left out.
func ReadSome[T any](l *List, place string, texts []string, parse func(string) (T, error)) []T {
	return readEach(place, texts, parse, func(field string, err error) { l.Leave(field, "%v; it is left out", err) })
}

func readEach[T any](place string, texts []string, parse func(string) (T, error), wrong func(field string, err error)) (list []T) {
	for i, text := range texts {
		v, err := parse(text)
		if err != nil {
			wrong(strings.Replace(place, "%d", strconv.Itoa(i), 1), err)
			continue
		}
		list = append(list, v)
	}
	return list
}

// Any tells whether there is a fault so far.
func (l *List) Any() bool { return len(l.reasons) > 0 }

// Broken tells whether the object can't be used.
func (l *List) Broken() bool { return l.broken }

// Known tells whether there is none so far except for those of Aside and Leave.
func (l *List) Known() bool { return !l.unknown }

// Spare records the faults of a part that is left out if it can't be used. It reports whether it
// is.
func (l *List) Spare(part *List, what string) bool {
	for _, reason := range part.reasons {
		if part.broken {
			reason += "; " + what + " is left out"
		}
		l.reasons = append(l.reasons, reason)
	}
	return part.broken
}

// Join records the faults of a part as the object's own. It reports whether the part can't be used.
func (l *List) Join(part *List) bool {
	l.reasons = append(l.reasons, part.reasons...)
	l.broken, l.unknown = l.broken || part.broken, l.unknown || part.unknown
	return part.broken
}

// Mark is where the faults of a part of the object begin; see Under.
func (l *List) Mark() int { return len(l.reasons) }

// Under puts the place of a part before the fields of all faults since mark.
func (l *List) Under(mark int, format string, args ...any) {
	for i := mark; i < len(l.reasons); i++ {
		l.reasons[i] = fmt.Sprintf(format, args...) + "." + l.reasons[i]
	}
}

// Err is all of it, nil if nothing is wrong.
func (l *List) Err() error {
	list := l.reasons
	if len(list) == 0 {
		return nil
	}
	if more := len(list) - maxReasons; more > 0 {
		list = append(list[:maxReasons:maxReasons], fmt.Sprintf("and %d more", more))
	}
	return errors.New(strings.Join(list, "; "))
}

// Result is the pair that a translation returns: the object unless it can't be
// used, and what is wrong with it.
func Result[T any](v *T, l *List) (*T, error) {
	if l.broken {
		v = nil
	}
	return v, l.Err()
}
