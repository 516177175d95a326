package contest

import (
	"maps"
	"slices"
	"sync"

	"sluice.dev/sluice/internal/model"
)

// Forwarding is what a contest about whether the node passes packets on is under.
const Forwarding = "forwarding"

// Board shows the contests that go on. It is safe for concurrent use, and nil takes none.
type Board struct {
	mu   sync.Mutex
	have map[string]model.Issue
}

// Set has the board show a contest about something, in place of the last one about it.
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

// Clear has the board show none about something.
func (b *Board) Clear(what string) {
	if b == nil {
		return
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	delete(b.have, what)
}

// About returns the contest about something that it shows, if it shows one.
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
