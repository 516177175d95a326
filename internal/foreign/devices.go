package foreign

import (
	"fmt"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"
	"github.com/vishvananda/netlink"
)

// directions are those in which packets pass an interface's filters.
var directions = []struct {
	hook    string
	filters uint32 // the qdisc's class that has those of tc
	tcx     ebpf.AttachType
}{{"ingress", netlink.HANDLE_MIN_INGRESS, ebpf.AttachTCXIngress}, {"egress", netlink.HANDLE_MIN_EGRESS, ebpf.AttachTCXEgress}}

// devices returns the programs and filters of the interfaces that a connection's packets pass, which
// see them before or after all chains: what they do is not known.
func (w Way) devices() (found []Obstacle) {
	for i, index := range []int{w.In, w.Out} {
		l, err := netlink.LinkByIndex(index)
		if index == 0 || i == 1 && index == w.In || err != nil {
			continue
		}
		name := l.Attrs().Name
		add := func(hook, see, seen string, args ...any) {
			found = append(found, Obstacle{Hook: hook, Seen: fmt.Sprintf(seen, args...) + " may drop it", Do: "see it: " + see})
		}
		if xdp := l.Attrs().Xdp; xdp != nil && xdp.Attached {
			add("ingress", "bpftool net show dev "+name, "XDP program %d of interface %s", xdp.ProgId, name)
		}
		for _, d := range directions {
			if filters, err := netlink.FilterList(l, d.filters); err == nil && len(filters) > 0 {
				add(d.hook, "tc filter show dev "+name+" "+d.hook, "a tc filter (%s) at %s of interface %s", filters[0].Type(), d.hook, name)
			}
			if tcx, err := link.QueryPrograms(link.QueryOptions{Target: index, Attach: d.tcx}); err == nil && len(tcx.Programs) > 0 {
				add(d.hook, "bpftool net show dev "+name, "tcx program %d at %s of interface %s", tcx.Programs[0].ID, d.hook, name)
			}
		}
	}
	return found
}
