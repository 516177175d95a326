package nftables

import (
	"errors"
	"fmt"
	"maps"
	"net"
	"net/netip"
	"slices"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"sluice.dev/sluice/internal/kernel/link"
	"sluice.dev/sluice/internal/kernel/nft"
	"sluice.dev/sluice/internal/kernel/probe"
	"sluice.dev/sluice/internal/state"
)

// Backends of DSR that are on no network of this machine get their packets in IPIP, each through a
// tunnel of its own: rules forward to it as to any other interface. What arrives by a tunnel is
// dropped.
//
// The tunnels are of the kernel's kind sit, which sends IPv4 in IPv4 just as its kind ipip does.
// One of the kind ipip would also take the packets that the backend sends to another program's
// tunnel of that kind which has no remote address; one of the kind sit is asked after all of these.

// ipip is told where the kernel has no such tunnels.
var ipip = &probe.Requirement{Name: "IPIP", Since: "3.11", Modules: []string{"sit"}}

// IPIP says why this kernel cannot send packets in IPIP; nil: it can. It is safe for concurrent
// use.
func (d *Driver) IPIP() error {
	return ipip.MetBy(func() error {
		t := newTunnel(netip.AddrFrom4([4]byte{192, 0, 2, 1})) // TEST-NET-1, RFC 5737
		switch err := d.links.LinkAdd(t); {
		case errors.Is(err, unix.EEXIST): // a backend's
			return nil
		case err != nil:
			return err
		}
		return d.links.LinkDel(t)
	})
}

// newTunnel is the tunnel to an address.
func newTunnel(to netip.Addr) *netlink.Sittun {
	a := netlink.NewLinkAttrs()
	a.Index, a.Name = state.FarmTunnel(to)
	return &netlink.Sittun{LinkAttrs: a, Remote: to.AsSlice(), Proto: unix.IPPROTO_IPIP}
}

// readTunnels returns the addresses that our tunnels lead to, and whether each is up.
func (d *Driver) readTunnels() (map[netip.Addr]bool, error) {
	links, err := link.Dump(d.links.LinkList)
	if err != nil {
		return nil, fmt.Errorf("list tunnels: %w", err)
	}
	have := map[netip.Addr]bool{}
	for _, l := range links {
		if t, is := l.(*netlink.Sittun); is && t.Remote.To4() != nil {
			to, _ := netip.AddrFromSlice(t.Remote.To4())
			if index, name := state.FarmTunnel(to); index == t.Index && name == t.Name {
				have[to] = t.Flags&net.FlagUp != 0
			}
		}
	}
	return have, nil
}

// tunnelChange is what changes in the tunnels.
type tunnelChange struct{ add, remove []netip.Addr }

func (c tunnelChange) String() (text string) {
	for _, to := range c.add {
		text += fmt.Sprintf("add tunnel to %s\n", to)
	}
	for _, to := range c.remove {
		text += fmt.Sprintf("delete tunnel to %s\n", to)
	}
	return text
}

// changedTunnels says of the tunnels that a change of the farms makes or removes whether they are
// there afterwards.
func changedTunnels(have *state.Farms, d state.FarmsDelta) map[netip.Addr]bool {
	changed := maps.Clone(d.Tunnels)
	maps.DeleteFunc(changed, func(to netip.Addr, there bool) bool {
		_, has := have.Tunnels[to]
		return has == there
	})
	return changed
}

// changeTunnels adds and removes tunnels, in the order of their addresses.
func changeTunnels(changed map[netip.Addr]bool) (c tunnelChange) {
	for _, to := range slices.SortedFunc(maps.Keys(changed), netip.Addr.Compare) {
		if changed[to] {
			c.add = append(c.add, to)
		} else {
			c.remove = append(c.remove, to)
		}
	}
	return c
}

// adoptTunnels is the difference between the kernel's tunnels and those that are wanted.
func (d *Driver) adoptTunnels(want map[netip.Addr]struct{}) (tunnelChange, error) {
	have, err := d.readTunnels()
	changed := map[netip.Addr]bool{}
	for to := range want {
		if !have[to] {
			changed[to] = true
		}
	}
	for to := range have {
		if _, wanted := want[to]; !wanted {
			changed[to] = false
		}
	}
	return changeTunnels(changed), err
}

// tunnelsAsked is how many tunnels each call of Tampered looks at, so that it costs the same
// however many there are.
const tunnelsAsked = 16

// tunnelsGone reports whether tunnels are not there, or not up, of some that are picked at random.
func (d *Driver) tunnelsGone() (bool, error) {
	asked := 0
	for to := range d.state.Tunnels { // in an order that differs from call to call
		if asked++; asked > tunnelsAsked {
			break
		}
		index, _ := state.FarmTunnel(to)
		l, err := d.links.LinkByIndex(index)
		if missing := (netlink.LinkNotFoundError{}); errors.As(err, &missing) {
			return true, nil
		}
		if err != nil {
			return false, fmt.Errorf("find tunnel to %s: %w", to, err)
		}
		if l.Attrs().Flags&net.FlagUp == 0 {
			return true, nil
		}
	}
	return false, nil
}

// addTunnel makes the tunnel to an address, or brings up the one that there is.
func (d *Driver) addTunnel(to netip.Addr) error {
	t := newTunnel(to)
	err := d.links.LinkAdd(t)
	if errors.Is(err, unix.EEXIST) {
		have, rerr := d.readTunnels()
		if _, ours := have[to]; ours || rerr != nil {
			err = rerr
		}
	}
	if err == nil {
		err = d.startTunnel(t)
	}
	if err != nil {
		return fmt.Errorf("make tunnel %s to backend %s (is there another program's, of type sit?): %w", t.Name, to, err)
	}
	return nil
}

// tryTunnels makes the tunnels of farms as far as they are not there; where one fails, none of
// them.
func (d *Driver) tryTunnels(farms map[string]*state.Farm) error {
	want := map[netip.Addr]struct{}{}
	for _, f := range farms {
		f.EachTunnel(func(to netip.Addr) { want[to] = struct{}{} })
	}
	if len(want) == 0 {
		return nil
	}
	c, err := d.adoptTunnels(want)
	for i := 0; i < len(c.add) && err == nil; i++ {
		if err = d.addTunnel(c.add[i]); err != nil {
			for _, made := range c.add[:i] {
				err = errors.Join(err, d.removeTunnel(made))
			}
		}
	}
	return err
}

func (d *Driver) startTunnel(t *netlink.Sittun) error {
	const none = 1 // IN6_ADDR_GEN_MODE_NONE: no IPv6 address, and no packets for its sake
	if err := d.links.LinkSetIP6AddrGenMode(t, none); err != nil && !errors.Is(err, unix.EAFNOSUPPORT) {
		return err
	}
	return d.links.LinkSetUp(t)
}

// removeTunnel removes the tunnel to an address; it need not be there.
func (d *Driver) removeTunnel(to netip.Addr) error {
	if err := d.links.LinkDel(newTunnel(to)); err != nil && !errors.Is(err, unix.ENODEV) {
		return fmt.Errorf("remove tunnel to %s: %w", to, err)
	}
	return nil
}

// purgeTunnels removes all tunnels.
func (d *Driver) purgeTunnels() error {
	have, err := d.readTunnels()
	for to := range have {
		err = errors.Join(err, d.removeTunnel(to))
	}
	return err
}

const tunnelPrefix = "tunnel-"

// tunnel has the table come to have the chain of what arrives by a tunnel, or not to have it any
// more.
func (c *tableChange) tunnel(to netip.Addr, there bool) {
	if c.rs.NFProto != unix.NFPROTO_NETDEV {
		return
	}
	_, device := state.FarmTunnel(to)
	name := tunnelPrefix + device
	if !there {
		c.leaving = append(c.leaving, name)
		return
	}
	c.use(name, func() nft.Chain {
		return nft.Chain{Name: name, Comment: "what arrives from " + to.String(), Hook: nft.NetdevHook(device, 0),
			Rules: []nft.Rule{rule("a tunnel only sends").Drop()}}
	})
}
