package drivertest

import (
	"encoding/binary"
	"hash/crc32"
	"net/netip"
	"testing"
)

func TestSCTPRoundTrip(t *testing.T) {
	for _, p := range []sctpPacket{
		{src: 40000, dst: 36412, chunk: sctpInit, tag: 0xdeadbeef},
		{src: 36412, dst: 40000, vtag: 0xdeadbeef, chunk: sctpInitAck, tag: 1, note: "10.0.0.1:36412 10.0.0.2:40000\n"},
		{src: 1, dst: 2, chunk: sctpInit, tag: 1, note: "odd"},
	} {
		b := p.marshal()
		if len(b)%4 != 0 {
			t.Errorf("%+v: %d bytes, not a multiple of four", p, len(b))
		}
		got, ok := parseSCTP(b)
		if !ok || got != p {
			t.Errorf("parsed %+v (%v), want %+v", got, ok, p)
		}
		b[len(b)-1] ^= 1
		if _, ok := parseSCTP(b); ok {
			t.Errorf("%+v: a flipped bit went unnoticed", p)
		}
	}
}

// TestCastagnoli compares the checksum with the check value of CRC-32C.
func TestCastagnoli(t *testing.T) {
	if got := crc32.Checksum([]byte("123456789"), castagnoli); got != 0xe3069283 {
		t.Errorf("CRC-32C is %#x, want 0xe3069283", got)
	}
}

// TestChecksums verifies what receivers verify: with the checksum in place, everything adds up to
// zero.
func TestChecksums(t *testing.T) {
	for _, pair := range [][2]string{{"10.0.0.1:1024", "10.96.0.10:80"}, {"[fd00::1]:1024", "[fd00::10]:80"}} {
		from, to := netip.MustParseAddrPort(pair[0]), netip.MustParseAddrPort(pair[1])
		for _, payload := range []string{"", "odd", "even"} {
			b := segment(from, to, tcpSYN, 1, 2, []byte(payload))
			if sum := checksum(pseudo(from.Addr(), to.Addr(), 6, len(b)), b); sum != 0 {
				t.Errorf("TCP %v %q: the sum is %#x", from, payload, sum)
			}
			b = datagram(from, to, []byte(payload))
			if sum := checksum(pseudo(from.Addr(), to.Addr(), 17, len(b)), b); sum != 0 {
				t.Errorf("UDP %v %q: the sum is %#x", from, payload, sum)
			}
			if n := binary.BigEndian.Uint16(b[4:]); int(n) != len(b) {
				t.Errorf("UDP length is %d of %d", n, len(b))
			}
		}
	}
}
