package cli

import (
	"log/slog"
	"reflect"
)

// LogOptions are those of every program's log: attributes that say nothing are left out.
func LogOptions(level slog.Leveler) *slog.HandlerOptions {
	return &slog.HandlerOptions{Level: level, ReplaceAttr: func(_ []string, a slog.Attr) slog.Attr {
		if saysNothing(a.Value) {
			return slog.Attr{}
		}
		return a
	}}
}

// saysNothing reports whether a value is text, a list or an object, and empty. Numbers and false
// say something.
func saysNothing(v slog.Value) bool {
	switch v = v.Resolve(); v.Kind() {
	case slog.KindString:
		return v.String() == ""
	case slog.KindTime:
		return v.Time().IsZero()
	case slog.KindAny:
		switch r := reflect.ValueOf(v.Any()); r.Kind() {
		case reflect.Invalid:
			return true
		case reflect.Slice, reflect.Map, reflect.String:
			return r.Len() == 0
		case reflect.Pointer, reflect.Struct:
			return r.IsZero()
		}
	}
	return false
}
