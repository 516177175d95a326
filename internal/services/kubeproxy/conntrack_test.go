package kubeproxy

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

func TestSysctls(t *testing.T) {
	n := func(v int32) *int32 { return &v }
	d := func(v time.Duration) *metav1.Duration { return &metav1.Duration{Duration: v} }
	for _, tc := range []struct {
		name       string
		c          Conntrack
		cpus, have int
		want       map[string]string
	}{
		{"nothing", Conntrack{}, 4, 0, map[string]string{}},
		{"kube-proxy's defaults on a small machine", Default().Conntrack, 2, 65536, map[string]string{
			"net.netfilter.nf_conntrack_max": "131072", "net.netfilter.nf_conntrack_tcp_timeout_established": "86400", "net.netfilter.nf_conntrack_tcp_timeout_close_wait": "3600"}},
		{"for each CPU", Conntrack{MaxPerCore: n(32768), Min: n(131072)}, 8, 65536, map[string]string{"net.netfilter.nf_conntrack_max": "262144"}},
		{"a table that is too small for it", Conntrack{MaxPerCore: n(32768), Min: n(131072)}, 16, 65536,
			map[string]string{"net.netfilter.nf_conntrack_max": "524288", "net.netfilter.nf_conntrack_buckets": "131072"}},
		{"many CPUs", Conntrack{MaxPerCore: n(32768)}, 64, 0, map[string]string{"net.netfilter.nf_conntrack_max": "1048576"}},
		{"a least without a number for each CPU", Conntrack{MaxPerCore: n(0), Min: n(131072)}, 8, 0, map[string]string{}},
		{"no CPU counted", Conntrack{MaxPerCore: n(32768), Min: n(131072)}, 0, 0, map[string]string{"net.netfilter.nf_conntrack_max": "131072"}},
		{"time-outs", Conntrack{TCPEstablishedTimeout: d(time.Hour), TCPCloseWaitTimeout: d(0), UDPTimeout: *d(30 * time.Second), UDPStreamTimeout: *d(2 * time.Minute), TCPBeLiberal: true}, 1, 0,
			map[string]string{"net.netfilter.nf_conntrack_tcp_timeout_established": "3600", "net.netfilter.nf_conntrack_udp_timeout": "30",
				"net.netfilter.nf_conntrack_udp_timeout_stream": "120", "net.netfilter.nf_conntrack_tcp_be_liberal": "1"}},
	} {
		if diff := cmp.Diff(tc.want, tc.c.Sysctls(tc.cpus, tc.have)); diff != "" {
			t.Errorf("%s (-want +got):\n%s", tc.name, diff)
		}
	}
}

func TestCountCPUs(t *testing.T) {
	for list, want := range map[string]int{"0": 1, "0-3": 4, "0-3,8,10-11": 7} {
		if n, err := countCPUs(list); err != nil || n != want {
			t.Errorf("%s: %d, %v", list, n, err)
		}
	}
	for _, list := range []string{"", "x", "3-1", "0-"} {
		if n, err := countCPUs(list); err == nil {
			t.Errorf("%q: %d", list, n)
		}
	}
	if n, err := CPUs(); err != nil || n < 1 {
		t.Error(n, err)
	}
}
