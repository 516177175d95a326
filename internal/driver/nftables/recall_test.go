package nftables

import (
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"sluice.dev/sluice/internal/driver"
	"sluice.dev/sluice/internal/state"
	"sluice.dev/sluice/test/netns"
)

// Another flowtable with the same interfaces takes the place of the one that there was, also where
// the kernel takes none before the first is gone; what is programmed is the same afterwards. An
// interface that is made anew under its name is put into the flowtable again.
func TestRecall(t *testing.T) {
	t.Parallel()
	if err := FlowOffload.Met(t.Context()); err != nil {
		t.Skip(err)
	}
	ns := testNS(t)
	if err := netns.Veth(ns, "e0", ns, "e1"); err != nil {
		t.Fatal(err)
	}
	devices := make(chan []string)
	d := openIn(t, ns, Options{Options: driver.Options{Policy: true, FlowOffload: true, Devices: devices}})
	want := &state.State{Services: state.NewServices(), Policy: state.NewPolicy()}
	adopt(t, d, want)
	devices <- []string{"e0", "gone"}
	devices <- []string{"e0", "gone", "e1"} // it is through with the first
	have := func() []string {
		d.mu.Lock()
		defer d.mu.Unlock()
		names, _, err := d.flowtable(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		return names
	}
	for refuses := range 3 {
		left := refuses % 2
		d.mu.Lock()
		d.Refuse(func(m Message) error {
			if m.Type == unix.NFT_MSG_NEWFLOWTABLE && left > 0 {
				left--
				return unix.EEXIST
			}
			return nil
		})
		d.mu.Unlock()
		if err := d.Recall(t.Context()); err != nil {
			t.Fatal(err)
		}
		for begun := time.Now(); len(have()) != 2; time.Sleep(time.Millisecond) { // in the background
			if time.Since(begun) > time.Minute {
				t.Fatalf("the flowtable has the interfaces %v", have())
			}
		}
		if n, text := adopt(t, d, want); n > 0 {
			t.Errorf("the kernel differs:\n%s", text)
		}
	}
	if out, err := ns.Run("ip", "link", "del", "e0"); err != nil {
		t.Fatal(err, string(out))
	}
	if err := netns.Veth(ns, "e0", ns, "e1"); err != nil {
		t.Fatal(err)
	}
	if n := len(have()); n != 0 {
		t.Errorf("%d interfaces are left that are gone", n)
	}
	devices <- []string{"e0", "e1"}
	devices <- []string{"e0", "e1"}
	if n := len(have()); n != 2 {
		t.Errorf("%d interfaces are in the flowtable, want 2", n)
	}
}
