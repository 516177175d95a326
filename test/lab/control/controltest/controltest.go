// Package controltest starts real control planes for tests.
package controltest

import (
	"fmt"
	"net"
	"net/netip"
	"os"
	"sync/atomic"
	"testing"

	"github.com/vishvananda/netlink"

	"sluice.dev/sluice/test/lab/control"
	"sluice.dev/sluice/test/netns"
)

// Addr is the API server's address, unless the configuration has another.
var Addr = netip.MustParseAddr("192.0.2.1")

// These are the address ranges, unless the configuration has its own.
var (
	ClusterCIDRs = []netip.Prefix{netip.MustParsePrefix("10.244.0.0/16"), netip.MustParsePrefix("fd00:10:244::/48")}
	ServiceCIDRs = []netip.Prefix{netip.MustParsePrefix("10.96.0.0/16"), netip.MustParsePrefix("fd00:10:96::/112")}
)

var planes atomic.Int64

// Start starts a control plane that ends with the test. Without root, the test is skipped. It fills
// in what cfg leaves out: it builds the programs if necessary, uses the test's folder, and makes a
// new namespace with the address.
func Start(t testing.TB, cfg control.Config) *control.Plane {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("needs root, to make network namespaces")
	}
	var err error
	if cfg.Bin, err = control.Build(t.Context(), func(s string) { t.Log(s) }); err != nil {
		t.Fatal(err)
	}
	if cfg.Dir == "" {
		cfg.Dir = t.TempDir()
	}
	if !cfg.Addr.IsValid() {
		cfg.Addr = Addr
	}
	if cfg.NetNS == nil {
		cfg.NetNS = namespace(t, cfg.Addr)
	}
	if cfg.ClusterCIDRs == nil {
		cfg.ClusterCIDRs = ClusterCIDRs
	}
	if cfg.ServiceCIDRs == nil {
		cfg.ServiceCIDRs = ServiceCIDRs
	}
	p, err := control.Start(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := p.Stop(); err != nil {
			t.Error(err)
		}
	})
	return p
}

// namespace makes a namespace whose loopback device has an address.
func namespace(t testing.TB, addr netip.Addr) *netns.NS {
	t.Helper()
	ns, err := netns.New(fmt.Sprintf("sluice-plane-%d-%d", os.Getpid(), planes.Add(1)))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := ns.Delete(); err != nil {
			t.Error(err)
		}
	})
	lo, err := ns.LinkByName("lo")
	if err == nil {
		err = ns.AddrAdd(lo, &netlink.Addr{IPNet: &net.IPNet{IP: addr.AsSlice(), Mask: net.CIDRMask(addr.BitLen(), addr.BitLen())}})
	}
	if err != nil {
		t.Fatal(err)
	}
	return ns
}
