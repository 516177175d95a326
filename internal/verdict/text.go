package verdict

import (
	"fmt"
	"strings"
	"text/tabwriter"

	"sluice.dev/sluice/internal/model"
)

// Reason says in a few words what decided.
func (s Step) Reason() string {
	switch {
	case s.Rule != "":
		return fmt.Sprintf("%v %s, tier %s", s.Policy, s.Rule, s.Tier)
	case len(s.Isolating) > 0:
		return fmt.Sprintf("isolated by %s, tier %s, and no rule allows it", model.Join(s.Isolating, ", "), s.Tier)
	case s.Text != "":
		return s.Text
	case s.Tier != "":
		return "no rule of tier " + s.Tier + " allows it"
	}
	return string(s.Drop)
}

// Summary is the answer in few words: "allowed", "denied", "allowed to 2 of 3 backends", "not
// judged here: ask on node b".
func (a Answer) Summary() string {
	n := 0
	for _, p := range a.Paths {
		if p.Allowed {
			n++
		}
	}
	switch {
	case len(a.Elsewhere) > 0:
		return "not judged here: ask on node " + strings.Join(a.Elsewhere, " and on node ")
	case a.Allowed:
		return "allowed"
	case n == 0:
		return "denied"
	}
	return fmt.Sprintf("allowed to %d of %s", n, model.Count(len(a.Paths), "backend"))
}

// String writes the answer for people, in aligned lines.
func (a Answer) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s -> %s, %s: %s\n", model.Printable(a.From), model.Printable(a.To), a.Protocol, model.Printable(a.Summary()))
	w := tabwriter.NewWriter(&b, 0, 0, 2, ' ', 0)
	writeSteps(w, "  ", a.Steps, a.Missing, nil)
	for _, p := range a.Paths {
		if indent := "  "; len(a.Paths) == 1 && p.To == a.To {
			writeSteps(w, indent, p.Steps, p.Missing, p.Notes)
			continue
		}
		fmt.Fprintf(w, "  to %s: %s\n", model.Printable(p.To), word(p.Allowed))
		writeSteps(w, "    ", p.Steps, p.Missing, p.Notes)
	}
	_ = w.Flush() // into memory
	return b.String()
}

func writeSteps(w *tabwriter.Writer, indent string, steps []Step, missing, notes []string) {
	for _, s := range steps {
		fmt.Fprintf(w, "%s%s\t%s\t%s\t%s\n", indent, s.Stage, word(s.Allowed), model.Printable(s.Of), model.Printable(s.Reason()))
	}
	for _, m := range missing {
		fmt.Fprintf(w, "%smissing: %s\n", indent, model.Printable(m))
	}
	for _, n := range notes {
		fmt.Fprintf(w, "%snote: %s\n", indent, model.Printable(n))
	}
}

func word(allowed bool) string {
	if allowed {
		return "allowed"
	}
	return "denied"
}
