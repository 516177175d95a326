package main

import (
	"errors"
	"fmt"
	"slices"
	"syscall"

	"sluice.dev/sluice/internal/conntrack"
	"sluice.dev/sluice/internal/driver"
	"sluice.dev/sluice/internal/driver/nftables"
	"sluice.dev/sluice/internal/nflog"
	"sluice.dev/sluice/internal/preflight"
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
	if !errors.Is(err, syscall.EPERM) {
		return err
	}
	if has, _ := preflight.HasNetAdmin(); has {
		return fmt.Errorf("%w: this process has CAP_NET_ADMIN, but not for this network namespace: run it outside the user namespace (the container) that it is in, or make the network namespace from within", err)
	}
	return fmt.Errorf("%w: this process lacks the capability CAP_NET_ADMIN: run it as root, or give it the capability "+
		"(AmbientCapabilities= in a systemd unit, securityContext.capabilities in a pod, setcap cap_net_admin+ep)", err)
}
