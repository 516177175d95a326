package speaker

import (
	"net/netip"
	"os"
	"strconv"

	"golang.org/x/sys/unix"

	"sluice.dev/sluice/internal/kernel/ping"
)

// closeLost closes the connections that a peer has opened to a port of this process. It is for a
// peer with which the server has just given up an attempt, and thus has no connection.
//
// Where both ends connect at once, and the peer's OPEN comes on this node's connection before it
// does on the peer's, gobgp (v4.8.0) goes on with the first and forgets the second without closing
// it. A peer that keeps the second, as its identifier is higher (RFC 4271, section 6.8), closes all
// others until that one's hold time is over. The server offers no way to its connections, so they
// are found among the process's files.
func closeLost(peer netip.Addr, port uint16) {
	files, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		return // then it takes the hold time
	}
	for _, f := range files {
		fd, err := strconv.Atoi(f.Name())
		if err != nil {
			continue
		}
		local, err := unix.Getsockname(fd)
		if err != nil || ping.AddrOf(local).Port() != port {
			continue
		}
		remote, err := unix.Getpeername(fd)
		if err == nil && ping.AddrOf(remote).Addr() == peer.WithZone("") {
			_ = unix.Shutdown(fd, unix.SHUT_RDWR) // whoever still has it finds it closed
		}
	}
}
