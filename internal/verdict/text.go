package verdict

import (
	"fmt"
	"net/netip"
	"slices"
	"strconv"
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

// Subject names what the step belongs to: a pod "shop/web", "shop/db (ClusterIP)" or "node-a
// (eth0)".
func (s Step) Subject() string {
	text := s.subject()
	if s.At != "" {
		text += " (" + s.At + ")"
	}
	return text
}

// subject is Subject without the place.
func (s Step) subject() string {
	switch s.Of.Kind {
	case model.PodKind, model.ServiceKind, model.HostEndpointKind:
		return s.Of.Name.String()
	}
	return s.Of.String()
}

// Summary is the answer in few words: "allowed", "denied", "2 of 3 backends are denied"; "ways",
// where they are also of several nodes by which it may come in.
func (a Answer) Summary() string {
	n := map[Outcome]int{}
	for _, p := range a.Paths {
		n[p.Outcome]++
	}
	if n[a.Outcome] == len(a.Paths) || n[a.Outcome] == 0 {
		return a.Outcome.String()
	}
	what := "backend"
	if a.by(a.Paths[0]) != "" {
		what = "way"
	}
	text := fmt.Sprintf("%d of %s %s", n[a.Outcome], model.Count(len(a.Paths), what), isAre(n[a.Outcome], a.Outcome))
	if a.Outcome == Denied && n[Unknown] > 0 {
		text += fmt.Sprintf(", %d %s", n[Unknown], isAre(n[Unknown], Unknown))
	}
	return text
}

func isAre(n int, o Outcome) string {
	if n == 1 {
		return "is " + o.String()
	}
	return "are " + o.String()
}

// maxGroups is how many different ways an answer shows to people.
const maxGroups = 20

// String writes the answer for people, in aligned lines: first what all paths have in common, then
// the paths, those that say the same together.
func (a Answer) String() string {
	var b strings.Builder
	fmt.Fprintln(&b, a.headline())
	w := tabwriter.NewWriter(&b, 0, 0, 2, ' ', 0)
	if len(a.Paths) == 1 && a.Paths[0].To.Address == a.To.Address {
		writePath(w, "  ", a.Paths[0], 0)
	} else {
		common := a.common()
		if common > 0 {
			writeSteps(w, "  ", a.Paths[0].Steps[:common])
		}
		groups := a.groups(common)
		for _, same := range groups[:min(len(groups), maxGroups)] {
			fmt.Fprintf(w, "  %sto %s: %s\n", a.by(same[0]), model.Printable(destinations(same)), same[0].Outcome)
			writePath(w, "    ", same[0], common)
		}
		if more := len(groups) - maxGroups; more > 0 {
			fmt.Fprintf(w, "  and in %s more: -o json has all\n", model.Count(more, "way"))
		}
	}
	_ = w.Flush() // into memory
	return b.String()
}

// Text writes answers for people, each once: one that differs from another in nothing but addresses
// is a line.
func Text(answers []Answer) string {
	var b strings.Builder
	seen := map[string]bool{}
	for i, a := range answers {
		if key := a.said(); !seen[key] {
			if seen[key] = true; i > 0 {
				b.WriteString("\n")
			}
			b.WriteString(a.String())
			continue
		}
		fmt.Fprintf(&b, "%s, in the same way\n", a.headline())
	}
	return b.String()
}

// said is what the answer says beside addresses.
func (a Answer) said() string {
	texts := []string{a.From.Object.String(), a.To.Object.String(), strconv.Itoa(int(a.To.Port)), a.Protocol, a.Summary()}
	for _, p := range a.Paths {
		texts = append(texts, p.To.Object.String(), p.Outcome.String())
		for _, s := range p.Steps {
			texts = append(texts, s.line())
		}
	}
	return strings.Join(texts, "\n")
}

func (a Answer) headline() string {
	return fmt.Sprintf("%s -> %s, %s: %s", model.Printable(a.From.String()), model.Printable(a.To.String()), a.what(), model.Printable(a.Summary()))
}

// what names protocol and port: "TCP 5432", "ICMP 8".
func (a Answer) what() string {
	if a.To.Port == 0 {
		return a.Protocol
	}
	return fmt.Sprintf("%s %d", a.Protocol, a.To.Port)
}

// common is how many steps all paths begin with.
func (a Answer) common() int {
	first := a.Paths[0].Steps
	n := len(first)
	for _, p := range a.Paths[1:] {
		n = min(n, len(p.Steps))
		for i := range n {
			if p.Steps[i].line() != first[i].line() {
				n = i
				break
			}
		}
	}
	return n
}

// groups puts the paths together that say the same after their first steps, denied ones first.
func (a Answer) groups(common int) (groups [][]Path) {
	at := map[string]int{}
	for _, o := range []Outcome{Denied, Unknown, Allowed} {
		for _, p := range a.Paths {
			if p.Outcome != o {
				continue
			}
			var text strings.Builder
			for _, s := range p.Steps[common:] {
				if s.Of.Kind == model.PodKind && s.Of == p.To.Object {
					s.Of.Name.Name = "" // the backend itself
				}
				text.WriteString(s.line() + "\n")
			}
			key := text.String() + strings.Join(p.Notes, "\n")
			i, have := at[key]
			if !have {
				i = len(groups)
				at[key], groups = i, append(groups, nil)
			}
			groups[i] = append(groups[i], p)
		}
	}
	return groups
}

// by names the node by which a path comes in, if there are several.
func (a Answer) by(p Path) string {
	first := func(p Path) string {
		if len(p.Steps) == 0 {
			return ""
		}
		return p.Steps[0].Node
	}
	if !slices.ContainsFunc(a.Paths, func(o Path) bool { return first(o) != first(p) }) {
		return ""
	}
	return "by node " + model.Printable(first(p)) + ", "
}

// destinations names where the paths lead.
func destinations(paths []Path) string {
	const most = 3
	var names []string
	for _, p := range paths {
		names = append(names, p.To.String())
	}
	return model.FirstFew(names, most)
}

func writePath(w *tabwriter.Writer, indent string, p Path, from int) {
	writeSteps(w, indent, p.Steps[from:])
	for _, m := range p.Missing {
		fmt.Fprintf(w, "%smissing: %s\n", indent, model.Printable(m))
	}
	for _, n := range p.Nearest {
		fmt.Fprintf(w, "%snearest: %s\n", indent, model.Printable(n.String()))
	}
	for _, n := range p.Notes {
		fmt.Fprintf(w, "%snote: %s\n", indent, model.Printable(n))
	}
}

// String says "ingress[0] of NetworkPolicy shop/db: it wants …".
func (n Near) String() string {
	return fmt.Sprintf("%s of %v %s", n.Rule, n.Policy, strings.Join(n.Lacks, ", and "))
}

func writeSteps(w *tabwriter.Writer, indent string, steps []Step) {
	for _, s := range steps {
		fmt.Fprintf(w, "%s%s\n", indent, s.line())
	}
}

// line is the step in cells for people.
func (s Step) line() string {
	cells := []string{string(s.Stage), s.Outcome.String(), model.Printable(s.Subject()), model.Printable(s.Reason())}
	if s.Node != "" {
		cells = slices.Insert(cells, 0, model.Printable(s.Node))
	}
	return strings.Join(cells, "\t")
}

// String is the address, with port and name: "10.1.0.5:80 (pod shop/web)".
func (p Party) String() string {
	text := p.Address.String()
	if p.Port != 0 {
		text = netip.AddrPortFrom(p.Address, p.Port).String()
	}
	return text + named(p.Object)
}

// Short is the name alone, with the port: "shop/web-1:80", "node node-a:22"; the address where
// nothing known has it.
func (p Party) Short() string {
	name, port := p.Object.Name.String(), strconv.Itoa(int(p.Port))
	switch {
	case p.Object == (model.Ref{}) && p.Port == 0:
		return p.Address.String()
	case p.Object == (model.Ref{}):
		return netip.AddrPortFrom(p.Address, p.Port).String()
	case p.Object.Kind != model.PodKind:
		name = strings.ToLower(string(p.Object.Kind)) + " " + name
	}
	return strings.TrimSuffix(name+":"+port, ":0")
}

// label names an address for people.
func (c *Cluster) label(a netip.Addr) string { return a.String() + named(c.object(a)) }

func named(r model.Ref) string {
	if r == (model.Ref{}) {
		return ""
	}
	return " (" + strings.ToLower(string(r.Kind)) + " " + r.Name.String() + ")"
}
