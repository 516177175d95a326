package sockets_test

import (
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"sluice.dev/sluice/internal/accelerate/sockets"
	"sluice.dev/sluice/internal/driver"
	"sluice.dev/sluice/internal/driver/nftables"
	"sluice.dev/sluice/internal/state"
)

// open is a driver that stays open.
type open struct{ driver.Driver }

func (open) Close() error { return nil }

// While the accelerator comes and goes, an endpoint goes and comes, and agents are replaced, no
// request fails: nftables serves what sockets are not given.
func TestToggle(t *testing.T) {
	n := newNode(t)
	var base *nftables.Driver
	n.host.In(func() (err error) { base, err = nftables.Open(nftables.Options{}); return err })
	defer func() { _ = base.Close() }()
	n.want.Services.Frontends = map[state.FrontendKey]*state.Frontend{}
	turn := func(on bool) {
		t.Helper()
		n.host.In(func() error {
			if !on {
				return sockets.Withdraw()
			}
			n.driver = sockets.Open(open{base}, slog.New(slog.DiscardHandler))
			return nil
		})
		if on {
			n.adopt()
		}
	}
	turn(true)
	n.serve(vip4, "10.1.0.2:80", "10.1.0.3:80")

	var asked, retried atomic.Int64
	var load sync.WaitGroup
	done := make(chan struct{})
	ask := func(what string, tries int, once func() error) {
		load.Go(func() {
			for {
				select {
				case <-done:
					return
				default:
				}
				var err error
				for try := range tries {
					if err = once(); err == nil {
						break
					}
					if try+1 < tries {
						retried.Add(1)
					}
				}
				if err != nil {
					t.Errorf("%s: %v", what, err)
					return
				}
				asked.Add(1)
			}
		})
	}
	ask("a connection", 1, func() error { _, err := n.client.Ask("tcp", "", vip4, patience); return err })
	lasting, err := n.client.Dial("tcp", "", vip4, patience)
	n.must(err)
	defer func() { _ = lasting.Close() }()
	unconnected := n.socket(n.client, unix.AF_INET, unix.SOCK_DGRAM)
	ask("a socket that is not connected", 1, func() error {
		if err := unix.Sendto(unconnected, []byte("?\n"), 0, sockaddr(unix.AF_INET, vip4)); err != nil {
			return err
		}
		var from unix.Sockaddr
		_, err := again(func() (c int, err error) {
			c, from, err = unix.Recvfrom(unconnected, make([]byte, 200), 0)
			return c, err
		})
		if err == nil && shown(from) != vip4 {
			err = fmt.Errorf("the answer comes from %s", shown(from))
		}
		return err
	})
	connected := n.socket(n.client, unix.AF_INET, unix.SOCK_DGRAM)
	n.must(unix.Connect(connected, sockaddr(unix.AF_INET, vip4)))
	limit := unix.NsecToTimeval(int64(silence))
	n.must(unix.SetsockoptTimeval(connected, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &limit))
	// An answer that is under way while the socket is connected anew is lost, as UDP's may be, or
	// late on a busy machine.
	ask("a connected socket", int(patience/silence), func() error {
		if err := unix.Send(connected, []byte("?\n"), 0); err != nil {
			return err
		}
		_, err := again(func() (int, error) { return unix.Read(connected, make([]byte, 200)) })
		return err
	})

	for i := range 8 {
		before := asked.Load()
		for end := time.Now().Add(patience); asked.Load() < before+50 && time.Now().Before(end); time.Sleep(time.Millisecond) {
		}
		switch i % 4 {
		case 0:
			n.must(n.driver.Close())
			turn(false)
		case 1, 3:
			n.must(n.driver.Close())
			turn(true)
		case 2:
			n.change(vip4, func(f *state.Frontend) { f.Backends, f.Serving = f.Alive[:1], f.Alive[:1] })
			n.change(vip4, func(f *state.Frontend) { f.Backends, f.Serving = f.Alive, f.Alive })
		}
	}
	close(done)
	load.Wait()
	if got := asked.Load(); got < 400 {
		t.Errorf("only %d requests were answered", got)
	}
	t.Logf("%d requests, %d datagrams were sent again", asked.Load(), retried.Load())
	if err := errors.Join(n.driver.Purge(t.Context()), n.driver.Close()); err != nil {
		t.Error(err)
	}
}
