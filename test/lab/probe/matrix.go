package probe

import (
	"slices"
	"strings"
	"unicode/utf8"
)

// Matrix returns the table in its smallest form: a column for each service, whatever its ports,
// under the service's name, and the legend. nil: it would be wider than that.
func (p *Pairs) Matrix(width int) []string {
	p = p.ByService()
	heads, clients := shortest(p.Ports), shortest(p.Clients)
	margin := 0
	for _, c := range clients {
		margin = max(margin, utf8.RuneCountInString(c))
	}
	lines := []string{strings.Repeat(" ", margin) + "  " + strings.Join(heads, "  ")}
	if utf8.RuneCountInString(lines[0]) > width {
		return nil
	}
	used := map[string]bool{glyphPass: true, glyphDrop: true}
	for i, name := range clients {
		line := name + strings.Repeat(" ", margin-utf8.RuneCountInString(name))
		for col, head := range heads {
			glyph := p.Cells[i][col].glyph()
			used[glyph] = true
			left := (utf8.RuneCountInString(head) - 1) / 2
			line += "  " + strings.Repeat(" ", left) + glyph + strings.Repeat(" ", utf8.RuneCountInString(head)-left-1)
		}
		lines = append(lines, strings.TrimRight(line, " "))
	}
	return append(lines, explain(used))
}

// ByService returns the table with a column for each service, whatever its ports, which are one
// pair with a client.
func (p *Pairs) ByService() *Pairs {
	s := &Pairs{Clients: p.Clients, Unjudged: p.Unjudged, services: true}
	columns := make([]int, len(p.Ports)) // by port
	for i, port := range p.Ports {
		columns[i] = place(&s.Ports, port[:strings.LastIndex(port, ":")])
	}
	for _, row := range p.Cells {
		cells := make([]Cell, len(s.Ports))
		for i, c := range row {
			cells[columns[i]].join(c)
		}
		for _, c := range cells {
			s.count(c)
		}
		s.Cells = append(s.Cells, cells)
	}
	return s
}

// join adds the cell of another port.
func (c *Cell) join(o Cell) {
	if !o.asked || !c.asked {
		if o.asked {
			*c = o
		}
		return
	}
	if c.Expected != o.Expected || c.Expected == Unknown && c.Passed != o.Passed {
		c.Expected = Partly
	}
	c.Passed = c.Passed && o.Passed
	c.Excused = c.Excused || o.Excused
	c.Failures = slices.Concat(c.Failures, o.Failures)
}

// shortest leaves out the namespaces of names, if they stay apart without.
func shortest(names []string) []string {
	var bare []string
	for _, n := range names {
		bare = append(bare, n[strings.Index(n, "/")+1:])
	}
	if apart := slices.Compact(slices.Sorted(slices.Values(bare))); len(apart) == len(bare) {
		return bare
	}
	for i, n := range names {
		bare[i] = short(n)
	}
	return bare
}
