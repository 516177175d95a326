package importer

import (
	"cmp"
	"fmt"
	"slices"
)

// Note is one thing that was left out or changed.
type Note struct {
	Line int    // where it stands in what was read, from 1
	What string // as it is written there
	Why  string // what becomes of it, and the reason
}

// notes collects what is to be said.
type notes struct {
	list []Note
	said map[string]bool
}

func (n *notes) add(line int, what, why string, args ...any) {
	n.list = append(n.list, Note{line, what, fmt.Sprintf(why, args...)})
}

// once is add for what holds of the whole file: it is said where it first applies.
func (n *notes) once(line int, what, why string) {
	if n.said == nil {
		n.said = map[string]bool{}
	}
	if !n.said[why] {
		n.said[why] = true
		n.list = append(n.list, Note{line, what, why})
	}
}

// sorted returns the notes by line, and for a line in the order in which they were made.
func (n *notes) sorted() []Note {
	slices.SortStableFunc(n.list, func(a, b Note) int { return cmp.Compare(a.Line, b.Line) })
	return n.list
}
