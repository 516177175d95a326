package link

import (
	"fmt"
	"slices"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"
	"github.com/vishvananda/netlink"

	"sluice.dev/sluice/internal/kernel/bpf"
)

// Filter is a program or a filter through which all packets of an interface pass.
type Filter struct {
	Device string
	Hook   string // "ingress" or "egress"
	What   string // "XDP program 12", "tc filter (bpf)"
	See    string // the command that shows it
}

// directions are those in which packets pass an interface's filters.
var directions = []struct {
	hook    string
	filters uint32 // the qdisc's class that has those of tc
	tcx     ebpf.AttachType
}{{"ingress", netlink.HANDLE_MIN_INGRESS, ebpf.AttachTCXIngress}, {"egress", netlink.HANDLE_MIN_EGRESS, ebpf.AttachTCXEgress}}

// Filters returns those of an interface in the calling thread's network namespace: XDP programs,
// and the first of tc's filters and of tcx programs in each direction, but for programs of ours.
// What the kernel does not have, or the interface, has none.
func Filters(index int) (found []Filter) {
	l, err := netlink.LinkByIndex(index)
	if err != nil {
		return nil
	}
	name := l.Attrs().Name
	if xdp := l.Attrs().Xdp; xdp != nil && xdp.Attached && !bpf.Ours(bpf.XDP, index, ebpf.ProgramID(xdp.ProgId)) {
		found = append(found, Filter{name, "ingress", fmt.Sprintf("XDP program %d", xdp.ProgId), "bpftool net show dev " + name})
	}
	for _, d := range directions {
		if filters, err := netlink.FilterList(l, d.filters); err == nil && len(filters) > 0 {
			found = append(found, Filter{name, d.hook, fmt.Sprintf("tc filter (%s)", filters[0].Type()), "tc filter show dev " + name + " " + d.hook})
		}
		tcx, err := link.QueryPrograms(link.QueryOptions{Target: index, Attach: d.tcx})
		if err != nil {
			continue
		}
		if i := slices.IndexFunc(tcx.Programs, func(p link.AttachedProgram) bool { return !bpf.Ours(bpf.TCX, index, p.ID) }); i >= 0 {
			found = append(found, Filter{name, d.hook, fmt.Sprintf("tcx program %d", tcx.Programs[i].ID), "bpftool net show dev " + name})
		}
	}
	return found
}
