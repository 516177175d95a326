package contest

import (
	"sync"

	"sluice.dev/sluice/internal/model"
)

// Forwarding is the key of a contest about whether the node forwards packets.
const Forwarding = "forwarding"

// Board holds the contests that go on. It is safe for concurrent use, and a nil Board holds none.
type Board struct{ have sync.Map } // of issues by what they are about

// Set shows a contest about something, in place of the last one about it.
func (b *Board) Set(what string, issue model.Issue) {
	if b != nil {
		b.have.Store(what, issue)
	}
}

// Clear ends the contest about something.
func (b *Board) Clear(what string) {
	if b != nil {
		b.have.Delete(what)
	}
}

// About returns the contest about something, if there is one.
func (b *Board) About(what string) (issue model.Issue, shown bool) {
	if b == nil {
		return issue, false
	}
	found, _ := b.have.Load(what)
	issue, shown = found.(model.Issue)
	return issue, shown
}

// Issues returns what it shows, in no order.
func (b *Board) Issues() (list []model.Issue) {
	if b != nil {
		b.have.Range(func(_, issue any) bool { list = append(list, issue.(model.Issue)); return true })
	}
	return list
}
