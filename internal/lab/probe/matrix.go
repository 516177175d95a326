package probe

import (
	"slices"
	"strings"
	"unicode/utf8"
)

// Matrix returns the table in its smallest form: a column for each service, whatever its ports,
// under the service's name, and the legend. nil: it would be wider than that.
func (p *Pairs) Matrix(width int) []string {
	var services []string
	columns := make([]int, len(p.Ports)) // by port
	for i, port := range p.Ports {
		columns[i] = place(&services, port[:strings.LastIndex(port, ":")])
	}
	heads, clients := shortest(services), shortest(p.Clients)
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
			glyph := p.over(i, func(port int) bool { return columns[port] == col })
			used[glyph] = true
			left := (utf8.RuneCountInString(head) - 1) / 2
			line += "  " + strings.Repeat(" ", left) + glyph + strings.Repeat(" ", utf8.RuneCountInString(head)-left-1)
		}
		lines = append(lines, strings.TrimRight(line, " "))
	}
	return append(lines, explain(used))
}

// over returns the glyph for several ports of a client's row: theirs, or that they differ.
func (p *Pairs) over(row int, of func(port int) bool) string {
	all := map[string]bool{}
	for port, c := range p.Cells[row] {
		if of(port) && c.asked {
			all[c.glyph()] = true
		}
	}
	for _, g := range []string{glyphWrong, glyphExcused} {
		if all[g] {
			return g
		}
	}
	if len(all) > 1 {
		return glyphPartly
	}
	for g := range all {
		return g
	}
	return glyphNothing
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
