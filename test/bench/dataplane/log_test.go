package dataplane

import (
	"strings"
	"testing"
)

// TestLog: all marks have to come, each in a line of its own, however the lines are cut.
func TestLog(t *testing.T) {
	l := newLog([]string{"services are read", "slices are read"})
	for _, part := range []string{"one\nservices are", " read\nslices ", "are no", "t read\n"} {
		if _, err := l.Write([]byte(part)); err != nil {
			t.Fatal(err)
		}
	}
	if at, ok := l.at(); ok || at.IsZero() {
		t.Errorf("synced at %s: %t, though the slices are not", at, ok)
	}
	if _, err := l.Write([]byte("slices are read\n" + strings.Repeat("x", 2*kept))); err != nil {
		t.Fatal(err)
	}
	if _, ok := l.at(); !ok {
		t.Error("not synced")
	}
	if n := len(l.String()); n != kept {
		t.Errorf("%d bytes kept, want %d", n, kept)
	}
}
