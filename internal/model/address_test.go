package model

import (
	"net/netip"
	"strings"
	"testing"
)

// A pod CIDR has no address that nothing can be translated to, and no others are refused.
func TestCheckPodCIDR(t *testing.T) {
	for text, says := range map[string]string{
		"10.244.1.0/24": "", "fd00:10:244:1::/64": "", "2001:db8::/32": "", "100.64.0.0/10": "", "240.0.0.0/8": "", "169.253.0.0/16": "",
		"224.0.0.0/24":     "224.0.0.0, a multicast address",
		"239.1.0.0/16":     "239.1.0.0, a multicast address",
		"128.0.0.0/1":      "169.254.0.0, a link-local address",
		"fe80::/64":        "fe80::, a link-local address",
		"fe00::/7":         "fe80::, a link-local address",
		"ff02::/112":       "ff02::, a multicast address",
		"169.254.1.0/30":   "169.254.1.0, a link-local address",
		"127.0.0.0/24":     "127.0.0.0, a loopback address",
		"0.0.0.0/24":       "0.0.0.0, the unspecified address",
		"::/126":           "::, the unspecified address",
		"0.0.0.0/0":        "0.0.0.0, the unspecified address",
		"0.0.0.8/29":       "0.0.0.8, a reserved address",
		"0.1.0.0/16":       "0.1.0.0, a reserved address",
		"255.255.255.0/24": "255.255.255.255, a broadcast address",
		"240.0.0.0/4":      "255.255.255.255, a broadcast address",
		"::fffe:0:0/95":    "::ffff:0.0.0.0, the unspecified address",
	} {
		err := CheckPodCIDR(netip.MustParsePrefix(text))
		if says == "" && err != nil || says != "" && (err == nil || !strings.Contains(err.Error(), text+" has "+says)) {
			t.Errorf("%s: %v, want %q", text, err, says)
		}
	}
	for _, s := range special {
		for _, a := range []netip.Addr{s.prefix.Addr(), Last(s.prefix)} {
			if a.Unmap() == a && Unusable(a) == "" {
				t.Errorf("%s, of %s, can be used", a, s.prefix)
			}
		}
	}
}
