package main

import (
	"fmt"
	"net"
	"os"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"sluice.dev/sluice/internal/netns"
)

// attachPods makes n pods, from 10.1.0.1 on, and attaches them to the node as a routing CNI does.
func attachPods(t *testing.T, node *netns.NS, n int) []*netns.NS {
	t.Helper()
	if err := node.Sysctl("net.ipv4.ip_forward", "1"); err != nil {
		t.Fatal(err)
	}
	var pods []*netns.NS
	for i := range n {
		pod, err := netns.New(fmt.Sprintf("cmd-pod%d-%d", i, os.Getpid()))
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			if err := pod.Delete(); err != nil {
				t.Error(err)
			}
		})
		if err := attach(node, pod, fmt.Sprintf("veth%d", i), net.IPv4(10, 1, 0, byte(i+1))); err != nil {
			t.Fatal(err)
		}
		pods = append(pods, pod)
	}
	return pods
}

func attach(node, pod *netns.NS, name string, ip net.IP) error {
	if err := netns.Veth(node, name, pod, "eth0"); err != nil {
		return err
	}
	host, err := node.LinkByName(name)
	if err != nil {
		return err
	}
	inside, err := pod.LinkByName("eth0")
	if err != nil {
		return err
	}
	own := &net.IPNet{IP: ip.To4(), Mask: net.CIDRMask(32, 32)}
	gateway := net.IPv4(169, 254, 1, 1)
	index := inside.Attrs().Index
	for _, step := range []func() error{
		func() error { return pod.AddrAdd(inside, &netlink.Addr{IPNet: own}) },
		func() error {
			return pod.RouteAdd(&netlink.Route{LinkIndex: index, Scope: unix.RT_SCOPE_LINK, Dst: &net.IPNet{IP: gateway, Mask: net.CIDRMask(32, 32)}})
		},
		func() error {
			_, all, _ := net.ParseCIDR("0.0.0.0/0")
			return pod.RouteAdd(&netlink.Route{LinkIndex: index, Dst: all, Gw: gateway})
		},
		func() error {
			return pod.NeighAdd(&netlink.Neigh{LinkIndex: index, IP: gateway, HardwareAddr: host.Attrs().HardwareAddr, State: netlink.NUD_PERMANENT})
		},
		func() error {
			return node.RouteAdd(&netlink.Route{LinkIndex: host.Attrs().Index, Scope: unix.RT_SCOPE_LINK, Dst: own})
		},
	} {
		if err := step(); err != nil {
			return fmt.Errorf("attach pod %s: %w", ip, err)
		}
	}
	return nil
}

// connect tries to connect from a pod.
func connect(pod *netns.NS, address string) error {
	return pod.Do(func() error {
		c, err := net.DialTimeout("tcp", address, 2*time.Second)
		if err != nil {
			return err
		}
		return c.Close()
	})
}
