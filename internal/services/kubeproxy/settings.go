package kubeproxy

import (
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"time"
)

// Settings are what a configuration comes to for Sluice.
type Settings struct {
	Kubeconfig string // path; "": the credentials that a pod has
	Node       string // name of the Node object; "": the host's

	// ClusterCIDRs are the sources that count as pods. None: the node's own podCIDRs with
	// NodeCIDRs; nothing is known otherwise.
	ClusterCIDRs []netip.Prefix
	NodeCIDRs    bool

	// NodePortPrimary has the node's own address of each family serve node ports, beside those that
	// NodePortAddresses hold. PrimaryAddr, if valid, is that address for its family.
	NodePortAddresses []netip.Prefix
	NodePortPrimary   bool
	PrimaryAddr       netip.Addr
	MasqueradeAll     bool

	HealthzAddress, MetricsAddress string // host:port; "": nowhere
	MustServe                      bool   // an address that is taken ends the agent
	Profiling                      bool
	UnhealthyAfter                 time.Duration // a change that waits longer makes the agent unhealthy

	Conntrack   Conntrack
	OOMScoreAdj int

	Debug   bool // log what is of interest to developers, too
	LogJSON bool

	// Notes name the settings that have another effect than in kube-proxy, for people.
	Notes []string
}

// debugVerbosity is the verbosity from which on Sluice logs its plans.
const debugVerbosity = 4

// Settings translates a configuration, filled in first for its mode. Sluice serves in a mode of its
// own, as --mode names it. The error names all that kube-proxy would refuse and all that cannot be
// honoured, with what to do about it.
func (c *Config) Settings(serves string) (Settings, error) {
	c.fillForMode()
	if err := errors.Join(c.check(), c.refuse(serves)); err != nil {
		return Settings{}, err
	}
	s := Settings{
		Kubeconfig: c.ClientConnection.Kubeconfig, Node: strings.ToLower(strings.TrimSpace(c.HostnameOverride)),
		MasqueradeAll:  *c.masqueradeAll(),
		HealthzAddress: c.HealthzBindAddress, MetricsAddress: c.MetricsBindAddress,
		MustServe: c.BindAddressHardFail, Profiling: c.EnableProfiling,
		Conntrack: c.Conntrack, OOMScoreAdj: int(*c.OOMScoreAdj),
		Debug: c.Logging.Verbosity >= debugVerbosity, LogJSON: c.Logging.Format == "json",
		Notes: c.notes(serves),
	}
	period, _, _ := c.syncPeriods()
	s.UnhealthyAfter = 2 * period.Duration
	if a, err := parseAddr(c.BindAddress); err == nil && !a.IsUnspecified() {
		s.PrimaryAddr = a
	}
	switch c.DetectLocalMode {
	case LocalClusterCIDR:
		s.ClusterCIDRs, _ = c.clusterCIDRs() // checked
	case LocalNodeCIDR:
		s.NodeCIDRs = true
	}
	s.NodePortAddresses, s.NodePortPrimary = c.nodePorts()
	return s, nil
}

// NodePortWords are the CIDRs that some words of NodePortAddresses stand for.
var NodePortWords = map[string][]netip.Prefix{
	Localhost: {netip.MustParsePrefix("127.0.0.0/8"), netip.MustParsePrefix("::1/128")},
	All:       {netip.MustParsePrefix("0.0.0.0/0"), netip.MustParsePrefix("::/0")},
}

// nodePorts reads the field: a family that it holds no CIDR of serves node ports on all addresses.
func (c *Config) nodePorts() (cidrs []netip.Prefix, primary bool) {
	for _, text := range c.NodePortAddresses {
		if of := NodePortWords[text]; of != nil {
			cidrs = append(cidrs, of...)
		} else if text == Primary {
			primary = true
		} else {
			cidrs = append(cidrs, netip.MustParsePrefix(text).Masked()) // checked
		}
	}
	for _, all := range NodePortWords[All] {
		family := func(p netip.Prefix) bool { return p.Addr().Is4() == all.Addr().Is4() }
		if !primary && !slices.ContainsFunc(cidrs, family) {
			cidrs = append(cidrs, all)
		}
	}
	return cidrs, primary
}

// bySource are the schedulers of IPVS that choose a backend by the client's address.
var bySource = []string{"sh", "mh", "dh"}

// refuse names the settings that cannot be honoured and that somebody relies on: connections would
// be treated differently.
func (c *Config) refuse(serves string) error {
	var errs faults
	byInterface := c.DetectLocalMode == LocalBridgeInterface || c.DetectLocalMode == LocalInterfaceNamePrefix
	errs.unless(!byInterface, "detectLocalMode", "%s: Sluice tells pods by their addresses: say %s, or %s with clusterCIDR", c.DetectLocalMode, LocalNodeCIDR, LocalClusterCIDR)
	if c.Mode == ModeIPVS && serves != ModeIPVS {
		errs.unless(!slices.Contains(bySource, c.IPVS.Scheduler), "ipvs.scheduler",
			"%s: Sluice spreads connections at random and does not choose by address: give --mode ipvs, or set sessionAffinity: ClientIP on the services that need it, and take the scheduler out", c.IPVS.Scheduler)
	}
	return errors.Join(errs...)
}

// notes name the settings that have another effect than asked for, without harm.
func (c *Config) notes(serves string) []string {
	var notes []string
	note := func(is bool, format string, args ...any) {
		if is {
			notes = append(notes, fmt.Sprintf(format, args...))
		}
	}
	note(c.Mode != serves, "mode %s is not followed: Sluice serves by --mode %s, and --mode %[1]s chooses that one", c.Mode, serves)
	note(c.wantsLoopback(), "node ports are not served on loopback addresses, as in kube-proxy's nftables mode")
	if c.Mode == ModeIPVS {
		note(serves != ModeIPVS && c.IPVS.Scheduler != "" && c.IPVS.Scheduler != "rr", "ipvs.scheduler %s: without --mode ipvs, connections are spread at random", c.IPVS.Scheduler)
		note(c.IPVS.TCPTimeout.Duration+c.IPVS.TCPFinTimeout.Duration+c.IPVS.UDPTimeout.Duration > 0, "ipvs timeouts are not set")
	}
	gates := slices.Sorted(maps.Keys(c.FeatureGates))
	note(len(gates) > 0, "feature gates have no meaning: %s", strings.Join(gates, ", "))
	note(len(c.Logging.VModule) > 0, "logging.vmodule has no meaning: it names kube-proxy's source files")
	note(c.Winkernel != Winkernel{} || c.WindowsRunAsService, "settings of Windows have no meaning")
	note(c.PortRange != "", "portRange has no meaning")
	return notes
}

// wantsLoopback reports whether kube-proxy would, or is told to, serve node ports on loopback
// addresses.
func (c *Config) wantsLoopback() bool {
	cidrs, _ := c.nodePorts()
	for _, p := range cidrs {
		if p.Addr().IsLoopback() || c.Mode == ModeIPTables && *c.IPTables.LocalhostNodePorts && p.Contains(netip.MustParseAddr("127.0.0.1")) {
			return true
		}
	}
	return false
}
