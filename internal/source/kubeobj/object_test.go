package kubeobj_test

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"sluice.dev/sluice/internal/model"
	"sluice.dev/sluice/internal/source/kubeobj"
)

func slice(edit func(*discoveryv1.EndpointSlice)) *discoveryv1.EndpointSlice {
	s := &discoveryv1.EndpointSlice{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: "shop", Name: "web-1",
			Labels: map[string]string{"kubernetes.io/service-name": "web"},
		},
		AddressType: discoveryv1.AddressTypeIPv4,
		Ports:       []discoveryv1.EndpointPort{{Port: new(int32(8080))}},
		Endpoints:   []discoveryv1.Endpoint{{Addresses: []string{"10.1.0.1"}}},
	}
	edit(s)
	return s
}

func TestEndpointSlice(t *testing.T) {
	for _, c := range []struct {
		name string
		in   func(*discoveryv1.EndpointSlice)
		want func(*model.EndpointSlice)
		errs []string
	}{
		{name: "plain", in: func(*discoveryv1.EndpointSlice) {}},
		{
			name: "no service",
			in:   func(s *discoveryv1.EndpointSlice) { s.Labels = nil },
			want: func(s *model.EndpointSlice) { s.Service = "" },
		},
		{
			name: "headless", // the label counts, whatever its value
			in:   func(s *discoveryv1.EndpointSlice) { s.Labels[corev1.IsHeadlessService] = "" },
			want: func(s *model.EndpointSlice) { s.Service = "" },
		},
		{
			name: "ports",
			in: func(s *discoveryv1.EndpointSlice) {
				s.Ports = []discoveryv1.EndpointPort{
					{Name: new("dns"), Protocol: new(corev1.ProtocolUDP), Port: new(int32(53))},
					{Name: new("any")},
				}
			},
			want: func(s *model.EndpointSlice) {
				s.Ports = []model.EndpointPort{{Name: "dns", Protocol: model.UDP, Port: 53}}
			},
		},
		{
			name: "conditions",
			in: func(s *discoveryv1.EndpointSlice) {
				s.Endpoints = []discoveryv1.Endpoint{
					{Addresses: []string{"10.1.0.1"}, Conditions: discoveryv1.EndpointConditions{Ready: new(false)}},
					{Addresses: []string{"10.1.0.2"}, Conditions: discoveryv1.EndpointConditions{Ready: new(false), Serving: new(true), Terminating: new(true)}},
					{Addresses: []string{"10.1.0.3"}, Conditions: discoveryv1.EndpointConditions{Serving: new(false)}},
				}
			},
			want: func(s *model.EndpointSlice) {
				s.Endpoints = []model.Endpoint{
					{Addr: addrs("10.1.0.1")[0]},
					{Addr: addrs("10.1.0.2")[0], Serving: true, Terminating: true},
					{Addr: addrs("10.1.0.3")[0], Ready: true},
				}
			},
		},
		{
			name: "places and hints",
			in: func(s *discoveryv1.EndpointSlice) {
				hints := &discoveryv1.EndpointHints{
					ForZones: []discoveryv1.ForZone{{Name: "a"}, {Name: "b"}},
					ForNodes: []discoveryv1.ForNode{{Name: "n1"}},
				}
				s.Endpoints = []discoveryv1.Endpoint{
					{Addresses: []string{"10.1.0.1", "10.1.0.2"}, NodeName: new("n1"), Zone: new("a"), Hints: hints},
					{Addresses: []string{"10.1.0.3"}, Hints: hints},
					{Addresses: []string{"10.1.0.4"}, Hints: &discoveryv1.EndpointHints{ForZones: []discoveryv1.ForZone{{Name: "b"}}}},
					{Addresses: []string{"10.1.0.5"}},
				}
			},
			want: func(s *model.EndpointSlice) {
				both := model.Endpoint{Ready: true, Serving: true, Node: "n1", Zone: "a", ZoneHints: []string{"a", "b"}, NodeHints: []string{"n1"}}
				s.Endpoints = nil
				for i, a := range addrs("10.1.0.1", "10.1.0.2", "10.1.0.3", "10.1.0.4", "10.1.0.5") {
					e := both
					if i >= 2 {
						e.Node, e.Zone = "", ""
					}
					if i == 3 {
						e.ZoneHints, e.NodeHints = []string{"b"}, nil
					}
					if i == 4 {
						e.ZoneHints, e.NodeHints = nil, nil
					}
					e.Addr = a
					s.Endpoints = append(s.Endpoints, e)
				}
			},
		},
		{
			name: "IPv6",
			in: func(s *discoveryv1.EndpointSlice) {
				s.AddressType = discoveryv1.AddressTypeIPv6
				s.Endpoints[0].Addresses = []string{"fd00::1"}
			},
			want: func(s *model.EndpointSlice) { s.Endpoints[0].Addr = addrs("fd00::1")[0] },
		},
		{
			name: "bad addresses are left out",
			in: func(s *discoveryv1.EndpointSlice) {
				for _, a := range []string{"fd00::1", "10.1.0", "127.0.0.1", "169.254.1.1", "239.1.1.1", "0.0.0.0"} {
					s.Endpoints = append(s.Endpoints, discoveryv1.Endpoint{Addresses: []string{a}})
				}
			},
			errs: []string{
				"endpoints[1].addresses[0]: fd00::1 is not of the slice's family", "endpoints[2].addresses[0]",
				"endpoints[3].addresses[0]: 127.0.0.1 is a loopback", "link-local", "multicast", "unspecified",
			},
		},
		{
			name: "ports that are none are left out",
			in: func(s *discoveryv1.EndpointSlice) {
				for _, p := range []int32{70000, 0, -5} {
					s.Ports = append(s.Ports, discoveryv1.EndpointPort{Port: new(p)})
				}
				s.Ports = append(s.Ports, discoveryv1.EndpointPort{Port: new(int32(80)), Protocol: new(corev1.Protocol("tcp"))})
			},
			errs: []string{
				"ports[1].port: 70000 is not in 1-65535; this port is left out", "ports[2].port: 0", "ports[3].port: -5",
				`ports[4].protocol: "tcp" is none of TCP, UDP and SCTP; this port is left out`,
			},
		},
		{
			name: "leading zeros",
			in:   func(s *discoveryv1.EndpointSlice) { s.Endpoints[0].Addresses = []string{"010.001.000.001"} },
		},
		{
			name: "no endpoints",
			in:   func(s *discoveryv1.EndpointSlice) { s.Endpoints, s.Ports = nil, nil },
			want: func(s *model.EndpointSlice) { s.Endpoints, s.Ports = nil, nil },
		},
	} {
		t.Run(c.name, func(t *testing.T) {
			want := &model.EndpointSlice{
				Name:      model.Name{Namespace: "shop", Name: "web-1"},
				Service:   "web",
				Ports:     []model.EndpointPort{{Protocol: model.TCP, Port: 8080}},
				Endpoints: []model.Endpoint{{Addr: addrs("10.1.0.1")[0], Ready: true, Serving: true}},
			}
			if c.want != nil {
				c.want(want)
			}
			got, err := kubeobj.EndpointSlice(slice(c.in))
			checkError(t, err, c.errs)
			if diff := cmp.Diff(want, got, equal); diff != "" {
				t.Errorf("wrong slice (-want +got):\n%s", diff)
			}
		})
	}
}

func TestEndpointSliceAtFault(t *testing.T) {
	for _, c := range []struct {
		name string
		in   func(*discoveryv1.EndpointSlice)
		errs []string
	}{
		{"FQDN", func(s *discoveryv1.EndpointSlice) { s.AddressType = discoveryv1.AddressTypeFQDN }, []string{"addressType: FQDN"}},
		{"no family", func(s *discoveryv1.EndpointSlice) { s.AddressType = "" }, []string{"addressType"}},
		{"name", func(s *discoveryv1.EndpointSlice) { s.Name = "" }, []string{"metadata.name"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			got, err := kubeobj.EndpointSlice(slice(c.in))
			if got != nil {
				t.Errorf("got a slice: %+v", got)
			}
			checkError(t, err, c.errs)
		})
	}
}

func TestManyFaultsAreCutShort(t *testing.T) {
	_, err := kubeobj.EndpointSlice(slice(func(s *discoveryv1.EndpointSlice) {
		s.Endpoints = make([]discoveryv1.Endpoint, 100)
		for i := range s.Endpoints {
			s.Endpoints[i].Addresses = []string{"x"}
		}
	}))
	checkError(t, err, []string{"endpoints[9].addresses[0]", "and 90 more"})
}

func TestPod(t *testing.T) {
	always := corev1.ContainerRestartPolicyAlways
	full := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: "shop", Name: "web-0", Labels: map[string]string{"app": "web"},
			DeletionTimestamp: &metav1.Time{Time: time.Unix(1, 0)},
		},
		Spec: corev1.PodSpec{
			NodeName: "n1", HostNetwork: true, ServiceAccountName: "seller",
			Containers: []corev1.Container{
				{Ports: []corev1.ContainerPort{{Name: "http", ContainerPort: 8080}}},
				{Ports: []corev1.ContainerPort{{ContainerPort: 53, Protocol: "UDP"}}},
			},
			InitContainers: []corev1.Container{
				{Ports: []corev1.ContainerPort{{ContainerPort: 1}}},
				{Ports: []corev1.ContainerPort{{Name: "side", ContainerPort: 9090}}, RestartPolicy: &always},
			},
		},
		Status: corev1.PodStatus{
			Phase: corev1.PodFailed, PodIP: "10.1.0.1",
			PodIPs:     []corev1.PodIP{{IP: "10.1.0.1"}, {IP: "fd00::1"}},
			Conditions: []corev1.PodCondition{{Type: "Initialized", Status: "False"}, {Type: corev1.PodReady, Status: corev1.ConditionTrue}},
		},
	}
	want := &model.Pod{
		Name: model.Name{Namespace: "shop", Name: "web-0"}, Labels: map[string]string{"app": "web"},
		IPs: addrs("10.1.0.1", "fd00::1"), Node: "n1", HostNetwork: true, Ready: true, Terminating: true, Finished: true,
		Ports: []model.ContainerPort{
			{Name: "http", Protocol: model.TCP, Port: 8080},
			{Protocol: model.UDP, Port: 53},
			{Name: "side", Protocol: model.TCP, Port: 9090},
		},
		ServiceAccount: "seller",
	}
	got, err := kubeobj.Pod(full)
	checkError(t, err, nil)
	if diff := cmp.Diff(want, got, equal); diff != "" {
		t.Errorf("wrong pod (-want +got):\n%s", diff)
	}

	got, err = kubeobj.Pod(&corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "p"},
		Status:     corev1.PodStatus{Phase: corev1.PodRunning, PodIP: "10.1.0.2"},
	})
	checkError(t, err, nil)
	want = &model.Pod{Name: model.Name{Namespace: "shop", Name: "p"}, IPs: addrs("10.1.0.2"), ServiceAccount: "default"}
	if diff := cmp.Diff(want, got, equal); diff != "" {
		t.Errorf("wrong pod (-want +got):\n%s", diff)
	}
}

func TestPodAtFault(t *testing.T) {
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "p"},
		Spec:       corev1.PodSpec{Containers: []corev1.Container{{}, {Ports: []corev1.ContainerPort{{ContainerPort: 99999}}}}},
		Status:     corev1.PodStatus{PodIPs: []corev1.PodIP{{IP: "ten"}}},
	}
	got, err := kubeobj.Pod(pod)
	if got != nil {
		t.Errorf("got a pod: %+v", got)
	}
	checkError(t, err, []string{"status.podIPs[0].ip", "spec.containers[1].ports[0].containerPort: 99999"})

	pod = &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "p"}, Status: corev1.PodStatus{PodIP: "ten"}}
	_, err = kubeobj.Pod(pod)
	checkError(t, err, []string{"status.podIP:"})
}

func TestNode(t *testing.T) {
	in := &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: "n1", Labels: map[string]string{"topology.kubernetes.io/zone": "a"}},
		Spec:       corev1.NodeSpec{PodCIDR: "10.1.0.0/24", PodCIDRs: []string{"10.1.0.0/24", "fd00:1::/64"}},
		Status: corev1.NodeStatus{Addresses: []corev1.NodeAddress{
			{Type: corev1.NodeHostName, Address: "n1"},
			{Type: corev1.NodeInternalIP, Address: "192.0.2.1"},
			{Type: corev1.NodeExternalIP, Address: "203.0.113.9"},
			{Type: corev1.NodeInternalIP, Address: "2001:db8::1"},
		}},
	}
	want := &model.Node{
		Name: "n1", Labels: map[string]string{"topology.kubernetes.io/zone": "a"},
		IPs: addrs("192.0.2.1", "2001:db8::1"), OtherIPs: addrs("203.0.113.9"), PodCIDRs: prefixes("10.1.0.0/24", "fd00:1::/64"),
	}
	got, err := kubeobj.Node(in)
	checkError(t, err, nil)
	if diff := cmp.Diff(want, got, equal); diff != "" {
		t.Errorf("wrong node (-want +got):\n%s", diff)
	}
	in.Spec.PodCIDRs = nil
	got, err = kubeobj.Node(in)
	checkError(t, err, nil)
	if diff := cmp.Diff(prefixes("10.1.0.0/24"), got.PodCIDRs, equal); diff != "" {
		t.Errorf("podCIDR alone (-want +got):\n%s", diff)
	}
	in.Spec.PodCIDRs = []string{"fe80::/64", "10.1.0.0/24", "224.0.0.0/24"}
	got, err = kubeobj.Node(in)
	checkError(t, err, []string{"spec.podCIDRs: fe80::/64 has fe80::, a link-local address", "spec.podCIDRs: 224.0.0.0/24 has 224.0.0.0, a multicast address"})
	if diff := cmp.Diff(prefixes("10.1.0.0/24"), got.PodCIDRs, equal); diff != "" {
		t.Errorf("podCIDRs that no pod can have (-want +got):\n%s", diff)
	}
	in.Spec.PodCIDRs = nil
	in.Spec.PodCIDR = "10.1.0.0"
	in.Status.Addresses[1].Address = "n1"
	got, err = kubeobj.Node(in)
	checkError(t, err, []string{"status.addresses[1].address", "spec.podCIDR:"})
	want.IPs, want.External, want.OtherIPs, want.PodCIDRs = addrs("2001:db8::1", "203.0.113.9"), 1, nil, nil
	if diff := cmp.Diff(want, got, equal); diff != "" {
		t.Errorf("a malformed field affects others (-want +got):\n%s", diff)
	}
}

func TestServiceAccount(t *testing.T) {
	in := &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "seller", Labels: map[string]string{"role": "x"}}}
	got, err := kubeobj.ServiceAccount(in)
	checkError(t, err, nil)
	want := &model.ServiceAccount{Name: model.Name{Namespace: "shop", Name: "seller"}, Labels: map[string]string{"role": "x"}}
	if diff := cmp.Diff(want, got, equal); diff != "" {
		t.Errorf("wrong service account (-want +got):\n%s", diff)
	}
	if got, err := kubeobj.ServiceAccount(&corev1.ServiceAccount{}); got != nil || err == nil {
		t.Errorf("nameless service account: got %+v, %v", got, err)
	}
}

func TestNamespace(t *testing.T) {
	in := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "shop", Labels: map[string]string{"team": "x"}}}
	got, err := kubeobj.Namespace(in)
	checkError(t, err, nil)
	if diff := cmp.Diff(&model.Namespace{Name: "shop", Labels: map[string]string{"team": "x"}}, got, equal); diff != "" {
		t.Errorf("wrong namespace (-want +got):\n%s", diff)
	}
	if got, err := kubeobj.Namespace(&corev1.Namespace{}); got != nil || err == nil {
		t.Errorf("nameless namespace: got %+v, %v", got, err)
	}
}

// What Calico's agent does for a pod and nothing here does is said, and the pod counts.
func TestPodAnnotations(t *testing.T) {
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "p", Annotations: map[string]string{
		"cni.projectcalico.org/allowedSourcePrefixes": `["192.0.2.0/24"]`, "qos.projectcalico.org/ingressBandwidth": "1M",
		"qos.projectcalico.org/dscp": "", "cni.projectcalico.org/podIP": "10.1.0.2/32", "cni.projectcalico.org/ipAddrs": `["10.1.0.2"]`,
	}}}
	got, err := kubeobj.Pod(pod)
	const want = "metadata.annotations[cni.projectcalico.org/allowedSourcePrefixes]: it is not carried out: what the pod sends from addresses other than its own is dropped; " +
		"metadata.annotations[qos.projectcalico.org/ingressBandwidth]: it is not carried out: nothing limits the pod's traffic by it"
	if got == nil || err == nil || err.Error() != want {
		t.Errorf("%+v, %v, want %s", got, err, want)
	}
}
