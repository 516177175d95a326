// Package peer tells which process is at the other end of a Unix socket.
package peer

import (
	"errors"
	"fmt"
	"net"
	"time"

	"golang.org/x/sys/unix"
)

// Of returns the process at the other end of a connection, which may have ended. Its id is 0 in
// another pid namespace.
func Of(conn net.Conn) (who *unix.Ucred, err error) {
	raw, err := conn.(*net.UnixConn).SyscallConn()
	if err == nil {
		err = errors.Join(raw.Control(func(fd uintptr) { who, err = unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED) }), err)
	}
	if err != nil {
		return nil, fmt.Errorf("read peer's credentials: %w", err)
	}
	return who, nil
}

// At returns the process that listens at the path of a socket.
func At(path string) (*unix.Ucred, error) {
	conn, err := net.DialTimeout("unix", path, time.Second)
	if err != nil {
		return nil, err
	}
	defer func() { _ = conn.Close() }()
	return Of(conn)
}
