package harness

import (
	"context"
	"fmt"
	"time"

	"sluice.dev/sluice/test/bench/cluster"
)

// growth are numbers of endpoints, each in another size class.
var growth = []int{13, 17, 25, 33}

// Changer makes changes to one agent's manifests and times them.
type Changer struct {
	*Agent
	C       cluster.Cluster
	Commits *CommitWatch
	grown   int // services that NextClass has changed
	places  int // services that NextInPlace has changed
}

// NextInPlace is a manifest that takes an endpoint from the next service; the next pass over all
// services gives it back. Ten and nine endpoints are in one size class.
func (a *Changer) NextInPlace() cluster.File {
	i := a.places
	a.places++
	return a.C.SliceFile(i%a.C.Services, a.C.Endpoints-1+i/a.C.Services%2)
}

// NextClass is a manifest with which the next service, counted from the end, grows into another
// size class.
func (a *Changer) NextClass() cluster.File {
	i := a.grown
	a.grown++
	return a.C.SliceFile(a.C.Services-1-i%a.C.Services, growth[i/a.C.Services%len(growth)])
}

// TimeChange makes a change and returns the time until the kernel has committed the last
// transaction for it.
func (a *Changer) TimeChange(ctx context.Context, f cluster.File) (time.Duration, error) {
	if err := a.StageFile(f); err != nil {
		return 0, fmt.Errorf("write manifest: %w", err)
	}
	a.Commits.Discard()
	began := time.Now()
	if err := a.Place(f); err != nil {
		return 0, fmt.Errorf("change manifest: %w", err)
	}
	c, err := a.Commits.Last(ctx, 15*time.Millisecond)
	if err != nil {
		return 0, fmt.Errorf("%s: %w", f.Name, err)
	}
	return c.At.Sub(began), nil
}
