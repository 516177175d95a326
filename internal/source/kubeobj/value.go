package kubeobj

import (
	"net/netip"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

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

// parsePrefix reads a CIDR. It accepts white space around it and bits beyond the prefix length.
func parsePrefix(s string) (netip.Prefix, error) { return model.ParsePrefix(strings.TrimSpace(s)) }
