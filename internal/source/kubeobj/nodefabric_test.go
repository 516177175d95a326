package kubeobj

import (
	"net/netip"
	"reflect"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"

	"sluice.dev/sluice/internal/model"
)

func TestNodeFabric(t *testing.T) {
	of := func(annotations map[string]string) (*model.NodeFabric, error) {
		n := &corev1.Node{}
		n.Name, n.Annotations = "a", map[string]string{}
		for name, value := range annotations {
			n.Annotations["projectcalico.org/"+name] = value
		}
		got, err := Node(n)
		return got.Fabric, err
	}
	a := netip.MustParseAddr
	got, err := of(map[string]string{
		"IPv4Address": "192.0.2.1/24", "IPv6Address": "fd00::1", "IPv4IPIPTunnelAddr": "10.244.0.1", "IPv4VXLANTunnelAddr": "10.244.0.2", "IPv6VXLANTunnelAddr": "fd01::2",
		"VXLANTunnelMACAddr": "66:01:02:03:04:05", "VXLANTunnelMACAddrV6": "66:01:02:03:04:06", "WireguardPublicKey": strings.Repeat("AAAA", 10) + "AAE=", "Other": "x",
		"ASNumber": "1.10", "RouteReflectorClusterID": "244.0.0.1",
	})
	want := &model.NodeFabric{
		IPv4: a("192.0.2.1"), IPv6: a("fd00::1"), IPIP: a("10.244.0.1"), VXLAN: a("10.244.0.2"), VXLAN6: a("fd01::2"),
		MAC: model.MAC{0x66, 1, 2, 3, 4, 5}, MAC6: model.MAC{0x66, 1, 2, 3, 4, 6}, WireGuard: model.PublicKey{31: 1}, AS: 65546, Cluster: a("244.0.0.1"),
	}
	if err != nil || !reflect.DeepEqual(got, want) {
		t.Errorf("%+v, %v", got, err)
	}
	if got, err := of(map[string]string{"Other": "x"}); got != nil || err != nil {
		t.Errorf("%+v, %v", got, err)
	}
	for name, value := range map[string]string{
		"ASNumber": "0", "RouteReflectorClusterID": "fd00::1", "IPv4Address": "fd00::1", "IPv6Address": "192.0.2.1/24", "IPv4VXLANTunnelAddr": "a", "VXLANTunnelMACAddr": "ff:ff:ff:ff:ff:ff", "VXLANTunnelMACAddrV6": "00:00:00:00:00:00:00:00",
		"WireguardPublicKey": "AAAA",
	} {
		if got, err := of(map[string]string{name: value}); got != nil || err == nil || !strings.Contains(err.Error(), "projectcalico.org/"+name) {
			t.Errorf("%s: %+v, %v", name, got, err)
		}
	}
}
