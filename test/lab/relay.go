package lab

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"sync"
)

// Relay accepts connections on an open listening socket and forwards each to an address, until ctx
// ends. The socket may belong to another network namespace than the process.
func Relay(ctx context.Context, socket *os.File, to string) error {
	listener, err := net.FileListener(socket)
	if err != nil {
		return fmt.Errorf("relay to %s: %w", to, err)
	}
	stop := context.AfterFunc(ctx, func() { _ = listener.Close() })
	defer stop()
	for {
		conn, err := listener.Accept()
		if ctx.Err() != nil {
			return nil
		}
		if err != nil {
			return fmt.Errorf("relay to %s: %w", to, err)
		}
		go relayOne(ctx, conn.(*net.TCPConn), to)
	}
}

func relayOne(ctx context.Context, near *net.TCPConn, to string) {
	defer func() { _ = near.Close() }()
	conn, err := new(net.Dialer).DialContext(ctx, "tcp", to)
	if err != nil {
		return // the client sees that the connection ends
	}
	far := conn.(*net.TCPConn)
	defer func() { _ = far.Close() }()
	var both sync.WaitGroup
	for _, way := range [][2]*net.TCPConn{{near, far}, {far, near}} {
		both.Go(func() {
			_, err := io.Copy(way[1], way[0])
			if err != nil && !errors.Is(err, net.ErrClosed) {
				_ = way[0].Close()
			}
			_ = way[1].CloseWrite()
		})
	}
	both.Wait()
}
