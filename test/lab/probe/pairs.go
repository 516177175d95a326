package probe

import (
	"cmp"
	"fmt"
	"io"
	"slices"
	"strings"

	"sluice.dev/sluice/test/lab/plan"
)

// PairTries lists the tries for the table of who reaches what: one client of each workload, through
// the cluster addresses of each service port that has endpoints.
func PairTries(c *plan.Cluster, clients []Source) []Try {
	tries, _ := Tries(c, clients)
	return slices.DeleteFunc(tries, func(t Try) bool { return t.Frontend.Kind != ClusterIP || t.Fate == Refused })
}

// Pairs is the table of who reaches what: clients are its rows, service ports its columns. A pair
// counts unless the service is the client's own.
type Pairs struct {
	Clients  []string `json:"clients"` // workloads, "namespace/name"
	Ports    []string `json:"ports"`   // "namespace/name:port", with "/UDP" for UDP
	Cells    [][]Cell `json:"cells"`   // by client, then by port
	Count    int      `json:"pairs"`
	Pass     int      `json:"pass"`
	Expected int      `json:"expected"` // how many should pass
	Unjudged string   `json:"unjudged,omitempty"`

	partly   int  // how many are drawn as passing in part
	services bool // the columns are services
}

// Cell is the outcome of one client's requests to one service port.
type Cell struct {
	Passed   bool     `json:"passed"` // all requests were answered
	Expected Fate     `json:"expected"`
	Own      bool     `json:"own,omitempty"`
	Failures []string `json:"failures,omitempty"` // the wrong outcomes
	Excused  bool     `json:"excused,omitempty"`  // neither checked nor counted, as the cluster changed meanwhile
	asked    bool
}

// NewPairs makes the table of the results of PairTries.
func NewPairs(results []Result) *Pairs {
	p := &Pairs{}
	for _, r := range results {
		row, col := place(&p.Clients, r.Of), place(&p.Ports, port(r.Frontend))
		for len(p.Cells) <= row {
			p.Cells = append(p.Cells, nil)
		}
		for len(p.Cells[row]) <= col {
			p.Cells[row] = append(p.Cells[row], Cell{})
		}
		p.Cells[row][col].add(r)
		if r.Fate == Unknown {
			p.Unjudged = cmp.Or(p.Unjudged, r.Why)
		}
	}
	for _, row := range p.Cells {
		for _, c := range row {
			p.count(c)
		}
	}
	return p
}

func (p *Pairs) count(c Cell) {
	if !c.asked || c.Own || c.Excused {
		return
	}
	p.Count++
	switch {
	case c.glyph() == glyphPartly:
		p.partly++
	case c.Passed:
		p.Pass++
	}
	if c.Expected == Answered {
		p.Expected++
	}
}

// place returns the index of a name in a list, to which it is added if missing.
func place(list *[]string, name string) int {
	i := slices.Index(*list, name)
	if i < 0 {
		i = len(*list)
		*list = append(*list, name)
	}
	return i
}

// add adds the result of one address family.
func (c *Cell) add(r Result) {
	passed := len(r.By) > 0
	if !c.asked {
		c.asked, c.Passed, c.Expected, c.Own = true, passed, r.Fate, r.Own
	}
	if c.Expected != r.Fate {
		c.Expected = Partly // one family passes and the other does not
	}
	c.Passed = c.Passed && passed
	c.Excused = c.Excused || r.Excused > 0
	if r.Failed > 0 {
		c.Failures = append(c.Failures, fmt.Sprintf("%s → %s at %s: %s", short(r.Source.Name), short(port(r.Frontend)), r.To.Addr(), r.Reason))
	}
}

func port(f Frontend) string {
	text := fmt.Sprintf("%s:%d", f.Service, f.To.Port())
	if f.Protocol != "TCP" {
		text += "/" + f.Protocol
	}
	return text
}

// These are the glyphs of the table.
const (
	glyphPass    = "●"
	glyphDrop    = "·"
	glyphOwn     = "○"
	glyphPartly  = "◐"
	glyphWrong   = "!"
	glyphExcused = "?"
	glyphNothing = " "
)

func (c Cell) glyph() string {
	switch {
	case !c.asked:
		return glyphNothing
	case len(c.Failures) > 0:
		return glyphWrong
	case c.Excused:
		return glyphExcused
	case c.Own:
		return glyphOwn
	case c.Expected == Partly:
		return glyphPartly
	case c.Passed:
		return glyphPass
	}
	return glyphDrop
}

// legend explains the glyphs.
var legend = []struct{ glyph, text string }{
	{glyphPass, "passes"},
	{glyphDrop, "dropped"},
	{glyphOwn, "its own service, not counted"},
	{glyphPartly, "in part: not all ports, endpoints or address families"},
	{glyphWrong, "not as the policies say"},
	{glyphExcused, "not checked, the cluster changed meanwhile"},
}

// explain returns the legend of the used glyphs.
func explain(used map[string]bool) string {
	var texts []string
	for _, l := range legend {
		if used[l.glyph] {
			texts = append(texts, l.glyph+" "+l.text)
		}
	}
	return strings.Join(texts, "   ")
}

// Table writes the table for people: a line leads from each column to its name.
func (p *Pairs) Table(w io.Writer) {
	line := func(format string, args ...any) {
		_, _ = fmt.Fprintln(w, strings.TrimRight(fmt.Sprintf(format, args...), " "))
	}
	width := len("CLIENT")
	for _, c := range p.Clients {
		width = max(width, len(short(c)))
	}
	for i, name := range p.Ports {
		line("%*s  %s┌─ %s", width, "", strings.Repeat("│ ", i), short(name))
	}
	line("%-*s  %s", width, "CLIENT", strings.Repeat("│ ", len(p.Ports)))
	used := map[string]bool{glyphPass: true, glyphDrop: true}
	for i, c := range p.Clients {
		var glyphs []string
		for _, cell := range p.Cells[i] {
			glyphs = append(glyphs, cell.glyph())
			used[cell.glyph()] = true
		}
		line("%-*s  %s", width, short(c), strings.Join(glyphs, " "))
	}
	line("%*s  %s", width, "", explain(used))
	for _, f := range p.Failures() {
		line("%s %s", glyphWrong, f)
	}
}

// Failures lists the wrong outcomes.
func (p *Pairs) Failures() (all []string) {
	for _, row := range p.Cells {
		for _, c := range row {
			all = append(all, c.Failures...)
		}
	}
	return all
}

// Failed returns how many pairs, own services included, had a wrong outcome.
func (p *Pairs) Failed() int {
	n := 0
	for _, row := range p.Cells {
		for _, c := range row {
			if len(c.Failures) > 0 {
				n++
			}
		}
	}
	return n
}

// Summary returns one sentence.
func (p *Pairs) Summary() string {
	if p.Count == 0 && p.Unjudged == "" {
		return "no client has another's service to ask"
	}
	of := "port"
	if p.services {
		of = "service"
	}
	text := fmt.Sprintf("%d of %d pairs of client and %s pass", p.Pass, p.Count, of)
	if p.partly > 0 {
		text += fmt.Sprintf(" (%d more in part)", p.partly)
	}
	switch failed := p.Failed(); {
	case p.Unjudged != "":
		return text + ", not checked: there are " + p.Unjudged
	case failed > 0:
		return fmt.Sprintf("%s, %d should: %d NOT AS THE POLICIES SAY", text, p.Expected, failed)
	}
	return text + ", as the policies say"
}
