package kubeobj_test

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	"sluice.dev/sluice/internal/model"
	"sluice.dev/sluice/internal/source/kubeobj"
)

// equal compares model values by meaning, also netip's.
var equal = cmp.Options{
	cmp.Comparer(func(a, b netip.Addr) bool { return a == b }),
	cmp.Comparer(func(a, b netip.Prefix) bool { return a == b }),
	cmpopts.EquateEmpty(),
}

func addrs(list ...string) []netip.Addr {
	var out []netip.Addr
	for _, s := range list {
		out = append(out, netip.MustParseAddr(s))
	}
	return out
}

func prefixes(list ...string) []netip.Prefix {
	var out []netip.Prefix
	for _, s := range list {
		out = append(out, netip.MustParsePrefix(s))
	}
	return out
}

// checkError compares an error with the parts that it must contain; none means that there must be
// no error.
func checkError(t *testing.T, err error, parts []string) {
	t.Helper()
	if len(parts) == 0 && err != nil {
		t.Errorf("unexpected error: %v", err)
	}
	for _, p := range parts {
		if err == nil || !strings.Contains(err.Error(), p) {
			t.Errorf("error %v lacks %q", err, p)
		}
	}
}

// service is a simple valid service; edit changes it.
func service(edit func(*corev1.Service)) *corev1.Service {
	s := &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "web"},
		Spec: corev1.ServiceSpec{
			ClusterIP: "10.96.0.10",
			Ports:     []corev1.ServicePort{{Port: 80}},
		},
	}
	if edit != nil {
		edit(s)
	}
	return s
}

// webService is the translation of service(nil).
func webService(edit func(*model.Service)) *model.Service {
	s := &model.Service{
		Name:       model.Name{Namespace: "shop", Name: "web"},
		ClusterIPs: addrs("10.96.0.10"),
		Ports:      []model.ServicePort{{Protocol: model.TCP, Port: 80, TargetPort: 80}},
	}
	if edit != nil {
		edit(s)
	}
	return s
}

func TestService(t *testing.T) {
	created := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	for _, c := range []struct {
		name string
		in   func(*corev1.Service)
		want func(*model.Service)
		errs []string // of what was left out
	}{
		{name: "plain"},
		{
			name: "odd external addresses are left out",
			in: func(s *corev1.Service) {
				s.Spec.ExternalIPs = []string{"010.0.0.1", "192.0.2.7", "239.1.1.1", "127.0.0.1"}
			},
			want: func(s *model.Service) { s.ExternalIPs = addrs("10.0.0.1", "192.0.2.7") },
			errs: []string{"spec.externalIPs[2]: 239.1.1.1 is a multicast address; it is left out", "spec.externalIPs[3]", "loopback"},
		},
		{
			name: "odd ingress points are left out",
			in: func(s *corev1.Service) {
				s.Spec.Type = corev1.ServiceTypeLoadBalancer
				s.Status.LoadBalancer.Ingress = []corev1.LoadBalancerIngress{{IP: "203.0.113"},
					{IP: "203.0.113.1", IPMode: new(corev1.LoadBalancerIPMode("DSR"))}, {IP: "203.0.113.2"}}
			},
			want: func(s *model.Service) { s.LoadBalancerIPs = addrs("203.0.113.2") },
			errs: []string{"status.loadBalancer.ingress[0].ip", "status.loadBalancer.ingress[1].ipMode"},
		},
		{
			name: "all that can be said",
			in: func(s *corev1.Service) {
				s.CreationTimestamp = metav1.NewTime(created)
				s.Spec.Type = corev1.ServiceTypeLoadBalancer
				s.Spec.ClusterIPs = []string{"10.96.0.10", "fd00::a"}
				s.Spec.Selector = map[string]string{"app": "web"}
				s.Spec.ExternalIPs = []string{"192.0.2.7"}
				s.Spec.Ports = []corev1.ServicePort{
					{Name: "http", Protocol: "TCP", Port: 80, TargetPort: intstr.FromString("web"), NodePort: 30080},
					{Name: "dns", Protocol: "UDP", Port: 53, TargetPort: intstr.FromInt32(5353)},
					{Name: "sig", Protocol: "SCTP", Port: 53},
				}
				s.Spec.SessionAffinity = corev1.ServiceAffinityClientIP
				s.Spec.SessionAffinityConfig = &corev1.SessionAffinityConfig{ClientIP: &corev1.ClientIPConfig{TimeoutSeconds: new(int32(60))}}
				s.Spec.InternalTrafficPolicy = new(corev1.ServiceInternalTrafficPolicyLocal)
				s.Spec.ExternalTrafficPolicy = corev1.ServiceExternalTrafficPolicyLocal
				s.Spec.HealthCheckNodePort = 32000
				s.Spec.LoadBalancerSourceRanges = []string{" 198.51.100.7/24 ", "2001:db8::/32"}
				s.Spec.PublishNotReadyAddresses = true
				s.Spec.TrafficDistribution = new("PreferSameZone")
				s.Status.LoadBalancer.Ingress = []corev1.LoadBalancerIngress{
					{IP: "203.0.113.1"},
					{IP: "203.0.113.2", IPMode: new(corev1.LoadBalancerIPModeProxy)},
					{IP: "203.0.113.3", IPMode: new(corev1.LoadBalancerIPModeVIP)},
					{Hostname: "lb.example.org"},
				}
			},
			want: func(s *model.Service) {
				s.Created = created
				s.ClusterIPs = addrs("10.96.0.10", "fd00::a")
				s.Selector = map[string]string{"app": "web"}
				s.ExternalIPs = addrs("192.0.2.7")
				s.LoadBalancerIPs = addrs("203.0.113.1", "203.0.113.3")
				s.Ports = []model.ServicePort{
					{Name: "http", Protocol: model.TCP, Port: 80, TargetName: "web", NodePort: 30080},
					{Name: "dns", Protocol: model.UDP, Port: 53, TargetPort: 5353},
					{Name: "sig", Protocol: model.SCTP, Port: 53, TargetPort: 53},
				}
				s.Affinity = time.Minute
				s.InternalLocal, s.ExternalLocal = true, true
				s.HealthCheckNodePort = 32000
				s.SourceRanges = prefixes("198.51.100.0/24", "2001:db8::/32")
				s.PublishNotReady = true
			},
		},
		{
			name: "headless",
			in:   func(s *corev1.Service) { s.Spec.ClusterIP = "None"; s.Spec.Ports = nil },
			want: func(s *model.Service) { s.ClusterIPs, s.Ports, s.Unproxied = nil, nil, "headless" },
		},
		{
			name: "headless by the list",
			in:   func(s *corev1.Service) { s.Spec.ClusterIP = ""; s.Spec.ClusterIPs = []string{"None"} },
			want: func(s *model.Service) { s.ClusterIPs, s.Unproxied = nil, "headless" },
		},
		{
			name: "ExternalName",
			in: func(s *corev1.Service) {
				s.Spec = corev1.ServiceSpec{Type: corev1.ServiceTypeExternalName, ExternalName: "example.org"}
			},
			want: func(s *model.Service) { s.ClusterIPs, s.Ports, s.Unproxied = nil, nil, "ExternalName" },
		},
		{
			name: "another proxy's",
			in: func(s *corev1.Service) {
				s.Labels = map[string]string{"service.kubernetes.io/service-proxy-name": ""}
			},
			want: func(s *model.Service) { s.Unproxied = "label service.kubernetes.io/service-proxy-name" },
		},
		{
			name: "headless by label",
			in:   func(s *corev1.Service) { s.Labels = map[string]string{"service.kubernetes.io/headless": ""} },
			want: func(s *model.Service) { s.Unproxied = "label service.kubernetes.io/headless" },
		},
		{
			name: "affinity with the default time-out",
			in:   func(s *corev1.Service) { s.Spec.SessionAffinity = corev1.ServiceAffinityClientIP },
			want: func(s *model.Service) { s.Affinity = 10800 * time.Second },
		},
		{
			name: "source ranges in the annotation",
			in: func(s *corev1.Service) {
				s.Spec.Type = corev1.ServiceTypeLoadBalancer
				s.Annotations = map[string]string{"service.beta.kubernetes.io/load-balancer-source-ranges": "192.0.2.0/24, 10.1.2.3/8"}
			},
			want: func(s *model.Service) { s.SourceRanges = prefixes("192.0.2.0/24", "10.0.0.0/8") },
		},
		{
			name: "the field goes before the annotation",
			in: func(s *corev1.Service) {
				s.Spec.Type = corev1.ServiceTypeLoadBalancer
				s.Annotations = map[string]string{"service.beta.kubernetes.io/load-balancer-source-ranges": "192.0.2.0/24"}
				s.Spec.LoadBalancerSourceRanges = []string{"198.51.100.0/24"}
			},
			want: func(s *model.Service) { s.SourceRanges = prefixes("198.51.100.0/24") },
		},
		{
			name: "what a ClusterIP service doesn't have",
			in: func(s *corev1.Service) {
				s.Spec.LoadBalancerSourceRanges = []string{"198.51.100.0/24"}
				s.Spec.ExternalTrafficPolicy = corev1.ServiceExternalTrafficPolicyLocal
				s.Spec.HealthCheckNodePort = 32000
				s.Status.LoadBalancer.Ingress = []corev1.LoadBalancerIngress{{IP: "203.0.113.1"}}
			},
		},
		{
			name: "an external IP makes the external policy count",
			in: func(s *corev1.Service) {
				s.Spec.ExternalIPs = []string{"192.0.2.7"}
				s.Spec.ExternalTrafficPolicy = corev1.ServiceExternalTrafficPolicyLocal
			},
			want: func(s *model.Service) { s.ExternalIPs, s.ExternalLocal = addrs("192.0.2.7"), true },
		},
		{
			name: "a node port is left over",
			in:   func(s *corev1.Service) { s.Spec.Ports[0].NodePort = 30080 },
			errs: []string{"spec.ports[0].nodePort: 30080 is left out", "ClusterIP"},
		},
		{
			name: "a scheduler of IPVS",
			in:   func(s *corev1.Service) { s.Annotations = map[string]string{"sluice.dev/ipvs-scheduler": "mh"} },
			want: func(s *model.Service) { s.IPVSScheduler = "mh" },
		},
		{
			name: "a scheduler that IPVS does not have",
			in:   func(s *corev1.Service) { s.Annotations = map[string]string{"sluice.dev/ipvs-scheduler": "fair"} },
			errs: []string{`metadata.annotations[sluice.dev/ipvs-scheduler]: "fair" is none of rr, wrr`},
		},
		{
			name: "a distribution from the future",
			in:   func(s *corev1.Service) { s.Spec.TrafficDistribution = new("PreferMoon") },
			errs: []string{`spec.trafficDistribution: "PreferMoon"`},
		},
		{
			name: "IPv4 inside IPv6",
			in:   func(s *corev1.Service) { s.Spec.ClusterIP = "::ffff:10.96.0.10" },
		},
	} {
		t.Run(c.name, func(t *testing.T) {
			got, err := kubeobj.Service(service(c.in))
			checkError(t, err, c.errs)
			if got != nil {
				got.LoadBalancer = nil // see TestLoadBalancer
			}
			if diff := cmp.Diff(webService(c.want), got, equal); diff != "" {
				t.Errorf("wrong service (-want +got):\n%s", diff)
			}
		})
	}
}

// A value that cannot be read takes away no more than what it is about.
func TestServiceInPart(t *testing.T) {
	balanced := func(ranges ...string) func(*corev1.Service) {
		return func(s *corev1.Service) {
			s.Spec.Type, s.Spec.LoadBalancerSourceRanges = corev1.ServiceTypeLoadBalancer, ranges
			s.Spec.Ports[0].NodePort = 30080
			s.Status.LoadBalancer.Ingress = []corev1.LoadBalancerIngress{{IP: "203.0.113.064"}}
		}
	}
	plain := "[10.96.0.10] [80:0]"
	for _, c := range []struct {
		name string
		in   func(*corev1.Service)
		want string
		err  string
	}{
		{"leading zeros are decimal", func(s *corev1.Service) {
			balanced("010.010.000.000/24")(s)
			s.Spec.ClusterIP, s.Spec.ExternalIPs = "010.096.000.010", []string{"203.000.113.053"}
		}, "[10.96.0.10] [80:30080] external [203.0.113.53] load balancer [203.0.113.64] from [10.10.0.0/24]", ""},
		{"a source range", balanced("10.0.0.0", "192.0.2.0/24"), "[10.96.0.10] [80:30080] load balancer [203.0.113.64] from [192.0.2.0/24]", "spec.loadBalancerSourceRanges"},
		{"all source ranges", balanced("10.0.0.0", "all"), "[10.96.0.10] [80:30080]", "none can be read, so the addresses of the load balancer are not served"},
		{"in the annotation", func(s *corev1.Service) {
			balanced()(s)
			s.Annotations = map[string]string{"service.beta.kubernetes.io/load-balancer-source-ranges": "all"}
		}, "[10.96.0.10] [80:30080]", "metadata.annotations[service.beta.kubernetes.io/load-balancer-source-ranges]"},
		{"an address", func(s *corev1.Service) { s.Spec.ClusterIPs = []string{"10.96.0.10", "fd00::x"} }, plain, "spec.clusterIPs[1]"},
		{"two of a family", func(s *corev1.Service) { s.Spec.ClusterIPs = []string{"10.96.0.10", "10.96.0.11"} }, plain, "spec.clusterIPs[1]"},
		{"three addresses", func(s *corev1.Service) { s.Spec.ClusterIPs = []string{"10.96.0.10", "fd00::1", "fd00::2"} }, "[10.96.0.10 fd00::1] [80:0]", "spec.clusterIPs[2]"},
		{"a node port", func(s *corev1.Service) { s.Spec.Type, s.Spec.Ports[0].NodePort = corev1.ServiceTypeNodePort, 70000 }, plain, "spec.ports[0].nodePort: 70000"},
		{"a port", func(s *corev1.Service) {
			s.Spec.Ports = []corev1.ServicePort{{Name: "a", Port: 80}, {Name: "b", Port: 81, Protocol: "ICMP"}}
		}, plain, `spec.ports[1].protocol: "ICMP" is none of TCP, UDP and SCTP; this port is left out`},
		{"a port twice", func(s *corev1.Service) {
			s.Spec.Ports = []corev1.ServicePort{{Name: "a", Port: 80}, {Name: "b", Port: 80}}
		}, plain, "spec.ports[1].port: 80/TCP is there twice"},
		{"ports without names", func(s *corev1.Service) { s.Spec.Ports = []corev1.ServicePort{{Port: 80}, {Port: 81}} }, plain, "spec.ports[1].name"},
		{"affinity", func(s *corev1.Service) { s.Spec.SessionAffinity = "Cookie" }, plain, "spec.sessionAffinity"},
		{"its time-out", func(s *corev1.Service) {
			s.Spec.SessionAffinity = corev1.ServiceAffinityClientIP
			s.Spec.SessionAffinityConfig = &corev1.SessionAffinityConfig{ClientIP: &corev1.ClientIPConfig{TimeoutSeconds: new(int32(86401))}}
		}, plain + " affinity 3h0m0s", "spec.sessionAffinityConfig.clientIP.timeoutSeconds: 86401"},
		{"internal policy", func(s *corev1.Service) {
			s.Spec.InternalTrafficPolicy = new(corev1.ServiceInternalTrafficPolicy("Node"))
		}, plain + " inside Local", "spec.internalTrafficPolicy"},
		{"external policy", func(s *corev1.Service) {
			s.Spec.Type, s.Spec.ExternalTrafficPolicy = corev1.ServiceTypeNodePort, "local"
		}, plain + " outside Local", "spec.externalTrafficPolicy"},
		{"health check port", func(s *corev1.Service) { s.Spec.HealthCheckNodePort = 65536 }, plain, "spec.healthCheckNodePort"},
	} {
		got, err := kubeobj.Service(service(c.in))
		if got == nil {
			t.Errorf("%s: nothing is left: %v", c.name, err)
			continue
		}
		if (err == nil) != (c.err == "") || err != nil && !strings.Contains(err.Error(), c.err) {
			t.Errorf("%s: %v, want %q", c.name, err, c.err)
		}
		var ports []string
		for _, p := range got.Ports {
			ports = append(ports, fmt.Sprint(p.Port, ":", p.NodePort))
		}
		text := fmt.Sprint(got.ClusterIPs, " ", ports)
		if len(got.ExternalIPs) > 0 {
			text += fmt.Sprint(" external ", got.ExternalIPs)
		}
		if len(got.LoadBalancerIPs) > 0 {
			text += fmt.Sprint(" load balancer ", got.LoadBalancerIPs, " from ", got.SourceRanges)
		}
		if got.Affinity > 0 {
			text += fmt.Sprint(" affinity ", got.Affinity)
		}
		if got.InternalLocal {
			text += " inside Local"
		}
		if got.ExternalLocal {
			text += " outside Local"
		}
		if text != c.want {
			t.Errorf("%s: %s, want %s", c.name, text, c.want)
		}
	}
}

func TestServiceAtFault(t *testing.T) {
	for _, c := range []struct {
		name string
		in   func(*corev1.Service)
		errs []string
	}{
		{"no name", func(s *corev1.Service) { s.Name = "" }, []string{"metadata.name: is missing"}},
		{"no such name", func(s *corev1.Service) { s.Name = "a\nb" }, []string{"metadata.name"}},
		{"name too long", func(s *corev1.Service) { s.Name = strings.Repeat("a", 254) }, []string{"metadata.name: has 254"}},
		{"namespace", func(s *corev1.Service) { s.Namespace = "-x" }, []string{"metadata.namespace"}},
		{"unassigned", func(s *corev1.Service) { s.Spec.ClusterIP = "" }, []string{"spec.clusterIP", "give it a free one"}},
		{"no address", func(s *corev1.Service) { s.Spec.ClusterIP = "10.96.0.256" }, []string{`spec.clusterIP: "10.96.0.256" is no IP address`}},
		{"zone", func(s *corev1.Service) { s.Spec.ClusterIP = "fe80::1%eth0" }, []string{"spec.clusterIP"}},
		{"addresses differ", func(s *corev1.Service) { s.Spec.ClusterIPs = []string{"10.96.0.11"} }, []string{"spec.clusterIP:", "10.96.0.11"}},
		{"type", func(s *corev1.Service) { s.Spec.Type = "Cluster" }, []string{"spec.type"}},
		{"no port", func(s *corev1.Service) { s.Spec.Ports = nil }, []string{"spec.ports: a service needs a port"}},
		{"port 0", func(s *corev1.Service) { s.Spec.Ports[0].Port = 0 }, []string{"spec.ports[0].port: 0 is not in 1-65535"}},
		{"port too large", func(s *corev1.Service) { s.Spec.Ports[0].Port = 65536 }, []string{"spec.ports[0].port: 65536"}},
		{"target port", func(s *corev1.Service) { s.Spec.Ports[0].TargetPort = intstr.FromInt32(-1) }, []string{"spec.ports[0].targetPort: -1"}},
		{"protocol", func(s *corev1.Service) { s.Spec.Ports[0].Protocol = "ICMP" }, []string{`spec.ports[0].protocol: "ICMP"`}},
		{"two faults", func(s *corev1.Service) {
			s.Spec.Ports[0].Port = 0
			s.Spec.SessionAffinity = "Cookie"
		}, []string{"spec.ports[0].port", "; spec.sessionAffinity"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			got, err := kubeobj.Service(service(c.in))
			if got != nil {
				t.Errorf("got a service: %+v", got)
			}
			checkError(t, err, c.errs)
		})
	}
}
