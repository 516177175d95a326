package lab

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"time"

	"golang.org/x/sys/unix"

	"sluice.dev/sluice/internal/lab/process"
	"sluice.dev/sluice/internal/netns"
)

// start runs a long-lived command of a node, in the node's namespace. Its output goes to
// NODE/WHAT.log.
func (l *Lab) start(node, what string, args []string, files ...*os.File) error {
	ns, err := netns.Open(l.NodeNS(node))
	if err != nil {
		return err
	}
	defer ns.Close()
	if err := process.Start(ns, l.path(node), what, args, files...); err != nil {
		return fmt.Errorf("on %s: %w", node, err)
	}
	return nil
}

// process is what start started.
func (l *Lab) process(node, what string) process.Process { return process.Find(l.path(node), what) }

// started is a process that start started, by the names of its host and its own.
type started struct {
	node, what string
	process.Process
}

// processes returns everything that start has started.
func (l *Lab) processes() (all []started) {
	dirs, _ := filepath.Glob(l.path("*")) // the pattern is well-formed
	for _, dir := range dirs {
		for _, what := range process.Names(dir) {
			all = append(all, started{filepath.Base(dir), what, process.Find(dir, what)})
		}
	}
	return all
}

// alive reports whether all processes of the lab run, and its owner, if it has one.
func (l *Lab) alive() bool {
	if l.Owner != nil && !l.Owner.Alive() {
		return false
	}
	return len(l.processes()) > 0 && l.died() == nil
}

// someAlive reports whether any process of the lab runs.
func (l *Lab) someAlive() bool {
	return slices.ContainsFunc(l.processes(), func(p started) bool { return p.Alive() })
}

// died returns an error for a process that has ended, with the end of its log.
func (l *Lab) died() error {
	for _, p := range l.processes() {
		if !p.Alive() {
			return fmt.Errorf("%s on %s has died\nthe end of its log:\n%s", p.what, p.node, process.Tail(l.path(p.node), p.what))
		}
	}
	return nil
}

// killAllIn ends all processes in the named network namespaces, whatever started them, except this
// one, and returns once they are gone.
func killAllIn(names []string) error {
	doomed := map[nsID]bool{}
	for _, n := range names {
		if id, ok := nsIDOf(filepath.Join(netns.Dir, n)); ok {
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
			return fmt.Errorf("end the lab's processes: %d do not end: %v", len(left), left)
		}
	}
}

// killIf kills a process if it is in one of the namespaces, and reports whether it did.
func killIf(pid int, in map[nsID]bool) (bool, error) {
	path := fmt.Sprintf("/proc/%d/ns/net", pid)
	if id, ok := nsIDOf(path); !ok || !in[id] {
		return false, nil
	}
	fd, err := unix.PidfdOpen(pid, 0)
	if err != nil {
		return true, nil // it is just ending: check again
	}
	defer unix.Close(fd)
	if id, ok := nsIDOf(path); !ok || !in[id] { // now the number cannot pass to another process
		return false, nil
	}
	if err := unix.PidfdSendSignal(fd, unix.SIGKILL, nil, 0); err != nil && !errors.Is(err, unix.ESRCH) {
		return true, fmt.Errorf("kill process %d: %w", pid, err)
	}
	return true, nil
}

// nsID identifies a namespace while it lives.
type nsID struct{ dev, ino uint64 }

func nsIDOf(path string) (nsID, bool) {
	var st unix.Stat_t
	if err := unix.Stat(path, &st); err != nil {
		return nsID{}, false
	}
	return nsID{uint64(st.Dev), st.Ino}, true
}
