package xdp_test

import (
	"strings"
	"testing"
	"time"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/link"

	netlink "sluice.dev/sluice/internal/kernel/link"
	"sluice.dev/sluice/test/world"
)

// ask has the client ask some times, and returns how many packets the program has forwarded.
func (w *site) ask(n int) uint64 {
	w.t.Helper()
	before := w.took()
	for range n {
		if _, err := w.client.Ask("udp", "10.0.0.2", virtual4+":53", world.Patience); err != nil {
			w.t.Fatalf("%v; %v", err, w.notes())
		}
	}
	return w.took() - before
}

// TestWithdrawn has a process be killed after farms were withdrawn: the base serves them, until the
// next process has the program do so.
func TestWithdrawn(t *testing.T) {
	t.Parallel()
	w := newSite(t, 2)
	w.restart(true)
	w.set(dsr(true, 2, 53))
	w.forwarded(w.ask(20), 10)
	w.must(w.fast.Withdraw("four"))
	if n := w.ask(20); n > 0 {
		t.Errorf("the program forwarded %d packets of a farm that is withdrawn", n)
	}
	w.restart(true)
	w.forwarded(w.ask(20), 10)
	w.set()
	if text := w.balancer.Exec("ip", "link", "show", "front"); strings.Contains(text, "xdp") {
		t.Errorf("a program runs without farms: %s", text)
	}
}

// TestFull has there be more farms than a program was made for, again and again.
func TestFull(t *testing.T) {
	t.Parallel()
	w := newSite(t, 2)
	w.restart(true)
	w.set(dsr(true, 2, 53))
	for n := 2000; n <= 6000; n += 2000 {
		f := dsr(true, 2, 53)
		for port := range uint16(n) {
			f.Addresses[0].Ports = append(f.Addresses[0].Ports, f.Addresses[0].Ports[0])
			f.Addresses[0].Ports[port+1].First, f.Addresses[0].Ports[port+1].Last = 10_000+port, 10_000+port
		}
		w.set(f)
		w.forwarded(w.ask(20), 10)
	}
}

// TestDevices has another program's XDP program be left alone where it is, and interfaces come, go
// and change while farms are served.
func TestDevices(t *testing.T) {
	t.Parallel()
	w := newSite(t, 2)
	p, err := ebpf.NewProgram(&ebpf.ProgramSpec{Name: "other", Type: ebpf.XDP, License: "Apache-2.0", Instructions: asm.Instructions{asm.Mov.Imm(asm.R0, 2), asm.Return()}})
	w.must(err)
	defer func() { _ = p.Close() }()
	var other link.Link
	w.balancer.In(func() (err error) {
		other, err = link.AttachXDP(link.XDPOptions{Program: p, Interface: w.balancer.Device("front").Attrs().Index, Flags: link.XDPDriverMode})
		return err
	})
	w.restart(true)
	w.set(dsr(true, 2, 53))
	if n := w.ask(20); n > 0 || !strings.Contains(w.fast.Status().Note, "not at front: another program's XDP program is there") {
		t.Errorf("the program forwarded %d packets; %v", n, w.notes())
	}
	filters := func() (found []netlink.Filter) {
		w.balancer.In(func() error { found = netlink.Filters(w.balancer.Device("front").Attrs().Index); return nil })
		return found
	}
	if len(filters()) != 1 {
		t.Errorf("the other program is not found: %v", filters())
	}
	w.must(other.Close())
	w.adopt()
	w.forwarded(w.ask(20), 10)
	if len(filters()) > 0 {
		t.Errorf("ours is taken for another's: %v", filters())
	}

	for kind, why := range map[string]string{"vlan id 7": "it has VLANs", "ipvlan": "others are made of it by ipvlan"} {
		if _, err := w.balancer.Run("ip", strings.Fields("link add link front name front.7 type "+kind)...); err != nil {
			continue // not every kernel has them
		}
		_, err = w.driver.Tampered(t.Context())
		w.must(err)
		if n := w.ask(20); n > 0 || !strings.Contains(w.fast.Status().Note, "not at front: "+why) {
			t.Errorf("the program forwarded %d packets; %v", n, w.notes())
		}
		w.balancer.IP("link del front.7")
	}
	if _, err := w.balancer.Run("ip", "link", "add", "bond0", "type", "bond"); err == nil {
		w.balancer.Address("bond0", "10.7.0.1/24")
		w.set(dsr(true, 2, 53))
		if note := w.fast.Status().Note; !strings.Contains(note, "not at bond0: it is a bond") {
			t.Error(note)
		}
		w.balancer.IP("link del bond0")
	}
	w.balancer.IP("link set front address 02:00:00:00:00:07")
	w.client.IP("neigh flush all")
	_, err = w.driver.Tampered(t.Context())
	w.must(err)
	w.forwarded(w.ask(20), 10)

	w.middle.Feature("balancer", "rx-gro", false)
	_, err = w.driver.Tampered(t.Context())
	w.must(err)
	if n := w.ask(20); n > 0 || !strings.Contains(w.fast.Status().Note, "not out of back") {
		t.Errorf("the program forwarded %d packets; %v", n, w.notes())
	}
	w.middle.Feature("balancer", "rx-gro", true)
	_, err = w.driver.Tampered(t.Context())
	w.must(err)

	w.balancer.IP("link del front")
	_, err = w.driver.Tampered(t.Context())
	w.must(err)
	w.client.Join("eth0", w.balancer, "again")
	w.client.Feature("eth0", "tx-checksum-ip-generic", false)
	w.client.Address("eth0", "10.0.0.2/24")
	w.balancer.Address("again", "10.0.0.1/24", virtual4+"/32")
	w.client.Gateway("10.0.0.1")
	w.set(dsr(true, 2, 53))
	w.forwarded(w.ask(20), 10)
	w.must(w.driver.Purge(t.Context()))
	if text := w.balancer.Exec("ip", "link", "show"); strings.Contains(text, "prog/xdp") {
		t.Errorf("purged, and a program runs: %s", text)
	}
}

// TestDead has a backend go that packets are forwarded to: the kernel notices, as it would without
// the program, and from then on nothing is sent to an Ethernet address that nobody has.
func TestDead(t *testing.T) {
	t.Parallel()
	w := newSite(t, 1)
	w.balancer.Set("net.ipv4.neigh.back.base_reachable_time_ms", "500")
	w.balancer.Set("net.ipv4.neigh.back.delay_first_probe_time", "0")
	w.balancer.Set("net.ipv4.neigh.back.retrans_time_ms", "100")
	w.restart(true)
	w.set(dsr(true, 1, 53))
	for end := time.Now().Add(1200 * time.Millisecond); time.Now().Before(end); { // until the kernel asks only where it is used
		w.ask(1)
	}
	w.forwarded(w.ask(20), 10)
	w.servers[0].IP("link set eth0 down")
	send := func() {
		if g, err := w.client.Ask("udp", "10.0.0.2", virtual4+":53", 10*time.Millisecond); err == nil {
			t.Fatalf("%+v", g)
		}
	}
	w.eventually("the kernel knows that the server has gone", func() bool {
		send()
		state := w.balancer.Exec("ip", "neigh", "show", "10.1.0.11", "dev", "back")
		return strings.Contains(state, "FAILED") || strings.Contains(state, "INCOMPLETE")
	})
	before := w.took()
	for range 10 {
		send()
	}
	if n := w.took() - before; n > 0 {
		t.Errorf("%d packets were forwarded to nobody", n)
	}
	w.servers[0].IP("link set eth0 up", "route replace 10.0.0.2/32 via 10.1.0.200")
	w.forwarded(w.ask(20), 10)
}
