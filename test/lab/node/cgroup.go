package node

import (
	"errors"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// cgroupDir is where the machine's cgroups are mounted.
const cgroupDir = "/sys/fs/cgroup"

// hierarchy is one of the machine's hierarchies of cgroups.
type hierarchy struct {
	controllers string // of version 1, as its mount option names them; "" for version 2
	at          string // where it is mounted
	own         string // this process's cgroup in it
}

// hierarchies lists those that a node has one of its own of: all of version 1, or the one of
// version 2 if there is no other.
func hierarchies() ([]hierarchy, error) {
	data, err := os.ReadFile("/proc/self/cgroup")
	if err != nil {
		return nil, err
	}
	var v1, v2 []hierarchy
	for line := range strings.Lines(string(data)) { // NUMBER:CONTROLLERS:PATH
		fields := strings.SplitN(strings.TrimSpace(line), ":", 3)
		if len(fields) < 3 {
			continue
		}
		h := hierarchy{controllers: fields[1], at: filepath.Join(cgroupDir, strings.TrimPrefix(fields[1], "name=")), own: fields[2]}
		if _, err := os.Stat(filepath.Join(h.at, "cgroup.procs")); err != nil {
			continue // it is not mounted
		}
		if h.controllers == "" {
			v2 = append(v2, h)
		} else {
			v1 = append(v1, h)
		}
	}
	if len(v1) > 0 {
		return v1, nil
	}
	if len(v2) == 0 {
		return nil, fmt.Errorf("no cgroups are mounted below %s", cgroupDir)
	}
	return v2, nil
}

// CgroupVersion is that of the cgroups which nodes on this machine have.
func CgroupVersion() (int, error) {
	all, err := hierarchies()
	if err != nil {
		return 0, err
	}
	if all[0].controllers == "" {
		return 2, nil
	}
	return 1, nil
}

// group is a cgroup of the same name in all hierarchies.
type group string

// groupPrefix is that of the names of nodes' cgroups.
const groupPrefix = "sluice-lab-"

// newGroup returns a name that no other cgroup has: labs in different mount namespaces share them.
func newGroup(node string) string { return fmt.Sprintf("%s%s-%08x", groupPrefix, node, rand.Uint32()) }

// path is the cgroup's folder. It is below the root, where whoever removes it finds it, whatever
// cgroup he is in; in version 2, only the root can have processes and pass controllers on.
func (g group) path(h hierarchy) string { return filepath.Join(h.at, string(g)) }

// make makes the cgroup.
func (g group) make() error {
	all, err := hierarchies()
	if err != nil {
		return err
	}
	sweep(all)
	for _, h := range all {
		if h.controllers == "" {
			if err := delegate(h.at); err != nil {
				return err
			}
		}
		if err := os.Mkdir(g.path(h), 0o755); err != nil {
			return err
		}
		if h.controllers != "cpuset" && !strings.HasPrefix(h.controllers, "cpuset,") {
			continue
		}
		for _, file := range []string{"cpuset.cpus", "cpuset.mems"} { // a new one may use nothing
			data, err := os.ReadFile(filepath.Join(h.at, file))
			if err == nil {
				err = os.WriteFile(filepath.Join(g.path(h), file), data, 0o644)
			}
			if err != nil {
				return err
			}
		}
	}
	return nil
}

// sweep removes the cgroups of nodes whose lab was killed with all that it ran.
func sweep(all []hierarchy) {
	for _, h := range all {
		dirs, _ := filepath.Glob(filepath.Join(h.at, groupPrefix+"*")) // the pattern is well-formed
		for _, dir := range dirs {
			info, err := os.Stat(dir)
			if err == nil && time.Since(info.ModTime()) > time.Minute && idle(dir) { // else it may be just starting
				_ = removeGroups(dir) // nothing depends on it
			}
		}
	}
}

// idle reports whether there is no process in a cgroup or below.
func idle(dir string) bool {
	none := true
	err := filepath.WalkDir(dir, func(path string, e fs.DirEntry, err error) error {
		if err != nil || e.Name() != "cgroup.procs" {
			return err
		}
		data, err := os.ReadFile(path)
		none = none && len(data) == 0
		return err
	})
	return none && err == nil
}

// delegate has the cgroups in a folder of version 2 control what the folder's own controls.
func delegate(dir string) error {
	data, err := os.ReadFile(filepath.Join(dir, "cgroup.controllers"))
	if err != nil {
		return err
	}
	var have []string
	for _, c := range strings.Fields(string(data)) {
		if err := os.WriteFile(filepath.Join(dir, "cgroup.subtree_control"), []byte("+"+c), 0o644); err == nil {
			have = append(have, c)
		}
	}
	for _, need := range []string{"cpu", "memory", "pids"} { // without them the kubelet does not start
		if !strings.Contains(" "+strings.Join(have, " ")+" ", " "+need+" ") {
			return fmt.Errorf("the cgroup controller %q cannot be passed on in %s", need, dir)
		}
	}
	return nil
}

// within calls f while this process is in the cgroup.
func (g group) within(f func() error) error {
	all, err := hierarchies()
	if err != nil {
		return err
	}
	enter := func(dir string) error {
		return os.WriteFile(filepath.Join(dir, "cgroup.procs"), []byte(strconv.Itoa(os.Getpid())), 0o644)
	}
	var errs []error
	for _, h := range all {
		errs = append(errs, enter(g.path(h)))
	}
	if errors.Join(errs...) == nil {
		errs = append(errs, f())
	}
	for _, h := range all {
		errs = append(errs, enter(filepath.Join(h.at, h.own)))
	}
	return errors.Join(errs...)
}

// remove removes the cgroup with all below it. Processes that have just been killed may still be in
// it for a moment.
func (g group) remove() error {
	all, err := hierarchies()
	if err != nil {
		return err
	}
	var errs []error
	for _, h := range all {
		dir := g.path(h)
		var err error
		if !until(10*time.Second, func() bool { err = removeGroups(dir); return err == nil }) {
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}

func removeGroups(dir string) error {
	entries, err := os.ReadDir(dir)
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	for _, e := range entries {
		if e.IsDir() {
			if err := removeGroups(filepath.Join(dir, e.Name())); err != nil {
				return err
			}
		}
	}
	if err := unix.Rmdir(dir); err != nil && !errors.Is(err, unix.ENOENT) {
		return &os.PathError{Op: "rmdir", Path: dir, Err: err}
	}
	return nil
}

// mountCgroups gives the node its own view of the cgroups, in the folder that is to be its
// /sys/fs/cgroup: the node's cgroup is the root.
func mountCgroups(at string) error {
	all, err := hierarchies()
	if err != nil {
		return err
	}
	if all[0].controllers == "" {
		if err := unix.Mount("cgroup2", at, "cgroup2", 0, ""); err != nil {
			return fmt.Errorf("mount cgroups: %w", err)
		}
		// A cgroup that has processes cannot pass controllers on, unless it is the machine's root.
		leaf := filepath.Join(at, "init")
		if err := os.Mkdir(leaf, 0o755); err != nil {
			return err
		}
		if err := os.WriteFile(filepath.Join(leaf, "cgroup.procs"), []byte("1"), 0o644); err != nil {
			return err
		}
		return delegate(at)
	}
	if err := unix.Mount("tmpfs", at, "tmpfs", 0, "mode=755"); err != nil {
		return fmt.Errorf("mount cgroups: %w", err)
	}
	for _, h := range all {
		options, name := h.controllers, strings.TrimPrefix(h.controllers, "name=")
		if name != h.controllers {
			options = "none," + options
		}
		dir := filepath.Join(at, name)
		if err := os.Mkdir(dir, 0o755); err != nil {
			return err
		}
		if err := unix.Mount("cgroup", dir, "cgroup", 0, options); err != nil {
			return fmt.Errorf("mount cgroup %s: %w", h.controllers, err)
		}
		for _, c := range strings.Split(name, ",") {
			if c == name {
				continue
			}
			if err := os.Symlink(name, filepath.Join(at, c)); err != nil {
				return err
			}
		}
	}
	return nil
}
