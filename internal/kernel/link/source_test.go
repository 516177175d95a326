package link

import (
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"sluice.dev/sluice/internal/model"
	"sluice.dev/sluice/test/world"
)

// The address that each interface masquerades with is the one that the kernel really does, wherever
// a packet goes. Where none is said, it depends on that.
func TestSources(t *testing.T) {
	const near4, near6 = "10.0.0.9 10.0.1.9 198.51.100.1", "fd00:1::9 fd00:2::9 2001:db8::9 2001:4860::1"
	for _, tc := range []struct {
		name, addrs, want string
		to                string // addresses beyond the interface
	}{
		{"one", "10.0.0.1/24", "10.0.0.1", near4},
		{"a host's address", "10.0.0.1/32", "10.0.0.1", near4},
		{"none", "", "", ""},
		{"of one subnet", "10.0.0.1/24, 10.0.0.2/24, 10.0.0.3/24", "10.0.0.1", near4},
		{"beside a host's address", "10.0.0.1/24, 203.0.113.7/32, 10.0.1.5/32", "10.0.0.1", near4},
		{"after a host's address", "203.0.113.7/32, 10.0.0.1/24", "", near4},
		{"of two subnets", "10.0.0.1/24, 10.0.1.1/24", "", near4},
		{"a subnet within", "10.0.0.1/16, 10.0.1.1/24", "10.0.0.1", near4},
		{"a subnet around", "10.0.1.1/24, 10.0.0.1/16", "", near4},
		{"for the link alone", "10.0.1.1/24 scope link, 10.0.0.1/24", "10.0.0.1", near4},
		{"with a peer", "10.0.0.1/24, 10.7.7.7 peer 10.0.1.9/32", "", near4},
		{"IPv6", "fd00:1::1/64", "fd00:1::1", near6},
		{"IPv6, of one subnet", "fd00:1::1/64, fd00:1::2/64, fd00:1::3/64", "fd00:1::3", near6},
		{"IPv6, of two subnets", "fd00:1::1/64, fd00:2::1/64", "", near6},
		{"IPv6, local and global", "fd00:1::1/64, 2001:db8::1/64", "", near6},
		{"IPv6, and deprecated", "fd00:1::1/64, 2001:db8::1/64 preferred_lft 0", "fd00:1::1", near6},
	} {
		t.Run(tc.name, func(t *testing.T) {
			h, far := joined(t)
			for addr := range strings.SplitSeq(tc.addrs, ", ") {
				if flags := " nodad"; addr != "" {
					if !strings.Contains(addr, ":") {
						flags = ""
					}
					h.IP("addr add " + addr + " dev e0" + flags)
				}
			}
			ip(h, `route add default dev e0
				-6 route add default dev e0`)
			seen := map[string]bool{}
			for _, to := range strings.Fields(tc.to) {
				seen[masqueraded(t, h, far, netip.MustParseAddr(to))] = true
			}
			if got := source(h); got != tc.want {
				t.Errorf("%q, want %q", got, tc.want)
			}
			if tc.want != "" && (len(seen) > 1 || !seen[tc.want]) || tc.want == "" && len(seen) == 1 {
				t.Errorf("the kernel masquerades with %v, not with %q", seen, tc.want)
			}
		})
	}
}

// source is the address that e0 is said to masquerade with.
func source(h *world.Host) (addr string) {
	h.In(func() error {
		all, err := Here.Underlay()
		for _, a := range all {
			if a.Source && a.Device == "e0" {
				addr += a.Prefix.Addr().String()
			}
		}
		return err
	})
	return addr
}

// joined makes a host with an interface e0, and one at its other end that takes packets to all
// addresses for its own. What leaves by e0 is masqueraded.
func joined(t *testing.T) (h, far *world.Host) {
	t.Helper()
	h, far = world.NewHost(t, "node"), world.NewHost(t, "far")
	h.Join("e0", far, "e0")
	for _, x := range []*world.Host{h, far} { // without neighbours' resolution, frames have the own MAC
		x.IP("link set e0 address 02:00:00:00:00:01 arp off")
	}
	far.IP("route add local default dev lo", "-6 route add local ::/0 dev lo")
	far.Set("net.ipv4.conf.all.accept_local", "1")
	far.Set("net.ipv4.conf.all.rp_filter", "0")
	far.Set("net.ipv4.conf.e0.rp_filter", "0")
	h.Address("lo", "192.0.2.99/32", "2001:db8:99::1/128")
	h.Exec("nft", "table inet test { chain out { type nat hook postrouting priority 100; oifname e0 masquerade; }; }")
	return h, far
}

// masqueraded sends a packet from an address that e0 does not have, and returns that with which it
// arrives.
func masqueraded(t *testing.T, h, far *world.Host, to netip.Addr) string {
	t.Helper()
	from, network := "192.0.2.99", "udp4"
	if to.Is6() {
		from, network = "2001:db8:99::1", "udp6"
	}
	var in *net.UDPConn
	far.In(func() (err error) { in, err = net.ListenUDP(network, nil); return err })
	defer in.Close()
	err := h.Do(func() error {
		out, err := net.DialUDP(network, &net.UDPAddr{IP: net.ParseIP(from)}, net.UDPAddrFromAddrPort(netip.AddrPortFrom(to, in.LocalAddr().(*net.UDPAddr).AddrPort().Port())))
		if err == nil {
			_, err = fmt.Fprint(out, "hello")
			out.Close()
		}
		return err
	})
	if err == nil {
		err = in.SetReadDeadline(time.Now().Add(10 * time.Second))
	}
	if err != nil {
		t.Fatal(err)
	}
	_, at, err := in.ReadFromUDPAddrPort(make([]byte, 16))
	if err != nil {
		t.Fatalf("to %s: %v", to, err)
	}
	return at.Addr().Unmap().String()
}

// What the underlay says of addresses follows the kernel's order, and is sorted.
func TestUnderlayIsSorted(t *testing.T) {
	h, _ := joined(t)
	ip(h, `addr add 10.0.1.1/32 dev e0
		addr add 10.0.0.1/32 dev e0`)
	h.In(func() error {
		all, err := Here.Underlay()
		if !slices.IsSortedFunc(all, func(a, b model.HostAddress) int { return a.Prefix.Compare(b.Prefix) }) || !all[1].Source || all[0].Source {
			t.Errorf("%+v", all)
		}
		return err
	})
}
