package main

import (
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"sluice.dev/sluice/internal/cli"
	"sluice.dev/sluice/internal/compile"
	"sluice.dev/sluice/internal/driver"
	"sluice.dev/sluice/internal/link"
	"sluice.dev/sluice/internal/model"
	"sluice.dev/sluice/internal/source/list"
	"sluice.dev/sluice/internal/state"
	"sluice.dev/sluice/internal/takeover"
)

// policyFlags say whether network policy is carried out, and how.
type policyFlags struct {
	policy, keepEstablished, tunnels  bool
	lists                             list.Files
	denyLists, denyDevices            []string
	failsafeInbound, failsafeOutbound portRanges
}

func (f *policyFlags) register(cmd *cobra.Command) {
	f.failsafeInbound, f.failsafeOutbound = defaultInbound(), defaultOutbound()
	fl := cmd.Flags()
	fl.BoolVar(&f.policy, "policy", true, "carry out network policy; without, nothing is judged, whatever policies there are")
	fl.BoolVar(&f.keepEstablished, "keep-established", false, "let connections go on that a change of policy has come to forbid")
	fl.BoolVar(&f.tunnels, "pod-tunnels", false, "let pods send VXLAN, Geneve, IP in IP and GRE, which can carry anyone's address to a node that has such tunnels")
	fl.Var(&f.lists, "address-list", "a list of addresses to read from a file and watch, that selectors select by the label sluice.dev/list: NAME; may be repeated")
	fl.StringArrayVar(&f.denyLists, "deny-list", nil, "`NAME` of an address list whose packets are dropped where they arrive; may be repeated")
	fl.StringArrayVar(&f.denyDevices, "deny-device", nil, "`interface` where --deny-list holds; may be repeated (default: those of the default routes at the start)")
	fl.Var(&f.failsafeInbound, "failsafe-inbound", "ports of this node that no host endpoint closes; 'none' for none")
	fl.Var(&f.failsafeOutbound, "failsafe-outbound", "ports of others that no host endpoint keeps this node from; 'none' for none")
}

// configure fills the compiler's configuration.
func (f *policyFlags) configure(c *compile.Config) error {
	if !f.policy {
		if len(f.denyLists) > 0 {
			return cli.Usage(errors.New("--deny-list does nothing with --policy=false: leave out one of them"))
		}
		return nil
	}
	for _, name := range f.denyLists {
		if !slices.ContainsFunc(f.lists, func(l list.File) bool { return l.Name == name }) {
			return cli.Usage(fmt.Errorf("--deny-list %s: say with --address-list %s=FILE which file it is", name, name))
		}
	}
	if len(f.denyDevices) > 0 && len(f.denyLists) == 0 {
		return cli.Usage(errors.New("--deny-device needs a --deny-list"))
	}
	c.Policy, c.DenyLists, c.DenyDevices = true, f.denyLists, f.denyDevices
	c.PodTunnels = f.tunnels
	c.FailsafeInbound, c.FailsafeOutbound = f.failsafeInbound, f.failsafeOutbound
	if len(c.DenyLists) > 0 && len(c.DenyDevices) == 0 {
		devices, err := defaultDevices()
		if err != nil {
			return err
		}
		if len(devices) == 0 {
			return errors.New("this node has no default route: say with --deny-device where deny lists are to hold")
		}
		c.DenyDevices = devices
	}
	return nil
}

// options are the driver's.
func (f *policyFlags) options(log *slog.Logger) driver.Options {
	return driver.Options{Log: log, Policy: f.policy, Remembered: takeover.Remembered}
}

// defaultDevices names the interfaces of the default routes in the calling thread's network
// namespace, sorted.
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

// portRanges is a flag of ports, PROTOCOL:PORT. What is given replaces the default.
type portRanges []state.PortRange

// The defaults are Calico's (FailsafeInboundHostPorts and FailsafeOutboundHostPorts): SSH, DHCP,
// DNS, BGP, etcd, Typha and the Kubernetes API.
func defaultInbound() portRanges {
	return portRanges{{Protocol: model.UDP, First: 68, Last: 68}}.and(22, 179, 2379, 2380, 5473, 6443, 6666, 6667)
}

func defaultOutbound() portRanges {
	return portRanges{{Protocol: model.UDP, First: 53, Last: 53}, {Protocol: model.UDP, First: 67, Last: 67}}.and(179, 2379, 2380, 5473, 6443, 6666, 6667)
}

// and adds ports of TCP.
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
		for s := range splitList(text) {
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
	bad := fmt.Errorf("%q is no port such as tcp:22, nor a range such as tcp:6660-6669", s)
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
