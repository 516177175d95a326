package agent

import (
	"context"
	"fmt"
	"maps"
	"slices"

	"sluice.dev/sluice/internal/driver"
	"sluice.dev/sluice/internal/model"
	policy "sluice.dev/sluice/internal/policy/compile"
	"sluice.dev/sluice/internal/state"
	"sluice.dev/sluice/internal/store"
)

// PolicyReport is a policy as this node has it.
type PolicyReport struct {
	policy.View
	// Allowed and Denied are the packets that it has decided since it was first programmed, as
	// driver.PolicyCounter counts them. They are absent if it is not programmed or the driver does
	// not count.
	Allowed *uint64 `json:"allowedPackets,omitempty"`
	Denied  *uint64 `json:"deniedPackets,omitempty"`
	// Issues are its faults except those in Refused, each with what is in force meanwhile. If
	// nothing of it is in force, the report has only its name beside.
	Issues []string `json:"issues,omitempty"`
}

// errNoPolicy says why there is nothing to report about policies.
var errNoPolicy = fmt.Errorf("this agent does not carry out policy: it was started with --policy=false")

// Policies returns all policies in the order in which packets meet them, then faulty ones of which
// nothing is in force. It is safe for concurrent use.
func (a *Agent) Policies(ctx context.Context) ([]PolicyReport, error) {
	if a.Compiler.Policy == nil {
		return nil, errNoPolicy
	}
	views := reading(a, a.Compiler.Policy.Views)
	counters, err := a.counters(ctx)
	if err != nil {
		return nil, err
	}
	faults := byObject(a.issues())
	reports := make([]PolicyReport, 0, len(views))
	for _, v := range views {
		key := keyOf(v)
		r := PolicyReport{View: v, Issues: notes(faults[key], v.Refused)}
		delete(faults, key)
		if c, ok := counters[key]; ok {
			r.Allowed, r.Denied = &c.Allowed, &c.Denied
		}
		reports = append(reports, r)
	}
	for _, key := range slices.SortedFunc(maps.Keys(faults), model.Ref.Compare) {
		if slices.Contains(model.PolicyKinds, key.Kind) && key.Name.Name != "" {
			v := policy.View{Kind: key.Kind, Namespace: key.Name.Namespace, Name: key.Name.Name}
			reports = append(reports, PolicyReport{View: v, Issues: notes(faults[key], "")})
		}
	}
	return reports, nil
}

// byObject groups issues by their object.
func byObject(issues []model.Issue) map[model.Ref][]model.Issue {
	by := map[model.Ref][]model.Issue{}
	for _, i := range issues {
		by[i.Object] = append(by[i.Object], i)
	}
	return by
}

// notes returns the issues' reasons with what is in force. Reasons in Refused are left out.
func notes(issues []model.Issue, refused string) (notes []string) {
	for _, i := range issues {
		if i.Reason != refused {
			notes = append(notes, i.Text())
		}
	}
	return notes
}

func keyOf(v policy.View) model.PolicyKey {
	return model.PolicyKey{Kind: v.Kind, Name: model.Name{Namespace: v.Namespace, Name: v.Name}}
}

// counters reads how many packets policies have decided; nothing if the driver does not count.
func (a *Agent) counters(ctx context.Context) (map[model.PolicyKey]driver.PolicyCounter, error) {
	counter := a.Driver.Capabilities().Counter
	if counter == nil {
		return nil, nil
	}
	list, err := counter.PolicyCounters(ctx)
	if err != nil {
		return nil, fmt.Errorf("read policy counters: %w", err)
	}
	byKey := make(map[model.PolicyKey]driver.PolicyCounter, len(list))
	for _, c := range list {
		byKey[c.Policy] = c
	}
	return byKey, nil
}

// PolicyStatus sums up what policy does on the node.
type PolicyStatus struct {
	Policies int `json:"policies"` // known, on this node or not
	Selected int `json:"selected"` // pods of this node that a policy selects
	Local    int `json:"local"`    // pods of this node
	Rules    int `json:"programs"` // sets of rules that judge them; pods with the same policies share one

	Sets        int `json:"sets"`        // sets of pod addresses that are programmed
	Members     int `json:"members"`     // addresses in them, counted for each set
	Lists       int `json:"lists"`       // lists of networks that are programmed
	ListEntries int `json:"listEntries"` // networks in them

	// AddressLists are the entries of the lists that are read from files, programmed or not.
	AddressLists map[string]int `json:"addressLists,omitempty"`
	// Bridged are the pods behind a bridge, sorted. They are judged by their address alone.
	Bridged []string `json:"bridged,omitempty"`
	// Unrouted are the pods to which no route of the main table leads, sorted. Everything that they
	// send is dropped.
	Unrouted []string `json:"unrouted,omitempty"`
	// Refused are the policies that deny everything they select, as they cannot be carried out as
	// written.
	Refused []string `json:"refused,omitempty"`
	// Ignored are the policies that have no effect, as they cannot be carried out as written, and
	// the agent was told to ignore such ones.
	Ignored []string `json:"ignored,omitempty"`
}

// policyStatus returns nil if policy is not enforced.
func (a *Agent) policyStatus() *PolicyStatus {
	var s PolicyStatus
	counts := a.Store.Counts()
	for _, kind := range model.PolicyKinds {
		s.Policies += counts[string(kind)]
	}
	a.Store.Read(func(v *store.View) {
		s.AddressLists = v.AddressLists()
		for _, p := range v.Policies() {
			if p.Ignored {
				s.Ignored = append(s.Ignored, p.Key.String())
			}
		}
	})
	slices.Sort(s.Ignored)
	a.compiling.Lock()
	defer a.compiling.Unlock()
	p := a.carriedOut(a.Compiler.State()).Policy
	if p == nil {
		return nil
	}
	s.CountPods(p)
	s.Rules, s.Sets, s.Lists = len(p.Rules), len(p.Groups), len(p.Lists)+len(p.Denied.Lists)
	for _, members := range p.Groups {
		s.Members += len(members)
	}
	for _, list := range p.Lists {
		s.ListEntries += len(list.Prefixes)
	}
	for _, list := range p.Denied.Lists {
		s.ListEntries += len(list.Prefixes)
	}
	for _, v := range a.Compiler.Policy.Views() {
		if v.Refused != "" {
			s.Refused = append(s.Refused, keyOf(v).String())
		}
	}
	return &s
}

// CountPods fills in what is said of pods.
func (s *PolicyStatus) CountPods(p *state.Policy) {
	selected := map[model.Name]bool{} // of this node's pods
	bridged, unrouted := map[string]bool{}, map[string]bool{}
	for _, w := range p.Workloads {
		selected[w.Pod] = selected[w.Pod] || w.Ingress != "" || w.Egress != ""
		if w.Bridged {
			bridged[w.Pod.String()] = true
		}
		if w.Device == 0 {
			unrouted[w.Pod.String()] = true
		}
	}
	s.Local = len(selected)
	for _, is := range selected {
		if is {
			s.Selected++
		}
	}
	s.Bridged, s.Unrouted = slices.Sorted(maps.Keys(bridged)), slices.Sorted(maps.Keys(unrouted))
}

// Bridge explains what is different for pods behind a bridge.
func (s *PolicyStatus) Bridge() string {
	return model.Count(len(s.Bridged), "pod") + " behind a bridge: judged by address alone, as a packet does not show which of them sent it, " +
		"and between themselves only if the bridge passes packets to the IP hooks (see 'sluice preflight'): " + model.FirstFew(s.Bridged, 5)
}

// NoRoute explains what happens to pods without a route.
func (s *PolicyStatus) NoRoute() string {
	return model.Count(len(s.Unrouted), "pod") + " to which no route leads in this node's main table: nothing that they send passes until there is one: " + model.FirstFew(s.Unrouted, 5)
}
