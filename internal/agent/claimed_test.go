package agent

import (
	"fmt"
	"log/slog"
	"os"
	"testing"
	"time"

	"sluice.dev/sluice/internal/netns"
)

// Claimed finds an agent of this network namespace, without sending the agent anything.
func TestClaimed(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root, to make network namespaces")
	}
	var spaces [2]*netns.NS
	for i := range spaces {
		ns, err := netns.New(fmt.Sprintf("agent-claimed-%d-%d", os.Getpid(), i))
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			if err := ns.Delete(); err != nil {
				t.Error(err)
			}
		})
		spaces[i] = ns
	}
	expect := func(ns *netns.NS, want bool) {
		t.Helper()
		err := ns.Do(func() error {
			if got, err := Claimed(); got != want || err != nil {
				t.Errorf("claimed: %v, %v, want %v", got, err, want)
			}
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	expect(spaces[0], false)
	var c *Claim
	err := spaces[0].Do(func() (err error) {
		c, err = ClaimNamespace(t.Context(), time.Minute, claimLock, slog.New(slog.DiscardHandler))
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	expect(spaces[0], true)
	expect(spaces[1], false)
	if n := c.Waiting(); n != 0 {
		t.Errorf("%d agents wait", n)
	}
	c.Release()
	expect(spaces[0], false)
}
