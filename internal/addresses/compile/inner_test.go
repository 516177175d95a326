package compile

import (
	"net/netip"
	"strings"
	"testing"

	"sluice.dev/sluice/internal/model"
)

// No Service is given an address that pods or cluster IPs may have, whatever the pools say; one
// that has such an address keeps it.
func TestInner(t *testing.T) {
	prefixes := func(texts ...string) (list []netip.Prefix) {
		for _, text := range texts {
			list = append(list, netip.MustParsePrefix(text))
		}
		return list
	}
	w := newWorld(t, Config{ClusterCIDRs: prefixes("10.244.0.0/16"), ServiceCIDRs: prefixes("10.96.0.0/12", "fd00:96::/108")})
	check := func(what, want string) {
		t.Helper()
		w.writeAll()
		if got := w.gives(); got != want {
			t.Errorf("%s: got %s, want %s", what, got, want)
		}
	}
	both := func(s *model.Service) { s.ClusterIPs = ips("10.96.0.1 fd00:96::1") }
	p := w.pool("p", "10.243.255.255-10.245.0.0 fd00:96::-fd00:96:0:1::1")
	a, b := w.service("x/a", both), w.service("x/b")
	w.set(p, a, b)
	check("around the cluster's", "a=10.243.255.255,fd00:96::10:0 b=10.245.0.0")
	if got := w.says(p); !strings.HasPrefix(got, "it has 10.244.0.0-10.244.255.255 (pods, --cluster-cidr), fd00:96::-fd00:96::f:ffff (cluster IPs, --service-cidr), of which no Service gets") {
		t.Errorf("of the pool: %s", got)
	}
	c := w.service("x/c", asks("10.244.7.7"))
	w.set(c)
	check("one that is asked for", "a=10.243.255.255,fd00:96::10:0 b=10.245.0.0 c=")
	if got := w.says(c); got != "it asks for 10.244.7.7, which is in 10.244.0.0-10.244.255.255 (pods, --cluster-cidr); ask for another" {
		t.Errorf("of the Service that asks: %s", got)
	}
	d := w.service("x/d", has("10.244.7.8"))
	w.set(d)
	check("one that a status has", "a=10.243.255.255,fd00:96::10:0 b=10.245.0.0 c= d=10.244.7.8")

	w.remove(c.Ref(), d.Ref(), a.Ref(), b.Ref(), p.Ref())
	n := &model.Node{Name: "n1", PodCIDRs: prefixes("198.51.100.0/30", "fd00:1::/64")}
	q := w.pool("q", "198.51.100.1-198.51.100.9")
	w.set(q, n, w.service("x/e"))
	check("a node's pod CIDR", "e=198.51.100.4")
	if got := w.says(q); !strings.HasPrefix(got, "it has 198.51.100.1-198.51.100.3 (pods of Node n1)") {
		t.Errorf("of the pool: %s", got)
	}
	larger := *n
	larger.PodCIDRs = prefixes("198.51.100.0/29")
	w.set(&larger, w.service("x/f"))
	check("another pod CIDR", "e=198.51.100.4 f=198.51.100.8")
	w.remove(n.Ref())
	w.set(w.service("x/g"))
	check("the node goes", "e=198.51.100.4 f=198.51.100.8 g=198.51.100.1")
}
