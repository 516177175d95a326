package config

import (
	"slices"
	"strings"
)

// deleteAll deletes all objects of a list of the document.
func (c *change) deleteAll(list string) {
	switch list {
	case "farms":
		for name := range c.farms.All() {
			c.removeFarm(name)
		}
	case "addresses":
		for name := range c.addresses.All() {
			c.removeAddress(name)
		}
	default:
		for name := range c.policies.All() {
			c.removePolicy(name)
		}
	}
}

func (c *change) deleteFarm(name string) error {
	if c.farms.Get(name) == nil {
		return &failure{404, "error deleting farm. Unknown farm '" + name + "'"}
	}
	c.removeFarm(name)
	return nil
}

// farmOr returns a farm that may be changed, or an error that begins with what was to be done.
func (c *change) farmOr(what, name string) (*farm, error) {
	if c.farms.Get(name) == nil {
		return nil, &failure{404, what + ". Unknown farm '" + name + "'"}
	}
	return c.farmEdits.edit(name), nil
}

func (c *change) deleteBackend(farm, backend string) error {
	const what = "error deleting backend"
	f, err := c.farmOr(what, farm)
	if err != nil {
		return err
	}
	if backend == "" {
		f.backends = nil
		f.forgetSessions("")
		return nil
	}
	i := f.find(backend)
	if i < 0 {
		return &failure{404, what + ". Unknown backend '" + backend + "' in farm '" + farm + "'"}
	}
	f.backends = slices.Delete(f.backends, i, i+1)
	f.forgetSessions(backend)
	return nil
}

func (c *change) deleteSessionsOf(farm, backend string) error {
	const what = "error deleting sessions from backend"
	f, err := c.farmOr(what, farm)
	switch {
	case err != nil:
		return err
	case f.persistence == 0:
		return &failure{400, what + ". Farm '" + farm + "' without session persistence"}
	case f.find(backend) < 0:
		return &failure{404, what + ". Unknown backend '" + backend + "' in farm '" + farm + "'"}
	}
	f.forgetSessions(backend)
	c.forget = append(c.forget, forgetting{farm: farm, backend: backend})
	return nil
}

// deleteSession deletes a static or live session, whose client has _ for spaces; of none, all
// static ones.
func (c *change) deleteSession(farm, client string) error {
	f, err := c.farmOr("error deleting session", farm)
	if err != nil {
		return err
	}
	if client == "" {
		f.forgetSessions("")
		return nil
	}
	client = strings.ReplaceAll(client, "_", " ")
	if f.persistence == 0 {
		f.sessions = slices.DeleteFunc(f.sessions, func(s session) bool { return s.client == client })
		return nil
	}
	values, err := readClient(f.persistence, client)
	if err != nil {
		return &failure{400, "error deleting session. " + err.Error()}
	}
	written := clientText(f.persistence, values)
	f.sessions = slices.DeleteFunc(f.sessions, func(s session) bool { return s.client == written })
	c.forget = append(c.forget, forgetting{farm: farm, client: &values})
	return nil
}

func (c *change) deleteFarmAddress(of, address string) error {
	return c.deleteName(of, "address", address, func(f *farm) *[]string { return &f.addresses })
}

func (c *change) deleteFarmPolicy(of, policy string) error {
	return c.deleteName(of, "policy", policy, func(f *farm) *[]string { return &f.policies })
}

// deleteName takes an address or a policy from a farm; empty: all.
func (c *change) deleteName(of, kind, name string, field func(*farm) *[]string) error {
	what := "error deleting farm " + kind
	f, err := c.farmOr(what, of)
	if err != nil {
		return err
	}
	switch names := field(f); {
	case name == "":
		*names = nil
	case !slices.Contains(*names, name):
		return &failure{404, what + ". Unknown farm " + kind + " '" + name + "' in farm '" + of + "'"}
	default:
		*names = without(*names, name)
	}
	return nil
}

func (c *change) deletePolicy(name string) error {
	if c.policies.Get(name) == nil {
		return &failure{404, "error stopping policy. Unknown policy '" + name + "'"}
	}
	c.removePolicy(name)
	return nil
}

func (c *change) deleteAddress(name string) error {
	if c.addresses.Get(name) == nil {
		return &failure{404, "error stopping address. Unknown address '" + name + "'"}
	}
	c.removeAddress(name)
	return nil
}

// deleteElement deletes an element; empty: all.
func (c *change) deleteElement(name, element string) error {
	if c.policies.Get(name) == nil {
		return &failure{404, "could not get the policy elements. Unknown policy '" + name + "'"}
	}
	p := c.listEdits.edit(name)
	if element == "" {
		p.elements = nil
		return nil
	}
	r, err := readRange(element)
	if err != nil || !p.drop(r) {
		return &failure{404, "error deleting policy element. Unknown element '" + element + "' in policy '" + name + "'"}
	}
	return nil
}
