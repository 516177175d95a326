package nflog

import (
	"context"
	"errors"
	"net"
	"os"
	"testing"
	"time"

	"sluice.dev/sluice/test/world"
)

const (
	group = 0x51c
	rules = `table inet test {
		chain output { type filter hook output priority 0
			udp dport 99 log prefix "sluice policy" group 1308 snaplen 128 drop
			tcp dport 99 log prefix "sluice host" group 1308 drop
			icmp type echo-request log group 1308
		}
		chain input { type filter hook input priority 0
			icmp type echo-request log prefix "sluice cut" group 1308 drop
		}
	}`
)

// testHost makes a host with rules that log.
func testHost(t *testing.T) *world.Host {
	t.Helper()
	h := world.NewHost(t, "log")
	h.Exec("nft", rules)
	return h
}

func open(t *testing.T, h *world.Host) (c *Conn) {
	t.Helper()
	h.In(func() (err error) { c, err = Open(group); return err })
	t.Cleanup(func() { _ = c.Close() })
	return c
}

// send sends what is dropped; that the kernel says so is no error here.
func send(t *testing.T, h *world.Host, network, to string, payload []byte, times int) {
	t.Helper()
	err := h.Do(func() error {
		c, err := net.DialTimeout(network, to, 10*time.Millisecond)
		if err != nil {
			return err
		}
		defer func() { _ = c.Close() }()
		for range times {
			_, _ = c.Write(payload)
		}
		return nil
	})
	if err != nil && !os.IsTimeout(err) && !errors.Is(err, os.ErrPermission) {
		t.Fatal(err)
	}
}

func next(t *testing.T, c *Conn) Packet {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
	defer cancel()
	p, err := c.Next(ctx)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

func TestNext(t *testing.T) {
	h := testHost(t)
	c := open(t, h)
	begin := time.Now()
	send(t, h, "udp", "127.0.0.1:99", make([]byte, 1000), 1)
	send(t, h, "udp", "[::1]:99", nil, 1)
	send(t, h, "tcp", "127.0.0.1:99", nil, 0)
	send(t, h, "ip4:icmp", "127.0.0.1", []byte{8, 0, 0xf7, 0xfe, 0, 0, 0, 1}, 1)
	want := []struct {
		prefix, source string
		protocol       uint8
		hook           uint8
		in, out        int
		length         int
		flags, icmp    uint8
	}{
		{"sluice policy", "127.0.0.1", 17, 3, 0, 1, 1028, 0, 0},
		{"sluice policy", "::1", 17, 3, 0, 1, 48, 0, 0},
		{"sluice host", "127.0.0.1", 6, 3, 0, 1, 60, 2, 0},
		{"", "127.0.0.1", 1, 3, 0, 1, 28, 0, 8},
		{"sluice cut", "127.0.0.1", 1, 1, 1, 0, 28, 0, 8},
	}
	for i, w := range want {
		p := next(t, c)
		port := uint16(0)
		if w.protocol != 1 {
			port = 99
		}
		if p.Prefix != w.prefix || p.Source.String() != w.source || p.Destination != p.Source || p.Protocol != w.protocol || p.Hook != w.hook ||
			p.In != w.in || p.Out != w.out || p.Length != w.length || p.TCPFlags != w.flags || p.ICMPType != w.icmp ||
			p.DestinationPort != port || p.Lost != 0 || p.Time.Before(begin.Add(-time.Second)) || p.Time.After(time.Now()) {
			t.Errorf("packet %d: got %+v\nwant %+v", i, p, w)
		}
	}
}

// TestLost has the kernel tell of more packets than the socket holds.
func TestLost(t *testing.T) {
	const sent = 200
	h := testHost(t)
	c := open(t, h)
	if err := c.nl.SetReadBuffer(8192); err != nil {
		t.Fatal(err)
	}
	send(t, h, "udp", "127.0.0.1:99", nil, sent)
	told := 0
	for ; ; told++ { // what was kept; the socket takes no more until it is read empty
		ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
		p, err := c.Next(ctx)
		cancel()
		if err != nil {
			break
		}
		if p.Lost != 0 {
			t.Errorf("lost %d before packet %d", p.Lost, told)
		}
	}
	send(t, h, "udp", "127.0.0.1:99", nil, 1)
	if p := next(t, c); told == 0 || p.Lost == 0 || p.Lost != sent-told {
		t.Errorf("told of %d of %d, and that %d were lost", told, sent, p.Lost)
	}
}

func TestBusy(t *testing.T) {
	h := testHost(t)
	c := open(t, h)
	other := func() error {
		return h.Do(func() error {
			c, err := Open(group)
			if err == nil {
				err = c.Close()
			}
			return err
		})
	}
	if err := other(); !errors.Is(err, ErrBusy) {
		t.Errorf("second reader: %v", err)
	}
	if err := c.Close(); err != nil {
		t.Fatal(err)
	}
	if err := other(); err != nil {
		t.Errorf("once the first is gone: %v", err)
	}
}

func TestNextEnds(t *testing.T) {
	h := testHost(t)
	c := open(t, h)
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
	defer cancel()
	if p, err := c.Next(ctx); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("got %+v, %v", p, err)
	}
	send(t, h, "udp", "127.0.0.1:99", nil, 1)
	if p := next(t, c); p.DestinationPort != 99 {
		t.Errorf("after the end of one call: %+v", p)
	}
}

func TestRequirement(t *testing.T) {
	if err := Requirement.Check(t.Context()); err != nil {
		t.Error(err)
	}
}
