package takeover

import (
	"errors"
	"strings"
	"testing"
)

// Wherever connections depend on kube-proxy's KUBE-FORWARD, that is told before the agent is asked
// for, and stops the take-over.
func TestForwardEnds(t *testing.T) {
	for name, c := range map[string]struct {
		policy, rule string
		stops        bool
	}{
		"policy":            {"DROP", "", true},
		"last rule rejects": {"ACCEPT", "-A FORWARD -j REJECT\n", true},
		"last rule drops":   {"ACCEPT", "-A FORWARD -j DROP\n", true},
		"some are dropped":  {"ACCEPT", "-A FORWARD -s 192.0.2.0/24 -j DROP\n", false},
		"translated pass":   {"DROP", "-A FORWARD -m conntrack --ctstate DNAT -j ACCEPT\n", false},
	} {
		text := "*filter\n:FORWARD " + c.policy + " [0:0]\n:KUBE-FORWARD - [0:0]\n-A FORWARD -j KUBE-FORWARD\n" +
			"-A KUBE-FORWARD -m mark --mark 0x4000/0x4000 -j ACCEPT\n" + c.rule + "COMMIT\n"
		for _, backend := range []string{"nft", "legacy"} {
			t.Run(name+", "+backend, func(t *testing.T) {
				t.Parallel()
				from := takeFromIPTables(t, backend, text)
				out, err := from(Options{Sync: notInStep, DryRun: true})
				if told := strings.Contains(out, "before the agent starts"); told != c.stops || errors.Is(err, ErrStopped) != c.stops || !strings.Contains(out, "no agent answers") || !strings.Contains(out, "would   remove") {
					t.Errorf("without an agent: %v\n%s", err, out)
				}
				out, err = from(Options{})
				if told := strings.Contains(out, "iptables-"+backend+"'s chain FORWARD of family ip "); told != c.stops || errors.Is(err, ErrStopped) != c.stops {
					t.Errorf("%v\n%s", err, out)
				}
			})
		}
	}
}

// A chain of kube-proxy's to which somebody else's leads can't be deleted: it is emptied.
func TestChainsThatOthersUseAreEmptied(t *testing.T) {
	t.Parallel()
	const text = `*nat
:PREROUTING ACCEPT [0:0]
:MINE - [0:0]
:KUBE-SERVICES - [0:0]
:KUBE-SVC-A - [0:0]
:KUBE-SEP-A - [0:0]
-A PREROUTING -j KUBE-SERVICES
-A PREROUTING -j MINE
-A MINE -d 10.96.0.0/16 -j KUBE-SERVICES
-A MINE -j KUBE-SEP-A
-A KUBE-SERVICES -d 10.96.0.1/32 -p tcp -m tcp --dport 443 -j KUBE-SVC-A
-A KUBE-SVC-A -j KUBE-SEP-A
-A KUBE-SEP-A -p tcp -m tcp -j DNAT --to-destination 10.244.1.2:6443
COMMIT
`
	for _, backend := range []string{"nft", "legacy"} {
		from := takeFromIPTables(t, backend, text)
		out, err := from(Options{Force: true})
		if err != nil || !strings.Contains(out, "chain KUBE-SERVICES stays, empty: chain MINE") || !strings.Contains(out, "chain KUBE-SEP-A stays, empty") {
			t.Errorf("%s: %v\n%s", backend, err, out)
		}
		if out, err = from(Options{}); err != nil || !strings.Contains(out, "nothing to do") {
			t.Errorf("%s, a second time: %v\n%s", backend, err, out)
		}
	}
}
