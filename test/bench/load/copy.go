package load

import (
	"bytes"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"net/netip"
	"time"

	"golang.org/x/sys/unix"

	"sluice.dev/sluice/test/bench/cpuaffinity"
	"sluice.dev/sluice/test/netns"
)

// CopyConfig is one bulk copy over one TCP connection.
type CopyConfig struct {
	Client, Backend *netns.NS      // from where, to where
	Target          netip.AddrPort // an address of the backend's, or of a service; IPv4
	Port            uint16         // where the backend listens
	Duration        time.Duration
	CPU             int // the CPU that does it all
}

const (
	copyBlock = 256 << 10 // bytes in one system call
	// copyTurn is how much the client may be ahead of the server, which takes its turn in the same
	// thread. It stays well below what the sockets' buffers hold.
	copyTurn = 4 << 20
)

// Copied is what arrived.
type Copied struct {
	Bytes int
	Took  time.Duration
	CPU   time.Duration // of the thread: both ends and the packets between
}

// Rate is bytes a second.
func (c Copied) Rate() float64 {
	if c.Bytes == 0 {
		return 0
	}
	return float64(c.Bytes) / c.Took.Seconds()
}

// Copy sends as fast as one thread can that serves both ends.
func Copy(ctx context.Context, c CopyConfig) (Copied, error) {
	var done Copied
	listener, err := listen(c.Backend, c.Port)
	if err != nil {
		return done, fmt.Errorf("listen in %s: %w", c.Backend.Name, err)
	}
	defer unix.Close(listener)
	defer quietRuntime()()
	err = c.Client.Do(func() error {
		if err := cpuaffinity.BindThread(c.CPU); err != nil {
			return err
		}
		client, server, err := connect(c.Target, listener)
		if err != nil {
			return err
		}
		defer unix.Close(client)
		defer unix.Close(server)
		done, err = pump(ctx, client, server, c.Duration)
		return err
	})
	if err != nil {
		return done, fmt.Errorf("copy from %s to %s: %w", c.Client.Name, c.Target, err)
	}
	return done, nil
}

// connect returns both ends of a connection, neither of which blocks.
func connect(target netip.AddrPort, listener int) (client, server int, err error) {
	client, err = unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return -1, -1, err
	}
	err = errors.Join(
		unix.SetsockoptTimeval(client, unix.SOL_SOCKET, unix.SO_SNDTIMEO, &unix.Timeval{Sec: 5}), // of connecting
		unix.Connect(client, &unix.SockaddrInet4{Addr: target.Addr().As4(), Port: int(target.Port())}))
	if err == nil {
		server, err = otherEnd(client, listener)
	}
	if err == nil {
		err = unix.SetNonblock(client, true)
	}
	if err != nil {
		unix.Close(client)
	}
	return client, server, err
}

// otherEnd accepts the client's connection. Another may come before it: a proxy may connect for a
// client that is gone. So the client says a word.
func otherEnd(client, listener int) (server int, err error) {
	word := []byte(rand.Text())
	if _, err := unix.Write(client, word); err != nil {
		return -1, err
	}
	for {
		if err := readable(listener); err != nil {
			return -1, err
		}
		server, _, err := unix.Accept4(listener, unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC)
		if err != nil {
			return -1, err
		}
		heard := make([]byte, len(word))
		if err = readable(server); err == nil {
			_, _ = unix.Read(server, heard) // of another, there is nothing, or a reset
		}
		if err == nil && bytes.Equal(heard, word) {
			return server, nil
		}
		unix.Close(server)
		if err != nil {
			return -1, err
		}
	}
}

// pump lets both ends take turns.
func pump(ctx context.Context, client, server int, d time.Duration) (Copied, error) {
	buf := make([]byte, copyBlock)
	received := 0
	cpu := threadCPU()
	began := time.Now()
	for time.Since(began) < d {
		if err := ctx.Err(); err != nil {
			return Copied{}, err
		}
		if err := untilBlocked(copyTurn, func() (int, error) { return unix.Write(client, buf) }, nil); err != nil {
			return Copied{}, fmt.Errorf("send: %w", err)
		}
		before := received
		if err := untilBlocked(copyTurn, func() (int, error) { return unix.Read(server, buf) }, &received); err != nil {
			return Copied{}, fmt.Errorf("receive: %w", err)
		}
		if received == before { // some is still in the kernel
			if err := readable(server); err != nil {
				return Copied{}, err
			}
		}
	}
	return Copied{received, time.Since(began), threadCPU() - cpu}, nil
}

// untilBlocked repeats a call until it would block or has done most bytes. Total may be nil.
func untilBlocked(most int, call func() (int, error), total *int) error {
	for done := 0; done < most; {
		n, err := call()
		if errors.Is(err, unix.EAGAIN) {
			return nil
		}
		if err != nil {
			return err
		}
		if n == 0 {
			return errors.New("connection closed")
		}
		done += n
		if total != nil {
			*total += n
		}
	}
	return nil
}

// readable waits until a descriptor is readable, five seconds at most.
func readable(fd int) error {
	p := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}
	for {
		n, err := unix.Poll(p, 5_000)
		switch {
		case errors.Is(err, unix.EINTR):
		case err != nil:
			return err
		case n == 0:
			return errors.New("nothing arrived within five seconds")
		default:
			return nil
		}
	}
}
