package cni

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/containernetworking/cni/pkg/skel"
	"github.com/containernetworking/cni/pkg/types"
	current "github.com/containernetworking/cni/pkg/types/100"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"sluice.dev/sluice/internal/attach"
	"sluice.dev/sluice/internal/netns"
)

// lenient reads a configuration as far as it takes to clean up.
func lenient(stdin []byte) (*config, error) {
	var c config
	err := json.Unmarshal(stdin, &c)
	if wrong := (*json.UnmarshalTypeError)(nil); errors.As(err, &wrong) && c.Name != "" {
		err = nil // the rest of it is read
	}
	if err != nil {
		return nil, fault(types.ErrDecodingFailure, "read the network configuration", err)
	}
	return &c, nil
}

// gc removes the interfaces and addresses of containers that the runtime does not have any more.
// What cannot be removed does not keep it from the rest.
func gc(args *skel.CmdArgs) error {
	conf, err := lenient(args.StdinData)
	if err != nil {
		return err
	}
	node, err := netns.OpenPath(own)
	if err != nil {
		return fault(types.ErrInternal, "open the node's network namespace", err)
	}
	var keep []string
	for _, a := range conf.ValidAttachments {
		keep = append(keep, attach.HostInterface(a.ContainerID, a.IfName))
	}
	errs := []error{conf.ipam(args.StdinData).gc(conf.ValidAttachments, func(lost types.GCAttachment) error {
		return attach.Detach(node, attach.HostInterface(lost.ContainerID, lost.IfName))
	})}
	names, err := linksOf(node, conf.Name)
	errs = append(errs, err)
	for _, name := range names {
		if !slices.Contains(keep, name) {
			errs = append(errs, attach.Detach(node, name))
		}
	}
	if err := errors.Join(append(errs, node.Close())...); err != nil {
		code := types.ErrInternal
		if e, ok := errors.AsType[*types.Error](err); ok {
			code = e.Code
		}
		return fault(code, "not all that containers left could be removed, everything else is: mend it, and call GC again", err)
	}
	return nil
}

// status reports whether ADD would work.
func status(args *skel.CmdArgs) error {
	conf, err := parse(args.StdinData)
	if err == nil {
		err = conf.ipam(args.StdinData).status()
	}
	if err == nil && conf.Agent != nil {
		err = conf.Agent.ready()
	}
	if err != nil {
		if e, ok := errors.AsType[*types.Error](err); ok && e.Details != "" {
			err = fmt.Errorf("%s: %s", e.Msg, e.Details)
		}
		return fault(types.ErrPluginNotAvailable, "containers cannot be added", err)
	}
	if off, err := notForwarding(true, false); err != nil || len(off) > 0 {
		return fault(types.ErrLimitedConnectivity, "the node does not forward packets, so that containers reach nobody: set "+strings.Join(off, "=1 and ")+"=1 (ADD does it, too)", err)
	}
	return nil
}

// check reports whether a container still has what ADD gave it. What plugins after this one may
// have changed is not looked at.
func check(args *skel.CmdArgs) (err error) {
	conf, err := parse(args.StdinData)
	if err != nil {
		return err
	}
	if conf.PrevResult == nil {
		return fault(types.ErrInvalidNetworkConfig, "prevResult is missing: CHECK compares the container with what ADD returned", nil)
	}
	before, err := current.NewResultFromResult(conf.PrevResult)
	if err != nil {
		return fault(types.ErrDecodingFailure, "read prevResult", err)
	}
	node, container, err := open(args)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, node.Close(), container.Close()) }()
	addrs, inside := addrsOf(before, args)
	if err := conf.ipam(args.StdinData).check(args, addrs); err != nil {
		return err
	}
	if err := compare(node, container, args, addrs, inside); err != nil {
		return fault(types.ErrInternal, "the container's network is not as ADD made it: make the container anew", err)
	}
	return nil
}

// addrsOf finds the container's interface in a result, and its addresses.
func addrsOf(r *current.Result, args *skel.CmdArgs) (addrs []netip.Addr, inside *current.Interface) {
	for i, link := range r.Interfaces {
		if link.Name != args.IfName || link.Sandbox != args.Netns {
			continue
		}
		inside = link
		for _, ip := range r.IPs {
			if ip.Interface != nil && *ip.Interface == i {
				addrs = append(addrs, addrOf(ip.Address.IP))
			}
		}
	}
	return addrs, inside
}

// compare looks for what a container's packets need.
func compare(node, container *netns.NS, args *skel.CmdArgs, addrs []netip.Addr, inside *current.Interface) error {
	outer, err := node.LinkByName(attach.HostInterface(args.ContainerID, args.IfName))
	if err != nil {
		return fmt.Errorf("the node's end %s: %w", attach.HostInterface(args.ContainerID, args.IfName), err)
	}
	inner, err := container.LinkByName(args.IfName)
	switch {
	case err != nil:
		return fmt.Errorf("%s in the container: %w", args.IfName, err)
	case inside == nil:
		return fmt.Errorf("prevResult has no interface %s in %s", args.IfName, args.Netns)
	case inside.Mac != "" && inside.Mac != inner.Attrs().HardwareAddr.String():
		return fmt.Errorf("%s has the hardware address %s, not %s", args.IfName, inner.Attrs().HardwareAddr, inside.Mac)
	}
	for _, l := range []netlink.Link{outer, inner} {
		if l.Attrs().OperState != netlink.OperUp {
			return fmt.Errorf("%s is %s", l.Attrs().Name, l.Attrs().OperState)
		}
	}
	has, err := container.AddrList(inner, netlink.FAMILY_ALL)
	if err != nil {
		return fmt.Errorf("list the container's addresses: %w", err)
	}
	for _, a := range addrs {
		if !slices.ContainsFunc(has, func(h netlink.Addr) bool { return addrOf(h.IP) == a }) {
			return fmt.Errorf("%s does not have the address %s", args.IfName, a)
		}
		routes, err := node.RouteListFiltered(familyOf(a), &netlink.Route{Dst: prefix(a, a.BitLen()), LinkIndex: outer.Attrs().Index}, netlink.RT_FILTER_DST|netlink.RT_FILTER_OIF)
		if err != nil || len(routes) == 0 {
			return errors.Join(fmt.Errorf("the node has no route to %s by %s", a, outer.Attrs().Name), err)
		}
		if way, err := container.RouteGet(somewhere[a.Is4()]); err != nil || len(way) == 0 {
			return errors.Join(fmt.Errorf("the container has no default route for %s", a), err)
		}
	}
	return nil
}

func familyOf(a netip.Addr) int {
	if a.Is4() {
		return unix.AF_INET
	}
	return unix.AF_INET6
}
