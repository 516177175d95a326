package kernel

import (
	"encoding/binary"
	"fmt"
	"slices"
	"strings"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"sluice.dev/sluice/internal/driver"
	"sluice.dev/sluice/internal/kernel/attr"
	"sluice.dev/sluice/internal/model"
	"sluice.dev/sluice/internal/state"
)

// This file names routes of other programs that take the packets of ours, or their place: to the
// same prefix, with a lower metric or the same. The routes of who made the pod network before are
// such, until somebody removes them.

// before is such a route.
type before struct {
	route
	link int    // index of the device that it leads by; 0: none, or several
	text string // as ip route has it
}

// comesBefore reports whether a route that is not ours takes the packets or the place of one that
// is wanted. A route to this node's own pods is no rival: ours only drops what none of them has.
func comesBefore(r route, want *state.Fabric) bool {
	ours := want.Routes[r.prefix]
	return ours != nil && ours.Device != "" && r.table == unix.RT_TABLE_MAIN && r.metric <= metric(r.prefix)
}

// readBefore finds the routes that come before wanted ones, sorted.
func (d *Driver) readBefore(k *kernel, want *state.Fabric) (found []before, err error) {
	if len(want.Routes) == 0 {
		return nil, nil
	}
	for _, family := range []byte{unix.AF_INET, unix.AF_INET6} {
		body := []byte{family, 0, 0, 0, unix.RT_TABLE_MAIN, unix.RTPROT_UNSPEC, 0, 0, 0, 0, 0, 0}
		some, err := list(d.socket, unix.RTM_GETROUTE, unix.RTM_NEWROUTE, body, func(body []byte) (before, bool) {
			r, ours := readRoute(body, d.namer(k))
			if ours || !comesBefore(r, want) {
				return before{}, false
			}
			text, index := r.prefix.String(), deviceOf(body)
			if l, err := d.links.LinkByIndex(index); err == nil {
				r.device = l.Attrs().Name
				text = strings.TrimPrefix(r.String(), "route ")
			}
			return before{r, index, fmt.Sprintf("%s proto %s metric %d", text, netlink.RouteProtocol(body[5]), r.metric)}, true
		})
		if err != nil {
			return nil, fmt.Errorf("list other programs' routes: %w", err)
		}
		found = append(found, some...)
	}
	slices.SortFunc(found, func(a, b before) int { return a.prefix.Compare(b.prefix) })
	return found, nil
}

// deviceOf is the index of the device that a route leads by; 0: none, or several.
func deviceOf(body []byte) int {
	index := attr.Find(body[unix.SizeofRtMsg:], unix.RTA_OIF)
	if index == nil {
		return 0
	}
	return int(binary.NativeEndian.Uint32(index))
}

// beforeAside names the routes that take the packets of ours, all at once: who made the network
// before may have left one for each node.
func beforeAside(found []before) []driver.SetAside {
	var texts []string
	for _, b := range found {
		if b.metric < metric(b.prefix) {
			texts = append(texts, b.text)
		}
	}
	if len(texts) == 0 {
		return nil
	}
	return []driver.SetAside{{
		Kind:   "routes of other programs",
		Reason: "they come before ours, so what goes to these pods takes them: " + model.FirstFew(texts, 3) + "; remove them with ip route del, once nobody needs them",
	}}
}
