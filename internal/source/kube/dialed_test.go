package kube

import (
	"fmt"
	"net/netip"
	"slices"
	"testing"
)

// The addresses of the API are reported: resolved from a name, and by the time that something was
// read there.
func TestDialed(t *testing.T) {
	t.Parallel()
	api := newFakeAPI(t)
	f := follow(t, api)
	f.waitSynced()
	want := netip.MustParseAddrPort(api.address)
	if got := f.source.Dialed(); !slices.Equal(got, []netip.AddrPort{want}) {
		t.Errorf("dialed %v, want %v", got, want)
	}
}

// If a name resolves to another address each time, only some are remembered.
func TestDialedIsBounded(t *testing.T) {
	t.Parallel()
	var d dialed
	for i := range 100 {
		d.trace().ConnectStart("tcp", fmt.Sprintf("192.0.2.%d:443", i))
		d.trace().ConnectStart("tcp", "[2001:db8::1]:443")
	}
	d.trace().ConnectStart("unix", "/run/api.sock")
	got := d.list()
	if len(got) != maxDialed || !slices.Contains(got, netip.MustParseAddrPort("192.0.2.99:443")) || !slices.Contains(got, netip.MustParseAddrPort("[2001:db8::1]:443")) {
		t.Errorf("%d remembered: %v", len(got), got)
	}
}
