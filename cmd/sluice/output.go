package main

import (
	"fmt"
	"io"
	"reflect"
	"strings"
	"time"

	"sluice.dev/sluice/internal/model"
)

// printf writes a line or a row for people. Names, paths and messages come from others, so strings
// among args are made printable: they can neither control the terminal nor add lines and columns.
func printf(w io.Writer, format string, args ...any) error {
	for i, a := range args {
		switch a := a.(type) {
		case error:
			args[i] = model.Printable(a.Error())
		case fmt.Stringer:
			args[i] = model.Printable(a.String())
		default:
			if v := reflect.ValueOf(a); v.Kind() == reflect.String {
				args[i] = model.Printable(v.String())
			}
		}
	}
	_, err := fmt.Fprintf(w, format, args...)
	return err
}

// splitList returns the parts of a comma-separated list, without spaces around them.
func splitList(list string) []string {
	parts := strings.Split(list, ",")
	for i, s := range parts {
		parts[i] = strings.TrimSpace(s)
	}
	return parts
}

// span rounds a duration to a precision useful to people.
func span(d time.Duration) string {
	switch {
	case d < time.Millisecond:
		return d.Round(time.Microsecond).String()
	case d < time.Second:
		return d.Round(100 * time.Microsecond).String()
	case d < time.Minute:
		return d.Round(100 * time.Millisecond).String()
	case d < 48*time.Hour:
		return d.Round(time.Second).String()
	}
	return fmt.Sprintf("%dd%dh", int(d.Hours())/24, int(d.Hours())%24)
}
