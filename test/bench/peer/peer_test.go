package peer_test

import (
	"errors"
	"fmt"
	"net/netip"
	"os"
	"testing"
	"time"

	"sluice.dev/sluice/test/bench/cluster"
	"sluice.dev/sluice/test/bench/inject"
	"sluice.dev/sluice/test/bench/load"
	"sluice.dev/sluice/test/bench/peer"
	"sluice.dev/sluice/test/bench/testbed"
)

const nodePort = 30080

// TestDataplanesTranslate loads a small cluster on every data plane and sees real connections
// answered, and fresh flows arrive at backends only.
func TestDataplanesTranslate(t *testing.T) {
	for i, d := range append(peer.All(), peer.Nth{}, peer.Nth{Masquerade: true}, peer.HAProxy{}) {
		t.Run(d.Name(), func(t *testing.T) {
			l, err := testbed.New(fmt.Sprintf("sbp%d-%d", os.Getpid(), i))
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { _ = l.Close() })
			c := cluster.Cluster{Services: 5, Endpoints: 10, NodePort: nodePort}
			loaded, err := d.Load(t.Context(), l.Node, c)
			if errors.Is(err, peer.ErrMissing) {
				t.Skip(err)
			}
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { _ = loaded.Close() })
			checkRequests(t, l, d, c)
			if _, ends := d.(peer.HAProxy); !ends { // it ends connections itself, which flows are none of
				checkFlows(t, l, d, c)
			}
		})
	}
}

func checkRequests(t *testing.T, l *testbed.Testbed, d peer.Dataplane, c cluster.Cluster) {
	last := d.Target(c, c.Services-1, 1)
	targets := []netip.AddrPort{netip.AddrPortFrom(nth(last.Base, last.First), last.Port)}
	if d.NodePorts() {
		targets = append(targets, netip.AddrPortFrom(cluster.NodeAddr, nodePort))
	}
	for _, target := range targets {
		r, err := load.Run(t.Context(), load.Config{
			Client: l.Client, Sources: testbed.ClientAddrs(), Target: target, Backend: l.Backend, Port: cluster.TargetPort,
			Rate: 200, Duration: time.Second,
		})
		if err != nil {
			t.Fatal(err)
		}
		if r.Failed != 0 || r.Requests < 30 {
			t.Errorf("%s: %d answered, %d failed %v", target, r.Requests, r.Failed, r.Reasons)
		}
	}
}

func checkFlows(t *testing.T, l *testbed.Testbed, d peer.Dataplane, c cluster.Cluster) {
	g, err := inject.New(l.Node, testbed.NodeIn)
	if err != nil {
		t.Fatal(err)
	}
	defer g.Close()
	n, err := inject.NewCounter(l.Backend, testbed.Uplink, cluster.Endpoints)
	if err != nil {
		t.Fatal(err)
	}
	defer n.Close()
	if err := g.Aim(d.Target(c, 0, c.Services)); err != nil {
		t.Fatal(err)
	}
	const flows = 2000
	if _, err := g.Send(flows, 0); err != nil {
		t.Fatal(err)
	}
	for end := time.Now().Add(5 * time.Second); ; time.Sleep(time.Millisecond) {
		a, err := n.Read()
		if err != nil {
			t.Fatal(err)
		}
		if a.Backend == flows && a.Other == 0 {
			return
		}
		if time.Now().After(end) {
			t.Fatalf("%+v of %d flows arrived", a, flows)
		}
	}
}

func nth(a netip.Addr, n int) netip.Addr {
	for range n {
		a = a.Next()
	}
	return a
}
