package nftables

import (
	"net/netip"
	"strings"
	"testing"

	"sluice.dev/sluice/internal/driver/nftables/ruleset"
	"sluice.dev/sluice/internal/state"
)

// Only ranges that come or go are sent, and where one network takes another's place all the same,
// both are.
func TestSourcesChange(t *testing.T) {
	t.Parallel()
	d := openIn(t, testNS(t), Options{})
	s := testState()
	adopt(t, d, s)
	k := vip("10.96.0.5")
	for _, ranges := range [][]netip.Prefix{prefixes("192.0.2.0/23"), prefixes("192.0.2.0/24", "198.51.100.0/25"), prefixes("198.51.100.0/24"), nil, prefixes("10.0.0.0/9", "10.128.0.0/9")} {
		f := *s.Services.Frontends[k]
		f.SourceRanges = ranges
		text := update(t, d, state.Delta{Services: state.ServicesDelta{Frontends: map[state.FrontendKey]*state.Frontend{k: &f}}})
		s = clone(s)
		s.Services.Frontends[k] = &f
		d.Doubt = true // have it read everything
		if n, rest := adopt(t, d, s); n != 0 {
			t.Errorf("ranges %v: planned\n%sbut the kernel differs:\n%s", ranges, text, rest)
		}
	}
}

// nft lists a set whose keys begin with a number.
func TestSourcesAreListed(t *testing.T) {
	t.Parallel()
	ns := testNS(t)
	adopt(t, openIn(t, ns, Options{}), testState())
	for set, want := range map[string]string{
		"ip-sources":  "0x00000018 . 10.96.0.5 . tcp . 80 . 192.0.2.0",
		"ip6-sources": "0x00000040 . fd00:96::5 . tcp . 80 . fd00:2::",
	} {
		out, err := ns.Run("nft", "list", "set", "inet", ruleset.TableName, set)
		if err != nil || !strings.Contains(string(out), want) {
			t.Errorf("no %q in\n%s%v", want, out, err)
		}
	}
}
