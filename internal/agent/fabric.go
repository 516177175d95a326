package agent

import (
	"context"
	"errors"
	"net/netip"
	"slices"

	fabric "sluice.dev/sluice/internal/fabric/compile"
	"sluice.dev/sluice/internal/model"
)

// PathProber looks after the ways to other nodes.
type PathProber interface {
	// Run works until ctx ends; paths returns those that there are.
	Run(ctx context.Context, paths func() []model.Path)
	// Missing returns by how many bytes the largest packet is too small that gets to an address.
	// Safe for concurrent use.
	Missing() map[netip.Addr]int
	// Issues names the nodes whose way carries less than it should. Safe for concurrent use.
	Issues() []model.Issue
}

// Hearer asks the far ends of ways to other nodes' pods.
type Hearer interface {
	// Run works until ctx ends; ends returns those that there are.
	Run(ctx context.Context, ends func() []model.FarEnd)
	// Heard returns what is known of those that were asked. Safe for concurrent use, as is Issues.
	Heard() map[model.FarEnd]model.Heard
	// Issues names the nodes that are not heard.
	Issues() []model.Issue
	// Deaf says why nobody can be asked; "": they can.
	Deaf() string
}

// reaching is the subject of the ways to other nodes.
func (a *Agent) reaching() (s subject) {
	if a.Paths != nil {
		s.run = append(s.run, func(ctx context.Context) { a.Paths.Run(ctx, a.paths) })
	}
	if a.Heard != nil {
		s.run = append(s.run, func(ctx context.Context) { a.Heard.Run(ctx, a.farEnds) })
		s.note = a.Heard.Deaf
	}
	s.issues = a.foundWays
	return s
}

// paths are the ways to other nodes; safe for concurrent use.
func (a *Agent) paths() []model.Path {
	a.compiling.Lock()
	defer a.compiling.Unlock()
	return a.Compiler.Fabric.Paths()
}

// farEnds are where the ways to other nodes' pods end; safe for concurrent use.
func (a *Agent) farEnds() []model.FarEnd {
	a.compiling.Lock()
	defer a.compiling.Unlock()
	return a.Compiler.Fabric.FarEnds()
}

// FabricReport is how this node reaches the pods of others.
type FabricReport struct {
	fabric.View
	Error  string        `json:"error,omitempty"` // why the kernel does not have all of it
	Note   string        `json:"note,omitempty"`  // why nothing is heard of other nodes, if they cannot be asked
	Issues []model.Issue `json:"issues"`
}

// errNoFabric is the answer of an agent that leaves the pod network to another program.
var errNoFabric = errors.New("another program reaches the pods of other nodes: this agent runs without --fabric")

// fabricReport returns how this node reaches the pods of others, and what is wrong with that.
func (a *Agent) fabricReport() (FabricReport, error) {
	if a.Compiler.Fabric == nil {
		return FabricReport{}, errNoFabric
	}
	a.compiling.Lock()
	view := a.Compiler.Fabric.View()
	a.compiling.Unlock()
	r := FabricReport{View: view, Issues: a.issuesAbout(a.fabricIssues(), model.IPPoolKind, model.BlockAffinityKind)}
	if a.Heard != nil {
		r.Note = a.Heard.Deaf()
		r.hear(a.Heard.Heard())
	}
	if a.Paths != nil {
		missing := a.Paths.Missing()
		for i, b := range r.Blocks {
			if via, err := netip.ParseAddr(b.Via); err == nil {
				r.Blocks[i].MTU -= missing[via]
			}
		}
	}
	if a.fabric != nil {
		r.Error = a.fabric.Status().Error
	}
	return r, nil
}

// fabricIssues returns what is wrong with the ways to other nodes.
func (a *Agent) fabricIssues() []model.Issue { return append(a.objectsOfWays(), a.foundWays()...) }

// objectsOfWays returns what is wrong with the objects that ways to other nodes are made of.
func (a *Agent) objectsOfWays() []model.Issue {
	if a.Compiler.Fabric == nil {
		return nil
	}
	a.compiling.Lock()
	defer a.compiling.Unlock()
	return slices.Clone(a.Compiler.Fabric.Issues())
}

// foundWays returns the faults in ways to other nodes that probes found, and what the kernel
// refuses.
func (a *Agent) foundWays() (issues []model.Issue) {
	if a.Paths != nil {
		issues = append(issues, a.Paths.Issues()...)
	}
	if a.Heard != nil {
		issues = append(issues, a.Heard.Issues()...)
	}
	if a.Fabric != nil {
		issues = append(issues, Refusals(a.Fabric.SetAside())...)
	}
	return issues
}

// hear adds to each block what was heard by the way to it.
func (r *FabricReport) hear(heard map[model.FarEnd]model.Heard) {
	type way struct {
		via, device string
		is4         bool
	}
	by := make(map[way]*model.Heard, len(heard))
	for of, h := range heard {
		by[way{of.Remote.String(), of.Device, of.To.Is4()}] = &h
	}
	for i, b := range r.Blocks {
		r.Blocks[i].Heard = by[way{b.Via, b.Device, b.CIDR.Addr().Is4()}]
	}
}
