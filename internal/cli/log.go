package cli

import (
	"encoding"
	"fmt"
	"io"
	"log/slog"
	"reflect"
	"slices"
	"strings"
)

// TextLog returns a log for people, with LogOptions: lists and objects are written as in a
// sentence.
func TextLog(w io.Writer, level slog.Leveler) *slog.Logger {
	options := LogOptions(level)
	leaveOut := options.ReplaceAttr
	options.ReplaceAttr = func(groups []string, a slog.Attr) slog.Attr {
		if v := a.Value.Resolve(); v.Kind() == slog.KindAny {
			if !saysNothing(v) {
				a.Value = slog.StringValue(sentence(reflect.ValueOf(v.Any()), 0))
			}
		}
		return leaveOut(groups, a)
	}
	return slog.New(slog.NewTextHandler(w, options))
}

// sentence writes a value without Go's syntax: "a, b", "Node 2, Pod 3".
func sentence(v reflect.Value, depth int) string {
	const deep = 8 // others' objects may hold themselves
	if !v.IsValid() || depth > deep || (v.Kind() == reflect.Pointer || v.Kind() == reflect.Interface) && v.IsNil() {
		return ""
	}
	depth++
	if v.CanInterface() {
		switch x := v.Interface().(type) {
		case error:
			return x.Error()
		case fmt.Stringer:
			return x.String()
		case encoding.TextMarshaler:
			if text, err := x.MarshalText(); err == nil {
				return string(text)
			}
		case []byte:
			return string(x)
		}
	}
	var parts []string
	switch v.Kind() {
	case reflect.Pointer, reflect.Interface:
		return sentence(v.Elem(), depth)
	case reflect.Slice, reflect.Array:
		for i := range v.Len() {
			parts = append(parts, sentence(v.Index(i), depth))
		}
	case reflect.Map:
		for k, of := range v.Seq2() {
			parts = append(parts, sentence(k, depth)+" "+sentence(of, depth))
		}
		slices.Sort(parts)
	case reflect.Struct:
		for i := range v.NumField() {
			if f := v.Type().Field(i); f.IsExported() && !v.Field(i).IsZero() {
				parts = append(parts, f.Name+" "+sentence(v.Field(i), depth))
			}
		}
	default:
		return fmt.Sprint(v)
	}
	return strings.Join(parts, ", ")
}

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
