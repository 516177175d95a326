package kubeobj

import (
	"errors"
	"fmt"
	"strings"
)

// maxReasons bounds how much an error says of one object.
const maxReasons = 10

// faults collects what is wrong with one object.
type faults struct {
	reasons []string
	broken  bool // the object as a whole can't be used
}

// reject records a fault that makes the whole object unusable.
func (f *faults) reject(field, format string, args ...any) {
	f.leave(field, format, args...)
	f.broken = true
}

// leave records a fault that costs no more than the value it is about.
func (f *faults) leave(field, format string, args ...any) {
	f.reasons = append(f.reasons, field+": "+fmt.Sprintf(format, args...))
}

// mark is where the faults of a part of the object begin; see under.
func (f *faults) mark() int { return len(f.reasons) }

// under puts the place of a part before the fields of all faults since mark.
func (f *faults) under(mark int, format string, args ...any) {
	for i := mark; i < len(f.reasons); i++ {
		f.reasons[i] = fmt.Sprintf(format, args...) + "." + f.reasons[i]
	}
}

// result is the pair that every translation returns.
func result[T any](v *T, f *faults) (*T, error) {
	if len(f.reasons) == 0 {
		return v, nil
	}
	if more := len(f.reasons) - maxReasons; more > 0 {
		f.reasons = append(f.reasons[:maxReasons], fmt.Sprintf("and %d more", more))
	}
	err := errors.New(strings.Join(f.reasons, "; "))
	if f.broken {
		return nil, err
	}
	return v, err
}
