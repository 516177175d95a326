package speaker

import (
	"sync"

	"sluice.dev/sluice/internal/lib/wake"
)

// inbox holds what is to be done by the goroutine of Run, in order. It never makes those wait who
// post: they may hold locks of the server that Run is about to ask for.
type inbox struct {
	mu   sync.Mutex
	todo []func()
	wake wake.Signal
}

func newInbox() inbox { return inbox{wake: wake.New()} }

func (in *inbox) post(f func()) {
	in.mu.Lock()
	in.todo = append(in.todo, f)
	in.mu.Unlock()
	in.wake.Set()
}

func (in *inbox) take() []func() {
	in.mu.Lock()
	defer in.mu.Unlock()
	todo := in.todo
	in.todo = nil
	return todo
}
