package importer

import (
	"cmp"
	"fmt"
	"slices"
)

// Note is one thing that is to be said of what was read.
type Note struct {
	File string // that was included; empty: the one that was to be read
	Line int    // where it stands in the file, from 1
	What string // as it is written there
	Why  string // what becomes of it, and the reason
	Loss Loss
}

// Loss is how much of what a note is about is lost.
type Loss int

const (
	// Nothing is lost: it has another name here, or had no effect there.
	Nothing Loss = iota
	// Part was left out, or means something else now.
	Part
	// Whole is a virtual server, one of its addresses or a server that was not taken over, or lines
	// that may have some.
	Whole
)

// notes collects what is to be said.
type notes struct {
	list  []Note
	said  map[string]bool
	lines []lineOf // of lines by number, less one, where these run through several files
}

// lineOf is a line of a file.
type lineOf struct {
	file string // as in Note
	line int
}

// add says what is lost in part.
func (n *notes) add(line int, what, why string, args ...any) { n.note(Part, line, what, why, args...) }

// lost says what is lost as a whole.
func (n *notes) lost(line int, what, why string, args ...any) {
	n.note(Whole, line, what, why, args...)
}

func (n *notes) note(l Loss, line int, what, why string, args ...any) {
	n.list = append(n.list, Note{Line: line, What: what, Why: fmt.Sprintf(why, args...), Loss: l})
}

// once is note for what holds of the whole file: it is said where it first applies.
func (n *notes) once(l Loss, line int, what, why string) {
	if n.said == nil {
		n.said = map[string]bool{}
	}
	if !n.said[why] {
		n.said[why] = true
		n.list = append(n.list, Note{Line: line, What: what, Why: why, Loss: l})
	}
}

// sorted returns the notes in the order in which lines were read, and for a line in that in which
// they were made.
func (n *notes) sorted() []Note {
	slices.SortStableFunc(n.list, func(a, b Note) int { return cmp.Compare(a.Line, b.Line) })
	for i := range n.list {
		if note := &n.list[i]; n.lines != nil {
			p := n.lines[note.Line-1]
			note.File, note.Line = p.file, p.line
		}
	}
	return n.list
}
