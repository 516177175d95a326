package trace_test

import (
	"fmt"
	"os"
	"testing"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"sluice.dev/sluice/test/bench/cluster"
	"sluice.dev/sluice/test/bench/inject"
	"sluice.dev/sluice/test/bench/testbed"
	"sluice.dev/sluice/test/bench/trace"
)

// ruleset takes a packet to port 80 through every way of leaving a chain.
const ruleset = `
table inet counted {
	map where { type inet_service : verdict; elements = { 80 : goto last, 81 : drop } }
	chain deeper {
		tcp dport 1 drop
		tcp dport 80 return
		counter
	}
	chain deep {
		counter
		jump deeper
		tcp dport 1 drop
	}
	chain last {
		tcp dport 1 drop
		tcp dport 2 drop
	}
	chain prerouting {
		type filter hook prerouting priority 0
		tcp dport 1 drop
		jump deep
		tcp dport vmap @where
		counter
		counter
	}
	chain forward {
		type filter hook forward priority 0
		tcp dport 1 drop
		tcp dport 80 accept
		counter
	}
	chain postrouting {
		type filter hook postrouting priority 0
		tcp dport 1 drop
	}
	chain empty { type filter hook postrouting priority 1; }
}
table inet other {
	chain forward {
		type filter hook forward priority 1
		counter
	}
}
`

func TestPackets(t *testing.T) {
	l, err := testbed.New(fmt.Sprintf("sbtr%d", os.Getpid()))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() })
	if _, err := l.Node.Run("nft", ruleset); err != nil {
		t.Fatal(err)
	}
	g, err := inject.New(l.Node, testbed.NodeIn)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = g.Close() })
	c := trace.Config{NS: l.Node, Device: testbed.NodeIn, Match: "tcp dport { 80, 81 }", Tables: []string{"counted"}, Family: unix.NFPROTO_INET}
	for port, want := range map[uint16]map[trace.Chain]int{
		// prerouting: three of its own, three of deep, two of deeper, two of last.
		80: {{"counted", "prerouting"}: 10, {"counted", "forward"}: 2, {"counted", "postrouting"}: 1},
		// prerouting: three of its own, three of deep, three of deeper.
		81: {{"counted", "prerouting"}: 9},
		82: nil, // not traced
	} {
		if err := g.Aim(inject.Target{Base: cluster.Endpoints.Addr(), First: 1, Count: 1, Port: port}); err != nil {
			t.Fatal(err)
		}
		met, err := trace.Packets(t.Context(), c, func() error {
			_, err := g.Send(2, 0)
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
		if want == nil {
			if len(met) != 0 {
				t.Errorf("port %d: %d packets were traced, want none", port, len(met))
			}
			continue
		}
		if len(met) != 2 {
			t.Fatalf("port %d: %d packets were traced, want 2", port, len(met))
		}
		for _, m := range met {
			for chain, n := range m.Rules {
				if n == 0 {
					delete(m.Rules, chain)
				}
			}
			if diff := cmp.Diff(want, m.Rules); diff != "" {
				t.Errorf("port %d (-want +got):\n%s", port, diff)
			}
		}
	}
}
