package compile

import (
	"sluice.dev/sluice/internal/model"
	"sluice.dev/sluice/internal/policy/compile/objects"
)

// reselect gives the marked endpoints the lists of the policies that select them now: those that
// apply to their class.
func (c *Compiler) reselect() {
	applying := map[*objects.Class][]*policy{}
	for e := range c.endpoints.marked {
		switch {
		case e.item == nil || e.item.Host != nil && !e.linked:
			for at := range checkpoints {
				c.use(e, at, nil)
			}
		case e.item.Host != nil:
			c.reselectHost(e)
		default:
			list, known := applying[e.item.Class]
			if !known {
				list = c.policies.applying(e.item.Labels)
				applying[e.item.Class] = list
			}
			c.reselectPod(e, list)
		}
	}
	clear(c.endpoints.marked)
}

func (c *Compiler) reselectPod(e *endpoint, list []*policy) {
	if e.selected == e.item {
		list = c.rollout.inForce(e.policies, list)
	}
	e.selected, e.policies = e.item, list
	c.use(e, podIngress, c.ruleLists.list(podIngress, nil, list, model.Allow))
	c.use(e, podEgress, c.ruleLists.list(podEgress, nil, list, model.Allow))
}

// reselectHost gives a host endpoint its lists. Calico's doc of HostEndpoint: what no policy
// selects is denied, unless its profile allows it; what only passes through is not.
func (c *Compiler) reselectHost(e *endpoint) {
	list := c.policies.applying(e.item.Labels)
	own := model.Deny
	if e.item.Host.DefaultAllow {
		own = model.Allow
	}
	for at := hostInput; at < checkpoints; at++ {
		fallback := model.Allow
		if at == hostInput || at == hostOutput {
			fallback = own
		}
		c.use(e, at, c.ruleLists.list(at, c.policies.failsafe(at), list, fallback))
	}
}

// use has an endpoint use a list at a checkpoint, in place of another one; nil: it has none there.
func (c *Compiler) use(e *endpoint, at checkpoint, l *ruleList) {
	if old := c.endpoints.use(e, at, l); old != l {
		c.ruleLists.replace(old, l)
	}
}
