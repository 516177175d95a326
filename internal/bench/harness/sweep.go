package harness

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"

	"sluice.dev/sluice/internal/lab/process"
	"sluice.dev/sluice/internal/netns"
)

// Marker begins the names of all namespaces, folders and control groups that a run makes; the
// number of its process follows.
const Marker = "sluice-bench-"

// Sweep removes what killed runs have left behind. It leaves alone what belongs to running ones.
func Sweep() error {
	var errs []error
	for _, path := range leftovers(netns.Dir) {
		name := filepath.Base(path)
		errs = append(errs, process.KillIn(name), netns.Delete(name))
	}
	for _, path := range leftovers(WorkDir()) {
		errs = append(errs, os.RemoveAll(path))
	}
	for _, root := range groupRoots {
		for _, path := range leftovers(root.dir) {
			_ = os.Remove(path) // if its process is still ending, the next run removes it
		}
	}
	if err := errors.Join(errs...); err != nil {
		return fmt.Errorf("remove what an earlier run left: %w", err)
	}
	return nil
}

// leftovers returns the entries of a folder that belong to runs that have ended.
func leftovers(dir string) []string {
	entries, _ := os.ReadDir(dir) // a folder that does not exist has none
	var paths []string
	for _, e := range entries {
		rest, ok := strings.CutPrefix(e.Name(), Marker)
		if !ok {
			continue
		}
		number, _, _ := strings.Cut(rest, "-")
		pid, err := strconv.Atoi(number)
		if err == nil && errors.Is(syscall.Kill(pid, 0), syscall.ESRCH) {
			paths = append(paths, filepath.Join(dir, e.Name()))
		}
	}
	return paths
}
