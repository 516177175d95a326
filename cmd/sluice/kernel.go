package main

import (
	"errors"
	"fmt"
	"os"
	"syscall"

	"sluice.dev/sluice/internal/driver"
	"sluice.dev/sluice/internal/driver/nftables"
)

// openDriver opens the driver of this process's network namespace; tests put a
// fake kernel in its place.
var openDriver = func() (driver.Driver, error) { return nftables.Open(nftables.Options{}) }

// privilege says what is missing where the kernel refused for want of privileges.
func privilege(err error) error {
	if !errors.Is(err, syscall.EPERM) && !errors.Is(err, os.ErrPermission) {
		return err
	}
	return fmt.Errorf("%w: the capability CAP_NET_ADMIN is missing in this network namespace: run as root, or give it to the process "+
		"(setcap cap_net_admin+ep, AmbientCapabilities= in a systemd unit, securityContext.capabilities in a pod)", err)
}
