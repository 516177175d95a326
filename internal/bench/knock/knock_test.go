package knock_test

import (
	"context"
	"fmt"
	"net/netip"
	"os"
	"testing"
	"time"

	"sluice.dev/sluice/internal/bench/cluster"
	"sluice.dev/sluice/internal/bench/knock"
	"sluice.dev/sluice/internal/bench/lane"
)

// TestUntil: a backend that is not there yet is waited for, one that others answer for is not taken for it, and what is open
// already costs no time.
func TestUntil(t *testing.T) {
	l, err := lane.New(fmt.Sprintf("sbknock%d", os.Getpid()))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := l.Close(); err != nil {
			t.Error(err)
		}
	})
	h, err := knock.New(l.Client, l.Backend, cluster.TargetPort, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := h.Close(); err != nil {
			t.Error(err)
		}
	})
	late := cluster.Cluster{Services: 1, Endpoints: 2}.Endpoint(0, 0)
	if err := l.End(late.Addr(), true); err != nil {
		t.Fatal(err)
	}
	began := time.Now()
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Millisecond)
	defer cancel()
	if _, err := h.Until(ctx, knock.Door{Service: late}); err == nil {
		t.Error("somebody answers for a backend that has ended")
	}
	if err := l.End(late.Addr(), false); err != nil {
		t.Fatal(err)
	}
	if since, err := h.Until(t.Context(), knock.Door{Service: late}); err != nil || since.Before(began) {
		t.Errorf("open since %s, %v; that was after %s", since, err, began)
	}
	ctx, cancel = context.WithTimeout(t.Context(), 30*time.Millisecond)
	defer cancel()
	other := knock.Door{Service: late, Backends: netip.PrefixFrom(late.Addr().Next(), 32)}
	if _, err := h.Until(ctx, other); err == nil {
		t.Error("one backend is taken for another")
	}
}
