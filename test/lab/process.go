package lab

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"

	"sluice.dev/sluice/test/lab/process"
	"sluice.dev/sluice/test/netns"
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
