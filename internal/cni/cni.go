// Package cni carries out the verbs of the Container Network Interface (specification 1.1.0): it
// gives a pod addresses from the node's ranges and joins its namespace to the node's.
package cni

import (
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/netip"

	"github.com/containernetworking/cni/pkg/skel"
	"github.com/containernetworking/cni/pkg/types"
	current "github.com/containernetworking/cni/pkg/types/100"

	"sluice.dev/sluice/internal/attach"
	"sluice.dev/sluice/internal/netns"
)

// own is the network namespace that the plugin is called in: the node's.
const own = "/proc/thread-self/ns/net"

// podArgs is what Kubernetes' runtimes say of the pod.
type podArgs struct {
	types.CommonArgs
	K8S_POD_NAMESPACE, K8S_POD_NAME types.UnmarshallableString
}

// hostInterface is the node's end of a container's pair: named after the pod, where a runtime says
// which, so that it is the same after a restart.
func hostInterface(args *skel.CmdArgs) (string, error) {
	var pod podArgs
	pod.IgnoreUnknown = true
	if err := types.LoadArgs(args.Args, &pod); err != nil {
		return "", types.NewError(types.ErrInvalidEnvironmentVariables, "read CNI_ARGS", err.Error())
	}
	if pod.K8S_POD_NAME == "" {
		return attach.HostInterface(args.ContainerID, args.IfName), nil
	}
	return attach.HostInterface(string(pod.K8S_POD_NAMESPACE), string(pod.K8S_POD_NAME)), nil
}

// Add gives a container an interface with addresses, and prints the result. If it fails, nothing
// remains.
func Add(args *skel.CmdArgs) (err error) {
	var conf types.PluginConf
	if err := json.Unmarshal(args.StdinData, &conf); err != nil {
		return types.NewError(types.ErrDecodingFailure, "read the network configuration", err.Error())
	}
	host, err := hostInterface(args)
	if err != nil {
		return err
	}
	node, pod, err := open(args.Netns)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, node.Close(), pod.Close()) }()
	addrs, err := assign(args.StdinData, args.Args, args.ContainerID, args.IfName)
	if err != nil {
		return err
	}
	if err := attach.Pod(node, host, pod, args.IfName, addrs); err != nil {
		return errors.Join(err, release(args.StdinData, args.Args, args.ContainerID, args.IfName))
	}
	return types.PrintResult(result(args, host, addrs), conf.CNIVersion)
}

// open opens the node's namespace and a container's.
func open(container string) (node, pod *netns.NS, err error) {
	if pod, err = netns.OpenPath(container); err != nil {
		return nil, nil, types.NewError(types.ErrInvalidNetNS, "open the container's network namespace", err.Error())
	}
	if node, err = netns.OpenPath(own); err != nil {
		return nil, nil, errors.Join(err, pod.Close())
	}
	return node, pod, nil
}

func result(args *skel.CmdArgs, host string, addrs []netip.Addr) *current.Result {
	r := &current.Result{CNIVersion: current.ImplementedSpecVersion, Interfaces: []*current.Interface{
		{Name: host}, {Name: args.IfName, Sandbox: args.Netns},
	}}
	for _, a := range addrs {
		inside := 1
		r.IPs = append(r.IPs, &current.IPConfig{Interface: &inside,
			Address: net.IPNet{IP: a.AsSlice(), Mask: net.CIDRMask(a.BitLen(), a.BitLen())}})
	}
	return r
}

// Del takes a container's interface and addresses back. What is gone already is no error.
func Del(args *skel.CmdArgs) error {
	host, err := hostInterface(args)
	if err != nil {
		return err
	}
	node, err := netns.OpenPath(own)
	if err != nil {
		return err
	}
	err = attach.Detach(node, host)
	if err == nil {
		err = release(args.StdinData, args.Args, args.ContainerID, args.IfName)
	}
	if err := errors.Join(err, node.Close()); err != nil {
		return fmt.Errorf("remove %s of container %s: %w", args.IfName, args.ContainerID, err)
	}
	return nil
}
