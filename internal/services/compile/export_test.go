package compile

import (
	"sluice.dev/sluice/internal/lib/fair"
	"sluice.dev/sluice/internal/model"
)

// AllHealthChecks are those that there are, by service.
func (c *Compiler) AllHealthChecks() map[model.Name]*HealthCheck {
	all := map[model.Name]*HealthCheck{}
	for _, h := range c.health.now {
		all[h.Service] = h
	}
	return all
}

// SetTogether has all services come to so many elements at the most, and to so many where one is to
// come back; 0: as many as in production.
func (c *Compiler) SetTogether(elements, again int) {
	if elements > 0 {
		c.limits.together = fair.Bound{Most: elements, Again: again}
	}
}
