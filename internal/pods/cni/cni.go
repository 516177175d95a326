// Package cni carries out the verbs of the Container Network Interface (specification 1.1.0): it
// gives a pod addresses from the node's ranges and joins its namespace to the node's.
//
// It keeps state only in the kernel and in the IPAM's store. ADD takes addresses first and
// makes the interface then, DEL goes the other way: an address that an interface has is always
// given.
package cni

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"slices"
	"strings"

	"github.com/containernetworking/cni/pkg/skel"
	"github.com/containernetworking/cni/pkg/types"
	current "github.com/containernetworking/cni/pkg/types/100"
	"golang.org/x/sys/unix"

	"sluice.dev/sluice/internal/kernel/netns"
	"sluice.dev/sluice/internal/pods/attach"
)

// minMTU6 is the smallest MTU of an interface with IPv6 (RFC 8200).
const minMTU6 = 1280

// own is the network namespace that the plugin is called in: the node's.
const own = "/proc/thread-self/ns/net"

// About says what the program is to somebody who calls it by hand.
const About = "a CNI plugin, which a container runtime calls; see docs/cni.md"

// Funcs are the verbs, for package skel.
var Funcs = skel.CNIFuncs{Add: add, Del: del, Check: check, GC: gc, Status: status}

// add gives a container an interface with addresses, and prints the result. If it fails, nothing
// remains.
func add(args *skel.CmdArgs) (err error) {
	conf, err := parse(args.StdinData)
	if err != nil {
		return err
	}
	pod, err := podOf(args)
	if err != nil {
		return err
	}
	mac, err := conf.mac(&pod)
	if err != nil {
		return err
	}
	if conf.Agent != nil && (pod.K8S_POD_NAMESPACE == "" || pod.K8S_POD_NAME == "") {
		return fault(types.ErrInvalidEnvironmentVariables, "CNI_ARGS="+args.Args+" has no K8S_POD_NAMESPACE and K8S_POD_NAME: name the pod whose policies hold, or leave out agent in the network configuration", nil)
	}
	if err := nameable(args.IfName); err != nil {
		return err
	}
	node, container, err := open(args)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, node.Close(), container.Close()) }()
	if _, err := container.LinkByName(args.IfName); err == nil {
		return fault(types.ErrInvalidEnvironmentVariables, fmt.Sprintf("CNI_IFNAME=%s: the container has an interface of that name: call DEL before ADD, or name another", args.IfName), nil)
	}
	if err := unattached(node, args); err != nil {
		return err
	}
	given, err := conf.ipam(args.StdinData, node).add(args)
	if err != nil {
		return err
	}
	result, err := join(conf, &pod, args, node, container, mac, given)
	if err == nil {
		err = types.PrintResult(result, conf.CNIVersion)
	}
	if err != nil {
		return errors.Join(err, remove(conf, args, node))
	}
	return nil
}

// nameable fails for names that package skel accepts and the kernel does not.
func nameable(ifname string) error {
	why := ""
	switch {
	case ifname == "all" || ifname == "default":
		why = "which stands for all interfaces in the kernel's parameters"
	case strings.Contains(ifname, "%"):
		why = "in which the kernel would replace %"
	case strings.Contains(ifname, "\xa0"):
		why = "in which the kernel takes the byte 0xA0 for a space"
	default:
		return nil
	}
	return fault(types.ErrInvalidEnvironmentVariables, fmt.Sprintf("CNI_IFNAME=%s, %s: name another, as eth0", ifname, why), nil)
}

// unattached fails if the node already has an interface of the container, whatever the IPAM knows:
// otherwise an ADD that fails would remove the interface of a living container.
func unattached(node *netns.NS, args *skel.CmdArgs) error {
	host := attach.HostInterface(args.ContainerID, args.IfName)
	if _, err := node.LinkByName(host); err == nil {
		return fault(types.ErrInvalidEnvironmentVariables,
			fmt.Sprintf("CNI_CONTAINERID=%s with CNI_IFNAME=%s has the interface %s on the node already: call DEL before ADD", args.ContainerID, args.IfName, host), nil)
	}
	return nil
}

// join makes the interface of a container that was given addresses.
func join(conf *config, pod *pod, args *skel.CmdArgs, node, container *netns.NS, mac net.HardwareAddr, given lease) (*current.Result, error) {
	pair := attach.Pair{
		Host: attach.HostInterface(args.ContainerID, args.IfName), Inside: args.IfName, Addresses: given.addrs(),
		Alias: pod.alias(args), Group: group(conf.Name), MAC: mac,
	}
	for _, r := range given.routes {
		if ones, _ := r.Dst.Mask.Size(); ones > 0 { // the default routes are there anyway
			pair.Routes = append(pair.Routes, routeOf(r))
		}
	}
	var err error
	if pair.Limits, err = underlay(node); err != nil && conf.MTU == 0 {
		return nil, err
	}
	if conf.MTU != 0 {
		pair.MTU = conf.MTU
	}
	if pair.MTU != 0 && pair.MTU < minMTU6 && slices.ContainsFunc(pair.Addresses, netip.Addr.Is6) {
		return nil, fault(types.ErrInvalidNetworkConfig, fmt.Sprintf("the container would have an MTU of %d, and IPv6 takes %d: set mtu to that at least, or leave out IPv6", pair.MTU, minMTU6), nil)
	}
	if err := forward(pair.Addresses); err != nil {
		return nil, fault(types.ErrTryAgainLater, "let the node forward packets", err)
	}
	if conf.Agent != nil {
		pair.Admit = func(device int) error { return conf.Agent.admit(pod, pair.Host, device, pair.Addresses) }
	}
	outer, inner, err := attach.Join(node, container, pair)
	refused, known := errors.AsType[*types.Error](err)
	switch {
	case known:
		return nil, refused
	case errors.Is(err, unix.EEXIST):
		return nil, fault(types.ErrTryAgainLater, "make the container's interface: what it needs is another's on this node, or of an earlier ADD without DEL; the next ADD takes other addresses", err)
	case err != nil:
		return nil, fault(types.ErrInternal, "make the container's interface", err)
	}
	return result(conf, args, outer, inner, given), nil
}

// open opens the node's namespace and a container's, which is another.
func open(args *skel.CmdArgs) (node, container *netns.NS, err error) {
	container, err = netns.OpenPath(args.Netns)
	if _, missing := os.Stat(args.Netns); errors.Is(missing, os.ErrNotExist) {
		return nil, nil, fault(types.ErrUnknownContainer, "CNI_NETNS="+args.Netns+": there is no such network namespace: the container is gone, make it anew", err)
	} else if err != nil {
		return nil, nil, fault(types.ErrInvalidEnvironmentVariables, "CNI_NETNS="+args.Netns+" is no network namespace: name one, as in /run/netns/NAME or /proc/PID/ns/net", err)
	}
	if node, err = netns.OpenPath(own); err != nil {
		return nil, nil, errors.Join(fault(types.ErrInternal, "open the node's network namespace", err), container.Close())
	}
	if node.Is(container) {
		return nil, nil, errors.Join(fault(types.ErrInvalidEnvironmentVariables, "CNI_NETNS="+args.Netns+" is the network namespace of the node itself: name the container's", nil), node.Close(), container.Close())
	}
	return node, container, nil
}

// result is what a container got, after what plugins before this one gave it.
func result(conf *config, args *skel.CmdArgs, outer, inner attach.End, given lease) *current.Result {
	r := &current.Result{CNIVersion: current.ImplementedSpecVersion}
	if conf.PrevResult != nil {
		if before, err := current.NewResultFromResult(conf.PrevResult); err == nil {
			r = before
		}
	}
	r.Interfaces = append(r.Interfaces,
		&current.Interface{Name: outer.Name, Mac: outer.MAC, Mtu: outer.MTU},
		&current.Interface{Name: inner.Name, Mac: inner.MAC, Mtu: inner.MTU, Sandbox: args.Netns})
	inside := len(r.Interfaces) - 1
	families := map[bool]bool{}
	for _, ip := range given.ips {
		a := addrOf(ip.Address.IP)
		gw := attach.Gateway(a.Is4()).AsSlice()
		if ip.Interface = &inside; ip.Gateway == nil {
			ip.Gateway = gw
		}
		r.IPs = append(r.IPs, ip)
		if !families[a.Is4()] {
			families[a.Is4()] = true
			r.Routes = append(r.Routes, &types.Route{Dst: *prefix(netip.PrefixFrom(a, 0).Masked().Addr(), 0), GW: gw})
		}
	}
	for _, route := range given.routes {
		if ones, _ := route.Dst.Mask.Size(); ones > 0 {
			route.GW = attach.Gateway(route.Dst.IP.To4() != nil).AsSlice()
			r.Routes = append(r.Routes, route)
		}
	}
	if r.DNS = given.dns; !conf.DNS.IsEmpty() {
		r.DNS = conf.DNS
	}
	return r
}

func prefix(a netip.Addr, bits int) *net.IPNet {
	return &net.IPNet{IP: a.AsSlice(), Mask: net.CIDRMask(bits, a.BitLen())}
}

// del takes a container's interface and addresses back. What is gone already is no error, and a
// configuration that ADD would refuse does not matter.
func del(args *skel.CmdArgs) error {
	conf, err := lenient(args.StdinData)
	if err != nil {
		return err
	}
	if file, err := os.Stat(args.Netns); err == nil && !file.Mode().IsRegular() {
		// It is no namespace. Package skel opens it after this, and so does an IPAM plugin: at a
		// FIFO they would wait.
		args.Netns = ""
		if err := os.Unsetenv("CNI_NETNS"); err != nil {
			return fault(types.ErrInternal, "leave out CNI_NETNS", err)
		}
	}
	node, err := netns.OpenPath(own)
	if err != nil {
		return fault(types.ErrInternal, "open the node's network namespace", err)
	}
	return errors.Join(remove(conf, args, node), node.Close())
}

// remove takes away what a container has. Its addresses are given back once nothing leads to it.
func remove(conf *config, args *skel.CmdArgs, node *netns.NS) error {
	device := attach.HostInterface(args.ContainerID, args.IfName)
	if err := attach.Detach(node, device); err != nil {
		return fault(types.ErrInternal, fmt.Sprintf("remove %s of container %s", args.IfName, args.ContainerID), err)
	}
	if conf.Agent != nil {
		conf.Agent.forget(device)
	}
	return conf.ipam(args.StdinData, node).del(args)
}
