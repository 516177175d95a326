package main

import (
	"errors"
	"fmt"
	"slices"
	"syscall"

	"golang.org/x/sys/unix"

	"sluice.dev/sluice/internal/conntrack"
	"sluice.dev/sluice/internal/driver"
	"sluice.dev/sluice/internal/driver/nftables"
	"sluice.dev/sluice/internal/nflog"
	"sluice.dev/sluice/internal/probe"
)

// openDriver opens the driver of the calling thread's network namespace; tests replace it with a
// fake kernel.
var openDriver = func(o driver.Options) (driver.Driver, error) {
	return nftables.Open(nftables.Options{Options: o})
}

// These are the kernel requirements of the agent's parts: of services, of policy, and optional
// ones.
var (
	serviceRequirements  = append(slices.Clone(nftables.Requirements), conntrack.Requirement)
	policyRequirements   = append(slices.Clone(nftables.PolicyRequirements), nflog.Requirement)
	optionalRequirements = []*probe.Requirement{nftables.Protection}
)

// privilege explains which privilege is missing when the kernel refused for that reason.
func privilege(err error) error {
	switch {
	case !errors.Is(err, syscall.EPERM):
		return err
	case hasNetAdmin():
		return fmt.Errorf("%w: this process has CAP_NET_ADMIN, but not for this network namespace: run it outside the user namespace (the container) that it is in, or make the network namespace from within", err)
	}
	return fmt.Errorf("%w: this process lacks the capability CAP_NET_ADMIN: run it as root, or give it the capability "+
		"(AmbientCapabilities= in a systemd unit, securityContext.capabilities in a pod, setcap cap_net_admin+ep)", err)
}

// hasNetAdmin reports whether CAP_NET_ADMIN is effective in the process's own user namespace.
func hasNetAdmin() bool {
	header := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var data [2]unix.CapUserData // a set of capabilities is two words; ours is in the first
	return unix.Capget(&header, &data[0]) == nil && data[0].Effective&(1<<unix.CAP_NET_ADMIN) != 0
}
