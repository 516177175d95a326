package takeover

import (
	"bytes"
	"errors"
	"net/netip"
	"strings"
	"testing"

	"sluice.dev/sluice/internal/model"
	"sluice.dev/sluice/internal/state"
)

// What sluice has served since the agent stopped, and the cluster no longer has, does not keep a
// node from kube-proxy.
func TestStaleTableIsGivenBack(t *testing.T) {
	key := func(addr string) state.FrontendKey {
		return state.FrontendKey{Addr: netip.MustParseAddr(addr), Protocol: model.TCP, Port: 443}
	}
	for name, c := range map[string]struct {
		rules, told string
		ours        frontends
		stops       bool
	}{
		"the same": {twoServices, "serves all 1 address and port that", frontends{key("10.96.0.1"): true}, false},
		"a service less": {twoServices, "note    TCP 10.96.0.9:443 is served by sluice and not by kube-proxy",
			frontends{key("10.96.0.1"): true, key("10.96.0.9"): true}, false},
		"nothing served": {"table ip kube-proxy {}", "differs kube-proxy serves nothing of IPv4", frontends{key("10.96.0.1"): true}, true},
		"nothing of a family": {twoServices, "differs kube-proxy serves nothing of IPv6",
			frontends{key("10.96.0.1"): true, key("fd00:10:96::1"): true}, true},
		"nothing, of nothing": {"table ip kube-proxy {}", "note    TCP 10.96.0.1:443 is served", frontends{key("10.96.0.1"): false}, false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			ns, run := emptyNamespace(t)
			run(c.rules)
			var out bytes.Buffer
			o := Options{Kernel: c.ours, Out: &out}
			err := ns.Do(func() error { return o.coversAgent(t.Context()) })
			if errors.Is(err, ErrStopped) != c.stops || !strings.Contains(out.String(), c.told) {
				t.Errorf("%v\n%s", err, out.String())
			}
		})
	}
}
