package main

import (
	"errors"
	"fmt"
	"syscall"

	"sluice.dev/sluice/internal/preflight"
)

// privilege explains which privilege is missing when the kernel refused for that reason.
func privilege(err error) error {
	if !errors.Is(err, syscall.EPERM) {
		return err
	}
	if has, _ := preflight.HasNetAdmin(); has {
		return fmt.Errorf("%w: this process has CAP_NET_ADMIN, but not for this network namespace: run it outside the user namespace (the container) that it is in, or make the network namespace from within", err)
	}
	return fmt.Errorf("%w: this process lacks the capability CAP_NET_ADMIN: run it as root, or give it the capability "+
		"(AmbientCapabilities= in a systemd unit, securityContext.capabilities in a pod, setcap cap_net_admin+ep)", err)
}
