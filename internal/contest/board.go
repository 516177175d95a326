package contest

import (
	"maps"
	"slices"
	"sync"

	"sluice.dev/sluice/internal/model"
)

// Forwarding is the key of a contest about whether the node forwards packets.
const Forwarding = "forwarding"

// Board holds the contests that go on. It is safe for concurrent use, and a nil Board holds none.
type Board struct {
	mu   sync.Mutex
	have map[string]model.Issue
}

// Set shows a contest about something, in place of the last one about it.
func (b *Board) Set(what string, issue model.Issue) {
	if b == nil {
		return
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.have == nil {
		b.have = map[string]model.Issue{}
	}
	b.have[what] = issue
}

// Clear ends the contest about something.
func (b *Board) Clear(what string) {
	if b == nil {
		return
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	delete(b.have, what)
}

// About returns the contest about something, if there is one.
func (b *Board) About(what string) (issue model.Issue, shown bool) {
	if b == nil {
		return issue, false
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	issue, shown = b.have[what]
	return issue, shown
}

// Issues returns what it shows, in no order.
func (b *Board) Issues() []model.Issue {
	if b == nil {
		return nil
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	return slices.Collect(maps.Values(b.have))
}
