package xdp_test

import (
	"net/netip"
	"strings"
	"testing"

	"sluice.dev/sluice/internal/accelerate/xdp"
	"sluice.dev/sluice/internal/driver"
	"sluice.dev/sluice/internal/driver/nftables"
	"sluice.dev/sluice/internal/state"
	"sluice.dev/sluice/test/world"
)

// TestDenied has packets from addresses on deny lists be dropped, and each counted once: by the
// program, or by the base, which has one in each tick of the clock.
func TestDenied(t *testing.T) {
	t.Parallel()
	client, node := world.NewHost(t, "client"), world.NewHost(t, "node")
	world.MountBPF(t)
	client.Join("eth0", node, "front")
	client.Address("eth0", "10.0.0.2/24", "10.0.0.3/24", "fd00::2/64", "fd00::3/64")
	node.Address("front", "10.0.0.1/24", "fd00::1/64")
	node.Serve("node", ":53")
	var d *xdp.Driver
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	node.In(func() error {
		base, err := nftables.Open(nftables.Options{Options: driver.Options{Policy: true}})
		if err == nil {
			d, err = xdp.Open(base, xdp.Options{Stages: xdp.Stages{Deny: true}})
		}
		return err
	})
	t.Cleanup(func() {
		_ = d.Close()
		node.In(xdp.Remove)
	})
	front := node.Device("front").Attrs().Index
	lists := func(prefixes ...string) state.Denied {
		denied := state.Denied{Devices: []state.Device{{Index: front, Name: "front"}}}
		for _, p := range prefixes { // each on a list of its own
			denied.Lists = append(denied.Lists, &state.List{Name: p, Prefixes: []netip.Prefix{netip.MustParsePrefix(p)}})
		}
		return denied
	}
	want := &state.State{Services: state.NewServices(), Policy: state.NewPolicy()}
	want.Policy.HostDevices[front] = struct{}{}
	want.Policy.Denied = lists("10.0.0.3/32", "fd00::3/128")
	apply := func(p driver.Plan, err error) {
		t.Helper()
		if err == nil {
			err = p.Apply(t.Context())
		}
		must(err)
	}
	counted := func() uint64 {
		t.Helper()
		counts, err := d.Capabilities().Counter.DropCounts(t.Context())
		must(err)
		return counts[state.DropDenyList]
	}
	meets := func(when string, denied, served []string) {
		t.Helper()
		for _, from := range served {
			to := map[bool]string{true: "10.0.0.1:53", false: "[fd00::1]:53"}[netip.MustParseAddr(from).Is4()]
			for _, network := range []string{"tcp", "udp"} {
				if g, err := client.Ask(network, from, to, world.Patience); err != nil {
					t.Errorf("%s, %s from %s: %+v, %v", when, network, from, g, err)
				}
			}
		}
		for _, from := range denied {
			to := map[bool]string{true: "10.0.0.1:53", false: "[fd00::1]:53"}[netip.MustParseAddr(from).Is4()]
			before := counted()
			c, err := client.Dial("udp", from, to, world.Patience)
			must(err)
			for range 200 {
				_, err := c.Write([]byte("ask\n"))
				must(err)
			}
			_ = c.Close()
			if n := counted() - before; n != 200 {
				t.Errorf("%s, from %s: %d of 200 packets were dropped", when, from, n)
			}
		}
	}
	apply(d.Adopt(t.Context(), want, driver.Keep{}))
	meets("at first", []string{"10.0.0.3"}, []string{"10.0.0.2", "fd00::2"})
	if note := d.Status().Note; !strings.Contains(note, " packets dropped by deny lists") || strings.HasPrefix(note, "0 ") {
		t.Errorf("status: %q", note)
	}
	change := func(denied state.Denied) {
		t.Helper()
		delta := state.Delta{Policy: state.PolicyDelta{Denied: &denied}}
		want.Apply(delta)
		apply(d.Update(t.Context(), delta))
	}
	change(lists("10.0.0.0/31", "10.0.0.2/32", "fd00::2/127"))
	meets("other lists", []string{"10.0.0.2", "fd00::2", "fd00::3"}, []string{"10.0.0.3"})
	change(lists())
	meets("none", nil, []string{"10.0.0.2", "10.0.0.3", "fd00::3"})
	if text := node.Exec("ip", "link", "show", "front"); strings.Contains(text, "prog/xdp") {
		t.Errorf("a program runs without lists: %s", text)
	}
	change(lists("10.0.0.3/32"))
	meets("one again", []string{"10.0.0.3"}, []string{"10.0.0.2"})
}
