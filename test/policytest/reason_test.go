package policytest

import (
	"context"
	"net/netip"
	"testing"

	"sluice.dev/sluice/internal/driver"
	"sluice.dev/sluice/internal/kernel/nflog"
	"sluice.dev/sluice/internal/state"
	"sluice.dev/sluice/test/drivertest"
)

// testReasons shows that each packet that is dropped is told of with the reason, and that
// policies count what they decide.
func testReasons(t *testing.T, p plane) {
	k := p.kernel(t, map[string][2]netip.Addr{"a": names["a"], "b": names["b"], "c": names["c"], "d": names["d"]})
	log := k.listen(t)
	for _, c := range []struct {
		row    row
		packet packet
		reason state.Drop
	}{
		{row{}, packet{from: "a", as: "nobody", proto: udp, to: "b", port: 80}, state.DropSpoofed},
		{row{}, packet{from: "a", as: "c", proto: udp, to: "node", port: 80}, state.DropSpoofed},
		{row{}, packet{from: "outside", proto: udp, to: "d", port: 80}, state.DropUnknownPod},
		{row{policies: isolated("b", "ingress: []")}, packet{from: "a", proto: tcp, to: "b", port: 80}, state.DropPolicy},
		{row{policies: isolated("b", "ingress: []")}, packet{from: "b", proto: udp, to: "node", port: 53}, state.DropPolicy},
		{row{policies: hostEndpoint}, packet{from: "outside", proto: tcp, to: "node", port: 80}, state.DropHost},
		{row{policies: hostEndpoint}, packet{from: "node", proto: tcp, to: "outside", port: 8080}, state.DropHost},
		{row{denied: []string{"192.168.3.1", "fd00:192:168:3::1"}}, packet{from: "outside", proto: udp, to: "b", port: 80}, state.DropDenyList},
	} {
		k.declare(t, c.row)
		for family := range Families {
			from := c.packet.from
			if c.packet.as != "" {
				from = c.packet.as
			}
			sent := drivertest.Packet{Host: c.packet.from, From: names[from][family], To: names[c.packet.to][family], Protocol: c.packet.proto, Port: c.packet.port}
			if _, err := k.mesh.Trace(sent); err != nil {
				t.Fatal(err)
			}
			ctx, cancel := context.WithTimeout(t.Context(), drivertest.Patient)
			got, err := log.Next(ctx)
			cancel()
			if err != nil {
				t.Errorf("%+v: nothing is told of the drop: %v", sent, err)
				continue
			}
			if got.Prefix != driver.DropPrefix+string(c.reason) || got.Header.Source != sent.From || got.Header.Destination != sent.To {
				t.Errorf("%+v: told %+v, want %s", sent, got, c.reason)
			}
		}
	}
}

// listen opens what the node's kernel tells of drops.
func (k *kernel) listen(t *testing.T) *nflog.Conn {
	t.Helper()
	var log *nflog.Conn
	err := k.mesh.Node.Do(func() (err error) {
		log, err = nflog.Open(driver.DropGroup)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = log.Close() })
	return log
}

// testCounters shows that a policy counts the packets that it decides.
func testCounters(t *testing.T, p plane) {
	k := p.kernel(t, map[string][2]netip.Addr{"a": names["a"], "b": names["b"], "c": names["c"]})
	k.declare(t, row{policies: isolated("b", "in ingress: [{from: [{podSelector: {matchLabels: {app: a}}}]}]")})
	for _, from := range []string{"a", "a", "a", "c", "c"} {
		if _, err := k.mesh.Trace(drivertest.Packet{Host: from, From: names[from][0], To: names["b"][0], Protocol: udp, Port: 80}); err != nil {
			t.Fatal(err)
		}
	}
	counts, err := k.driver.Capabilities().Counter.PolicyCounters(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if len(counts) != 1 || counts[0].Policy.Name.Name != "b" || counts[0].Allowed != 3 || counts[0].Denied != 2 {
		t.Errorf("got %+v, want 3 allowed and 2 denied by NetworkPolicy shop/b", counts)
	}
}
