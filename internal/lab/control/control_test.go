package control

import (
	"bytes"
	"net"
	"net/netip"
	"testing"

	"github.com/vishvananda/netlink"

	"sluice.dev/sluice/internal/netns"
)

// TestPlane shows a control plane at work: it makes what only its controllers make, survives that its API server is killed,
// and leaves nothing.
func TestPlane(t *testing.T) {
	bin, err := Build(t.Context(), func(s string) { t.Log(s) })
	if err != nil {
		t.Fatal(err)
	}
	ns, err := netns.New("sluice-test-control")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := ns.Delete(); err != nil {
			t.Error(err)
		}
	})
	addr := netip.MustParseAddr("192.0.2.1") // the API server wants one that is not the loopback's
	lo, err := ns.LinkByName("lo")
	if err == nil {
		err = ns.AddrAdd(lo, &netlink.Addr{IPNet: &net.IPNet{IP: addr.AsSlice(), Mask: net.CIDRMask(32, 32)}})
	}
	if err != nil {
		t.Fatal(err)
	}
	p, err := Start(t.Context(), Config{
		Bin: bin, Dir: t.TempDir(), NetNS: ns, Addr: addr,
		ClusterCIDRs: []netip.Prefix{netip.MustParsePrefix("10.244.0.0/16")}, ServiceCIDRs: []netip.Prefix{netip.MustParsePrefix("10.96.0.0/16")},
		Controllers: true, RBAC: true,
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := p.Stop(); err != nil {
			t.Error(err)
		}
	})
	kubectl(t, p, "create", "deployment", "web", "--image=web", "--replicas=2")
	kubectl(t, p, "wait", "--for=jsonpath={.status.replicas}=2", "--timeout=60s", "deployment/web")
	if err := p.Restart(t.Context(), APIServer); err != nil {
		t.Fatal(err)
	}
	if out := kubectl(t, p, "get", "pods", "-o", "name"); bytes.Count(out, []byte("pod/web-")) != 2 {
		t.Errorf("after a restart there are not two pods:\n%s", out)
	}
}

func kubectl(t *testing.T, p *Plane, args ...string) []byte {
	t.Helper()
	out, err := p.Kubectl(args...)
	if err != nil {
		t.Fatal(err)
	}
	return out
}
