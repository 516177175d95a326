package process

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	kernel "sluice.dev/sluice/internal/kernel/netns"
	"sluice.dev/sluice/test/netns"
)

// KillIn ends all processes in the named network namespaces, whatever started them, except this
// one, and returns once they are gone.
func KillIn(names ...string) error {
	doomed := map[kernel.ID]bool{}
	for _, n := range names {
		if id, ok := kernel.IDOf(filepath.Join(netns.Dir, n)); ok {
			doomed[id] = true
		}
	}
	for deadline := time.Now().Add(10 * time.Second); ; time.Sleep(5 * time.Millisecond) {
		pids, err := filepath.Glob("/proc/[0-9]*")
		if err != nil {
			return fmt.Errorf("list processes: %w", err)
		}
		var left []int
		for _, dir := range pids {
			pid, err := strconv.Atoi(filepath.Base(dir))
			if err != nil || pid == os.Getpid() {
				continue
			}
			lives, err := killIf(pid, doomed)
			if err != nil {
				return err
			}
			if lives {
				left = append(left, pid)
			}
		}
		if len(left) == 0 {
			return nil
		}
		if time.Now().After(deadline) {
			return fmt.Errorf("end processes: %d do not end: %v", len(left), left)
		}
	}
}

// killIf kills a process if it is in one of the namespaces, and reports whether it did.
func killIf(pid int, in map[kernel.ID]bool) (bool, error) {
	path := fmt.Sprintf("/proc/%d/ns/net", pid)
	if id, ok := kernel.IDOf(path); !ok || !in[id] {
		return false, nil
	}
	fd, err := unix.PidfdOpen(pid, 0)
	if err != nil {
		return true, nil // it is just ending: check again
	}
	defer unix.Close(fd)
	if id, ok := kernel.IDOf(path); !ok || !in[id] { // now the number cannot pass to another process
		return false, nil
	}
	if err := unix.PidfdSendSignal(fd, unix.SIGKILL, nil, 0); err != nil && !errors.Is(err, unix.ESRCH) {
		return true, fmt.Errorf("kill process %d: %w", pid, err)
	}
	return true, nil
}

// Left returns the entries of a folder whose names are a marker, the number of the process that
// made them, and more, if that process has ended: what a killed run has left behind.
func Left(dir, marker string) (paths []string) {
	entries, _ := os.ReadDir(dir) // a folder that does not exist has none
	for _, e := range entries {
		rest, ok := strings.CutPrefix(e.Name(), marker)
		number, _, _ := strings.Cut(rest, "-")
		pid, err := strconv.Atoi(number)
		if ok && err == nil && errors.Is(unix.Kill(pid, 0), unix.ESRCH) {
			paths = append(paths, filepath.Join(dir, e.Name()))
		}
	}
	return paths
}
