package agent

import (
	"context"
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"
	"time"

	"sluice.dev/sluice/internal/contest"
	"sluice.dev/sluice/internal/driver"
	"sluice.dev/sluice/internal/foreign"
	"sluice.dev/sluice/internal/model"
	"sluice.dev/sluice/internal/preflight"
	"sluice.dev/sluice/internal/reconcile"
	"sluice.dev/sluice/internal/source"
)

// Status is an agent's report of its own state.
type Status struct {
	OK       bool     `json:"ok"`       // the kernel has all that the sources hold
	Problems []string `json:"problems"` // why not, for people
	// Notes describe conditions that are no problem, as while kube-proxy still runs, and what the
	// agent may not find out.
	Notes []string `json:"notes,omitempty"`

	Node    string         `json:"node"`
	Version string         `json:"version"`
	Mode    string         `json:"mode,omitempty"` // in which services or farms are carried out
	PID     int            `json:"pid"`
	Started time.Time      `json:"started"`
	Uptime  model.Duration `json:"uptime"`

	Source    source.Status  `json:"source"`
	Objects   map[string]int `json:"objects"` // in the store, by kind
	Frontends int            `json:"frontends"`
	Backends  int            `json:"backends"` // over all frontends

	LastApply *Applied           `json:"lastApply,omitempty"` // that changed something in the kernel
	Failure   *reconcile.Failure `json:"failure,omitempty"`   // while the kernel cannot be programmed; the first of Failures
	// That of the fabric, if this agent has it.
	Followers []reconcile.FollowerStatus `json:"followers,omitempty"`
	// Of those that --accelerate names.
	Accelerators []driver.Accelerator `json:"accelerators,omitempty"`
	BGP          *BGPStatus           `json:"bgp,omitempty"`   // if the agent speaks it
	Farms        *FarmsStatus         `json:"farms,omitempty"` // of a balancer
	// Of the parts that fail; all others are in the kernel.
	Failures []reconcile.Failure `json:"failures,omitempty"`
	Heals    int                 `json:"heals"` // changes by others that were undone
	// Contested says that another program goes on changing what is in the kernel, and is undone.
	Contested bool `json:"contested,omitempty"`
	// Frontends, and parts of policy, in the kernel that nothing readable declares; see
	// source.Status.Lacking.
	Kept int `json:"kept,omitempty"`
	// Services and policies whose last change is large and not in the kernel yet.
	Waiting int           `json:"waiting,omitempty"`
	Issues  []model.Issue `json:"issues"` // objects at fault
	// Unserved are the addresses that other processes have, so that the agent could not listen
	// there yet, with the system's errors. Services do not suffer: kube-proxy has them until it
	// ends.
	Unserved  map[string]string `json:"unserved,omitempty"`
	Conntrack *Conntrack        `json:"conntrack,omitempty"` // absent where connection tracking is not loaded
	// Affinity counts the clients of services with session affinity that the kernel remembers;
	// absent if the driver cannot tell.
	Affinity *driver.Remembered `json:"affinity,omitempty"`

	// The following takes longer to find out, and is there only for callers of the API.
	Policy *PolicyStatus `json:"policy,omitempty"` // absent if policy is not enforced
	// Other programs' rules that may drop what is accepted here.
	Obstacles []foreign.Obstacle `json:"obstacles,omitempty"`
}

// Applied describes a plan that was carried out.
type Applied struct {
	Time       time.Time      `json:"time"`
	Path       string         `json:"path"` // "update": only what changed; "adopt": everything was compared with the kernel
	Operations int            `json:"operations"`
	Took       model.Duration `json:"took"` // to plan and apply

	families [2]bool // whose services the plan changed; see families
}

// record is what the loop leaves for Status.
type record struct {
	last     *Applied
	failures []reconcile.Failure
	heals    int
	healed   contest.Pace
	kept     int // in the kernel, only kept
	waiting  int // services and policies

	unserved map[string]string // addresses that cannot be opened, and why
}

// recorded returns the record; safe for concurrent use.
func (a *Agent) recorded() record {
	a.mu.Lock()
	defer a.mu.Unlock()
	r := a.record
	r.unserved = maps.Clone(r.unserved)
	return r
}

// fullStatus is Status with the fields that take longer to find out.
func (a *Agent) fullStatus(ctx context.Context) Status {
	s := a.Status()
	s.Policy = a.policyStatus()
	rules, err := a.otherRules(ctx)
	if err != nil {
		a.Log.Warn("cannot read which rules of other programs drop packets", "error", err)
	}
	s.Obstacles = rules.Obstacles()
	return s
}

// Status returns a snapshot; safe for concurrent use.
func (a *Agent) Status() Status {
	r := a.recorded()
	totals := a.totals()
	s := Status{
		Node: a.Node, Version: a.Version, Mode: a.Mode, PID: os.Getpid(), Started: a.started, Uptime: model.Duration(time.Since(a.started).Round(time.Millisecond)),
		Farms: a.farmsStatus(), Source: a.sourceStatus(), Objects: a.Store.Counts(), Frontends: totals.frontends, Backends: totals.backends,
		LastApply: r.last, Failures: r.failures, Heals: r.heals, Contested: r.healed.Lost(time.Now()), Kept: r.kept, Waiting: r.waiting, Issues: a.issues(),
		Unserved: r.unserved, Notes: a.checks.notes(),
	}
	for _, of := range a.subjects {
		if of.note != nil {
			if note := of.note(); note != "" {
				s.Notes = append(s.Notes, note)
			}
		}
	}
	if len(s.Failures) > 0 {
		s.Failure = &s.Failures[0]
	}
	if a.fabric != nil {
		fabric := a.fabric.Status()
		fabric.Faults = len(a.fabricIssues())
		s.Followers = []reconcile.FollowerStatus{fabric}
	}
	for _, status := range a.Accelerators {
		s.Accelerators = append(s.Accelerators, status())
	}
	s.BGP = a.bgpStatus()
	if c, err := ReadConntrack(); err == nil {
		s.Conntrack = &c
	}
	s.Affinity = a.remembered()
	if s.Issues == nil {
		s.Issues = []model.Issue{} // an empty list in JSON, too
	}
	s.Problems = a.problems(s)
	s.OK = len(s.Problems) == 0
	return s
}

// problems lists in words what prevents the kernel from having everything wanted.
func (a *Agent) problems(s Status) []string {
	problems := []string{}
	switch {
	case !a.Store.Synced():
		problems = append(problems, fmt.Sprintf("%s %s have not been read in full yet: nothing is programmed before", s.Source.Name, s.Source.Where))
	case len(s.Failures) > 0:
		for _, f := range s.Failures {
			problems = append(problems, f.String())
		}
	case !a.health.ready():
		problems = append(problems, "the kernel is being programmed for the first time")
	}
	for _, f := range s.Followers {
		if f.Error != "" {
			problems = append(problems, FabricProblem(f.Error))
		}
	}
	if s.Contested || slices.ContainsFunc(s.Followers, func(f reconcile.FollowerStatus) bool { return f.Contested }) {
		problems = append(problems, "another program goes on changing what is programmed in the kernel, which is put right each time: find it (nft monitor names who writes tables of nftables), and end it or have it leave Sluice's tables and routes alone")
	}
	if s.BGP != nil && s.BGP.Error != "" {
		problems = append(problems, BGPProblem(s.BGP.Error))
	}
	if s.BGP != nil && len(s.BGP.Down) > 0 {
		problems = append(problems, fmt.Sprintf("there is no BGP session with %d of %s: 'sluice bgp' says why", len(s.BGP.Down), model.Count(s.BGP.Peers, "peer")))
	}
	if why := a.blocked(); why != "" && a.Store.Synced() {
		problems = append(problems, "not ready: "+why)
	}
	if s.Kept > 0 {
		problems = append(problems, Keeping(s.Kept, s.Source.Lacking))
	}
	if s.Waiting > 0 {
		problems = append(problems, "large changes of "+model.Count(s.Waiting, "object")+" are being programmed, in slices, so that other changes have their turn")
	}
	if n := len(a.Driver.SetAside()); n > 0 {
		problems = append(problems, "the kernel refuses what is made of "+model.Count(n, "object")+": they are set aside, and everything else is in the kernel")
	}
	if n := len(s.Issues); n > 0 {
		problems = append(problems, model.Count(n, "fault")+rest(s.Source)+"; each says what is in force of its object, if that is known")
	}
	if c := s.Conntrack; c != nil && c.crowded() != "" {
		problems = append(problems, c.crowded())
	}
	for _, t := range preflight.ReadNeighbours() {
		if s.Objects[string(model.NodeKind)] > t.Most { // few clusters are that large
			if seen, do := t.Crowded(a.beside(t.IPv4)); seen != "" {
				problems = append(problems, seen+"; "+do)
			}
		}
	}
	if r := s.Affinity; r != nil && r.Fullest() > affinityWarning {
		problems = append(problems, fmt.Sprintf("the map of clients of services with session affinity is %d %% full: the oldest clients of the services with the most clients are balanced anew", r.Fullest()))
	}
	return problems
}

// rest says what remains in force, in a source that reports faults.
func rest(s source.Status) string {
	behind := func(k source.Following) bool { return k.Behind > 0 }
	if len(s.Unread) > 0 || slices.ContainsFunc(s.Kinds, behind) {
		return ", in objects or in reading them; what was read before stays in force, and what changed since may not be known"
	}
	return " in objects; the rest works"
}

// blocked returns why the agent is not ready though it has programmed all that it knows: it may
// know no pods, or take itself for another node. A rollout should stop there. "" if it is ready.
func (a *Agent) blocked() string {
	if kinds := a.Source.Status().Unread; len(kinds) > 0 {
		return Unread(kinds)
	}
	return a.misnamed()
}

// issues returns the faults that the source, the compiler and the agent itself found in objects:
// sorted, without duplicates.
func (a *Agent) issues() []model.Issue {
	issues := append(a.found(), a.Source.Status().Issues...)
	slices.SortFunc(issues, model.Issue.Compare)
	return slices.Compact(issues)
}

// issuesAbout returns those of all issues that are in found, or about objects of these kinds. So a
// report names no issue that status does not.
func (a *Agent) issuesAbout(found []model.Issue, kinds ...model.Kind) []model.Issue {
	list := []model.Issue{} // an empty list in JSON, too
	about := make(map[model.Issue]bool, len(found))
	for _, i := range found {
		about[i] = true
	}
	for _, i := range a.issues() {
		if about[i] || slices.Contains(kinds, i.Object.Kind) {
			list = append(list, i)
		}
	}
	return list
}

// BGPProblem and FabricProblem are an error in the words of every command.
func BGPProblem(err string) string { return "BGP does not work as it should: " + err }

// FabricProblem is described with BGPProblem.
func FabricProblem(err string) string {
	return "tunnels and routes to other nodes could not be programmed: " + err
}

// found returns the faults that the compiler, the driver, the agent itself and its subjects found.
func (a *Agent) found() []model.Issue {
	a.compiling.Lock()
	issues := a.Compiler.Issues()
	lacks := a.Driver.Capabilities().Issues(a.Compiler.State())
	a.compiling.Unlock()
	issues = slices.Concat(issues, lacks, a.checks.issues(), a.Contests.Issues(), Refusals(a.Driver.SetAside()))
	for _, s := range a.subjects {
		if s.issues != nil {
			issues = append(issues, s.issues()...)
		}
	}
	return issues
}

// Refusals makes issues of what is set aside.
func Refusals(list []driver.SetAside) []model.Issue {
	issues := make([]model.Issue, len(list))
	for i, s := range list {
		issues[i] = model.Issue{Object: model.Ref{Kind: model.Kind(s.Kind), Name: s.Name}, Reason: s.Reason, InForce: s.InForce}
	}
	return issues
}

// totals are counts over the desired state, made on demand.
type totals struct {
	frontends, backends int
	// By family: service ports with a Local policy that finds no endpoint here, though there are
	// some elsewhere.
	noLocalForInternal, noLocalForExternal [2]int
}

func (a *Agent) totals() totals {
	type port struct {
		service model.Name
		name    string
	}
	internal, external := [2]map[port]bool{{}, {}}, [2]map[port]bool{{}, {}}
	var t totals
	a.compiling.Lock()
	defer a.compiling.Unlock()
	for key, f := range a.Compiler.State().Services.Frontends {
		family := familyOf(key.Addr.Is4())
		t.frontends++
		t.backends += len(f.Backends)
		switch {
		case f.LocalOnly && len(f.Local) == 0 && len(f.Backends) > 0:
			external[family][port{f.Service, f.Port}] = true
		case !f.External() && len(f.Backends) == 0 && !f.Reject:
			internal[family][port{f.Service, f.Port}] = true
		}
	}
	for family := range families {
		t.noLocalForInternal[family], t.noLocalForExternal[family] = len(internal[family]), len(external[family])
	}
	return t
}

// FaultError says which objects are at fault.
type FaultError struct {
	Issues []model.Issue
}

// Error returns the issues, one a line after the first.
func (e *FaultError) Error() string {
	var b strings.Builder
	b.WriteString(model.Count(len(e.Issues), "object") + " at fault:")
	for _, i := range model.IssueLines(e.Issues) {
		b.WriteString("\n  " + i)
	}
	return b.String()
}
