package kubeobj

import (
	"encoding/base64"
	"errors"
	"net"
	"net/netip"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"sluice.dev/sluice/internal/model"
	"sluice.dev/sluice/internal/source/fault"
)

// Annotations are those that anything here reads.
var Annotations = slices.Concat(serviceAnnotations, nodeAnnotations, podAnnotationNames, []string{corev1.EndpointsLastChangeTriggerTime})

// WireGuardAnnotation is where a Node says its public key for WireGuard, as Calico's do.
const WireGuardAnnotation = "projectcalico.org/WireguardPublicKey"

// Calico's annotations of Nodes, beside that.
const (
	address4Annotation = "projectcalico.org/IPv4Address"
	address6Annotation = "projectcalico.org/IPv6Address"
	ipipAnnotation     = "projectcalico.org/IPv4IPIPTunnelAddr"
	vxlan4Annotation   = "projectcalico.org/IPv4VXLANTunnelAddr"
	vxlan6Annotation   = "projectcalico.org/IPv6VXLANTunnelAddr"
	mac4Annotation     = "projectcalico.org/VXLANTunnelMACAddr"
	mac6Annotation     = "projectcalico.org/VXLANTunnelMACAddrV6"
	asAnnotation       = "projectcalico.org/ASNumber"
	clusterAnnotation  = "projectcalico.org/RouteReflectorClusterID"
)

var nodeAnnotations = []string{
	address4Annotation, address6Annotation, ipipAnnotation, vxlan4Annotation, vxlan6Annotation, mac4Annotation, mac6Annotation, WireGuardAnnotation,
	asAnnotation, clusterAnnotation,
}

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
		address4Annotation: &n.IPv4, address6Annotation: &n.IPv6, ipipAnnotation: &n.IPIP, vxlan4Annotation: &n.VXLAN, vxlan6Annotation: &n.VXLAN6,
	} {
		read(name, func(text string) (err error) {
			text, _, _ = strings.Cut(text, "/") // the length of the subnet's prefix, which the interfaces say
			if *to, err = model.ParseAddr(text); err == nil && to.Is4() == strings.Contains(name, "IPv6") {
				*to, err = netip.Addr{}, errors.New("it is of the other family")
			}
			return err
		})
	}
	for name, to := range map[string]*model.MAC{mac4Annotation: &n.MAC, mac6Annotation: &n.MAC6} {
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
	read(asAnnotation, func(text string) (err error) {
		n.AS, err = model.ParseAS(text)
		return err
	})
	read(clusterAnnotation, func(text string) (err error) {
		if n.Cluster, err = model.ParseAddr(text); err == nil && !n.Cluster.Is4() {
			n.Cluster, err = netip.Addr{}, errors.New(text+" is not in the form of an IPv4 address")
		}
		return err
	})
	if *n == (model.NodeFabric{}) {
		return nil
	}
	return n
}
