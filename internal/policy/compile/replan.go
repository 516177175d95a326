package compile

import (
	"sluice.dev/sluice/internal/model"
	"sluice.dev/sluice/internal/policy/compile/objects"
)

// replan gives the marked endpoints the plans of the policies that select them now: those that
// apply to their class.
func (c *Compiler) replan() {
	applying := map[*objects.Class][]*policy{}
	for e := range c.endpoints.marked {
		switch {
		case e.item == nil || e.item.Host != nil && !e.linked:
			for s := range checkpoints {
				c.use(e, s, nil)
			}
		case e.item.Host != nil:
			c.replanHost(e)
		default:
			list, known := applying[e.item.Class]
			if !known {
				list = c.policies.applying(e.item.Labels)
				applying[e.item.Class] = list
			}
			c.replanPod(e, list)
		}
	}
	clear(c.endpoints.marked)
}

func (c *Compiler) replanPod(e *endpoint, list []*policy) {
	if e.planned == e.item {
		list = c.rollout.inForce(e.policies, list)
	}
	e.planned, e.policies = e.item, list
	c.use(e, podIngress, c.programs.list(podIngress, nil, list, model.Allow))
	c.use(e, podEgress, c.programs.list(podEgress, nil, list, model.Allow))
}

// replanHost gives a host endpoint its plans. Calico's doc of HostEndpoint: what no policy selects
// is denied, unless its profile allows it; what only passes through is not.
func (c *Compiler) replanHost(e *endpoint) {
	list := c.policies.applying(e.item.Labels)
	own := model.Deny
	if e.item.Host.DefaultAllow {
		own = model.Allow
	}
	for s := hostInput; s < checkpoints; s++ {
		fallback := model.Allow
		if s == hostInput || s == hostOutput {
			fallback = own
		}
		c.use(e, s, c.programs.list(s, c.policies.failsafe(s), list, fallback))
	}
}

// use has an endpoint use a plan at a stage, in place of another one; nil: it has none there.
func (c *Compiler) use(e *endpoint, s checkpoint, p *ruleList) {
	if old := c.endpoints.use(e, s, p); old != p {
		c.programs.replace(old, p)
	}
}
