package nslock

import (
	"log/slog"
	"testing"
	"time"

	"sluice.dev/sluice/test/world"
)

// Held finds an agent of this network namespace, without sending the agent anything.
func TestHeld(t *testing.T) {
	h, other := world.NewHost(t, "agent"), world.NewHost(t, "other")
	expect := func(h *world.Host, want bool) {
		t.Helper()
		h.In(func() error {
			if got, err := Held(); got != want || err != nil {
				t.Errorf("claimed: %v, %v, want %v", got, err, want)
			}
			return nil
		})
	}
	expect(h, false)
	var c *Lock
	h.In(func() (err error) {
		c, err = Acquire(t.Context(), time.Minute, claimLock, slog.New(slog.DiscardHandler))
		return err
	})
	expect(h, true)
	expect(other, false)
	if n := c.Waiting(); n != 0 {
		t.Errorf("%d agents wait", n)
	}
	c.Release()
	expect(h, false)
}
