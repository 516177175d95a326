package importer

import (
	"cmp"
	"fmt"
	"slices"
)

// Note is one thing that is to be said of what was read.
type Note struct {
	Line int    // where it stands in what was read, from 1
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
	list []Note
	said map[string]bool
}

// add says what is lost in part.
func (n *notes) add(line int, what, why string, args ...any) { n.note(Part, line, what, why, args...) }

// lost says what is lost as a whole.
func (n *notes) lost(line int, what, why string, args ...any) {
	n.note(Whole, line, what, why, args...)
}

func (n *notes) note(l Loss, line int, what, why string, args ...any) {
	n.list = append(n.list, Note{line, what, fmt.Sprintf(why, args...), l})
}

// once is note for what holds of the whole file: it is said where it first applies.
func (n *notes) once(l Loss, line int, what, why string) {
	if n.said == nil {
		n.said = map[string]bool{}
	}
	if !n.said[why] {
		n.said[why] = true
		n.list = append(n.list, Note{line, what, why, l})
	}
}

// sorted returns the notes by line, and for a line in the order in which they were made.
func (n *notes) sorted() []Note {
	slices.SortStableFunc(n.list, func(a, b Note) int { return cmp.Compare(a.Line, b.Line) })
	return n.list
}
