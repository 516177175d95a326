package preflight

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/safchain/ethtool"
	"golang.org/x/sys/unix"

	"sluice.dev/sluice/internal/kernel/link"
	"sluice.dev/sluice/internal/kernel/probe"
	"sluice.dev/sluice/internal/state"
)

// Fabric says what the agent is to have of the pod network between nodes.
type Fabric struct {
	Requirements []*probe.Requirement // of the mode
	VXLAN        bool                 // the mode has VXLAN tunnels
}

// NIC is an interface that packets to other nodes leave by.
type NIC struct {
	Device, Driver string
	Features       map[string]ethtool.FeatureState // as ethtool -k names them
	// Streams is how much of a stream of TCP over IPv4 is one packet there, in bytes, and
	// MostStreams how much could be.
	Streams, MostStreams int
}

// fabricFeatures says whether the kernel has what the mode of the pod network needs.
func fabricFeatures(f *Facts) []Result {
	const name = "fabric"
	switch {
	case f.FabricErr != nil:
		return cannotTell(name, f.FabricErr)
	case !f.FabricAsked:
		return nil
	case len(f.FabricFeatures) == 0:
		return one(name, OK, "native routes need nothing of the kernel", "")
	}
	return supported(name, f.FabricFeatures, "load the modules that are named (modprobe), or choose another mode")
}

// fragile are drivers with which the checksums that Linux leaves to the interface are known to fail
// or to be slow for packets in VXLAN tunnels.
var fragile = map[string]string{"vmxnet3": "on some versions of ESXi TCP between pods of two nodes fails", "bonding": "on Linux 6.12 some were seen with a hundredth of the bandwidth"}

// offloads finds settings of interfaces that are known to ruin tunnels.
func offloads(f *Facts) []Result {
	const name = "offloads"
	if f.NICErr != nil {
		return cannotTell(name, f.NICErr)
	}
	var results []Result
	warn := func(seen, do string) { results = append(results, Result{name, Warn, seen, do}) }
	for _, nic := range f.NICs {
		set := func(feature, to string) string { return fmt.Sprintf("ethtool -K %s %s %s", nic.Device, feature, to) }
		if gro := nic.Features["rx-gro"]; gro.Available && !gro.Active {
			warn("generic receive offload is off at "+nic.Device+": what is forwarded or comes in tunnels costs several times as much", set("gro", "on"))
		}
		if !f.FabricVXLAN {
			continue
		}
		for _, feature := range []string{"tx-udp_tnl-segmentation", "tx-udp_tnl-csum-segmentation"} {
			if s := nic.Features[feature]; s.Available && !s.NeverChanged && !s.Active {
				warn(fmt.Sprintf("%s could cut large packets in VXLAN tunnels itself, and %s is off", nic.Device, feature), set(feature, "on"))
			}
		}
		if nic.Features["rx-udp-gro-forwarding"].Active && olderThan(f.Kernel, 6, 9) {
			warn("rx-udp-gro-forwarding is on at "+nic.Device+": kernels before 6.9 without a later fix join packets that come in VXLAN tunnels, and lose them", set("rx-udp-gro-forwarding", "off"))
		}
		if why := fragile[nic.Driver]; why != "" {
			warn(fmt.Sprintf("%s is of driver %s: with checksums left to it in VXLAN tunnels %s", nic.Device, nic.Driver, why),
				fmt.Sprintf("if it is so here: ethtool -K %s tx-checksum-ip-generic off", state.DeviceVXLAN))
		}
	}
	if len(results) == 0 && len(f.NICs) > 0 {
		return one(name, OK, "none at "+list(devicesOf(f.NICs))+" is known to ruin tunnels", "")
	}
	return results
}

// joining finds interfaces at which datagrams of one flow that arrive together could be forwarded
// together. (Kernels before 6.9 lose those that come in VXLAN tunnels so, whoever's they are.)
func joining(f *Facts) (results []Result) {
	const name = "datagrams"
	if f.UplinkErr != nil {
		return cannotTell(name, f.UplinkErr)
	}
	for _, nic := range f.Uplinks {
		joins := nic.Features["rx-udp-gro-forwarding"]
		if nic.Features["rx-gro"].Active && joins.Available && !joins.Active && !nic.Features["rx-gro-list"].Active && !olderThan(f.Kernel, 6, 9) {
			results = append(results, Result{name, OK, "those that arrive by " + nic.Device + " are forwarded one by one: many of one flow (QUIC, media, tunnels of others) cost less than half where they are joined",
				"ethtool -K " + nic.Device + " rx-udp-gro-forwarding on rx-gro-list off"})
		}
	}
	return results
}

// cutting finds interfaces that could take more of a stream of TCP as one packet, which pods'
// interfaces then do, too.
func cutting(f *Facts) (results []Result) {
	const most = 192 << 10
	for _, nic := range f.Uplinks {
		if nic.Streams > 0 && nic.Streams < most && nic.MostStreams >= most && !f.FabricVXLAN {
			results = append(results, Result{"streams", OK, fmt.Sprintf("TCP leaves by %s in packets of %d kB, and could in %d: bulk between pods of sluice-cni that start afterwards costs half as much then", nic.Device, nic.Streams>>10, most>>10),
				fmt.Sprintf("ip link set %s gso_ipv4_max_size %d gro_ipv4_max_size %d (iproute2 6.3)", nic.Device, most, most)})
		}
	}
	return results
}

func devicesOf(nics []NIC) (names []string) {
	for _, n := range nics {
		names = append(names, n.Device)
	}
	return names
}

func olderThan(kernel string, major, minor int) bool {
	var x, y int
	_, err := fmt.Sscanf(kernel, "%d.%d", &x, &y)
	return err == nil && (x < major || x == major && y < minor)
}

// underlay names the interfaces that have addresses, except for our own.
func underlay() (devices []string, err error) {
	addrs, err := link.Here.Underlay()
	for _, a := range addrs {
		if !strings.HasPrefix(a.Device, "sluice.") && !slices.Contains(devices, a.Device) {
			devices = append(devices, a.Device)
		}
	}
	return devices, err
}

// nics reads the settings of interfaces.
func nics(which func() ([]string, error)) (all []NIC, err error) {
	devices, err := which()
	if err != nil {
		return nil, err
	}
	e, err := ethtool.NewEthtool()
	if err != nil {
		return nil, fmt.Errorf("read offload settings: %w", err)
	}
	defer e.Close()
	for _, device := range devices {
		driver, _ := e.DriverName(device) // not every driver says its name
		features, err := e.FeaturesWithState(device)
		if errors.Is(err, unix.ENODEV) {
			continue // it has gone since
		}
		if err != nil {
			return nil, fmt.Errorf("read offload settings of %s: %w", device, err)
		}
		streams, most, err := link.Here.Streams(device)
		if err != nil {
			return nil, fmt.Errorf("read limits of %s: %w", device, err)
		}
		all = append(all, NIC{device, driver, features, streams, most})
	}
	return all, nil
}
