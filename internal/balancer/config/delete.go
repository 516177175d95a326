package config

import (
	"slices"
	"strings"
	"time"

	"sluice.dev/sluice/internal/model"
)

// routeFarm returns what DELETE of a path below /farms asks for.
func routeFarm(path []string) (func(*change) error, error) {
	if len(path) == 0 {
		return func(c *change) error {
			for name := range c.farms.All() {
				c.removeFarm(name)
			}
			return nil
		}, nil
	}
	name := path[0]
	if len(path) == 1 {
		return func(c *change) error {
			if c.farms.Get(name) == nil {
				return &failure{404, "error deleting farm. Unknown farm '" + name + "'"}
			}
			c.removeFarm(name)
			return nil
		}, nil
	}
	path = path[1:]
	one := "" // of the list; empty: all
	if len(path) > 1 {
		one = path[1]
	}
	switch {
	case path[0] == "backends" && len(path) <= 2:
		return func(c *change) error { return c.deleteBackend(name, one) }, nil
	case path[0] == "backends" && len(path) == 3 && path[2] == "sessions":
		return func(c *change) error { return c.deleteSessionsOf(name, one) }, nil
	case path[0] == "sessions" && len(path) <= 2:
		return func(c *change) error { return c.deleteSession(name, one) }, nil
	case path[0] == "addresses" && len(path) <= 2:
		return func(c *change) error { return c.deleteFarmAddress(name, one) }, nil
	case path[0] == "policies" && len(path) <= 2:
		return func(c *change) error { return c.deleteFarmPolicy(name, one) }, nil
	}
	return nil, errInvalid
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

func (c *change) deleteFarmAddress(farm, address string) error {
	const what = "error deleting farm address"
	f, err := c.farmOr(what, farm)
	switch {
	case err != nil:
		return err
	case address == "":
		f.addresses = nil
	case !slices.Contains(f.addresses, address):
		return &failure{404, what + ". Unknown farm address '" + address + "' in farm '" + farm + "'"}
	default:
		f.addresses = without(f.addresses, address)
	}
	return nil
}

func (c *change) deleteFarmPolicy(farm, policy string) error {
	const what = "error deleting farm policy"
	f, err := c.farmOr(what, farm)
	switch {
	case err != nil:
		return err
	case policy == "":
		f.policies = nil
	case !slices.Contains(f.policies, policy):
		return &failure{404, what + ". Unknown farm policy '" + policy + "' in farm '" + farm + "'"}
	default:
		f.policies = without(f.policies, policy)
	}
	return nil
}

// routePolicy returns what DELETE of a path below /policies asks for.
func routePolicy(path []string) (func(*change) error, error) {
	switch {
	case len(path) == 0:
		return (*change).deletePolicies, nil
	case len(path) == 1:
		return func(c *change) error {
			if c.policies.Get(path[0]) == nil {
				return &failure{404, "error stopping policy. Unknown policy '" + path[0] + "'"}
			}
			c.removePolicy(path[0])
			return nil
		}, nil
	case path[1] == "elements":
		return func(c *change) error { return c.deleteElement(path[0], strings.Join(path[2:], "/")) }, nil
	}
	return nil, errInvalid
}

// deletePolicies deletes all, from their users too.
func (c *change) deletePolicies() error {
	for name := range c.policies.All() {
		for user := range c.farmsOf.Get(name).All() {
			c.farmEdits.edit(user).policies = nil
		}
		for user := range c.addrsOf.Get(name).All() {
			c.addrEdits.edit(user).policies = nil
		}
		c.listEdits.put(name, nil)
	}
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

// routeAddress returns what DELETE of a path below /addresses asks for.
func routeAddress(path []string) (func(*change) error, error) {
	switch len(path) {
	case 0:
		return func(c *change) error {
			for name := range c.addresses.All() {
				for user := range c.farmsAt.Get(name).All() {
					c.farmEdits.edit(user).addresses = nil
				}
				c.addrEdits.put(name, nil)
			}
			return nil
		}, nil
	case 1:
		return func(c *change) error {
			if c.addresses.Get(path[0]) == nil {
				return &failure{404, "error stopping address. Unknown address '" + path[0] + "'"}
			}
			c.removeAddress(path[0])
			return nil
		}, nil
	}
	return nil, errInvalid
}

func (p *printer) liveSession(f *farm, l model.LiveSession) {
	backend := "UNDEFINED"
	if f.find(l.Backend) >= 0 {
		backend = l.Backend
	}
	p.object("", func() {
		p.text("client", clientText(f.persistence, l.Client))
		p.text("backend", backend)
		p.text("expiration", expiration(l.Left))
	})
}

// expiration writes a time as nft does: "8m59s400ms".
func expiration(left time.Duration) string {
	left = left.Round(time.Millisecond)
	whole := left.Truncate(time.Second)
	text := ""
	for _, u := range []word[time.Duration]{{"d", 24 * time.Hour}, {"h", time.Hour}, {"m", time.Minute}, {"s", time.Second}} {
		if n := whole / u.value; n > 0 {
			text += itoa(int(n)) + u.text
			whole -= n * u.value
		}
	}
	if ms := left % time.Second / time.Millisecond; ms > 0 || text == "" {
		text += itoa(int(ms)) + "ms"
	}
	return text
}
