package harness

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"sluice.dev/sluice/test/lab/process"
	"sluice.dev/sluice/test/netns"
)

// Marker begins the names of all namespaces, folders and control groups that a run makes; the
// number of its process follows.
const Marker = "sluice-bench-"

// Sweep removes what killed runs have left behind. It leaves alone what belongs to running ones.
func Sweep() error {
	var errs []error
	for _, path := range process.Left(netns.Dir, Marker) {
		name := filepath.Base(path)
		errs = append(errs, process.KillIn(name), netns.Delete(name))
	}
	for _, path := range process.Left(WorkDir(), Marker) {
		errs = append(errs, os.RemoveAll(path))
	}
	for _, root := range groupRoots {
		for _, path := range process.Left(root.dir, Marker) {
			_ = os.Remove(path) // if its process is still ending, the next run removes it
		}
	}
	if err := errors.Join(errs...); err != nil {
		return fmt.Errorf("remove what an earlier run left: %w", err)
	}
	return nil
}
