package lab

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
)

// mountNames mounts files over /etc/hosts and /etc/resolv.conf for the calling thread and its
// children.
func (l *Lab) mountNames(namespace string) error {
	if err := unix.Unshare(unix.CLONE_NEWNS); err != nil {
		return fmt.Errorf("make mount namespace: %w", err)
	}
	// Slave mounts still follow what the host mounts later, but do not propagate to it.
	if err := unix.Mount("", "/", "", unix.MS_SLAVE|unix.MS_REC, ""); err != nil {
		return fmt.Errorf("separate mounts: %w", err)
	}
	for _, m := range []struct{ from, over string }{
		{l.hosts(namespace), "/etc/hosts"},
		{l.resolver(), "/etc/resolv.conf"},
	} {
		over, err := filepath.EvalSymlinks(m.over)
		if err != nil { // a resolver file that nothing reads need not be covered, but names come from hosts
			if m.over == "/etc/hosts" {
				return fmt.Errorf("%w: create an empty one", err)
			}
			continue
		}
		// In a command of the lab's, the lab's file is there already. Nothing can be mounted over
		// it once it has been replaced. Where nothing is mounted, there is nothing to do.
		_ = unix.Unmount(over, unix.MNT_DETACH)
		if err := unix.Mount(m.from, over, "", syscall.MS_BIND, ""); err != nil {
			return fmt.Errorf("mount over %s: %w", over, err)
		}
	}
	return nil
}

// mountAgent gives a node's commands their own folder at the usual path of agents' sockets, in the
// calling thread's mount namespace. It contains the socket of the node's agent, if it has one, and
// what an agent that was started by hand has put there. If the labs' folder is below that path, it
// is mounted there too.
func (l *Lab) mountAgent(node string) error {
	if node == "" || l.agent == nil || l.agent.Socket == "" {
		return nil
	}
	folder, own := filepath.Dir(l.agent.Socket), l.runFolder(node)
	for _, dir := range []string{folder, own} {
		if err := os.MkdirAll(dir, 0o755); err != nil {
			return fmt.Errorf("make folder: %w", err)
		}
	}
	labs, err := os.Open(Dir) // it can still be mounted from here when its path is covered
	if err != nil {
		return fmt.Errorf("open the labs' folder: %w", err)
	}
	defer labs.Close()
	if err := unix.Mount(own, folder, "", unix.MS_BIND, ""); err != nil {
		return fmt.Errorf("mount over %s: %w", folder, err)
	}
	if !strings.HasPrefix(Dir, folder+"/") {
		return nil
	}
	if err := os.MkdirAll(Dir, 0o755); err != nil {
		return fmt.Errorf("make place for the labs' folder: %w", err)
	}
	if err := unix.Mount(fmt.Sprintf("/proc/self/fd/%d", labs.Fd()), Dir, "", unix.MS_BIND, ""); err != nil {
		return fmt.Errorf("mount the labs' folder at %s: %w", Dir, err)
	}
	return nil
}
