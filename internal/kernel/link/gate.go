package link

import (
	"net"
	"slices"

	"github.com/vishvananda/netlink"
)

// Gate is an interface by which packets come to the node and leave it that it passes on.
type Gate struct {
	Name string
	Pod  bool // one pod is behind it, and nothing else
	// Pair reports whether what leaves by it is at once in another network namespace: it is an end
	// of a pair, and no queue holds up what it sends.
	Pair bool
	// Filtered reports whether filters of tc may see what arrives.
	Filtered bool
}

// gates are the types of interfaces whose packets are in frames of Ethernet, and nothing beside
// them, and whose drivers leave it to the kernel where these go.
var gates = []string{"device", "veth", "bond", "vlan", "vxlan"}

// Gates returns those that are up, by index. Ports of bridges and of bonds are none.
func (r *Reader) Gates() (map[int]Gate, error) {
	all, err := r.links()
	if err != nil {
		return nil, err
	}
	about, err := r.Links()
	if err != nil {
		return nil, err
	}
	queues, err := Dump(func() ([]netlink.Qdisc, error) { return r.h.QdiscList(nil) })
	if err != nil {
		return nil, err
	}
	filtered, queued := map[int]bool{}, map[int]bool{}
	for _, q := range queues {
		switch index := q.Attrs().LinkIndex; q.Type() {
		case "noqueue":
		case "ingress", "clsact":
			filtered[index] = true
		default:
			queued[index] = true
		}
	}
	pods := map[int]bool{}
	for _, l := range about.Links {
		if l.Pod || l.Host {
			pods[l.Index] = l.Pod
		}
	}
	found := map[int]Gate{}
	for _, l := range all {
		a := l.Attrs()
		pod, known := pods[a.Index]
		if known && a.Flags&net.FlagUp != 0 && a.EncapType == "ether" && a.MasterIndex == 0 && slices.Contains(gates, l.Type()) {
			found[a.Index] = Gate{a.Name, pod, l.Type() == "veth" && a.NetNsID >= 0 && !queued[a.Index], filtered[a.Index]}
		}
	}
	return found, nil
}
