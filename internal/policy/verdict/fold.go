package verdict

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"text/tabwriter"

	"sluice.dev/sluice/internal/model"
)

// These bound what is named of what is alike, and the reasons at the top of an answer.
const maxNames, maxReasons = 3, 3

// String writes the answer for people, each way by itself: first the answer, then what all ways
// have in common, then the ways, denied ones first.
func (a Answer) String() string {
	var ways [][]Path
	for _, o := range []Outcome{Denied, Unknown, Allowed} {
		for _, p := range a.Paths {
			if p.Outcome == o {
				ways = append(ways, []Path{p})
			}
		}
	}
	return newBlock([]Answer{a}, ways).text(&limits{ways: len(ways), detailed: len(ways)})
}

// Text writes answers for people in so many lines at the most, of which the first say what becomes
// of the connections. What is alike except for names and addresses is written once, with how many
// it stands for; what is denied comes first. Folded reports whether something is left out by that.
func Text(answers []Answer, lines int) (text string, folded bool) {
	blocks := fold(answers)
	ways := 0
	for _, b := range blocks {
		ways = max(ways, len(b.ways))
	}
	l := limits{blocks: min(len(blocks), lines), ways: min(ways, lines), detailed: lines}
	for {
		trial := l
		text = digest(answers, blocks, &trial)
		switch n := strings.Count(text, "\n"); {
		case n <= lines:
			return text, trial.folded
		case l.detailed > 1:
			l.detailed--
		case l.ways > 1:
			l.ways--
		case l.blocks > 1:
			l.blocks--
		default:
			return strings.Join(slices.Collect(strings.Lines(text))[:max(lines, 0)], ""), true
		}
	}
}

// TextOfAll writes all of the answers for people.
func TextOfAll(answers []Answer) string {
	texts := make([]string, len(answers))
	for i, a := range answers {
		texts[i] = a.String()
	}
	return strings.Join(texts, "\n")
}

// limits bound what is written of answers.
type limits struct {
	blocks   int  // answers that differ
	ways     int  // of each, that differ
	detailed int  // of all ways, those of which each step is written
	folded   bool // something is not written
}

// block is the text of answers that say the same except for names and addresses. Steps are in
// cells.
type block struct {
	answers int
	head    []string // the answer, its reasons, and whom else it is about
	common  []string // the steps that all ways begin with
	ways    []wayText
}

// wayText is that of ways that say the same.
type wayText struct {
	ways    int
	heading string // "": the only way, to where the question asks
	details []string
}

// fold words the answers, those together that say the same except for names and addresses.
func fold(answers []Answer) (blocks []block) {
	for _, same := range alike(answers, func(a Answer) Outcome { return a.Outcome }, Answer.wording) {
		blocks = append(blocks, newBlock(same, same[0].ways()))
	}
	return blocks
}

// alike puts together what has the same key, denied ones first.
func alike[T any](list []T, outcome func(T) Outcome, key func(T) string) (groups [][]T) {
	at := map[string]int{}
	for _, o := range []Outcome{Denied, Unknown, Allowed} {
		for _, t := range list {
			if outcome(t) != o {
				continue
			}
			k := key(t)
			i, have := at[k]
			if !have {
				i = len(groups)
				at[k], groups = i, append(groups, nil)
			}
			groups[i] = append(groups[i], t)
		}
	}
	return groups
}

// ways are the paths, those together that say the same except for names and addresses.
func (a Answer) ways() [][]Path {
	return alike(a.Paths, func(p Path) Outcome { return p.Outcome }, a.said)
}

// wording is what the answer says, except for names and addresses.
func (a Answer) wording() string {
	keys := []string{string(a.From.Object.Kind), string(a.To.Object.Kind), a.what(), a.Summary()}
	if a.To.Object.Kind == model.ServiceKind {
		keys = append(keys, a.To.Object.Name.String())
	}
	for _, same := range a.ways() {
		keys = append(keys, a.said(same[0]))
	}
	slices.Sort(keys[4:])
	return strings.Join(keys, "\n")
}

// said is what is said of a way, except for the names of its pods, nodes and host endpoints, and
// addresses. Where it does not pass, what allows it elsewhere makes no difference.
func (a Answer) said(p Path) string {
	names := a.names(p)
	var b strings.Builder
	fmt.Fprintln(&b, p.Outcome, p.To.Object.Kind)
	for _, s := range p.Steps {
		if s.Outcome == p.Outcome {
			fmt.Fprintln(&b, s.said(names))
		}
	}
	hints := p.hints()
	if h := p.HiddenClient; h != nil {
		hints = append(hints, h.String(), h.Remedy)
	}
	for _, hint := range hints {
		fmt.Fprintln(&b, nameless(hint, names))
	}
	return b.String()
}

func (s Step) said(names map[string]string) string {
	of := string(s.Of.Kind)
	if names[s.Of.Name.String()] == "" {
		of += s.Subject()
	}
	return strings.Join([]string{string(s.Stage), s.Outcome.String(), of, nameless(s.Reason(), names)}, "\t")
}

// names are those of a way's pods, nodes and host endpoints, with what each is.
func (a Answer) names(p Path) map[string]string {
	names := map[string]string{a.From.Node: "node", p.To.Node: "node"}
	add := func(r model.Ref) {
		if r.Kind == model.PodKind || r.Kind == model.NodeKind || r.Kind == model.HostEndpointKind {
			names[r.Name.String()] = string(r.Kind)
		}
	}
	add(a.From.Object)
	add(p.To.Object)
	for _, s := range p.Steps {
		names[s.Node] = "node"
		add(s.Of)
	}
	delete(names, "")
	return names
}

// nameless is a text with what the names stand for in their place, and without addresses.
func nameless(text string, names map[string]string) string {
	words := strings.Split(text, " ")
	for i, w := range words {
		bare := strings.Trim(w, "()[],;:")
		if what := names[bare]; what != "" {
			words[i] = what
		} else if isAddress(bare) {
			words[i] = "address"
		}
	}
	return strings.Join(words, " ")
}

// isAddress reports whether a text is one, perhaps with a port.
func isAddress(text string) bool {
	_, err := netip.ParseAddr(text)
	if err != nil {
		_, err = netip.ParseAddrPort(text)
	}
	return err == nil
}

// hints are what a way says beside its steps.
func (p Path) hints() (texts []string) {
	for _, m := range p.Missing {
		texts = append(texts, model.Printable("missing: "+m))
	}
	for _, n := range p.Nearest {
		texts = append(texts, model.Printable("nearest: "+n.String()))
	}
	for _, n := range p.Notes {
		texts = append(texts, model.Printable("note: "+n))
	}
	return texts
}

// digest writes what the limits let it.
func digest(answers []Answer, blocks []block, l *limits) string {
	var texts []string
	if len(blocks) > 1 {
		texts = append(texts, tally(answers))
	}
	for _, b := range blocks[:min(len(blocks), l.blocks)] {
		texts = append(texts, b.text(l))
	}
	if more := len(blocks) - l.blocks; more > 0 {
		l.folded = true
		texts = append(texts, fmt.Sprintf("and %s more\n", model.Count(more, "other answer")))
	}
	return strings.Join(texts, "\n")
}

// tally counts connections by what becomes of them.
func tally(answers []Answer) string {
	n := map[Outcome]int{}
	for _, a := range answers {
		n[a.Outcome]++
	}
	var counts []string
	for _, o := range []Outcome{Denied, Unknown, Allowed} {
		if n[o] == len(answers) {
			return fmt.Sprintf("all %d connections are %s\n", n[o], o)
		}
		if n[o] > 0 {
			counts = append(counts, fmt.Sprintf("%d %s", n[o], isAre(n[o], o)))
		}
	}
	return fmt.Sprintf("of %d connections, %s\n", len(answers), strings.Join(counts, ", "))
}

// newBlock words answers that say the same, by the ways of the first.
func newBlock(alike []Answer, ways [][]Path) block {
	a := alike[0]
	b := block{answers: len(alike), head: []string{a.headline()}}
	reasons, given := a.reasons()
	for _, text := range slices.Concat(a.hidden(), reasons, others(alike)) {
		b.head = append(b.head, "  "+text)
	}
	steps := func(p Path, steps []Step) (lines []string) {
		names := a.names(p)
		for _, s := range steps {
			lines = append(lines, s.line(s.Outcome != a.Outcome || !given[s.said(names)]))
		}
		return lines
	}
	if len(a.Paths) == 1 && a.Paths[0].To.Address == a.To.Address {
		b.ways = []wayText{{ways: 1, details: append(steps(a.Paths[0], a.Paths[0].Steps), a.Paths[0].hints()...)}}
		return b
	}
	common := a.common()
	if common > 0 {
		b.common = steps(a.Paths[0], a.Paths[0].Steps[:common])
	}
	several := a.entriesDiffer()
	for _, same := range ways {
		p := same[0]
		b.ways = append(b.ways, wayText{len(same), heading(same, several) + ": " + p.Outcome.String(), append(steps(p, p.Steps[common:]), p.hints()...)})
	}
	return b
}

// text writes what the limits let it of the block.
func (b block) text(l *limits) string {
	var out strings.Builder
	for _, line := range b.head {
		out.WriteString(model.Printable(line) + "\n")
	}
	l.folded = l.folded || b.answers > 2
	w := tabwriter.NewWriter(&out, 0, 0, 2, ' ', 0)
	write := func(indent string, lines ...string) {
		for _, line := range lines {
			fmt.Fprintf(w, "%s%s\n", indent, line)
		}
	}
	if l.detailed > 0 {
		write("  ", b.common...)
	}
	for _, way := range b.ways[:min(len(b.ways), l.ways)] {
		indent := "  "
		if way.heading != "" {
			write(indent, model.Printable(way.heading))
			indent += "  "
		}
		if l.detailed--; l.detailed >= 0 {
			write(indent, way.details...)
		}
		l.folded = l.folded || l.detailed < 0 || way.ways > maxNames
	}
	if more := len(b.ways) - l.ways; more > 0 {
		l.folded = true
		write("  ", fmt.Sprintf("and in %s more", model.Count(more, "other way")))
	}
	_ = w.Flush() // into memory
	return out.String()
}

// reasons are what denies a connection, or makes its outcome unknown, and given tells which steps
// say them.
func (a Answer) reasons() (texts []string, given map[string]bool) {
	type reason struct {
		Step
		of []string
	}
	var all []*reason
	at := map[string]*reason{}
	for _, p := range a.Paths {
		names := a.names(p)
		for _, s := range p.Steps {
			if s.Outcome != a.Outcome || s.Outcome == Allowed {
				continue
			}
			key := s.said(names)
			r := at[key]
			if r == nil {
				r = &reason{Step: s}
				at[key], all = r, append(all, r)
			}
			if of := s.place(); !slices.Contains(r.of, of) {
				r.of = append(r.of, of)
			}
		}
	}
	given = map[string]bool{}
	for key, r := range at {
		given[key] = slices.Contains(all[:min(len(all), maxReasons)], r)
	}
	by := "by "
	if a.Outcome == Unknown {
		by = "not known: "
	}
	for _, r := range all[:min(len(all), maxReasons)] {
		what := model.FirstFew(r.of, 1)
		switch r.Stage {
		case "":
		case Service:
			what = "service " + what
		default:
			what += ", " + string(r.Stage)
		}
		texts = append(texts, by+what+": "+r.Reason())
	}
	if more := len(all) - maxReasons; more > 0 {
		texts = append(texts, by+model.Count(more, "more reason"))
	}
	return texts, given
}

// place is the step's subject, or else its node.
func (s Step) place() string {
	if subject := s.Subject(); subject != "" || s.Node == "" {
		return subject
	}
	return "node " + s.Node
}

// others says which answers beside the first say the same.
func others(alike []Answer) []string {
	first := alike[0]
	switch len(alike) {
	case 1:
		return nil
	case 2:
		return []string{fmt.Sprintf("in the same way: %v -> %v", alike[1].From, alike[1].To)}
	}
	var names []string
	families := map[bool]bool{}
	for _, a := range alike {
		families[a.To.Address.Is4()] = true
		name := a.From.name()
		if a.To.Object != first.To.Object {
			name += " -> " + a.To.name()
		}
		if (a.From.Object != first.From.Object || a.To.Object != first.To.Object) && !slices.Contains(names, name) {
			names = append(names, name)
		}
	}
	text := fmt.Sprintf("in the same way: %d more connections", len(alike)-1)
	if len(names) > 0 {
		text += ", from " + model.FirstFew(names, maxNames)
	}
	if len(families) > 1 {
		text += ", over IPv4 and IPv6"
	}
	return []string{text}
}

// heading names the ways that the paths are: by which nodes they come in, if there are several, and
// where they lead.
func heading(same []Path, several bool) string {
	var entries, ends []string
	add := func(list *[]string, name string) {
		if !slices.Contains(*list, name) {
			*list = append(*list, name)
		}
	}
	first := same[0]
	by, to := "", "to "+first.To.String()
	if several {
		by = "by node " + first.entry() + ", "
	}
	onAnother := true
	for _, p := range same {
		add(&entries, p.entry())
		add(&ends, p.To.Short())
		onAnother = onAnother && p.To.Node != "" && p.To.Node != p.entry()
	}
	switch {
	case len(same) == 1:
		return by + to
	case len(ends) == 1:
		return "by nodes " + few(entries) + ", " + to
	case len(entries) == 1:
		return by + "to " + few(ends)
	}
	if onAnother {
		to += ", on another node"
	}
	return fmt.Sprintf("%s%s, and %s like it", by, to, model.Count(len(same)-1, "way"))
}

// few names some of what is alike.
func few(names []string) string {
	if more := len(names) - maxNames; more > 0 {
		return fmt.Sprintf("%s and %d like them", strings.Join(names[:maxNames], ", "), more)
	}
	return strings.Join(names, ", ")
}

// hidden warns that policies do not see the client, once for each outcome that they would have if
// they did.
func (a Answer) hidden() (texts []string) {
	ways, first := map[Outcome]int{}, map[Outcome]*HiddenClient{}
	for _, p := range a.Paths {
		if h := p.HiddenClient; h != nil {
			if ways[h.Otherwise]++; first[h.Otherwise] == nil {
				first[h.Otherwise] = h
			}
		}
	}
	for _, o := range []Outcome{Denied, Allowed} {
		h := first[o]
		if h == nil {
			continue
		}
		text := "warning: " + h.String()
		if ways[o] > 1 {
			text += fmt.Sprintf("; so in %d of %d ways", ways[o], len(a.Paths))
		}
		if texts = append(texts, text); h.Remedy != "" {
			texts = append(texts, "  > "+h.Remedy)
		}
	}
	return texts
}
