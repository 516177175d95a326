package kubeobj

import (
	"net/netip"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	netutils "k8s.io/utils/net"

	"sluice.dev/sluice/internal/model"
	"sluice.dev/sluice/internal/source/fault"
)

// NameOf checks an object's name and namespace. A name appears in log lines, comments in the kernel
// and host names, so only the characters that the API server admits are allowed.
func NameOf(m *metav1.ObjectMeta, f *fault.List) model.Name {
	checkName("metadata.name", m.Name, f)
	checkName("metadata.namespace", m.Namespace, f)
	return model.Name{Namespace: m.Namespace, Name: m.Name}
}

// clusterName is NameOf for objects that belong to no namespace.
func clusterName(m *metav1.ObjectMeta, f *fault.List) string {
	checkName("metadata.name", m.Name, f)
	return m.Name
}

func checkName(field, name string, f *fault.List) {
	if name == "" {
		f.Reject(field, "is missing")
	} else if len(name) > 253 {
		f.Reject(field, "has %d characters, at most 253 are allowed", len(name))
	} else if !model.IsName(name) {
		f.Reject(field, "%q is no name; only lower-case letters, digits, '-' and '.' are allowed, and it starts and ends with a letter or digit", name)
	}
}

// protocol reads a transport protocol; an empty one means TCP.
func protocol(field string, p corev1.Protocol, f *fault.List) model.Protocol {
	switch p {
	case corev1.ProtocolTCP, "":
		return model.TCP
	case corev1.ProtocolUDP:
		return model.UDP
	case corev1.ProtocolSCTP:
		return model.SCTP
	}
	f.Reject(field, "%q is none of TCP, UDP and SCTP", string(p))
	return 0
}

// port checks a port that must be set.
func port(field string, p int32, f *fault.List) uint16 {
	if p < 1 || p > 65535 {
		f.Reject(field, "%d is not in 1-65535", p)
		return 0
	}
	return uint16(p)
}

// optionalPort checks a port for which 0 means none.
func optionalPort(field string, p int32, f *fault.List) uint16 {
	if p == 0 {
		return 0
	}
	return port(field, p, f)
}

// sparePort is optionalPort for one that is left out if it makes no sense.
func sparePort(field string, p int32, f *fault.List) uint16 {
	if p < 0 || p > 65535 {
		f.Leave(field, "%d is not in 1-65535; it is left out", p)
		return 0
	}
	return uint16(p)
}

// parseAddr reads an address. One with leading zeros is in decimal, as Kubernetes reads those that
// it stored when its API took them.
func parseAddr(text string) (netip.Addr, error) {
	a, err := model.ParseAddr(text)
	if err != nil {
		if ip, ok := netip.AddrFromSlice(netutils.ParseIPSloppy(text)); ok {
			return ip.Unmap(), nil
		}
	}
	return a, err
}

// parsePrefix reads a CIDR. It accepts white space around it, bits beyond the prefix length, and
// leading zeros as parseAddr does.
func parsePrefix(text string) (netip.Prefix, error) {
	text = strings.TrimSpace(text)
	p, err := model.ParsePrefix(text)
	if err != nil {
		if _, block, sloppy := netutils.ParseCIDRSloppy(text); sloppy == nil {
			return model.ParsePrefix(block.String())
		}
	}
	return p, err
}
