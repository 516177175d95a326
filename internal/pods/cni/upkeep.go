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

	"sluice.dev/sluice/internal/kernel/netns"
	"sluice.dev/sluice/internal/pods/attach"
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
	errs := []error{conf.ipam(args.StdinData, node).gc(conf.ValidAttachments, func(lost types.GCAttachment) error {
		return attach.Detach(node, attach.HostInterface(lost.ContainerID, lost.IfName))
	})}
	names, err := attach.InGroup(node, group(conf.Name))
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

// status reports whether ADD can work, and whether containers that are there reach others. It does
// not ask for the agent, which ADD waits for: a runtime that hears of an error says that the node
// is not ready, and Kubernetes moves all pods away from it, though theirs is well.
func status(args *skel.CmdArgs) (err error) {
	conf, err := parse(args.StdinData)
	if err != nil {
		return unavailable(err)
	}
	node, err := netns.OpenPath(own)
	if err != nil {
		return unavailable(err)
	}
	defer func() { err = errors.Join(err, node.Close()) }()
	is4, is6, err := conf.ipam(args.StdinData, node).status()
	if err != nil {
		return unavailable(err)
	}
	off, err := notForwarding(is4, is6)
	if err != nil {
		return unavailable(err)
	}
	// ADD turns it on, so that it is no matter where there are no containers, as after a boot: a
	// runtime that hears of an error calls no ADD.
	if has, err := attach.InGroup(node, group(conf.Name)); err != nil {
		return unavailable(err)
	} else if len(has) > 0 && len(off) > 0 {
		return fault(types.ErrLimitedConnectivity, "the node does not forward packets, so that containers reach nobody: set "+strings.Join(off, "=1 and ")+"=1", nil)
	}
	return nil
}

// unavailable is the error of STATUS where ADD would fail.
func unavailable(err error) error {
	if e, ok := errors.AsType[*types.Error](err); ok && e.Details != "" {
		err = fmt.Errorf("%s: %s", e.Msg, e.Details)
	}
	return fault(types.ErrPluginNotAvailable, "containers cannot be added", err)
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
	if err := conf.ipam(args.StdinData, node).check(args, addrs); err != nil {
		return err
	}
	pair := attach.Pair{Host: attach.HostInterface(args.ContainerID, args.IfName), Inside: args.IfName, Addresses: addrs}
	if inside == nil {
		return fault(types.ErrInvalidNetworkConfig, fmt.Sprintf("prevResult has no interface %s in %s: CHECK compares the container with what ADD returned", args.IfName, args.Netns), nil)
	}
	if err := attach.Check(node, container, pair, inside.Mac); err != nil {
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
