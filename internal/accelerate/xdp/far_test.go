package xdp_test

import (
	"bytes"
	"errors"
	"fmt"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"sluice.dev/sluice/internal/kernel/probe"
	"sluice.dev/sluice/internal/model"
	"sluice.dev/sluice/test/world"
)

// TestFarServers has servers behind a router get packets in IPIP from the program, the same as the
// kernel's tunnels make for the base, and answer by a way that is narrower than they know.
func TestFarServers(t *testing.T) {
	t.Parallel()
	w := newSite(t, 1)
	if err := w.base.IPIP(); errors.Is(err, probe.ErrNotSupported) {
		t.Skipf("this kernel has no IPIP: %v", err)
	} else if err != nil {
		t.Fatal(err)
	}
	w.tunnels = true
	router := world.NewHost(t, "router")
	router.Join("r0", w.middle, "router")
	w.middle.Port("br", "router")
	router.Feature("r0", "tx-checksum-ip-generic", false)
	router.Address("r0", "10.1.0.9/24")
	router.Narrow(w.client, "10.0.0.2")
	router.Route(virtual4+"/32", "10.1.0.1")
	w.balancer.Route("10.9.0.0/16", "10.1.0.9")
	f := dsr(true, 1, 80, 53, 82)
	all := map[string]*world.Host{"s1": w.servers[0]}
	for n := 1; n <= 2; n++ {
		name, addr := fmt.Sprintf("f%d", n), netip.AddrFrom4([4]byte{10, 9, byte(n), 9})
		far := world.NewHost(t, name)
		all[name] = far
		far.Join("eth0", router, name)
		router.Address(name, fmt.Sprintf("10.9.%d.1/24", n))
		far.Address("eth0", addr.String()+"/24")
		far.Gateway(fmt.Sprintf("10.9.%d.1", n))
		a := netlink.NewLinkAttrs()
		a.Name = "farm"
		w.must(far.LinkAdd(&netlink.Iptun{LinkAttrs: a, Local: addr.AsSlice(), PMtuDisc: 1}))
		far.IP("link set farm up")
		far.Address("farm", virtual4+"/32")
		far.Set("net.ipv4.conf.farm.rp_filter", "2")
		far.ServeTCP(name, ":80")
		far.ServeUDP(name, hostPort(virtual4, "53"))
		far.ServeLong(":82", 1<<20)
		f.Backends = append(f.Backends, model.FarmBackend{Name: name, Addr: addr, Weight: 1, Priority: 1})
	}
	w.servers[0].ServeLong(":82", 1<<20)
	heard := world.HearICMP(t, true, all)
	w.restart(true)
	w.set(f)

	counts, before := map[string]int{}, w.took()
	for range 30 {
		g, err := w.client.Ask("udp", "10.0.0.2", virtual4+":53", world.Patience)
		w.must(err)
		counts[g.Server]++
		e := world.TooBig(world.UDP, netip.MustParseAddrPort(virtual4+":53"), g.Client)
		w.client.SendICMP("10.0.0.3", e)
		if got := heard.Who(e, world.Patience); got != g.Server {
			t.Fatalf("%+v is heard by %q, want %q", e, got, g.Server)
		}
	}
	if len(counts) != 3 {
		t.Errorf("answered by %v", counts)
	}
	w.forwarded(w.took()-before, 30)
	for range 4 {
		if n, err := w.client.Read("10.0.0.2", virtual4+":82", world.Patience); n != 1<<20 {
			t.Fatalf("%d bytes, %v; %v", n, err, w.notes())
		}
	}

	one := *f
	one.Backends = f.Backends[1:2]
	w.set(&one)
	raw := w.rawIPIP(all["f1"])
	c, err := w.client.Dial("udp", "10.0.0.2", virtual4+":53", world.Patience)
	w.must(err)
	defer func() { _ = c.Close() }()
	outer := func() []byte {
		t.Helper()
		_, err := world.Exchange(c, world.Patience)
		w.must(err)
		return received(t, raw)
	}
	var byProgram []byte
	again := func() {
		t.Helper()
		took := w.took()
		w.eventually("the program has a packet", func() bool { byProgram = outer(); return w.took() > took || !w.takes() })
	}
	again()

	const policy = "xfrm policy %s dst 10.9.2.9/32 dir out" // of IPsec, for anything at all
	w.balancer.IP(fmt.Sprintf(policy, "add"))
	w.eventually("the program leaves packets to IPsec", func() bool {
		took := w.took()
		for range 10 {
			outer()
		}
		return w.took() == took
	})
	w.balancer.IP(fmt.Sprintf(policy, "delete"))
	again()

	w.middle.Feature("balancer", "rx-gro", false)
	_, err = w.driver.Tampered(t.Context())
	w.must(err)
	if note := w.fast.Status().Note; !strings.Contains(note, "not out of back: it takes no frames") {
		t.Errorf("the way to the server takes no frames, and status says %q", note)
	}
	w.restart(false)
	if byBase := outer(); !bytes.Equal(byProgram, byBase) {
		t.Errorf("by the program\n%x, by the base\n%x", byProgram, byBase)
	}
}

// rawIPIP is a socket that gets what a host gets in IPIP.
func (w *site) rawIPIP(h *world.Host) (fd int) {
	w.t.Helper()
	h.In(func() (err error) {
		fd, err = unix.Socket(unix.AF_INET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.IPPROTO_IPIP)
		return err
	})
	w.t.Cleanup(func() { _ = unix.Close(fd) })
	w.must(unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &unix.Timeval{Sec: int64(world.Patience / time.Second)}))
	return fd
}

// received is the next packet, without what differs from one to the other: identifications, and
// checksums, which have to be right.
func received(t *testing.T, raw int) []byte {
	t.Helper()
	b := make([]byte, 2000)
	n, _, err := unix.Recvfrom(raw, b, 0)
	if err != nil || n < 40 {
		t.Fatal(n, err)
	}
	for _, header := range [][]byte{b[:20], b[20:40]} {
		if world.Checksum(header) != 0 {
			t.Errorf("checksum of %x", header)
		}
		clear(header[4:6])
		clear(header[10:12])
	}
	return b[:n]
}
