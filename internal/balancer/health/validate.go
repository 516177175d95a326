package health

import (
	"errors"
	"fmt"
	"net/url"
	"slices"
	"strings"
	"time"
)

const (
	shortest = 10 * time.Millisecond // of intervals and time-outs: what the loop can tell apart
	longest  = 24 * time.Hour
	maxText  = 4096 // bytes of a field that is sent, or looked for
)

// WithDefaults returns the check with defaults in place of zero values.
func (c Check) WithDefaults() Check {
	fill(&c.Interval, 5*time.Second)
	fill(&c.Timeout, min(2*time.Second, c.Interval))
	fill(&c.Rise, 2)
	fill(&c.Fall, 3)
	if kindOf(c.Type).needs == aURL {
		fill(&c.Path, "/")
		fill(&c.Method, "GET")
		if c.StatusFirst == 0 && c.StatusLast == 0 {
			c.StatusFirst, c.StatusLast = 200, 399
		}
		fill(&c.StatusLast, c.StatusFirst)
	}
	return c
}

func fill[T comparable](field *T, value T) {
	var zero T
	if *field == zero {
		*field = value
	}
}

// Validate returns an error that names each field at fault; zero values stand for defaults.
func (c Check) Validate() error {
	k := kindOf(c.Type)
	if k.name == "" {
		return fmt.Errorf("type %q: must be one of %s", c.Type, strings.Join(Types(), ", "))
	}
	var errs []error
	for _, name := range c.given() {
		if !slices.Contains(k.fields, name) {
			errs = append(errs, fmt.Errorf("%s: a check of type %s has no such field", name, c.Type))
		}
	}
	c = c.WithDefaults()
	errs = append(errs, c.validateTimes(), c.validateTexts())
	if k.validate != nil {
		errs = append(errs, k.validate(c))
	}
	return errors.Join(errs...)
}

// given returns the names of the fields that some types of checks do not have, as far as they
// are set.
func (c Check) given() (names []string) {
	for _, f := range []struct {
		name string
		set  bool
	}{
		{"port", c.Port != 0}, {"host", c.Host != ""}, {"path", c.Path != ""}, {"method", c.Method != ""},
		{"status", c.StatusFirst != 0 || c.StatusLast != 0}, {"body", c.Body != ""}, {"insecure", c.Insecure},
		{"service", c.Service != ""}, {"send", c.Send != ""}, {"expect", c.Expect != ""}, {"command", c.Command != nil},
	} {
		if f.set {
			names = append(names, f.name)
		}
	}
	return names
}

func (c Check) validateTimes() error {
	switch {
	case c.Interval < shortest || c.Interval > longest:
		return fmt.Errorf("interval %v: must be from %v to %v", c.Interval, shortest, longest)
	case c.Timeout < shortest:
		return fmt.Errorf("timeout %v: must be %v at least", c.Timeout, shortest)
	case c.Timeout > c.Interval:
		return fmt.Errorf("timeout %v: must not be longer than the interval, which is %v", c.Timeout, c.Interval)
	case c.Rise < 1:
		return fmt.Errorf("rise %d: must be 1 at least", c.Rise)
	case c.Fall < 1:
		return fmt.Errorf("fall %d: must be 1 at least", c.Fall)
	}
	return nil
}

func (c Check) validateTexts() error {
	for _, f := range []struct{ name, text string }{
		{"host", c.Host}, {"path", c.Path}, {"method", c.Method}, {"body", c.Body},
		{"service", c.Service}, {"send", c.Send}, {"expect", c.Expect},
	} {
		if len(f.text) > maxText {
			return fmt.Errorf("%s: %d bytes, must be %d at most", f.name, len(f.text), maxText)
		}
	}
	for _, arg := range c.Command {
		if strings.ContainsRune(arg, 0) {
			return fmt.Errorf("command: %q contains a NUL byte", arg)
		}
	}
	return validateHost(c.Host)
}

func validateHost(host string) error {
	if u, err := url.Parse("http://" + host + "/"); host != "" && (err != nil || u.Host != host) {
		return fmt.Errorf("host %q: must be a name or an address, with a port or without", host)
	}
	return nil
}

func (c Check) validateRequest() error {
	_, err := url.Parse("http://host" + c.Path)
	if err != nil || c.Path[0] != '/' || strings.ContainsAny(c.Path, " #") {
		return fmt.Errorf("path %q: must begin with a slash, and have neither spaces nor #", c.Path)
	}
	if strings.ContainsFunc(c.Method, func(r rune) bool { return r < 'A' || r > 'Z' }) {
		return fmt.Errorf("method %q: must have capital letters alone", c.Method)
	}
	if c.StatusFirst < 200 || c.StatusLast > 599 || c.StatusFirst > c.StatusLast {
		return fmt.Errorf("status %d-%d: must be a range within 200-599", c.StatusFirst, c.StatusLast)
	}
	return nil
}

func (c Check) validateCommand() error {
	if len(c.Command) == 0 || c.Command[0] == "" {
		return errors.New("command: must name a program")
	}
	return nil
}
