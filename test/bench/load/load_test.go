package load_test

import (
	"fmt"
	"net/netip"
	"os"
	"testing"
	"time"

	"sluice.dev/sluice/test/bench/cluster"
	"sluice.dev/sluice/test/bench/load"
	"sluice.dev/sluice/test/bench/testbed"
)

func TestRun(t *testing.T) {
	l, err := testbed.New(fmt.Sprintf("sbl%d", os.Getpid()))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() })
	base := load.Config{
		Client: l.Client, Sources: testbed.ClientAddrs(), Backend: l.Backend, Port: cluster.TargetPort,
		Target: cluster.Cluster{Endpoints: 1}.Endpoint(0, 0), Duration: 300 * time.Millisecond,
	}
	for name, change := range map[string]func(*load.Config){
		"full speed":             func(c *load.Config) { c.Concurrency = 8 },
		"full speed, keep-alive": func(c *load.Config) { c.Concurrency, c.KeepAlive = 8, true },
		"at a rate":              func(c *load.Config) { c.Rate = 200 },
		"at a rate, keep-alive":  func(c *load.Config) { c.Rate, c.KeepAlive = 200, true },
	} {
		t.Run(name, func(t *testing.T) {
			c := base
			change(&c)
			r, err := load.Run(t.Context(), c)
			if err != nil {
				t.Fatal(err)
			}
			if r.Failed != 0 || r.Requests < 30 || r.Mean() <= 0 || r.Quantile(0.99) < r.Quantile(0.5) || r.CPU <= 0 {
				t.Errorf("%d answered, %d failed %v, mean %s", r.Requests, r.Failed, r.Reasons, r.Mean())
			}
			t.Logf("%.0f/s, mean %s, p99 %s, %s CPU each", r.PerSecond(), r.Mean(), r.Quantile(.99), r.CPU/time.Duration(r.Requests))
		})
	}
}

func TestFailuresAreCounted(t *testing.T) {
	l, err := testbed.New(fmt.Sprintf("sbf%d", os.Getpid()))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() })
	r, err := load.Run(t.Context(), load.Config{
		Client: l.Client, Sources: testbed.ClientAddrs(), Backend: l.Backend, Port: cluster.TargetPort,
		Target: netip.AddrPortFrom(cluster.Cluster{Endpoints: 1}.Endpoint(0, 0).Addr(), 9), // nothing listens
		Rate:   100, Duration: 100 * time.Millisecond,
	})
	if err != nil {
		t.Fatal(err)
	}
	if r.Requests != 0 || r.Failed == 0 || r.Reasons["connection refused"] != r.Failed {
		t.Errorf("%d answered, %d failed %v", r.Requests, r.Failed, r.Reasons)
	}
}

func TestCopy(t *testing.T) {
	l, err := testbed.New(fmt.Sprintf("sbc%d", os.Getpid()))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() })
	c := load.CopyConfig{
		Client: l.Client, Backend: l.Backend, Duration: 200 * time.Millisecond,
		Target: netip.AddrPortFrom(cluster.Cluster{Endpoints: 1}.Endpoint(0, 0).Addr(), 9000), Port: 9000,
	}
	done, err := load.Copy(t.Context(), c)
	if err != nil {
		t.Fatal(err)
	}
	if done.Rate() < 10e6 || done.CPU == 0 {
		t.Errorf("%.0f bytes a second, CPU %s: a wire of copper does better", done.Rate(), done.CPU)
	}
	t.Logf("%.2f GB/s", done.Rate()/1e9)
	if _, err := l.Node.Run("nft", "add table ip no; add chain ip no forward { type filter hook forward priority 0; }; add rule ip no forward reject"); err != nil {
		t.Fatal(err)
	}
	if _, err := load.Copy(t.Context(), c); err == nil {
		t.Error("a refused connection is not an error")
	}
}
