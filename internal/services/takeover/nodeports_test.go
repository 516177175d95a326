package takeover

import (
	"errors"
	"net/netip"
	"strings"
	"testing"

	"sluice.dev/sluice/internal/model"
	"sluice.dev/sluice/internal/state"
)

// nodePortRules are of iptables mode; AT says where node ports are.
const nodePortRules = `*nat
:PREROUTING ACCEPT [0:0]
:KUBE-SERVICES - [0:0]
:KUBE-NODEPORTS - [0:0]
:KUBE-EXT-A - [0:0]
-A PREROUTING -j KUBE-SERVICES
-A KUBE-SERVICES AT -j KUBE-NODEPORTS
-A KUBE-NODEPORTS -p tcp -m comment --comment "a/web:http" -m tcp --dport 30080 -j KUBE-EXT-A
COMMIT
`

// Addresses of the node on which only kube-proxy has node ports stop the take-over, until each is
// given up.
func TestNodePortsElsewhereStop(t *testing.T) {
	first := state.FrontendKey{Addr: netip.MustParseAddr("192.0.2.1"), Protocol: model.TCP, Port: 30080}
	both := []netip.Prefix{netip.MustParsePrefix("127.0.0.0/8"), netip.MustParsePrefix("198.51.100.0/24")}
	for name, c := range map[string]struct {
		at, localnet string
		give         []netip.Prefix
		differs      string
	}{
		"another address":               {"-m addrtype --dst-type LOCAL", "0", nil, "differs kube-proxy has node ports on 198.51.100.1 and"},
		"all but one":                   {"! -d 192.0.2.9/32 -m addrtype --dst-type LOCAL", "0", nil, "differs kube-proxy has node ports on 198.51.100.1 and"},
		"loopback, too":                 {"-m addrtype --dst-type LOCAL", "1", nil, "differs kube-proxy has node ports on 127.0.0.1, 198.51.100.1 and"},
		"one is given up":               {"-m addrtype --dst-type LOCAL", "1", both[:1], "differs kube-proxy has node ports on 198.51.100.1 and"},
		"both are given up":             {"-m addrtype --dst-type LOCAL", "1", both, ""},
		"kube-proxy has the same":       {"-d 192.0.2.1/32", "1", nil, ""},
		"chosen, loopback":              {"-d 127.0.0.1/32", "1", nil, "differs TCP 127.0.0.1:30080 (a/web:http) is served by kube-proxy"},
		"chosen, loopback, is given up": {"-d 127.0.0.1/32", "1", both[:1], ""},
	} {
		for _, backend := range []string{"nft", "legacy"} {
			t.Run(name+", "+backend, func(t *testing.T) {
				t.Parallel()
				ns, _ := emptyNamespace(t)
				ns.Address("lo", "192.0.2.1/24", "198.51.100.1/24")
				ns.Exec("sh", "-c", "/usr/sbin/iptables-"+backend+"-restore <<'E'\n"+strings.Replace(nodePortRules, "AT", c.at, 1)+"E")
				ns.Set("net.ipv4.conf.all.route_localnet", c.localnet)
				out, err := fromIn(t, ns)(Options{Kernel: frontends{first: true}, GiveUp: c.give, DryRun: true})
				if errors.Is(err, ErrStopped) != (c.differs != "") || !strings.Contains(out, c.differs) || strings.Contains(out, "differs") != (c.differs != "") {
					t.Errorf("%v\n%s", err, out)
				}
				// The same is told before there is an agent, and what is to be given up in one
				// argument.
				without := Options{Sync: notInStep, GiveUp: c.give, DryRun: true}
				out, err = fromIn(t, ns)(without)
				if errors.Is(err, ErrStopped) != (c.differs != "") || !strings.Contains(out, c.differs) || !strings.Contains(out, "no agent answers") || !strings.Contains(out, "would   remove") {
					t.Errorf("without an agent: %v\n%s", err, out)
				}
				if _, list, told := strings.Cut(out, "of the node: --give-up "); told {
					list, _, _ = strings.Cut(list, "\n")
					without.GiveUp = nil
					for text := range strings.SplitSeq(list, ",") {
						without.GiveUp = append(without.GiveUp, netip.MustParsePrefix(text))
					}
					out, err = fromIn(t, ns)(without)
				}
				if err != nil || strings.Contains(out, "differs") {
					t.Errorf("with all given up that is named: %v\n%s", err, out)
				}
			})
		}
	}
}
