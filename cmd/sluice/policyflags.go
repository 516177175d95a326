package main

import (
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/pflag"
	"sluice.dev/sluice/internal/cli"
	"sluice.dev/sluice/internal/compile"
	"sluice.dev/sluice/internal/driver"
	"sluice.dev/sluice/internal/kernel/link"
	"sluice.dev/sluice/internal/model"
	"sluice.dev/sluice/internal/services/takeover"
	"sluice.dev/sluice/internal/source/list"
	"sluice.dev/sluice/internal/state"
)

// policyFlags set whether network policy is enforced, and how.
type policyFlags struct {
	keepEstablished bool
	unsupported     unsupported
	lists           list.Files
}

func (f *policyFlags) register(fl *pflag.FlagSet, c *compile.Config) {
	c.FailsafeInbound, c.FailsafeOutbound = defaultInbound(), defaultOutbound()
	fl.BoolVar(&c.Policy, "policy", true, "enforce network policy; if false, policies have no effect")
	fl.BoolVar(&f.keepEstablished, "keep-established", false, "keep established connections that a change of policy forbids")
	f.unsupported = denyUnsupported
	fl.Var(&f.unsupported, "unsupported", "what becomes of a policy that cannot be carried out as it is written and of which no good version is known: deny (it denies all that it selects, a NetworkPolicy isolates it) or ignore-policy (it has no effect as a whole)")
	fl.BoolVar(&c.PodTunnels, "pod-tunnels", false, "let pods send VXLAN, Geneve, IP-in-IP and GRE packets; with these, a pod can forge any source address towards a node that has such tunnels")
	fl.Var(&f.lists, "address-list", "address list to read from a file and watch; selectors select it by the label sluice.dev/list: NAME; may be repeated")
	fl.StringArrayVar(&c.DenyLists, "deny-list", nil, "`NAME` of an address list whose packets are dropped where they arrive; may be repeated")
	fl.StringArrayVar(&c.DenyDevices, "deny-device", nil, "`interface` on which --deny-list holds; may be repeated (default: the interfaces of the default routes at the start)")
	fl.Var((*portRanges)(&c.FailsafeInbound), "failsafe-inbound", "ports of this node that stay open whatever host endpoints say; 'none' for none")
	fl.Var((*portRanges)(&c.FailsafeOutbound), "failsafe-outbound", "ports of other hosts that this node may always reach, whatever host endpoints say; 'none' for none")
}

// complete checks what these flags set, and adds the interfaces of deny lists.
func (f *policyFlags) complete(c *compile.Config) error {
	if !c.Policy {
		if len(c.DenyLists) > 0 {
			return cli.Usage(errors.New("--deny-list does nothing with --policy=false: leave out one of them"))
		}
		return nil
	}
	for _, name := range c.DenyLists {
		if !slices.ContainsFunc(f.lists, func(l list.File) bool { return l.Name == name }) {
			return cli.Usage(fmt.Errorf("--deny-list %s: name its file with --address-list %s=FILE", name, name))
		}
	}
	if len(c.DenyDevices) > 0 && len(c.DenyLists) == 0 {
		return cli.Usage(errors.New("--deny-device needs a --deny-list"))
	}
	if len(c.DenyLists) > 0 && len(c.DenyDevices) == 0 {
		devices, err := defaultDevices()
		if err != nil {
			return err
		}
		if len(devices) == 0 {
			return errors.New("this node has no default route: name the interfaces for deny lists with --deny-device")
		}
		c.DenyDevices = devices
	}
	return nil
}

// unsupported is a flag that says what becomes of policies that cannot be carried out.
type unsupported string

const (
	denyUnsupported   unsupported = "deny"
	ignoreUnsupported unsupported = "ignore-policy"
)

func (u unsupported) ignores() bool { return u == ignoreUnsupported }

// String implements pflag.Value.
func (u *unsupported) String() string { return string(*u) }

// Set implements pflag.Value.
func (u *unsupported) Set(text string) error {
	switch unsupported(text) {
	case denyUnsupported, ignoreUnsupported:
		*u = unsupported(text)
		return nil
	}
	return fmt.Errorf("choose %s or %s", denyUnsupported, ignoreUnsupported)
}

// Type implements pflag.Value.
func (u *unsupported) Type() string { return "choice" }

// options returns the driver's options.
func (f *nodeFlags) options(log *slog.Logger) driver.Options {
	o := driver.Options{Log: log, Policy: f.compiler.Policy, KeepEstablished: f.keepEstablished, Fabric: f.compiler.Fabric, FlowOffload: f.flowOffload, Remembered: takeover.Remembered}
	if unprivileged() { // who may not see what others have programmed
		o.Remembered = nil
	}
	return o
}

// defaultDevices returns the names of the interfaces of the default routes in the calling thread's
// network namespace, sorted.
func defaultDevices() ([]string, error) {
	routes, err := link.Here.DefaultRoutes()
	if err != nil {
		return nil, err
	}
	var names []string
	for _, r := range routes {
		names = append(names, r.Device)
	}
	slices.Sort(names)
	return slices.Compact(names), nil
}

// portRanges is a flag of ports, PROTOCOL:PORT. Given values replace the default.
type portRanges []state.PortRange

// The defaults are Calico's (FailsafeInboundHostPorts and FailsafeOutboundHostPorts): SSH, DHCP,
// DNS, BGP, etcd, Typha and the Kubernetes API.
func defaultInbound() portRanges {
	return portRanges{{Protocol: model.UDP, First: 68, Last: 68}}.and(22, 179, 2379, 2380, 5473, 6443, 6666, 6667)
}

func defaultOutbound() portRanges {
	return portRanges{{Protocol: model.UDP, First: 53, Last: 53}, {Protocol: model.UDP, First: 67, Last: 67}}.and(179, 2379, 2380, 5473, 6443, 6666, 6667)
}

// and returns f with ports of TCP added.
func (f portRanges) and(ports ...uint16) portRanges {
	for _, p := range ports {
		f = append(f, state.PortRange{Protocol: model.TCP, First: p, Last: p})
	}
	return f
}

// String implements pflag.Value.
func (f *portRanges) String() string {
	var parts []string
	for _, r := range *f {
		part := fmt.Sprintf("%s:%d", strings.ToLower(r.Protocol.String()), r.First)
		if r.Last != r.First {
			part += fmt.Sprintf("-%d", r.Last)
		}
		parts = append(parts, part)
	}
	if len(parts) == 0 {
		return "none"
	}
	return strings.Join(parts, ",")
}

// Set implements pflag.Value.
func (f *portRanges) Set(text string) error {
	var set portRanges
	if text != "none" {
		for _, s := range splitList(text) {
			r, err := parsePorts(s)
			if err != nil {
				return err
			}
			set = append(set, r)
		}
	}
	*f = set
	return nil
}

func parsePorts(s string) (state.PortRange, error) {
	bad := fmt.Errorf("%q is neither a port such as tcp:22 nor a range such as tcp:6660-6669", s)
	name, ports, ok := strings.Cut(s, ":")
	protocol := map[string]model.Protocol{"tcp": model.TCP, "udp": model.UDP, "sctp": model.SCTP}[strings.ToLower(name)]
	if !ok || protocol == 0 {
		return state.PortRange{}, bad
	}
	low, high, ranged := strings.Cut(ports, "-")
	if !ranged {
		high = low
	}
	first, err1 := strconv.ParseUint(low, 10, 16)
	last, err2 := strconv.ParseUint(high, 10, 16)
	if err1 != nil || err2 != nil || first == 0 || last < first {
		return state.PortRange{}, bad
	}
	return state.PortRange{Protocol: protocol, First: uint16(first), Last: uint16(last)}, nil
}

// Type implements pflag.Value.
func (f *portRanges) Type() string { return "ports" }
