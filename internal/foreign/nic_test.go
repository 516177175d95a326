package foreign_test

import (
	"net/netip"
	"strings"
	"testing"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/link"
	"github.com/vishvananda/netlink"

	"sluice.dev/sluice/internal/foreign"
	"sluice.dev/sluice/test/world"
)

// Programs of others on an interface are named.
func TestPrograms(t *testing.T) {
	host, other := world.NewHost(t, "host"), world.NewHost(t, "other")
	host.Join("eth0", other, "eth0")
	index := host.Device("eth0").Attrs().Index
	way := foreign.Way{Source: netip.MustParseAddr("10.7.0.2"), Destination: netip.MustParseAddr("10.7.0.1"), Protocol: 6, In: index, ToNode: true}
	load := func(kind ebpf.ProgramType, verdict int32) *ebpf.Program {
		t.Helper()
		p, err := ebpf.NewProgram(&ebpf.ProgramSpec{Type: kind, License: "GPL", Instructions: asm.Instructions{asm.Mov.Imm(asm.R0, verdict), asm.Return()}})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = p.Close() })
		return p
	}
	const xdpPass, tcOK = 2, 0
	xdp, tc := load(ebpf.XDP, xdpPass), load(ebpf.SchedCLS, tcOK)
	for _, c := range []struct {
		attach func() error
		says   string
	}{
		{nil, ""},
		{func() error { return netlink.LinkSetXdpFd(host.Device("eth0"), xdp.FD()) }, " at ingress of interface eth0 may drop it; see it: bpftool net show dev eth0"},
		{func() error { return netlink.LinkSetXdpFd(host.Device("eth0"), -1) }, ""},
		{func() error {
			l, err := link.AttachTCX(link.TCXOptions{Program: tc, Interface: index, Attach: ebpf.AttachTCXEgress})
			if err == nil {
				t.Cleanup(func() { _ = l.Close() })
			}
			return err
		}, "at egress of interface eth0 may drop it"},
		{func() error {
			if err := netlink.QdiscAdd(&netlink.GenericQdisc{QdiscType: "clsact", QdiscAttrs: netlink.QdiscAttrs{LinkIndex: index, Parent: netlink.HANDLE_CLSACT, Handle: netlink.MakeHandle(0xffff, 0)}}); err != nil {
				return err
			}
			return netlink.FilterAdd(&netlink.BpfFilter{Fd: tc.FD(), Name: "theirs", DirectAction: true, FilterAttrs: netlink.FilterAttrs{LinkIndex: index, Parent: netlink.HANDLE_MIN_INGRESS, Handle: 1, Priority: 1, Protocol: 3}})
		}, "tc filter (bpf) at ingress of interface eth0 may drop it; see it: tc filter show dev eth0 ingress"},
	} {
		if c.attach != nil {
			host.In(c.attach)
		}
		rules, err := foreign.Read(t.Context(), host.NS.NS)
		if err != nil {
			t.Fatal(err)
		}
		may, does, err := rules.Meets(way)
		text := ""
		for _, o := range may {
			text += o.Seen + "; " + o.Do + "\n"
		}
		if err != nil || does != nil || !strings.Contains(text, c.says) || (c.says == "") != (text == "") {
			t.Errorf("it may meet %q, %v, %v; want %q", text, does, err, c.says)
		}
	}
}
