package agent

import (
	"errors"
	"net/netip"
	"slices"

	"sluice.dev/sluice/internal/driver"
	fabric "sluice.dev/sluice/internal/fabric/compile"
	"sluice.dev/sluice/internal/model"
)

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
	for _, f := range a.accelerators {
		if s := f.Status(); s.Fabric {
			r.Error = s.Error
		}
	}
	return r, nil
}

// wayIssues returns what objects and packets tell of ways to other nodes that are at fault.
func (a *Agent) wayIssues() (issues []model.Issue) {
	if a.Compiler.Fabric != nil {
		a.compiling.Lock()
		issues = slices.Clone(a.Compiler.Fabric.Issues())
		a.compiling.Unlock()
	}
	if a.Paths != nil {
		issues = append(issues, a.Paths.Issues()...)
	}
	return issues
}

// fabricIssues returns what is wrong with the ways to other nodes.
func (a *Agent) fabricIssues() []model.Issue {
	issues := a.wayIssues()
	if a.Heard != nil {
		issues = append(issues, a.Heard.Issues()...)
	}
	for _, d := range a.Config.Accelerators {
		if d.Capabilities().Can&driver.Fabric != 0 {
			issues = append(issues, Refusals(d.SetAside())...)
		}
	}
	return issues
}

// hear says of each block what was heard of the way to it.
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
