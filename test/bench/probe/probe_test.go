package probe_test

import (
	"context"
	"fmt"
	"net/netip"
	"os"
	"testing"
	"time"

	"sluice.dev/sluice/test/bench/cluster"
	"sluice.dev/sluice/test/bench/probe"
	"sluice.dev/sluice/test/bench/testbed"
)

// TestUntil: Until waits for a backend that is not there yet, does not take one backend for
// another, and returns at once for a service that already answers.
func TestUntil(t *testing.T) {
	l, err := testbed.New(fmt.Sprintf("sbprobe%d", os.Getpid()))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := l.Close(); err != nil {
			t.Error(err)
		}
	})
	p, err := probe.New(l.Client, l.Backend, cluster.TargetPort, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := p.Close(); err != nil {
			t.Error(err)
		}
	})
	late := cluster.Cluster{Services: 1, Endpoints: 2}.Endpoint(0, 0)
	if err := l.SetUnreachable(late.Addr(), true); err != nil {
		t.Fatal(err)
	}
	began := time.Now()
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Millisecond)
	defer cancel()
	if _, err := p.Until(ctx, probe.Target{Service: late}); err == nil {
		t.Error("somebody answers for a backend that has ended")
	}
	if err := l.SetUnreachable(late.Addr(), false); err != nil {
		t.Fatal(err)
	}
	if since, err := p.Until(t.Context(), probe.Target{Service: late}); err != nil || since.Before(began) {
		t.Errorf("open since %s, %v; that was after %s", since, err, began)
	}
	ctx, cancel = context.WithTimeout(t.Context(), 30*time.Millisecond)
	defer cancel()
	other := probe.Target{Service: late, Backends: netip.PrefixFrom(late.Addr().Next(), 32)}
	if _, err := p.Until(ctx, other); err == nil {
		t.Error("one backend is taken for another")
	}
}
