// Package policy compiles what users declare of who may talk to whom into the
// part of one node's desired state that says what may pass.
//
// It is pure and incremental, as package compile is. Policies are filed by the labels that
// their subjects must have, so that a pod of this node meets those alone that may select it; the
// selectors of their rules are filed in the same way, so that a pod anywhere in the
// cluster costs what may select it. Only what policies of this node's pods and
// host endpoints ask for is kept as a set.
//
// An update is in four steps: objects come and go, endpoints get the plans of the
// policies that select them now, what nobody uses any more goes, and what is left is written down under ids
// that are known only then.
package policy

import (
	"cmp"
	"maps"
	"net/netip"
	"slices"
	"time"

	"sluice.dev/sluice/internal/compile/diff"
	"sluice.dev/sluice/internal/compile/fair"
	"sluice.dev/sluice/internal/model"
	"sluice.dev/sluice/internal/state"
	"sluice.dev/sluice/internal/store"
)

// Config is what the user sets for a node. It does not change while a Compiler lives.
type Config struct {
	Node        string   // the name of the node's object, and of it in pods and host endpoints
	DenyLists   []string // names of address lists whose packets are dropped on arrival
	DenyDevices []string // names of the interfaces where they are
	// FailsafeInbound and FailsafeOutbound are ports that no host endpoint closes: of the
	// node itself, and of others that it connects to.
	FailsafeInbound, FailsafeOutbound []state.PortRange
	PodTunnels                        bool // pods may send what tunnels carry
}

// Compiler holds one node's policy and keeps it in step with a store. It is not
// safe for concurrent use.
type Compiler struct {
	cfg    Config
	policy *state.Policy
	links  links
	open   bool // see SetOpen

	around     map[string]map[string]string     // labels of namespaces
	identities map[model.Name]map[string]string // labels of service accounts
	pods       map[model.Name]*item
	sets       map[model.NetworkSetKey]*item
	hosts      map[string]*item
	classes    map[string]*class
	index      index
	refused    map[*item]struct{} // sets that are

	tiers     map[string]model.Tier
	policies  map[model.PolicyKey]*policy
	subjects  filing[*policy]
	failsafes [2][]*policy
	serial    uint64

	podEndpoints  map[model.Name]*endpoint
	hostEndpoints map[string]*endpoint
	claims        map[netip.Addr][]*endpoint // pods of this node by their addresses
	assigned      map[int]*endpoint          // host endpoints by the index of their interfaces
	plans         map[string]*plan
	parts         map[*part]struct{}      // of plans
	uses          map[state.ProgramID]int // plans that come to the program

	fresh    map[*policy]struct{}
	later    map[model.PolicyKey]time.Time // what is to be taken up, once the version before is in force, and since when
	latePods map[model.Name]time.Time      // pods of other nodes that are not followed yet, and since when
	queue    []*part                       // that are not settled, in the order in which they came
	got      map[string]int                // elements for parts so far, by the namespaces of those in the queue
	since    time.Time                     // of the changes that are compiled
	room     int                           // elements that this update may still change in groups
	whole    bool                          // it may change all

	maxSelected, maxTogether fair.Bound // the constants, but in tests
	counted                  map[string]*tally
	tallied                  map[*class][]*tally // that select the class, as long as tallies do not change
	tallies                  filing[*tally]
	size                     int  // of all items
	total                    int  // what the selectors of all groups select
	moves                    int  // sizes of what came to groups and tallies, and of what went
	due                      int  // the moves at which parts are weighed
	crowded                  bool // some parts are too much with others

	ids       ids
	groups    map[string]*group
	draining  map[*group]struct{} // that nobody holds any more
	selectors filing[*group]
	named     map[namedPort]*namedPorts
	lists     map[string]*list
	ranges    map[string]*ranges

	work
	tables
}

// work is what an update has left to do.
type work struct {
	changed     map[*endpoint]struct{} // other policies may select it
	known       map[*policy]struct{}   // has the sets of the version before, which does not stand
	unused      map[*plan]struct{}     // may have no user any more
	unbuilt     map[*plan]struct{}
	unpublished map[*endpoint]struct{} // has another program, address or interface
	readdressed map[netip.Addr]struct{}
	reassign    bool // host endpoints or interfaces changed
	stale       bool // there are stale groups, or parts that were filled anew

	touchedGroups map[*group]struct{}
	touchedNamed  map[*namedPorts]struct{}
	touchedLists  map[*list]struct{}
	touchedRanges map[*ranges]struct{}
}

// tables are the parts of the state.
type tables struct {
	programs   diff.Map[state.ProgramID, state.Program]
	workloads  diff.Map[netip.Addr, state.Workload]
	hostTable  diff.Map[int, state.Host]
	listTable  diff.Map[state.SetID, state.List]
	portTable  diff.Map[state.SetID, state.Ports]
	groupTable memberTable[netip.Addr]
	namedTable memberTable[state.NamedPort]
}

// New returns a Compiler whose policy is empty.
func New(cfg Config) *Compiler { return newCompiler(cfg, idSpace) }

// newCompiler gives sets one of so many ids.
func newCompiler(cfg Config, space uint32) *Compiler {
	p := state.NewPolicy()
	cfg.DenyLists = slices.Compact(slices.Sorted(slices.Values(cfg.DenyLists)))
	c := &Compiler{
		cfg: cfg, policy: p, links: newLinks(model.Links{}),
		around: map[string]map[string]string{}, identities: map[model.Name]map[string]string{},
		pods: map[model.Name]*item{}, sets: map[model.NetworkSetKey]*item{}, hosts: map[string]*item{},
		classes: map[string]*class{}, index: newIndex(), refused: map[*item]struct{}{},
		tiers: map[string]model.Tier{}, policies: map[model.PolicyKey]*policy{}, subjects: filing[*policy]{},
		podEndpoints: map[model.Name]*endpoint{}, hostEndpoints: map[string]*endpoint{},
		claims: map[netip.Addr][]*endpoint{}, assigned: map[int]*endpoint{},
		plans: map[string]*plan{}, parts: map[*part]struct{}{}, uses: map[state.ProgramID]int{},
		fresh: map[*policy]struct{}{}, later: map[model.PolicyKey]time.Time{}, latePods: map[model.Name]time.Time{}, got: map[string]int{},
		maxSelected: maxSelected, maxTogether: maxTogether, counted: map[string]*tally{}, tallied: map[*class][]*tally{}, tallies: filing[*tally]{},
		ids: newIDs(space), groups: map[string]*group{}, draining: map[*group]struct{}{}, selectors: filing[*group]{},
		named: map[namedPort]*namedPorts{}, lists: map[string]*list{}, ranges: map[string]*ranges{},
		work: work{
			changed: map[*endpoint]struct{}{}, known: map[*policy]struct{}{}, unused: map[*plan]struct{}{}, unbuilt: map[*plan]struct{}{},
			unpublished: map[*endpoint]struct{}{}, readdressed: map[netip.Addr]struct{}{},
			touchedGroups: map[*group]struct{}{}, touchedNamed: map[*namedPorts]struct{}{},
			touchedLists: map[*list]struct{}{}, touchedRanges: map[*ranges]struct{}{},
		},
		tables: tables{
			programs:   diff.NewMap(p.Programs, func(a, b *state.Program) bool { return a.ID == b.ID }),
			workloads:  diff.NewMap(p.Workloads, diff.Values[state.Workload]),
			hostTable:  diff.NewMap(p.Hosts, diff.Values[state.Host]),
			listTable:  diff.NewMap(p.Lists, equalLists),
			portTable:  diff.NewMap(p.PortSets, equalPorts),
			groupTable: newMemberTable(p.Groups),
			namedTable: newMemberTable(p.NamedPorts),
		},
	}
	for _, t := range []model.Tier{model.AdminTier, model.DefaultTier, model.BaselineTier} {
		c.tiers[t.Name] = t
	}
	p.PodTunnels = cfg.PodTunnels
	c.failsafes = c.newFailsafes(cfg.FailsafeInbound, cfg.FailsafeOutbound)
	return c
}

// Policy is the whole policy after the last Update. The Compiler owns it and changes it in
// the next Update; callers only read.
func (c *Compiler) Policy() *state.Policy { return c.policy }

// Update brings the policy up to date with what is dirty in the view, and with the addresses
// of this node's pods, and returns what changed in it: nothing else is named.
func (c *Compiler) Update(v *store.View, d store.Dirty, podCIDRs []netip.Prefix) state.PolicyDelta {
	return c.Step(v, d, podCIDRs, all)
}

// Step is Update, but for sets of large policies that change by more than about so many elements. They are filled, and emptied, in slices, and so are
// pods of other nodes followed:
// what is left waits for the next Step or Update, see Waiting. Until all sets of a policy are there, what stood before it came or changed
// stands; it allows nothing to a pod that comes meanwhile.
func (c *Compiler) Step(v *store.View, d store.Dirty, podCIDRs []netip.Prefix, room int) state.PolicyDelta {
	c.room, c.whole, c.since = room, room == all, d.Since
	for name := range d.Namespaces {
		c.setNamespace(name, v.Namespace(name))
	}
	for name := range d.ServiceAccounts {
		c.setAccount(name, v.ServiceAccount(name))
	}
	c.takePods(v, d.Pods)
	for key := range d.NetworkSets {
		c.setNetworkSet(key, v.NetworkSet(key))
	}
	for name := range d.HostEndpoints {
		c.setHost(name, v.HostEndpoint(name))
	}
	c.declare(v, d)
	c.assign()
	c.fill(room / 2)
	c.recall()
	applying := map[*class][]*policy{}
	for e := range c.changed {
		c.replan(e, applying)
	}
	clear(c.changed)
	clear(c.known)
	c.introduce()
	c.sweepPlans()
	c.sweepGroups()
	c.drain(max(c.room, room/4))
	for again := true; again; again = c.whole && c.moves >= c.due {
		c.weigh()
		c.fill(room)
	}
	c.sweep()
	c.buildPlans()
	c.publishSets()
	c.publishEndpoints()
	return c.flush(podCIDRs)
}

func (c *Compiler) setNamespace(name string, obj *model.Namespace) {
	var next map[string]string
	if obj != nil {
		next = obj.Labels
	}
	old := c.around[name]
	if maps.Equal(old, next) {
		return
	}
	c.index.namespaces.relabel(name, nil, next) // its items are found under both, until all have moved
	if c.around[name] = next; len(next) == 0 {
		delete(c.around, name)
	}
	for _, it := range itemsOf(c.index.byNamespace[name]) {
		if it.pod != nil {
			c.setPod(it.pod.Name, it.pod)
		} else {
			c.setNetworkSet(it.set.Key, it.set)
		}
	}
	c.index.namespaces.relabel(name, old, next)
}

func (c *Compiler) setAccount(name model.Name, obj *model.ServiceAccount) {
	var next map[string]string
	if obj != nil {
		next = obj.Labels
	}
	old := c.identities[name]
	if maps.Equal(old, next) {
		return
	}
	c.index.accounts.relabel(name, nil, next)
	if c.identities[name] = next; len(next) == 0 {
		delete(c.identities, name)
	}
	for _, it := range itemsOf(c.index.byAccount[name]) {
		c.setPod(it.pod.Name, it.pod)
	}
	c.index.accounts.relabel(name, old, next)
}

// takePods follows pods as far as half of the room goes, the oldest first and one at least; those of this node in any case, as what is not known of them is shut.
func (c *Compiler) takePods(v *store.View, dirty map[model.Name]struct{}) {
	for name := range dirty {
		pod, old := v.Pod(name), c.pods[name]
		if c.whole || pod != nil && pod.Node == c.cfg.Node || old != nil && old.local {
			delete(c.latePods, name)
			c.setPod(name, pod)
		} else if _, waits := c.latePods[name]; !waits {
			c.latePods[name] = c.since
		}
	}
	least := c.room / 2
	for i, name := range slices.SortedFunc(maps.Keys(c.latePods), func(a, b model.Name) int {
		return cmp.Or(c.latePods[a].Compare(c.latePods[b]), a.Compare(b))
	}) {
		if !c.whole && i > 0 && c.room < least {
			break
		}
		delete(c.latePods, name)
		c.setPod(name, v.Pod(name))
	}
}

func (c *Compiler) setPod(name model.Name, obj *model.Pod) {
	old, next := c.pods[name], c.newPod(obj)
	if next.selectedLike(old) {
		if old.pod = obj; old.local {
			c.readdress(old)
		}
		return
	}
	if next == nil {
		delete(c.pods, name)
	} else {
		c.pods[name] = next
	}
	c.swap(old, next)
	c.setEndpoint(name, old, next)
}

func (c *Compiler) setNetworkSet(key model.NetworkSetKey, obj *model.NetworkSet) {
	old, next := c.sets[key], newSet(obj, c.around[key.Name.Namespace])
	if next == nil {
		delete(c.sets, key)
	} else {
		c.sets[key] = next
		c.refill(obj)
	}
	c.swap(old, next)
	c.setRefused(old, next)
}

func (c *Compiler) setHost(name string, obj *model.HostEndpoint) {
	old, next := c.hosts[name], newHost(obj)
	if next == nil {
		delete(c.hosts, name)
	} else {
		c.hosts[name] = next
		if next.set != nil {
			c.refill(next.set)
		}
	}
	c.swap(old, next)
	c.setHostEndpoint(name, next)
}

// swap makes next known in place of old; either may be nil. It counts up before counting down, so that
// what stays is never seen to go.
func (c *Compiler) swap(old, next *item) {
	if next != nil {
		c.enter(next)
		c.name(next, true)
		c.size += next.size()
	}
	if old != nil {
		c.leave(old)
		c.name(old, false)
		c.size -= old.size()
	}
	c.weigh()
}
