package attach_test

import (
	"errors"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"sluice.dev/sluice/internal/pods/attach"
	"sluice.dev/sluice/test/world"
)

func join(node, pod *world.Host, addrs ...netip.Addr) error {
	_, _, err := attach.Join(node.NS.NS, pod.NS.NS, attach.Pair{Host: "veth0", Inside: attach.Interface, Addresses: addrs})
	return err
}

func TestPodOfOneFamily(t *testing.T) {
	for _, addr := range []string{"10.0.0.2", "fd00::2"} {
		t.Run(addr, func(t *testing.T) {
			node, pod := world.NewHost(t, "node"), world.NewHost(t, "pod")
			if err := join(node, pod, netip.MustParseAddr(addr)); err != nil {
				t.Fatal(err)
			}
			routes, err := pod.RouteList(nil, 0)
			if err != nil {
				t.Fatal(err)
			}
			defaults := 0
			for _, r := range routes {
				if r.Gw != nil {
					defaults++
				}
			}
			if defaults != 1 {
				t.Errorf("%d default routes, want the one of its family: %v", defaults, routes)
			}
			if out := node.Exec("ip", "route", "get", addr); !strings.Contains(out, "dev veth0") {
				t.Errorf("route to the pod: %s", out)
			}
		})
	}
}

// udev gives an Ethernet interface another hardware address a moment after it was made, if nobody
// has chosen the one that it has (MACAddressPolicy=persistent of systemd's 99-default.link): the
// neighbour entries are of the first one, and would lead nowhere.
// https://github.com/antrea-io/antrea/issues/4426
func TestHardwareAddressesStay(t *testing.T) {
	node, pod := world.NewHost(t, "node"), world.NewHost(t, "pod")
	if err := join(node, pod, netip.MustParseAddr("10.0.0.2")); err != nil {
		t.Fatal(err)
	}
	for host, name := range map[*world.Host]string{node: "veth0", pod: attach.Interface} {
		l, err := host.LinkByName(name)
		if err != nil {
			t.Fatal(err)
		}
		if mac := l.Attrs().HardwareAddr; mac[0]&3 != 2 {
			t.Errorf("%s is %s: want one of an interface, and of no maker's", name, mac)
		}
		// NET_ADDR_SET; sysfs shows the interfaces of the namespace where it is mounted
		how := host.Exec("unshare", "-m", "sh", "-c", "mount -t sysfs none /sys && cat /sys/class/net/"+name+"/addr_assign_type")
		if how != "3\n" {
			t.Errorf("addr_assign_type of %s is %q, want 3: udev replaces the address", name, how)
		}
	}
}

// New interfaces have no IPv6 on nodes that are hardened so, and in the namespaces of some
// runtimes. https://github.com/containernetworking/cni/issues/531
func TestWithoutIPv6(t *testing.T) {
	node, pod := world.NewHost(t, "node"), world.NewHost(t, "pod")
	for _, host := range []*world.Host{node, pod} {
		host.Set("net/ipv6/conf/all/disable_ipv6", "1")
		host.Set("net/ipv6/conf/default/disable_ipv6", "1")
	}
	if err := join(node, pod, netip.MustParseAddr("10.0.0.2"), netip.MustParseAddr("fd00::2")); err != nil {
		t.Fatal(err)
	}
	pod.ServeUDP("pod", "[fd00::2]:53")
	for end := time.Now().Add(10 * time.Second); ; time.Sleep(time.Millisecond) {
		got, err := node.Ask("udp", "", "[fd00::2]:53", time.Second)
		if errors.Is(err, unix.EADDRNOTAVAIL) && time.Now().Before(end) {
			continue // the kernel gives the node's end its own address in the background
		}
		if err != nil {
			t.Errorf("%v, %v", got, err)
		}
		return
	}
}

// A route that cannot be put back says what to do.
func TestRerouteWithoutIPv6(t *testing.T) {
	node, pod := world.NewHost(t, "node"), world.NewHost(t, "pod")
	a := netip.MustParseAddr("fd00::2")
	if err := join(node, pod, a); err != nil {
		t.Fatal(err)
	}
	l, err := node.LinkByName("veth0")
	if err != nil {
		t.Fatal(err)
	}
	node.Set("net/ipv6/conf/all/disable_ipv6", "1")
	if put, err := attach.Reroute(node.NS.NS, l.Attrs().Index, a); put || err == nil || !strings.Contains(err.Error(), "set its disable_ipv6 to 0") {
		t.Errorf("%v, %v", put, err)
	}
	node.Set("net/ipv6/conf/all/disable_ipv6", "0")
	if put, err := attach.Reroute(node.NS.NS, l.Attrs().Index, a); !put || err != nil {
		t.Errorf("once it is on again: %v, %v", put, err)
	}
}

func TestDetach(t *testing.T) {
	node, pod := world.NewHost(t, "node"), world.NewHost(t, "pod")
	addrs := []netip.Addr{netip.MustParseAddr("10.0.0.2"), netip.MustParseAddr("fd00::2")}
	for range 2 { // a pod can come back
		if err := join(node, pod, addrs...); err != nil {
			t.Fatal(err)
		}
		for range 2 { // detaching twice is fine
			if err := attach.Detach(node.NS.NS, "veth0"); err != nil {
				t.Fatal(err)
			}
		}
	}
	links, err := pod.LinkList()
	if err != nil {
		t.Fatal(err)
	}
	for _, l := range links {
		if l.Attrs().Name == attach.Interface {
			t.Error("the pod still has its interface")
		}
	}
}

// A failure half-way leaves nothing behind.
func TestPodWithABadAddress(t *testing.T) {
	node, pod := world.NewHost(t, "node"), world.NewHost(t, "pod")
	addrs := []netip.Addr{netip.MustParseAddr("10.0.0.2"), netip.MustParseAddr("ff02::1")} // a pod cannot have multicast
	if err := join(node, pod, addrs...); err == nil {
		t.Fatal("no error")
	}
	links, err := node.LinkList()
	if err != nil {
		t.Fatal(err)
	}
	for _, l := range links {
		if l.Attrs().Name == "veth0" {
			t.Error("the node still has the interface")
		}
	}
}

func TestHostInterface(t *testing.T) {
	names := []string{
		attach.HostInterface("default", "web-1"), attach.HostInterface("default", "web-2"), attach.HostInterface("default-web", "1"),
		attach.HostInterface("a", strings.Repeat("x", 253)),
	}
	for _, n := range names {
		if len(n) > 15 {
			t.Errorf("%s is longer than the kernel takes", n)
		}
	}
	slices.Sort(names)
	if len(slices.Compact(names)) != 4 {
		t.Errorf("names clash: %v", names)
	}
}
