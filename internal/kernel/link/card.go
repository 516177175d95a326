package link

import (
	"errors"
	"fmt"
	"net"
	"slices"

	"github.com/mdlayher/genetlink"
	wire "github.com/mdlayher/netlink"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// Card is an interface as programs see it that run where frames arrive (XDP).
type Card struct {
	Name string
	MAC  [6]byte // zero: it is no Ethernet
	// Wire reports whether what arrives is IP's by this interface: it is no port of another one,
	// and no tunnel and the like.
	Wire bool
	// Bond reports whether it is a bond, whose packets arrive by its ports.
	Bond bool
	// VLANs reports whether others are made of it for VLANs, IPVLANs whether by ipvlan: those that
	// are in this network namespace.
	VLANs, IPVLANs bool
	// NoPrograms reports whether its driver runs none, as far as the kernel tells.
	NoPrograms bool
	// TakesFrames reports whether frames can be sent by it from a program at another interface, as
	// far as the kernel tells, which it does from Linux 6.3 on. A veth pair takes none before its
	// far end has a program or GRO: they would be lost, and counted by nothing.
	TakesFrames bool
	// ReturnsFrames reports whether frames that came by it can be sent by it.
	ReturnsFrames bool
}

// wires are the types of interfaces that a wire may be behind, or what seems one.
var wires = []string{"device", "veth", "bond"}

// Cards returns the interfaces but for loopback, by index.
func (r *Reader) Cards() (map[int]Card, error) {
	links, err := r.links()
	if err != nil {
		return nil, err
	}
	features, err := readFeatures()
	if err != nil {
		return nil, err
	}
	return cards(links, features), nil
}

func cards(links []netlink.Link, features map[int]uint64) map[int]Card {
	cards := make(map[int]Card, len(links))
	for _, l := range links {
		a := l.Attrs()
		c := Card{Name: a.Name, Bond: l.Type() == "bond", NoPrograms: features != nil && features[a.Index]&runsPrograms == 0, Wire: a.MasterIndex == 0 && slices.Contains(wires, l.Type()), TakesFrames: features[a.Index]&takesFrames != 0 && a.Flags&net.FlagUp != 0}
		if len(a.HardwareAddr) == len(c.MAC) && a.EncapType == "ether" {
			c.MAC = [6]byte(a.HardwareAddr)
		}
		c.ReturnsFrames = l.Type() != "veth" || c.TakesFrames
		if a.Flags&net.FlagLoopback == 0 {
			cards[a.Index] = c
		}
	}
	for _, l := range links {
		a := l.Attrs()
		if c, here := cards[a.ParentIndex]; here && a.NetNsID < 0 { // else the index is of another namespace
			c.VLANs = c.VLANs || l.Type() == "vlan"
			c.IPVLANs = c.IPVLANs || l.Type() == "ipvlan" || l.Type() == "ipvtap"
			cards[a.ParentIndex] = c
		}
	}
	return cards
}

// Numbers of linux/netdev.h, of the kernel's family "netdev".
const (
	getDevice    = 1      // NETDEV_CMD_DEV_GET
	ofDevice     = 1      // NETDEV_A_DEV_IFINDEX
	withFeatures = 3      // NETDEV_A_DEV_XDP_FEATURES
	runsPrograms = 1 << 0 // NETDEV_XDP_ACT_BASIC
	takesFrames  = 1 << 2 // NETDEV_XDP_ACT_NDO_XMIT
)

// readFeatures reads what interfaces of the calling thread's network namespace can do for programs,
// by index; nothing where the kernel does not tell.
func readFeatures() (map[int]uint64, error) {
	c, err := genetlink.Dial(nil)
	if err != nil {
		return nil, fmt.Errorf("open generic netlink socket: %w", err)
	}
	defer func() { _ = c.Close() }()
	family, err := c.GetFamily("netdev")
	if errors.Is(err, unix.ENOENT) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("find what interfaces can do: %w", err)
	}
	answers, err := c.Execute(genetlink.Message{Header: genetlink.Header{Command: getDevice}}, family.ID, wire.Request|wire.Dump)
	if err != nil {
		return nil, fmt.Errorf("read what interfaces can do: %w", err)
	}
	all := map[int]uint64{}
	for _, m := range answers {
		d, err := wire.NewAttributeDecoder(m.Data)
		if err != nil {
			return nil, err
		}
		var index int
		for d.Next() {
			switch d.Type() {
			case ofDevice:
				index = int(d.Uint32())
			case withFeatures:
				all[index] = d.Uint64()
			}
		}
		if err := d.Err(); err != nil {
			return nil, err
		}
	}
	return all, nil
}
