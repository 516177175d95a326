package userspace_test

import (
	"bytes"
	"encoding/binary"
	"net/netip"
	"os/exec"
	"regexp"
	"sync"
	"sync/atomic"
	"testing"

	"golang.org/x/sys/unix"

	"sluice.dev/sluice/internal/driver/userspace"
	"sluice.dev/sluice/internal/model"
	"sluice.dev/sluice/internal/state"
)

// probe counts first segments as they come, and what of them the driver's table lets pass.
const probe = `table inet probe {
	counter come {}
	counter passed {}
	chain coming { type filter hook prerouting priority -460; ip daddr 10.96.0.1 counter name come; }
	chain passing { type filter hook prerouting priority -140; ip daddr 10.96.0.1 counter name passed drop; }
}`

// A client that may connect before a change and after it may at every moment, also where the change
// is whether it depends on the client.
func TestNoFirstPacketIsLost(t *testing.T) {
	t.Parallel()
	b := newBed(t, userspace.Options{})
	b.serve(model.TCP, vip, backend)
	b.nft(probe)
	var over atomic.Bool
	var sender sync.WaitGroup
	sender.Go(func() { must(t, b.client.Do(func() error { return b.begin(&over) })) })
	key := state.FrontendKey{Addr: vip.Addr(), Protocol: model.TCP, Port: vip.Port()}
	for i := range 100 {
		f := *b.state.Services.Frontends[key]
		f.SourceRanges = nil
		if f.LocalOnly = i%2 == 0; f.LocalOnly {
			f.SourceRanges, f.Local = []netip.Prefix{netip.MustParsePrefix("10.1.0.0/24")}, f.Backends
		}
		b.state.Services.Frontends[key] = &f
		b.adopt()
	}
	over.Store(true)
	sender.Wait()
	var counts []string
	for _, m := range regexp.MustCompile(`packets (\d+)`).FindAllStringSubmatch(b.nft("list counters table inet probe"), -1) {
		counts = append(counts, m[1])
	}
	if len(counts) != 2 || counts[0] != counts[1] || counts[0] == "0" {
		t.Errorf("packets that came, and that passed: %v", counts)
	}
}

// nft runs nft on the node.
func (b *bed) nft(text string) string {
	b.t.Helper()
	cmd := exec.Command("nft", text)
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	must(b.t, b.node.Start(cmd))
	if err := cmd.Wait(); err != nil {
		b.t.Fatalf("nft %s: %v: %s", text, err, &out)
	}
	return out.String()
}

// begin sends the first segments of connections, from one port after the other.
func (b *bed) begin(over *atomic.Bool) error {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_RAW, unix.IPPROTO_TCP)
	if err != nil {
		return err
	}
	defer func() { _ = unix.Close(fd) }()
	segment := make([]byte, 20)
	binary.BigEndian.PutUint16(segment[2:], vip.Port())
	segment[12], segment[13] = 5<<4, 0x02 // the header's length, SYN
	for from := uint16(1024); !over.Load(); from = max(1024, from+1) {
		binary.BigEndian.PutUint16(segment, from)
		if err := unix.Sendto(fd, segment, 0, &unix.SockaddrInet4{Addr: vip.Addr().As4()}); err != nil {
			return err
		}
	}
	return nil
}
