package ipvs

import (
	"net/netip"

	"golang.org/x/sys/unix"

	"sluice.dev/sluice/internal/driver"
)

// OpenRefusing opens a driver whose IPVS refuses what is made of frontends at some addresses.
func OpenRefusing(o Options, refused func(netip.Addr) bool) (driver.Driver, error) {
	d, err := Open(o)
	if err != nil {
		return nil, err
	}
	d.conn.refuse = func(o op) error {
		if refused(o.key.Addr) && o.cmd != cmdDelService {
			return unix.ENOMEM
		}
		return nil
	}
	return d, nil
}
