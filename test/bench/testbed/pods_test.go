package testbed_test

import (
	"fmt"
	"net/netip"
	"os"
	"testing"
	"time"

	"sluice.dev/sluice/internal/kernel/link"
	"sluice.dev/sluice/internal/model"
	"sluice.dev/sluice/test/bench/cluster"
	"sluice.dev/sluice/test/bench/load"
	"sluice.dev/sluice/test/bench/testbed"
)

// TestPods: the first two pods reach each other, and the device of every pod is recognised as a
// pod's.
func TestPods(t *testing.T) {
	const pods = 5
	l, err := testbed.NewPods(fmt.Sprintf("sbpods%d", os.Getpid()), pods)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := l.Close(); err != nil {
			t.Error(err)
		}
	})
	r, err := load.Run(t.Context(), load.Config{
		Client: l.Client, Sources: []netip.Addr{cluster.PodAddr(0, pods)}, Backend: l.Backend, Port: cluster.TargetPort,
		Target: netip.AddrPortFrom(cluster.PodAddr(1, pods), cluster.TargetPort), Rate: 200, Duration: 100 * time.Millisecond,
	})
	if err != nil {
		t.Fatal(err)
	}
	if r.Failed != 0 || r.Requests < 10 {
		t.Errorf("%d answered, %d failed %v", r.Requests, r.Failed, r.Reasons)
	}
	var links model.Links
	err = l.Node.Do(func() error {
		var err error
		links, err = link.Here.Links()
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	n := 0
	for _, k := range links.Links {
		if k.Pod {
			n++
		}
	}
	if n != pods {
		t.Errorf("%d of %d devices are known for pods': %+v", n, pods, links.Links)
	}
}
