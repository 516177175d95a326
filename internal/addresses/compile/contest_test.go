package compile

import (
	"testing"
	"time"

	"sluice.dev/sluice/internal/model"
)

// A Service whose status another controller writes names it, unless it takes no longer than our own
// write does.
func TestContested(t *testing.T) {
	now := start
	w := newWorld(t, Config{Node: "n1", Now: func() time.Time { return now }})
	by := func(writer, ingress string) *model.Service {
		s := w.service("x/a", has(ingress))
		s.Created, s.LoadBalancer.Writer = start, writer
		return s
	}
	const fault = `another controller gives it addresses, too: field manager "other" writes `
	w.set(w.pool("p", "192.0.2.1-192.0.2.9"), by("", "192.0.2.1"))
	for _, c := range []struct{ writer, has, says string }{
		{"other", "10.0.0.5", fault + "10.0.0.5 into its status in place of 192.0.2.1"},
		{"other", "", fault + "no address into its status"},
		{"other", "192.0.2.1", ""}, // it agrees
		{"", "10.0.0.5", ""},       // nobody knows whose it is
		{"other", "192.0.2.3", ""}, // it may have that
	} {
		s := by(c.writer, c.has)
		w.set(s)
		if says := w.says(s); says != "" {
			t.Errorf("%+v: says at once %q", c, says)
		}
		now = now.Add(takesToWrite)
		if says := w.says(s); !startsWith(says, c.says) {
			t.Errorf("%+v: says %q", c, says)
		}
		if c.says != "" {
			w.set(by("", "192.0.2.1"))
			if says := w.says(s); says != "" {
				t.Errorf("%+v: once it is written it says %q", c, says)
			}
		}
	}
	foreign := by("other", "192.0.2.1")
	foreign.LoadBalancer.Class = "other"
	if w.set(foreign); len(w.wanted) > 0 {
		t.Errorf("of another's address of another class is to be written: %v", w.wanted)
	}
	s := by("other", "10.0.0.5")
	w.set(s)
	now = now.Add(takesToWrite)
	w.remove(s.Ref())
	if says := w.says(s); says != "" {
		t.Errorf("a Service that is gone says %q", says)
	}
}

// startsWith reports whether a text is another, or begins with it where that is not empty.
func startsWith(text, want string) bool {
	return text == want || want != "" && len(text) > len(want) && text[:len(want)] == want
}
