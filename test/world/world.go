// Package world builds the networks through which tests send packets: hosts, each a network
// namespace, joined by veth pairs and bridges. All of it goes when the test ends, also when it
// fails. What a step needs and does not get fails the test.
package world

import (
	"fmt"
	"net/netip"
	"os"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"sluice.dev/sluice/internal/netns"
)

var hosts atomic.Int64

// A Host is a network namespace of a test.
type Host struct {
	*netns.NS
	t testing.TB
}

// NewHost makes a host, whose namespace's name ends with the given one and is of this test alone.
// Its addresses can be used at once: there is no detection of duplicates. Without root, the test is
// skipped.
func NewHost(t testing.TB, name string) *Host {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("needs root, to make network namespaces")
	}
	ns, err := netns.New(fmt.Sprintf("sluice-test-%d-%d-%s", os.Getpid(), hosts.Add(1), name))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := ns.Delete(); err != nil {
			t.Error(err)
		}
	})
	h := &Host{ns, t}
	h.Set("net.ipv6.conf.all.accept_dad", "0")
	h.Set("net.ipv6.conf.default.accept_dad", "0")
	return h
}

func (h *Host) must(err error) {
	h.t.Helper()
	if err != nil {
		h.t.Fatalf("%s: %v", h.Name, err)
	}
}

// In runs f on a thread in the namespace.
func (h *Host) In(f func() error) {
	h.t.Helper()
	h.must(h.Do(f))
}

// Exec runs a command to its end and returns what it prints.
func (h *Host) Exec(program string, args ...string) string {
	h.t.Helper()
	out, err := h.Run(program, args...)
	h.must(err)
	return string(out)
}

// IP runs ip(8), once for each line: "link set eth0 up".
func (h *Host) IP(lines ...string) {
	h.t.Helper()
	for _, line := range lines {
		h.Exec("ip", strings.Fields(line)...)
	}
}

// Set sets a kernel parameter of the namespace.
func (h *Host) Set(key, value string) {
	h.t.Helper()
	h.must(h.Sysctl(key, value))
}

// Forward makes the host a router, for both families.
func (h *Host) Forward() {
	h.t.Helper()
	h.Set("net.ipv4.ip_forward", "1")
	h.Set("net.ipv6.conf.all.forwarding", "1")
}

// Join joins the host with another one by a veth pair, whose ends are up.
func (h *Host) Join(device string, other *Host, otherDevice string) {
	h.t.Helper()
	h.must(netns.Veth(h.NS, device, other.NS, otherDevice))
}

// Bridge makes a bridge of devices, which may be none yet.
func (h *Host) Bridge(name string, ports ...string) {
	h.t.Helper()
	h.must(h.LinkAdd(&netlink.Bridge{LinkAttrs: netlink.LinkAttrs{Name: name}}))
	bridge := h.Device(name)
	h.must(h.LinkSetUp(bridge))
	for _, port := range ports {
		h.must(h.LinkSetMaster(h.Device(port), bridge))
	}
}

// Device returns a device by its name.
func (h *Host) Device(name string) netlink.Link {
	h.t.Helper()
	link, err := h.LinkByName(name)
	h.must(err)
	return link
}

// Address gives a device addresses with the lengths of their networks: "10.0.0.1/24".
func (h *Host) Address(device string, addresses ...string) {
	h.t.Helper()
	link := h.Device(device)
	for _, a := range addresses {
		addr, err := netlink.ParseAddr(a)
		h.must(err)
		if addr.IP.To4() == nil {
			addr.Flags = unix.IFA_F_NODAD
		}
		if err := h.AddrAdd(link, addr); err != nil {
			h.t.Fatalf("%s: add address %s to %s: %v", h.Name, a, device, err)
		}
	}
}

// Gateway has all that the host has no other route for go to an address of each family at most.
func (h *Host) Gateway(via ...string) {
	h.t.Helper()
	for _, v := range via {
		all := "0.0.0.0/0"
		if netip.MustParseAddr(v).Is6() {
			all = "::/0"
		}
		h.Route(all, v)
	}
}

// Route has a prefix go to an address on one of the host's networks.
func (h *Host) Route(prefix, via string) {
	h.t.Helper()
	dst, err := netlink.ParseIPNet(prefix)
	h.must(err)
	if err := h.RouteAdd(&netlink.Route{Dst: dst, Gw: netip.MustParseAddr(via).AsSlice()}); err != nil {
		h.t.Fatalf("%s: route %s via %s: %v", h.Name, prefix, via, err)
	}
}
