// Package world builds the networks through which tests send packets: hosts, each a network
// namespace, joined by veth pairs and bridges. All of it goes when the test ends, also when it
// fails. What a step needs and does not get fails the test.
package world

import (
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/vishvananda/netlink"

	"sluice.dev/sluice/internal/pods/attach"
	"sluice.dev/sluice/test/lab/process"
	"sluice.dev/sluice/test/netns"
)

var hosts atomic.Int64

// marker begins the names of all hosts' namespaces; the number of the test's process follows.
const marker = "sluice-test-"

// sweep removes what test programs have left that were killed, or ran into their time limit.
var sweep = sync.OnceValue(func() (err error) {
	for _, path := range process.Left(netns.Dir, marker) {
		name := filepath.Base(path)
		err = errors.Join(err, process.KillIn(name), netns.Delete(name))
	}
	return err
})

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
	if err := sweep(); err != nil {
		t.Logf("what a test before this one has left: %v", err) // another one removes it, too
	}
	ns, err := netns.New(fmt.Sprintf("%s%d-%d-%s", marker, os.Getpid(), hosts.Add(1), name))
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
	h.Set("net.ipv4.ip_forward", "0") // it begins with the machine's own value
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
	h.must(h.LinkSetUp(h.Device(name)))
	h.Port(name, ports...)
}

// Port makes devices ports of a bridge.
func (h *Host) Port(bridge string, devices ...string) {
	h.t.Helper()
	for _, d := range devices {
		h.must(h.LinkSetMaster(h.Device(d), h.Device(bridge)))
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
	for _, a := range addresses {
		h.must(h.NS.Address(device, netip.MustParsePrefix(a)))
	}
}

// Gateway has all that the host has no other route for go to an address of each family at most.
func (h *Host) Gateway(via ...string) {
	h.t.Helper()
	for _, v := range via {
		h.must(h.NS.Route(netip.PrefixFrom(netip.MustParseAddr(v), 0), netip.MustParseAddr(v), ""))
	}
}

// Route has a prefix go to an address on one of the host's networks.
func (h *Host) Route(prefix, via string) {
	h.t.Helper()
	h.must(h.NS.Route(netip.MustParsePrefix(prefix), netip.MustParseAddr(via), ""))
}

// Behind has prefixes be on the network of a device, though the host has no address of that.
func (h *Host) Behind(device string, prefixes ...string) {
	h.t.Helper()
	for _, p := range prefixes {
		h.must(h.NS.Route(netip.MustParsePrefix(p), netip.Addr{}, device))
	}
}

// Neighbour says that addresses behind a device are another host's, at a device of that, so that
// nobody has to look for them.
func (h *Host) Neighbour(device string, other *Host, otherDevice string, addresses ...string) {
	h.t.Helper()
	at, err := other.Hardware(otherDevice)
	h.must(err)
	for _, a := range addresses {
		h.must(h.NS.Neighbour(device, netip.MustParseAddr(a), at))
	}
}

// NewPod makes a host that is a pod of a node, as the CNI plugin attaches one: a veth pair, whose
// end at the node has the given name, and no network in common.
func NewPod(node *Host, name string, addresses ...string) *Host {
	node.t.Helper()
	pod := NewHost(node.t, name)
	pair := attach.Pair{Host: name, Inside: attach.Interface}
	for _, a := range addresses {
		pair.Addresses = append(pair.Addresses, netip.MustParseAddr(a))
	}
	_, _, err := attach.Join(node.NS.NS, pod.NS.NS, pair)
	node.must(err)
	return pod
}
