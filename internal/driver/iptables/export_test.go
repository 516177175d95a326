package iptables

import (
	"net/netip"
	"strings"

	"golang.org/x/sys/unix"
)

// OpenRefusing opens a driver whose kernel refuses to have frontends at some addresses.
func OpenRefusing(o Options, refused func(netip.Addr) bool) (*Driver, error) {
	d, err := open(o)
	if err != nil {
		return nil, err
	}
	d.refuse = func(c *change) error {
		for _, m := range c.add {
			if strings.HasSuffix(m.set, setFrontends) && refused(m.addr) {
				return unix.EINVAL
			}
		}
		return nil
	}
	return d, nil
}
