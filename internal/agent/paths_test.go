package agent

import (
	"context"
	"strings"
	"testing"

	"sluice.dev/sluice/internal/model"
)

// paths is a prober that finds a fault in each way that there is.
type paths struct{ asked chan []model.Path }

func (p paths) Run(ctx context.Context, of func() []model.Path) {
	select {
	case p.asked <- of():
	case <-ctx.Done():
	}
	<-ctx.Done()
}

func (paths) Issues() []model.Issue {
	return []model.Issue{model.Ref{Kind: model.NodeKind, Name: model.Name{Name: "far"}}.Issue("packets of 1500 bytes do not reach it")}
}

// What is found out of the ways to other nodes is a fault that the status shows.
func TestPaths(t *testing.T) {
	p := paths{make(chan []model.Path)}
	b := start(t, func(c *Config) { c.Paths = p })
	if got := <-p.asked; len(got) != 0 {
		t.Errorf("ways of a node that has none: %v", got)
	}
	b.source.sync()
	eventually(t, "the fault is told", func() bool {
		s := b.Status()
		return len(s.Issues) == 1 && !s.OK && strings.Contains(s.Issues[0].Reason, "1500 bytes")
	})
}
