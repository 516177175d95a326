package fault

import (
	"strings"
	"testing"
)

func TestList(t *testing.T) {
	object := new(int)
	for _, c := range []struct {
		name  string
		enter func(l *List)
		err   string
		good  bool
		known bool
	}{
		{"nothing", func(*List) {}, "", true, true},
		{"left out", func(l *List) { l.Leave("a", "is %d", 1) }, "a: is 1", true, true},
		{"beside the point", func(l *List) { l.Aside("a", "is odd") }, "a: is odd", false, true},
		{"in full", func(l *List) { l.Reject("", "is odd"); l.Leave("b", "too") }, "is odd; b: too", false, false},
		{"in a part", func(l *List) {
			l.Reject("a", "x")
			mark := l.Mark()
			l.Reject("b", "y")
			l.Under(mark, "list[%d]", 2)
		}, "a: x; list[2].b: y", false, false},
		{"many", func(l *List) {
			for range maxReasons + 2 {
				l.Leave("a", "x")
			}
		}, strings.Repeat("a: x; ", maxReasons) + "and 2 more", true, true},
	} {
		var l List
		c.enter(&l)
		got, err := Result(object, &l)
		if err == nil && c.err != "" || err != nil && err.Error() != c.err {
			t.Errorf("%s: %v, want %q", c.name, err, c.err)
		}
		if (got == object) != c.good || l.Known() != c.known || l.Any() != (c.err != "") {
			t.Errorf("%s: object %v, known %t, any %t", c.name, got, l.Known(), l.Any())
		}
	}
}
