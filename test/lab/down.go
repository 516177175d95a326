package lab

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"

	"sluice.dev/sluice/test/lab/process"
	"sluice.dev/sluice/test/netns"
)

// Down removes the lab; see the function Down.
func (l *Lab) Down() error { return Down(l.Name) }

// Down removes a lab, in whatever state it is: it ends everything that runs in the lab's
// namespaces, shells of `lab exec` included, and removes the namespaces and the lab's folder. If
// there is no lab, it succeeds.
func Down(name string) error {
	release, err := lockLab(name)
	if err != nil {
		return err
	}
	defer release()
	return remove(name)
}

// remove is Down for a caller that holds the lock. It needs no record of what was built: a crash
// can leave any part of a lab, and the names show to which lab it belongs.
func remove(name string) error {
	l := &Lab{Name: name}
	if err := l.killRecorded(); err != nil {
		return fmt.Errorf("take down lab %s: %w", name, err)
	}
	names, err := l.killAll()
	if err != nil {
		return fmt.Errorf("take down lab %s: %w", name, err)
	}
	var errs []error
	for _, n := range names {
		errs = append(errs, netns.Delete(n))
	}
	errs = append(errs, l.removeMachines(), os.RemoveAll(l.path()))
	if err := errors.Join(errs...); err != nil {
		return fmt.Errorf("take down lab %s: %w", name, err)
	}
	for _, dir := range []string{Dir, filepath.Dir(Dir)} {
		if err := os.Remove(dir); err != nil && !errors.Is(err, os.ErrNotExist) && !errors.Is(err, syscall.ENOTEMPTY) {
			return fmt.Errorf("take down lab %s: %w", name, err)
		}
	}
	return nil
}

// killAll ends everything that runs in the lab's namespaces, including those made meanwhile, and
// returns their names.
func (l *Lab) killAll() (names []string, err error) {
	for {
		before := len(names)
		if names, err = namespaces(l.Name); err != nil {
			return nil, err
		}
		if len(names) == before {
			return names, nil
		}
		if err := process.KillIn(names...); err != nil {
			return nil, err
		}
	}
}

// killRecorded ends recorded processes whose namespaces have no name any more.
func (l *Lab) killRecorded() error {
	for _, p := range l.processes() {
		if err := p.Signal(syscall.SIGKILL); err != nil {
			return err
		}
	}
	return nil
}

// namespaces lists the names of a lab's namespaces.
func namespaces(lab string) ([]string, error) {
	entries, err := os.ReadDir(netns.Dir)
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return nil, fmt.Errorf("list network namespaces: %w", err)
	}
	var names []string
	for _, e := range entries {
		if strings.HasPrefix(e.Name(), prefix(lab)) {
			names = append(names, e.Name())
		}
	}
	return names, nil
}
