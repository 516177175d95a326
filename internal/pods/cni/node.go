package cni

import (
	"errors"
	"net/netip"
	"os"
	"slices"
	"strings"

	"github.com/containernetworking/cni/pkg/types"

	"sluice.dev/sluice/internal/kernel/netns"
	"sluice.dev/sluice/internal/kernel/sysctl"
	"sluice.dev/sluice/internal/pods/attach"
	"sluice.dev/sluice/internal/state"
)

// underlay is how large packets may be that reach other nodes' pods as they are: those of the
// devices that default routes lead to, and of the tunnels to other nodes.
func underlay(node *netns.NS) (attach.Limits, error) {
	limits, err := attach.Underlay(node, state.DeviceVXLAN, state.DeviceVXLAN6, state.DeviceIPIP, state.DeviceWG)
	if err != nil {
		return limits, fault(types.ErrInternal, "find the underlay's MTU: set mtu in the network configuration", err)
	}
	return limits, nil
}

// forward lets the node forward packets of the addresses' families.
func forward(addrs []netip.Addr) error {
	off, err := notForwarding(slices.ContainsFunc(addrs, netip.Addr.Is4), slices.ContainsFunc(addrs, netip.Addr.Is6))
	for _, key := range off {
		err = errors.Join(err, os.WriteFile("/proc/sys/"+strings.ReplaceAll(key, ".", "/"), []byte("1"), 0))
	}
	return err
}

// notForwarding names the parameters that are to be set for the node to forward packets. An error
// says why one is missing.
func notForwarding(is4, is6 bool) (off []string, err error) {
	for key, used := range map[string]bool{sysctl.Forward4: is4, sysctl.Forward6: is6} {
		if now, readErr := sysctl.Read(key); used && (readErr != nil || now == "0") {
			off = append(off, key)
		}
	}
	if len(off) == 0 {
		return nil, nil
	}
	want, err := sysctl.Needed(is4, is6)
	return slices.DeleteFunc(off, func(key string) bool { return want[key] == "" }), err
}

// routeOf is a route of a pod that its IPAM asks for.
func routeOf(r *types.Route) *attach.Route {
	route := &attach.Route{Dst: &r.Dst, MTU: r.MTU, AdvMSS: r.AdvMSS, Priority: r.Priority}
	if r.Table != nil {
		route.Table = *r.Table
	}
	if r.Scope != nil {
		route.Scope = attach.Scope(*r.Scope)
	}
	return route
}
