package iptables

import (
	"net/netip"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"sluice.dev/sluice/internal/model"
	"sluice.dev/sluice/internal/reconcile"
)

// OpenRefusing opens a driver whose kernel refuses to have frontends at some addresses, and rules
// of some policies.
func OpenRefusing(o Options, frontends func(netip.Addr) bool, policies func(model.PolicyKey) bool) (*Driver, error) {
	d, err := open(o)
	if err != nil {
		return nil, err
	}
	d.refuse = func(c *imageDiff) error {
		for _, m := range c.add {
			if strings.HasSuffix(m.set, setFrontends) && frontends(m.addr) {
				return unix.EINVAL
			}
		}
		for _, named := range strings.Split(c.restore, "--comment \"")[1:] {
			name, _, _ := strings.Cut(named, "\"")
			var k model.PolicyKey
			if err := k.UnmarshalText([]byte(name)); err == nil && policies(k) {
				return unix.EINVAL
			}
		}
		return nil
	}
	return d, nil
}

// OpenFailing opens a driver whose changes of a part fail for which failing answers true, as if
// others were at work.
func OpenFailing(o Options, failing func(reconcile.Part) bool) (*Driver, error) {
	d, err := open(o)
	if err != nil {
		return nil, err
	}
	d.refuse = func(c *imageDiff) error {
		services := slices.ContainsFunc(c.add, func(m membership) bool { return strings.HasSuffix(m.set, setFrontends) })
		policy := strings.Contains(c.restore, "-A "+toChain+" -d ")
		if services && failing(reconcile.Services) || policy && failing(reconcile.Policy) {
			return unix.EPERM
		}
		return nil
	}
	return d, nil
}
