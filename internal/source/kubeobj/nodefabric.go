package kubeobj

import (
	"encoding/base64"
	"errors"
	"net"
	"net/netip"
	"strings"

	"sluice.dev/sluice/internal/model"
	"sluice.dev/sluice/internal/source/fault"
)

// WireGuardAnnotation is where a Node says its public key for WireGuard, as Calico's do.
const WireGuardAnnotation = "projectcalico.org/WireguardPublicKey"

// nodeFabric reads Calico's annotations; nil: there are none that count.
func nodeFabric(annotations map[string]string, f *fault.List) *model.NodeFabric {
	n := &model.NodeFabric{}
	read := func(name string, parse func(string) error) {
		if text := annotations[name]; text != "" {
			if err := parse(text); err != nil {
				f.Leave("metadata.annotations["+name+"]", "%v; it is left out", err)
			}
		}
	}
	for name, to := range map[string]*netip.Addr{
		"projectcalico.org/IPv4Address": &n.IPv4, "projectcalico.org/IPv6Address": &n.IPv6, "projectcalico.org/IPv4IPIPTunnelAddr": &n.IPIP,
		"projectcalico.org/IPv4VXLANTunnelAddr": &n.VXLAN, "projectcalico.org/IPv6VXLANTunnelAddr": &n.VXLAN6,
	} {
		read(name, func(text string) (err error) {
			text, _, _ = strings.Cut(text, "/") // the length of the subnet's prefix, which the interfaces say
			if *to, err = model.ParseAddr(text); err == nil && to.Is4() == strings.Contains(name, "IPv6") {
				*to, err = netip.Addr{}, errors.New("it is of the other family")
			}
			return err
		})
	}
	for name, to := range map[string]*model.MAC{"projectcalico.org/VXLANTunnelMACAddr": &n.MAC, "projectcalico.org/VXLANTunnelMACAddrV6": &n.MAC6} {
		read(name, func(text string) error {
			mac, err := net.ParseMAC(text)
			if err == nil && (len(mac) != len(to) || mac[0]&1 != 0) {
				err = errors.New(text + " is no address of one Ethernet device")
			}
			if err == nil {
				copy(to[:], mac)
			}
			return err
		})
	}
	read(WireGuardAnnotation, func(text string) error {
		key, err := base64.StdEncoding.DecodeString(text)
		if err != nil || len(key) != len(n.WireGuard) {
			return errors.New("it is no key of WireGuard")
		}
		copy(n.WireGuard[:], key)
		return nil
	})
	if *n == (model.NodeFabric{}) {
		return nil
	}
	return n
}
