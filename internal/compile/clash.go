package compile

import (
	"cmp"

	"sluice.dev/sluice/internal/model"
	"sluice.dev/sluice/internal/state"
)

// settle records that the service wants f at key, or nothing there where f is
// nil, and gives the key to the first of those who claim it.
func (c *Compiler) settle(key state.FrontendKey, name model.Name, f *state.Frontend) {
	rivals := c.contested[key]
	if rivals == nil {
		holder := c.state.Frontends[key]
		if holder == nil || holder.Service == name {
			c.setFrontend(key, f)
			return
		}
		if f == nil {
			return
		}
		rivals = map[model.Name]*state.Frontend{holder.Service: holder}
		c.contested[key] = rivals
	}
	if f == nil {
		delete(rivals, name)
	} else {
		rivals[name] = f
	}
	c.setFrontend(key, rivals[c.first(rivals)])
	if len(rivals) == 1 {
		delete(c.contested, key)
	}
}

// first is the service that has precedence.
func (c *Compiler) first(rivals map[model.Name]*state.Frontend) model.Name {
	var best *model.Service
	for name := range rivals {
		if svc := c.services[name].svc; best == nil || precedence(svc, best) < 0 {
			best = svc
		}
	}
	return best.Name
}

// precedence orders services that claim the same: the older one first, one
// whose age is not known last, then by name.
func precedence(a, b *model.Service) int {
	if a.Created.IsZero() != b.Created.IsZero() {
		if a.Created.IsZero() {
			return 1
		}
		return -1
	}
	return cmp.Or(a.Created.Compare(b.Created), a.Name.Compare(b.Name))
}
