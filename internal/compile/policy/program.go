package policy

import (
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"hash"
	"reflect"
	"slices"
	"strconv"
	"strings"

	"sluice.dev/sluice/internal/model"
	"sluice.dev/sluice/internal/state"
)

// stage is where a program judges.
type stage uint8

const (
	podIngress stage = iota
	podEgress
	hostInput
	hostOutput
	hostForwardIn
	hostForwardOut
	hostPreDNAT
	hostUntrackedIn
	hostUntrackedOut
	stages // how many there are
)

func (s stage) ingress() bool {
	switch s {
	case podEgress, hostOutput, hostForwardOut, hostUntrackedOut:
		return false
	}
	return true
}

func (s stage) host() bool { return s >= hostInput }

func (s stage) untracked() bool { return s == hostUntrackedIn || s == hostUntrackedOut }

// holds reports whether a policy applies at the stage to what it selects.
//
// Calico's doc of HostEndpoint: doNotTrack and preDNAT policies apply there alone,
// others to connections of the host itself, and to forwarded ones with applyOnForward.
func (s stage) holds(p *model.Policy) bool {
	if s.ingress() && !p.Ingress || !s.ingress() && !p.Egress {
		return false
	}
	switch {
	case s.untracked():
		return p.DoNotTrack
	case s == hostPreDNAT:
		return p.PreDNAT && !p.DoNotTrack
	case p.DoNotTrack || p.PreDNAT:
		return false
	}
	return p.ApplyOnForward || s != hostForwardIn && s != hostForwardOut
}

// held returns those of the policies that apply at the stage.
func (s stage) held(list []*policy) (held []*policy) {
	for _, p := range list {
		if s.holds(p.obj) {
			held = append(held, p)
		}
	}
	return held
}

// isolates reports whether tiers deny what none of their rules matched. Before connection
// tracking and translation they do not: it is for the stages after that to judge.
func (s stage) isolates() bool { return s != hostPreDNAT && !s.untracked() }

// plan is a program before its sets have ids: the policies that apply to some
// endpoints at a stage. It never changes; endpoints with the same policies share it.
type plan struct {
	key      string
	stage    stage
	policies []*policy
	fallback model.Action
	parts    []*part
	program  *state.Program // nil: everything passes
	users    map[*endpoint]struct{}
}

// plan returns the plan of the policies that hold at the stage, of those given in
// their order; nil if everything passes.
func (c *Compiler) plan(s stage, list []*policy, fallback model.Action) *plan {
	held := s.held(list)
	if len(held) == 0 && fallback == model.Allow {
		return nil
	}
	held = append(c.failsafe(s), held...)
	var key strings.Builder
	key.WriteString(strconv.Itoa(int(s)) + fallback.String())
	for _, p := range held {
		key.WriteString(" " + strconv.FormatUint(p.serial, 36))
	}
	p := c.plans[key.String()]
	if p == nil {
		p = &plan{key: key.String(), stage: s, policies: held, fallback: fallback, users: map[*endpoint]struct{}{}}
		for i, q := range held {
			p.parts = append(p.parts, c.hold(q, s, allowsAfter(held, i, s)))
		}
		c.plans[p.key] = p
		c.unbuilt[p] = struct{}{}
	}
	return p
}

// use makes the plan the endpoint's for its stage, in place of another one.
func (c *Compiler) use(e *endpoint, s stage, p *plan) {
	old := e.plans[s]
	if old == p {
		return
	}
	e.plans[s] = p
	if p != nil {
		p.users[e] = struct{}{}
	}
	if old != nil {
		delete(old.users, e)
		c.unused[old] = struct{}{}
	}
	c.unpublished[e] = struct{}{}
}

// sweepPlans ends the plans that no endpoint uses any more.
func (c *Compiler) sweepPlans() {
	for p := range c.unused {
		if len(p.users) > 0 {
			continue
		}
		delete(c.plans, p.key)
		delete(c.unbuilt, p)
		for i, q := range p.policies {
			c.release(q, partOf(p.stage, allowsAfter(p.policies, i, p.stage)))
		}
		c.countProgram(p.program, -1)
	}
	clear(c.unused)
}

// buildPlans makes the programs of plans that have none yet, and again those of
// plans whose sets have other ids, or other lists.
func (c *Compiler) buildPlans() {
	if c.ids.moved || c.stale {
		for p := range c.parts {
			if c.ids.moved || slices.ContainsFunc(p.groups, func(g *group) bool { return g.stale }) {
				p.resolved = nil
			}
		}
		for _, p := range c.plans {
			if slices.ContainsFunc(p.parts, func(o *part) bool { return o.resolved == nil }) {
				c.unbuilt[p] = struct{}{}
			}
		}
	}
	for p := range c.unbuilt {
		next := p.build()
		if idOf(next) == idOf(p.program) {
			continue
		}
		c.countProgram(next, 1)
		c.countProgram(p.program, -1)
		p.program = next
		for e := range p.users {
			c.unpublished[e] = struct{}{}
		}
	}
	clear(c.unbuilt)
}

// countProgram counts the plans that come to a program.
func (c *Compiler) countProgram(p *state.Program, by int) {
	if p == nil {
		return
	}
	if c.uses[p.ID] += by; c.uses[p.ID] > 0 {
		if c.policy.Programs[p.ID] == nil {
			c.programs.Set(p.ID, p)
		}
		return
	}
	delete(c.uses, p.ID)
	c.programs.Set(p.ID, nil)
}

// build makes the program.
func (p *plan) build() *state.Program {
	prog := &state.Program{Default: p.fallback}
	for i, q := range p.policies {
		if i == 0 || p.policies[i-1].tier != q.tier {
			t := state.Tier{Name: q.tier.Name, Default: model.Deny}
			if q.tier.DefaultPass || !p.stage.isolates() {
				t.Default = model.Pass
			}
			prog.Tiers = append(prog.Tiers, t)
		}
		t := &prog.Tiers[len(prog.Tiers)-1]
		t.Policies = append(t.Policies, p.parts[i].resolve(q.obj.Key))
	}
	prog.ID = state.ProgramID(digestOf(prog))
	return prog
}

// digestOf identifies what v points to by all that it holds; rules of policies, which many programs
// share, by their own digest.
func digestOf(v any) string {
	h := sha256.New()
	digest(h, reflect.ValueOf(v).Elem())
	return hex.EncodeToString(h.Sum(nil)[:16])
}

func idOf(p *state.Program) state.ProgramID {
	if p == nil {
		return ""
	}
	return p.ID
}

// digest writes all that v holds to h so that different values write different bytes.
func digest(h hash.Hash, v reflect.Value) {
	number := func(n uint64) { h.Write(binary.LittleEndian.AppendUint64(nil, n)) }
	switch v.Kind() {
	case reflect.String:
		number(uint64(v.Len()))
		h.Write([]byte(v.String()))
	case reflect.Slice:
		number(uint64(v.Len()))
		for i := range v.Len() {
			digest(h, v.Index(i))
		}
	case reflect.Struct:
		for i := range v.NumField() {
			digest(h, v.Field(i))
		}
	case reflect.Pointer:
		if v.IsNil() {
			number(0)
			return
		}
		number(1)
		if r, ok := v.Interface().(*state.PolicyRules); ok && r.ID != "" {
			h.Write([]byte(r.ID))
			return
		}
		digest(h, v.Elem())
	case reflect.Int16:
		number(uint64(v.Int()))
	default: // unsigned numbers; anything else panics, in the test of all fields
		number(v.Uint())
	}
}
