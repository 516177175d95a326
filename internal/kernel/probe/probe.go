// Package probe has the requirements on the kernel. Each is a named check beside the code that
// needs it, with the version of Linux that brought the feature, and runs once.
package probe

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"

	"golang.org/x/sys/unix"
)

// ErrNotSupported is wrapped by the error of a requirement that the kernel does not meet.
var ErrNotSupported = errors.New("not supported by this kernel")

// Requirement is a feature that the kernel has to have. It is safe for concurrent use.
type Requirement struct {
	Name    string   // "masquerade"
	Since   string   // the version of Linux that brought it: "4.9"
	Modules []string // that provide it, if it is not built in
	// Without says what is different on a kernel that lacks the feature; empty: its package does
	// not work there.
	Without string
	// Check returns nil if the kernel has the feature. It leaves no trace.
	Check func(context.Context) error

	mu       sync.Mutex
	answered bool
	err      error
}

// Met checks the requirement in the calling thread's network namespace. A yes or no of the kernel
// holds until the process ends; any other error, such as missing privileges, is no answer.
func (r *Requirement) Met(ctx context.Context) error {
	return r.MetBy(func() error { return r.Check(ctx) })
}

// MetBy is Met with another way to check the same, for example through a socket that is open
// already.
func (r *Requirement) MetBy(check func() error) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if !r.answered {
		r.err = r.Missing(check())
		r.answered = r.err == nil || errors.Is(r.err, ErrNotSupported)
	}
	return r.err
}

// Missing adds the requirement to a kernel's error, if the error is one of those with which a
// kernel says that it does not know what a request asks for. It returns others as they are.
func (r *Requirement) Missing(err error) error {
	for _, unknown := range []error{unix.ENOENT, unix.EOPNOTSUPP, unix.EINVAL, unix.EPROTONOSUPPORT, unix.EAFNOSUPPORT} {
		if errors.Is(err, unknown) && !errors.Is(err, ErrNotSupported) {
			return fmt.Errorf("%s: %w: %w (needs %s)", r.Name, ErrNotSupported, err, r.needs())
		}
	}
	return err
}

func (r *Requirement) needs() string {
	needs := "Linux " + r.Since
	if len(r.Modules) > 0 {
		needs += " with " + strings.Join(r.Modules, ", ")
	}
	return needs
}

// Missing checks requirements and joins the errors of those that are not met.
func Missing(ctx context.Context, requirements []*Requirement) error {
	var errs []error
	told := map[string]bool{}
	for _, r := range requirements {
		if err := r.Met(ctx); err != nil && !told[err.Error()] {
			told[err.Error()] = true
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}
