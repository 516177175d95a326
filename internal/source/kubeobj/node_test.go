package kubeobj_test

import (
	"net/netip"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"sluice.dev/sluice/internal/source/kubeobj"
)

// As in kube-proxy, a family without an InternalIP has its ExternalIPs.
func TestNodeAddresses(t *testing.T) {
	for _, c := range []struct {
		in   string // "i" and "e" before addresses say their types
		want []netip.Addr
		last int // how many of these are ExternalIPs
		more []netip.Addr
		err  []string
	}{
		{"", nil, 0, nil, nil},
		{"i192.0.2.1 i192.0.2.2", addrs("192.0.2.1", "192.0.2.2"), 0, nil, nil},
		{"e203.0.113.9", addrs("203.0.113.9"), 1, nil, nil},
		{"e203.0.113.9 i192.0.2.1", addrs("192.0.2.1"), 0, addrs("203.0.113.9"), nil},
		{"e203.0.113.9 e2001:db8::9 i2001:db8::1 e203.0.113.8", addrs("2001:db8::1", "203.0.113.9", "203.0.113.8"), 2, addrs("2001:db8::9"), nil},
		{"ix e203.0.113.9", addrs("203.0.113.9"), 1, nil, []string{"status.addresses[0].address"}},
		{"i192.0.2.1 ex", addrs("192.0.2.1"), 0, nil, []string{"status.addresses[1].address"}},
	} {
		in := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n1"}}
		for text := range strings.FieldsSeq(c.in) {
			kind := map[byte]corev1.NodeAddressType{'i': corev1.NodeInternalIP, 'e': corev1.NodeExternalIP}[text[0]]
			in.Status.Addresses = append(in.Status.Addresses, corev1.NodeAddress{Type: kind, Address: text[1:]})
		}
		got, err := kubeobj.Node(in)
		checkError(t, err, c.err)
		if got == nil || !slices.Equal(got.IPs, c.want) || got.External != c.last {
			t.Errorf("%q: %+v, want %v", c.in, got, c.want)
		} else if !slices.Equal(got.OtherIPs, c.more) {
			t.Errorf("%q: other addresses %v, want %v", c.in, got.OtherIPs, c.more)
		}
	}
}

// The keys of taints are read, and the autoscaler's says that the node leaves.
func TestNodeTaints(t *testing.T) {
	in := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n1"}}
	for _, key := range []string{"sluice.dev/agent-not-ready", "ToBeDeletedByClusterAutoscaler"} {
		in.Spec.Taints = append(in.Spec.Taints, corev1.Taint{Key: key, Effect: corev1.TaintEffectNoSchedule})
		n, err := kubeobj.Node(in)
		if err != nil || n.Taints[len(n.Taints)-1] != key || n.Leaving != (len(n.Taints) == 2) {
			t.Errorf("%+v, %v", n, err)
		}
	}
}
