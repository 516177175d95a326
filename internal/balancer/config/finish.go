package config

// finish completes a change with what follows from it, and checks all that it touches. It is given
// up on an error.
func (c *change) finish() error {
	c.dropOrphans()
	lists := c.follow()
	c.countAddresses()
	for _, name := range sortedEdits(&c.farmEdits) {
		if e := c.farmEdits.edits[name]; e.now != nil {
			if err := c.finishFarm(e.was, e.now); err != nil {
				return err
			}
		}
	}
	for _, name := range sortedEdits(&c.addrEdits) {
		if e := c.addrEdits.edits[name]; e.now != nil {
			if err := c.finishAddress(e.now); err != nil {
				return err
			}
		}
	}
	for _, name := range sortedEdits(&c.listEdits) {
		if e := c.listEdits.edits[name]; e.now != nil {
			if err := c.finishPolicy(e.now, lists[name]); err != nil {
				return err
			}
		}
	}
	return nil
}

// dropOrphans removes addresses that farms have left, and that no farm has now.
func (c *change) dropOrphans() {
	c.countAddresses()
	var left []string
	for _, e := range c.farmEdits.edits {
		if e.was != nil {
			left = append(left, e.was.addresses...)
		}
	}
	for _, a := range left {
		if !c.used[a] && !c.usedElsewhere(a) && c.addrEdits.see(a) != nil {
			c.addrEdits.set(a, nil)
		}
	}
}

// countAddresses notes which addresses the farms of the change use.
func (c *change) countAddresses() {
	c.used = map[string]bool{}
	for _, e := range c.farmEdits.edits {
		if e.now != nil {
			for _, a := range e.now.addresses {
				c.used[a] = true
			}
		}
	}
}

// usedElsewhere reports whether a farm uses an address that the change does not touch.
func (c *change) usedElsewhere(address string) bool {
	for user := range c.farmsAt[address] {
		if c.farmEdits.edits[user] == nil {
			return true
		}
	}
	return false
}

// listUse is who uses a list once the change is there.
type listUse struct {
	farms, loggers int
	one            string // a farm of them
}

// follow has the change take in what it touches indirectly: the farms of a changed address, the
// users of a list that changes its sense, and lists whose users change. It returns the use of
// those lists.
func (c *change) follow() map[string]*listUse {
	for name, e := range c.addrEdits.edits {
		if e.now == nil {
			continue
		}
		for user := range c.farmsAt[name] {
			if c.farmEdits.edits[user] == nil {
				c.editFarm(user)
			}
		}
	}
	for name, e := range c.listEdits.edits {
		if e.was != nil && e.now != nil && e.was.allow != e.now.allow {
			c.followList(name)
		}
	}
	for _, e := range c.farmEdits.edits {
		c.followAddresses(e)
	}
	uses := map[string]*listUse{}
	for _, e := range c.farmEdits.edits {
		c.countUse(uses, e.was, -1)
		c.countUse(uses, e.now, 1)
	}
	for name := range c.listEdits.edits {
		c.use(uses, name)
	}
	for name, u := range uses {
		if p := c.listEdits.see(name); p != nil && p.base != nil && p.differs(u) {
			c.editPolicy(name)
		}
	}
	return uses
}

func (c *change) followList(name string) {
	for user := range c.farmsOf[name] {
		if c.farmEdits.edits[user] == nil {
			c.editFarm(user)
		}
	}
	for user := range c.addrsOf[name] {
		if c.addrEdits.edits[user] == nil {
			c.editAddress(user)
		}
	}
}

// followAddresses takes in addresses with lists of their own which a farm begins or ceases to use.
func (c *change) followAddresses(e *edit[farm]) {
	for _, f := range []*farm{e.was, e.now} {
		if f == nil {
			continue
		}
		for _, name := range f.addresses {
			if a := c.addrEdits.see(name); a != nil && len(a.policies) > 0 {
				c.editAddress(name)
			}
		}
	}
}

func (c *change) use(uses map[string]*listUse, list string) *listUse {
	u := uses[list]
	if u == nil {
		u = &listUse{farms: len(c.farmsOf[list]), loggers: c.loggers[list]}
		uses[list] = u
	}
	return u
}

func (c *change) countUse(uses map[string]*listUse, f *farm, n int) {
	if f == nil {
		return
	}
	for _, p := range f.policies {
		u := c.use(uses, p)
		u.farms += n
		if f.logs() {
			u.loggers += n
		}
		if n > 0 {
			u.one = f.name
		}
	}
}

// sole returns the one farm that uses a list, if there is just one.
func (c *change) sole(list string, u *listUse) string {
	if u.farms != 1 {
		return ""
	}
	if u.one != "" {
		return u.one
	}
	for user := range c.farmsOf[list] {
		if c.farmEdits.edits[user] == nil {
			return user
		}
	}
	return ""
}

// differs reports whether a list has to be made anew because of who uses it.
func (p *policy) differs(u *listUse) bool {
	return p.base.Log != (u.loggers > 0) || p.sole != "" || u.farms == 1
}

// inUse reports whether a farm uses an address once the change is there.
func (c *change) inUse(address string) bool { return c.used[address] || c.usedElsewhere(address) }
