package kubeproxy

import (
	"fmt"
	"os"
	"strconv"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/cpuset"
	"k8s.io/utils/ptr"
)

// mostTracked is the largest limit of connections that kube-proxy derives from the number of
// CPUs.
const mostTracked = 1 << 20

// What kube-proxy sets of connection tracking; it sets no other parameter in its nftables mode.
const (
	prefix     = "net.netfilter.nf_conntrack_"
	maxTracked = prefix + "max"
	buckets    = prefix + "buckets"
)

// Sysctls returns the kernel parameters that kube-proxy would set on a node with so many CPUs. Have
// is the present size of the hash table of connections, 0 where that is not known: as kube-proxy
// does, the table is made larger where it has less than one bucket for four connections, and never
// smaller.
func (c Conntrack) Sysctls(cpus, have int) map[string]string {
	want := map[string]string{}
	if most := c.most(cpus); most > 0 {
		want[maxTracked] = strconv.Itoa(most)
		if have > 0 && have < most/4 {
			want[buckets] = strconv.Itoa(most / 4)
		}
	}
	timeout := func(name string, d *metav1.Duration) {
		if d != nil && d.Duration > 0 {
			want[prefix+name] = strconv.Itoa(int(d.Duration / time.Second))
		}
	}
	timeout("tcp_timeout_established", c.TCPEstablishedTimeout)
	timeout("tcp_timeout_close_wait", c.TCPCloseWaitTimeout)
	timeout("udp_timeout", &c.UDPTimeout)
	timeout("udp_timeout_stream", &c.UDPStreamTimeout)
	if c.TCPBeLiberal {
		want[prefix+"tcp_be_liberal"] = "1"
	}
	return want
}

// most is the number of connections to track; 0: as many as now.
func (c Conntrack) most(cpus int) int {
	perCore, least := int(ptr.Deref(c.MaxPerCore, 0)), int(ptr.Deref(c.Min, 0))
	switch scaled := perCore * cpus; {
	case perCore <= 0:
		return 0
	case scaled > mostTracked:
		return mostTracked
	default:
		return max(scaled, least)
	}
}

// CPUs counts the machine's CPUs that are online. They matter, and not those that this
// process may use, as the limit of connections is the machine's.
func CPUs() (int, error) {
	text, err := os.ReadFile("/sys/devices/system/cpu/online")
	if err != nil {
		return 0, fmt.Errorf("count CPUs: %w", err)
	}
	return countCPUs(strings.TrimSpace(string(text)))
}

// countCPUs counts what a list such as "0-3,8" names.
func countCPUs(list string) (int, error) {
	set, err := cpuset.Parse(list)
	if err != nil || set.IsEmpty() {
		return 0, fmt.Errorf("count CPUs: %q is no list of numbers", list)
	}
	return set.Size(), nil
}
