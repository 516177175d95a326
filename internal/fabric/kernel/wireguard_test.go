package kernel_test

import (
	"net/netip"
	"slices"
	"strings"
	"testing"

	"sluice.dev/sluice/internal/driver"
	fabric "sluice.dev/sluice/internal/fabric/kernel"
	"sluice.dev/sluice/internal/state"
)

// encrypted has a node reach others' pods through WireGuard.
func encrypted(of *node, others ...int) *state.Fabric {
	f := state.NewFabric()
	f.Tunnels[state.DeviceWG] = &state.Tunnel{Encapsulation: state.WireGuard, Local: families[0].node(of.n), Port: 51820, MTU: 1440, Key: fabric.PublicKey(private(of.n)),
		Address: families[0].pods(of.n).Addr(), Address6: families[1].pods(of.n).Addr()}
	for _, n := range others {
		p := &state.Peer{Endpoint: netip.AddrPortFrom(families[0].node(n), 51820)}
		for _, fam := range families {
			p.Allowed = append(p.Allowed, fam.pods(n))
			f.Routes[fam.pods(n)] = &state.Route{Device: state.DeviceWG}
		}
		f.Peers[fabric.PublicKey(private(n))] = p
	}
	return f
}

// Peers come, go and change, what one had another one gets, another key takes the place of the
// device's, and what others change is put right. The host's kernel need not have WireGuard: in the
// guest this runs in full, elsewhere the device is set aside. What is changed of one family leaves
// a peer with its key (projectcalico/calico#12715).
func TestWireGuard(t *testing.T) {
	x := nodes(t, 1)[0]
	key := private(1)
	again := func() *fabric.Driver {
		d := open(t, x.ns)
		x.ns.In(func() error { return d.Encrypt(key) })
		return d
	}
	d := again()
	if fabric.WireGuard.Met(t.Context()) != nil {
		p, err := d.Adopt(t.Context(), &state.State{Fabric: encrypted(x, 2, 3)}, driver.Keep{})
		must(t, err)
		must(t, p.Apply(t.Context()))
		if aside := d.SetAside(); len(aside) != 1 || !strings.Contains(aside[0].Reason, "create WireGuard device") {
			t.Errorf("set aside: %+v", aside)
		}
		return
	}
	now := encrypted(x, 2, 3)
	adopt(t, d, now)
	moved := encrypted(x, 2, 3, 4)
	two, four := fabric.PublicKey(private(2)), fabric.PublicKey(private(4))
	moved.Peers[four] = &state.Peer{Endpoint: moved.Peers[four].Endpoint, Allowed: slices.SortedFunc(slices.Values(append(slices.Clone(moved.Peers[four].Allowed), families[0].pods(2))), netip.Prefix.Compare)}
	moved.Peers[two] = &state.Peer{Endpoint: netip.MustParseAddrPort("192.0.2.99:51820"), Allowed: []netip.Prefix{families[1].pods(2)}}
	without := encrypted(x, 3, 4)
	without.Peers[four] = moved.Peers[four]
	for name, next := range map[string]*state.Fabric{"one more, and what it takes": moved, "one less": without, "none": encrypted(x), "nothing": state.NewFabric(), "all": encrypted(x, 2, 3, 4, 5)} {
		update(t, d, difference(now, next))
		if did := adopt(t, again(), next); did != "" {
			t.Errorf("%s: adopting after the update did:\n%s", name, did)
		}
		now = next
	}
	now = encrypted(x, 2, 3)
	adopt(t, d, now)
	other := fabric.PublicKey(private(9))
	for name, change := range map[string]func(){
		"the device is deleted": func() { x.ns.IP("link del sluice.wg") },
		"an address is removed": func() { x.ns.IP("addr flush dev sluice.wg") },
		"a peer is another": func() {
			f := encrypted(x, 2)
			f.Tunnels[state.DeviceWG].Key = fabric.PublicKey(key)
			f.Peers[other] = &state.Peer{Endpoint: netip.MustParseAddrPort("192.0.2.9:51820"), Allowed: []netip.Prefix{families[0].pods(3)}}
			adopt(t, again(), f)
		},
		"another key": func() { key = private(7) },
	} {
		change()
		now.Tunnels[state.DeviceWG].Key = fabric.PublicKey(key)
		d = again()
		if did := adopt(t, d, now); did == "" {
			t.Errorf("%s: nothing was put right", name)
		}
		if did := adopt(t, again(), now); did != "" {
			t.Errorf("%s: putting right left to do:\n%s", name, did)
		}
		if tampered, err := d.Tampered(t.Context()); tampered || err != nil {
			t.Errorf("%s: tampered %v, %v", name, tampered, err)
		}
	}
	d.Held(func(s *state.State) {
		if !s.Fabric.Equal(now) {
			t.Errorf("held: %v", s.Fabric)
		}
	})
	if did := adopt(t, open(t, x.ns), state.NewFabric()); !strings.Contains(did, "remove device sluice.wg") { // without a key, too
		t.Errorf("did:\n%s", did)
	}
}
