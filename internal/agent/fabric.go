package agent

import (
	"errors"
	"slices"

	"sluice.dev/sluice/internal/compile/fabric"
	"sluice.dev/sluice/internal/driver"
	"sluice.dev/sluice/internal/model"
)

// FabricReport is how this node reaches the pods of others.
type FabricReport struct {
	fabric.View
	Error  string        `json:"error,omitempty"` // why the kernel does not have all of it
	Issues []model.Issue `json:"issues"`
}

// errNoFabric is the answer of an agent that leaves the pod network to another program.
var errNoFabric = errors.New("another program reaches the pods of other nodes: this agent runs without --fabric")

// fabricReport returns how this node reaches the pods of others, and what is wrong with that.
func (a *Agent) fabricReport() (FabricReport, error) {
	a.compiling.Lock()
	view, issues := a.Compiler.FabricView()
	a.compiling.Unlock()
	if view == nil {
		return FabricReport{}, errNoFabric
	}
	issues = slices.Clone(issues)
	if a.Paths != nil {
		issues = append(issues, a.Paths.Issues()...)
	}
	for _, d := range a.Config.Accelerators {
		if d.Capabilities().Can&driver.Fabric != 0 {
			issues = append(issues, Refusals(d.SetAside())...)
		}
	}
	r := FabricReport{View: *view, Issues: a.issuesAbout(issues, model.IPPoolKind, model.BlockAffinityKind)}
	for _, f := range a.accelerators {
		if s := f.Status(); s.Fabric {
			r.Error = s.Error
		}
	}
	return r, nil
}
