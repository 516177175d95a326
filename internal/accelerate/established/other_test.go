package established_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/link"

	netlink "sluice.dev/sluice/internal/kernel/link"
	"sluice.dev/sluice/test/world"
)

// TestOther has an interface be left to another's program for as long as it is there. Ours is not
// taken for another's.
func TestOther(t *testing.T) {
	n := newNode(t)
	n.open(true)
	eth0 := n.host.Device("eth0").Attrs().Index
	state := func() string {
		var others []netlink.Filter
		n.host.In(func() error { others = netlink.Filters(eth0); return nil })
		return fmt.Sprint(len(others), strings.Contains(n.fast.Status().Note, "not at eth0: another program has one of its own there (tcx)"))
	}
	until := func(want string) {
		t.Helper()
		for end := time.Now().Add(world.Patience); state() != want; time.Sleep(time.Millisecond) {
			if time.Now().After(end) {
				t.Fatalf("programs of others, and one is said to be there: %s, want %s; %s", state(), want, n.fast.Status().Note)
			}
		}
	}
	until("0 false")
	p, err := ebpf.NewProgram(&ebpf.ProgramSpec{Name: "other", Type: ebpf.SchedCLS, License: "Apache-2.0", Instructions: asm.Instructions{asm.Mov.Imm(asm.R0, -1), asm.Return()}})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = p.Close() }()
	var other link.Link
	n.host.In(func() (err error) {
		other, err = link.AttachTCX(link.TCXOptions{Program: p, Attach: ebpf.AttachTCXIngress, Interface: eth0})
		return err
	})
	n.open(true) // which looks at once
	until("1 true")
	if err := other.Close(); err != nil {
		t.Fatal(err)
	}
	n.open(true)
	until("0 false")
}
