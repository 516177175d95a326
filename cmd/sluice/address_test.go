package main

import (
	"fmt"
	"log/slog"
	"net/netip"
	"os"
	"slices"
	"testing"
	"time"

	"github.com/vishvananda/netlink"

	"sluice.dev/sluice/internal/netns"
)

// Each change of a namespace's addresses is told, with all that are there then.
func TestFollowAddresses(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root, to make network namespaces")
	}
	ns, err := netns.New(fmt.Sprintf("cmd-address-%d", os.Getpid()))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = ns.Delete() })
	var told <-chan []netip.Addr
	err = ns.Do(func() (err error) {
		told, err = followAddresses(t.Context(), slog.New(slog.DiscardHandler))
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	lo, err := ns.LinkByName("lo")
	if err != nil {
		t.Fatal(err)
	}
	extra, err := netlink.ParseAddr("198.51.100.7/32")
	if err != nil {
		t.Fatal(err)
	}
	wait := func(what string, wanted bool) {
		t.Helper()
		for late := time.After(10 * time.Second); ; {
			select {
			case addrs := <-told:
				if slices.Contains(addrs, netip.MustParseAddr("198.51.100.7")) == wanted {
					return
				}
			case <-late:
				t.Fatalf("not told: %s", what)
			}
		}
	}
	if err := ns.AddrAdd(lo, extra); err != nil {
		t.Fatal(err)
	}
	wait("an address has come", true)
	if err := ns.AddrDel(lo, extra); err != nil {
		t.Fatal(err)
	}
	wait("it has gone", false)
}
