package netns

import (
	"errors"
	"fmt"
	"os"
	"strings"

	"golang.org/x/sys/unix"
)

const current = "/proc/thread-self/ns/net"

// Own returns the file beside path that belongs to the calling thread's network namespace alone:
// "a/key.4026531840" for "a/key". No two namespaces that exist have the same. One that is made
// when another has gone may get that one's: a file that outlives its namespace holds its Scope.
func Own(path string) (string, error) {
	var ns unix.Stat_t
	if err := unix.Stat(current, &ns); err != nil {
		return "", fmt.Errorf("read network namespace: %w", err)
	}
	return fmt.Sprintf("%s.%d", path, ns.Ino), nil
}

// Scope names this boot and the calling thread's network namespace: from Linux 5.14 on, no other
// ever has the same.
func Scope() (string, error) {
	boot, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		return "", fmt.Errorf("read boot id: %w", err)
	}
	ns, err := os.Readlink(current)
	if err != nil {
		return "", fmt.Errorf("read network namespace: %w", err)
	}
	cookie, err := Cookie()
	if err != nil {
		return "", err
	}
	return fmt.Sprintf("%s %s %d", strings.TrimSpace(string(boot)), ns, cookie), nil
}

// Cookie is the number that the kernel gives the calling thread's network namespace once in a boot;
// the inode of one that is gone is given anew. It is 0 before Linux 5.14.
func Cookie() (n uint64, err error) {
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return 0, fmt.Errorf("open socket: %w", err)
	}
	defer func() { err = errors.Join(err, unix.Close(fd)) }()
	n, err = unix.GetsockoptUint64(fd, unix.SOL_SOCKET, unix.SO_NETNS_COOKIE)
	if errors.Is(err, unix.ENOPROTOOPT) {
		return 0, nil
	}
	if err != nil {
		return 0, fmt.Errorf("read network namespace's cookie: %w", err)
	}
	return n, nil
}
