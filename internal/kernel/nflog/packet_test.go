package nflog

import (
	"encoding/hex"
	"net/netip"
	"reflect"
	"strings"
	"testing"
)

// packet makes bytes of hexadecimal digits; spaces are for people.
func packet(t testing.TB, digits string) []byte {
	t.Helper()
	b, err := hex.DecodeString(strings.ReplaceAll(digits, " ", ""))
	if err != nil {
		t.Fatal(err)
	}
	return b
}

const (
	v4   = "4500 0028 0000 4000 40%% 0000 0a000001 0a000002"
	v6   = "6000 0000 0014 %%40 fd000000000000000000000000000001 fd000000000000000000000000000002"
	tcp  = "1f90 0050 00000000 00000000 5012 0000 0000 0000"
	udp  = "0035 1f90 0008 0000"
	echo = "0801 0000 0000 0000"
)

func ip(header, protocol, rest string) string {
	return strings.Replace(header, "%%", protocol, 1) + rest
}

func TestParse(t *testing.T) {
	a4, b4 := netip.MustParseAddr("10.0.0.1"), netip.MustParseAddr("10.0.0.2")
	a6, b6 := netip.MustParseAddr("fd00::1"), netip.MustParseAddr("fd00::2")
	tests := map[string]struct {
		packet string
		want   Header
	}{
		"TCP":           {ip(v4, "06", tcp), Header{Source: a4, Destination: b4, Protocol: 6, SourcePort: 8080, DestinationPort: 80, TCPFlags: 18, Length: 40}},
		"UDP":           {ip(v4, "11", udp), Header{Source: a4, Destination: b4, Protocol: 17, SourcePort: 53, DestinationPort: 8080, Length: 40}},
		"SCTP":          {ip(v4, "84", udp), Header{Source: a4, Destination: b4, Protocol: 132, SourcePort: 53, DestinationPort: 8080, Length: 40}},
		"ICMP":          {ip(v4, "01", echo), Header{Source: a4, Destination: b4, Protocol: 1, ICMPType: 8, ICMPCode: 1, Length: 40}},
		"another":       {ip(v4, "2f", udp), Header{Source: a4, Destination: b4, Protocol: 47, Length: 40}},
		"options":       {strings.Replace(ip(v4, "11", "01010100"+udp), "45", "46", 1), Header{Source: a4, Destination: b4, Protocol: 17, SourcePort: 53, DestinationPort: 8080, Length: 40}},
		"fragment":      {strings.Replace(ip(v4, "11", udp), "4000", "2001", 1), Header{Source: a4, Destination: b4, Protocol: 17, Length: 40, Fragment: true}},
		"cut off":       {ip(v4, "06", "1f90 00"), Header{Source: a4, Destination: b4, Protocol: 6, Length: 40}},
		"without flags": {ip(v4, "06", "1f90 0050"), Header{Source: a4, Destination: b4, Protocol: 6, SourcePort: 8080, DestinationPort: 80, Length: 40}},
		"TCP, v6":       {ip(v6, "06", tcp), Header{Source: a6, Destination: b6, Protocol: 6, SourcePort: 8080, DestinationPort: 80, TCPFlags: 18, Length: 60}},
		"ICMPv6":        {ip(v6, "3a", "8000 0000 0000 0000"), Header{Source: a6, Destination: b6, Protocol: 58, ICMPType: 128, Length: 60}},
		"extensions": {ip(v6, "00", "2b00 000000000000 3c01 000000000000 0000000000000000 3300 000000000000 1101 00000000 0000 00000000"+udp),
			Header{Source: a6, Destination: b6, Protocol: 17, SourcePort: 53, DestinationPort: 8080, Length: 60}},
		"first fragment":    {ip(v6, "2c", "1100 0001 00000000"+udp), Header{Source: a6, Destination: b6, Protocol: 17, SourcePort: 53, DestinationPort: 8080, Length: 60}},
		"next fragment":     {ip(v6, "2c", "1100 0009 00000000"+udp), Header{Source: a6, Destination: b6, Protocol: 17, Length: 60, Fragment: true}},
		"extension cut off": {ip(v6, "00", "11ff 000000000000"), Header{Source: a6, Destination: b6, Protocol: 17, Length: 60}},
		"ICMP error": {ip(v4, "01", "0301 0000 0000 0000"+ip(v4, "06", tcp)), Header{Source: a4, Destination: b4, Protocol: 1, ICMPType: 3, ICMPCode: 1, Length: 40,
			About: &Header{Source: a4, Destination: b4, Protocol: 6, SourcePort: 8080, DestinationPort: 80, TCPFlags: 18, Length: 40}}},
		"ICMP error, cut off": {ip(v4, "01", "0301 0000 0000 0000"+v4[:20]), Header{Source: a4, Destination: b4, Protocol: 1, ICMPType: 3, ICMPCode: 1, Length: 40}},
		"ICMPv6 error": {ip(v6, "3a", "0104 0000 0000 0000"+ip(v6, "06", tcp[:9])), Header{Source: a6, Destination: b6, Protocol: 58, ICMPType: 1, ICMPCode: 4, Length: 60,
			About: &Header{Source: a6, Destination: b6, Protocol: 6, SourcePort: 8080, DestinationPort: 80, Length: 60}}},
		"nothing after": {ip(v6, "3b", ""), Header{Source: a6, Destination: b6, Protocol: 59, Length: 60}},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			got, err := Parse(packet(t, tt.packet))
			if err != nil || !reflect.DeepEqual(got, tt.want) {
				t.Errorf("got  %+v, %v\nwant %+v", got, err, tt.want)
			}
		})
	}
	for _, bad := range []string{"", "45", ip(v6, "06", "")[:71], ip(strings.Replace(v4, "45", "44", 1), "06", tcp), "ff" + ip(v4, "06", tcp)} {
		if h, err := Parse(packet(t, bad)); err == nil {
			t.Errorf("%s: parsed as %+v", bad, h)
		}
	}
}

func FuzzParse(f *testing.F) {
	for _, s := range []string{ip(v4, "06", tcp), ip(v6, "06", tcp), ip(v6, "00", "2b00 000000000000 3c01 000000000000 0000000000000000 1100 000000000000"+udp), ip(v6, "2c", "1100 0009 00000000"+udp), ip(v4, "01", "0301 0000 0000 0000"+ip(v4, "06", tcp))} {
		f.Add(packet(f, s))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		h, err := Parse(b)
		if err != nil {
			return
		}
		if !h.Source.IsValid() || !h.Destination.IsValid() || h.Source.Is4() != h.Destination.Is4() {
			t.Errorf("parsed %x as %+v", b, h)
		}
		if h.Fragment && (h.SourcePort|h.DestinationPort) != 0 {
			t.Errorf("a fragment with ports: %+v", h)
		}
	})
}
