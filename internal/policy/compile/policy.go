// Package compile turns what users declare of who may talk to whom into the part of one node's
// desired state that says what may pass.
//
// It is pure and incremental, as package compile is. Policies are filed by the labels that their
// subjects must have, so that a pod of this node meets only those that may select it. The selectors
// of their rules are filed in the same way, so that a pod anywhere in the cluster costs what may
// select it. A set exists only while policies of this node's pods and host endpoints ask for it.
//
// Compiler.Step in this file has all passes of an update, in their order: what one of them returns
// is given to the next, and none knows of one that comes after it. Beneath it are rooms of their
// own:
//
//	objects    pods, network sets and host endpoints, in classes of equal labels
//	sets       what rules refer to: groups of pods, ports by name, lists of networks, port ranges,
//	           endpoints of Services; and how much selectors select
//	admission  the limits, and which rules may have their sets
//
// Each pass here belongs to the type that owns its data:
//
//	policies   tiers and policies, filed by whom they select
//	variants   the rules of policies with the sets that they hold: counted, filled, limited
//	rollout    new versions of policies, which take over once their variants are filled
//	ruleLists  the policies that hold for endpoints at one checkpoint, in order
//	endpoints  this node's pods and host endpoints, each with its rules
package compile

import (
	"math"
	"net/netip"
	"slices"
	"time"

	"sluice.dev/sluice/internal/lib/diff"
	"sluice.dev/sluice/internal/model"
	"sluice.dev/sluice/internal/policy/compile/admission"
	"sluice.dev/sluice/internal/policy/compile/objects"
	"sluice.dev/sluice/internal/policy/compile/sets"
	"sluice.dev/sluice/internal/state"
	"sluice.dev/sluice/internal/store"
)

// Config is what the user sets for a node. It does not change while a Compiler lives.
type Config struct {
	Node        string   // the name of the node's object, and of it in pods and host endpoints
	DenyLists   []string // names of address lists whose packets are dropped on arrival
	DenyDevices []string // names of the interfaces where they are
	// FailsafeInbound and FailsafeOutbound are ports that no host endpoint closes: of the node
	// itself, and of others that it connects to.
	FailsafeInbound, FailsafeOutbound []state.PortRange
	PodTunnels                        bool // pods may send what tunnels carry
}

// Compiler holds one node's policy and keeps it in step with a store. It is not safe for concurrent
// use.
type Compiler struct {
	cfg    Config
	policy *state.Policy
	links  *links
	open   bool // see SetOpen

	objects   *objects.Objects
	sets      *sets.Sets
	variants  *variants
	rollout   *rollout
	policies  *policies
	ruleLists *ruleLists
	endpoints *endpoints
}

// budget is what one update may still do.
type budget struct {
	since time.Time // when the first of the changes came that are compiled
	room  int       // elements that the update may still change in groups
	whole bool      // it may change all
}

// all is room for whatever there is.
const all = math.MaxInt

// New returns a Compiler whose policy is empty.
func New(cfg Config) *Compiler { return newCompiler(cfg, sets.IDSpace) }

// Policy is the whole policy after the last Update. The Compiler owns it and changes it in the next
// Update; callers only read.
func (c *Compiler) Policy() *state.Policy { return c.policy }

// Step brings the policy up to date with what is dirty in the view, and with the addresses of this
// node's pods, and returns what changed in it: nothing else is named. It changes about so many
// elements in the sets of policies; math.MaxInt is room for all. Sets of large policies are filled
// and emptied, and pods of other nodes followed, as far as there is room; the rest waits for the
// next Step, see Waiting. Until all sets of a policy are there, what stood before it came or
// changed stands; it allows nothing to a pod that comes meanwhile.
func (c *Compiler) Step(v *store.View, d store.Dirty, podCIDRs []netip.Prefix, room int) state.PolicyDelta {
	c.variants.budget = budget{since: d.Since, room: room, whole: room == all}
	c.variants.room -= c.sets.Begin(v, d)

	// Objects, policies and interfaces come and go. Sets that are in use follow objects at once;
	// endpoints whose policies may be others are marked. Pods that may wait are followed as far as
	// half of the room goes.
	for ch := range c.objects.Changes(v, d, room == all) {
		c.follow(ch)
	}
	if len(d.Objects[model.AttachmentKind]) > 0 {
		c.endpoints.attach(v.Attachments())
	}
	least := c.variants.room / 2
	for ch := range c.objects.Latecomers(v) {
		if c.follow(ch); c.variants.room < least {
			break
		}
	}
	c.endpoints.markSelected(c.rollout.begin(c.policies.declare(v, d, room == all)))
	c.endpoints.hosts.assign()

	// Parts that wait are filled, and marked endpoints get the policies that select them now. Parts
	// that nobody had before are created with that.
	c.variants.fill(room / 2)
	c.endpoints.markSelected(c.rollout.ready())
	c.reselect()
	c.rollout.finish()

	// What nobody uses any more goes, which makes room for variants that wait or were refused.
	c.ruleLists.sweep()
	c.sets.Groups.Sweep(d.Since)
	c.variants.drain(max(c.variants.room, room/4))
	c.variants.refill(room)
	c.sets.Sweep()

	// The rest is written down under the ids of sets, which are known only now.
	c.endpoints.markUsers(c.ruleLists.build())
	c.sets.Publish()
	c.endpoints.publish()
	return c.flush(podCIDRs)
}

// follow has all that depends on objects follow a change of one.
func (c *Compiler) follow(ch objects.ItemChange) {
	c.variants.follow(ch)
	c.endpoints.follow(ch)
	c.policies.follow(ch)
}

// Waiting returns how many policies Step has left for later, and since when the first of them
// waits. What is being removed, pods that are to be followed, and policies that were refused and
// may fit now count as one.
func (c *Compiler) Waiting() (policies int, since time.Time) {
	first := true
	note := func(at time.Time) {
		if first || at.Before(since) {
			first, since = false, at
		}
	}
	waiting := map[model.PolicyKey]struct{}{}
	for _, p := range c.variants.queue {
		waiting[p.of.obj.Key] = struct{}{}
		note(p.since)
	}
	for key, at := range c.policies.later {
		waiting[key] = struct{}{}
		note(at)
	}
	for p := range c.rollout.fresh {
		waiting[p.obj.Key] = struct{}{}
		note(p.since)
	}
	for _, at := range c.objects.Late {
		note(at)
	}
	policies = len(waiting)
	more := len(c.objects.Late) > 0 || c.variants.limits.IsDue()
	for at := range c.sets.Groups.Draining {
		note(at)
		more = true
	}
	if more {
		policies++
	}
	return policies, since
}

// newCompiler gives sets one of so many ids.
func newCompiler(cfg Config, space uint32) *Compiler {
	cfg.DenyLists = slices.Compact(slices.Sorted(slices.Values(cfg.DenyLists)))
	p, l := state.NewPolicy(), newLinks(model.Links{})
	p.PodTunnels = cfg.PodTunnels
	c := &Compiler{cfg: cfg, policy: p, links: l, objects: objects.New(cfg.Node, admission.LookupSize)}
	c.sets = sets.New(p, space, c.objects)
	c.variants = &variants{
		objects: c.objects, sets: c.sets,
		all: map[*variant]struct{}{}, known: map[*policy]struct{}{}, got: map[string]int{},
		limits: admission.New(c.sets),
	}
	c.rollout = &rollout{variants: c.variants, fresh: map[*policy]struct{}{}}
	c.policies = &policies{
		refusals: map[*objects.Item]struct{}{}, doubted: map[model.PolicyKey]struct{}{}, later: map[model.PolicyKey]time.Time{},
		tiers: map[string]model.Tier{}, all: map[model.PolicyKey]*policy{}, subjects: objects.Filing[*policy]{},
	}
	for _, t := range model.BuiltInTiers {
		c.policies.tiers[t.Name] = *t
	}
	c.policies.failsafes = c.policies.newFailsafes(cfg.FailsafeInbound, cfg.FailsafeOutbound)
	c.ruleLists = &ruleLists{
		variants: c.variants,
		all:      map[string]*ruleList{}, unused: map[*ruleList]struct{}{}, unbuilt: map[*ruleList]struct{}{}, uses: map[state.RulesID]int{},
		table: diff.NewMap(p.Rules, func(a, b *state.Rules) bool { return a.ID == b.ID }),
	}
	known, marked := map[model.Ref]*endpoint{}, map[*endpoint]struct{}{}
	c.endpoints = &endpoints{
		links: l, all: known, claims: map[netip.Addr][]*endpoint{},
		hosts: hosts{
			links: l, all: known, assigned: map[int]*endpoint{}, marked: marked,
			now: p.Hosts, table: diff.NewMap(p.Hosts, diff.Values[state.Host]),
		},
		marked: marked, unpublished: map[*endpoint]struct{}{}, readdressed: map[netip.Addr]struct{}{},
		workloads: diff.NewMap(p.Workloads, diff.Values[state.Workload]),
	}
	return c
}
