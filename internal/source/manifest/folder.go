package manifest

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"

	"sluice.dev/sluice/internal/source/watch"
)

// folder is the watched folder while it is there. Paths are relative to it. It
// isn't kept open: the kernel tells that a folder was deleted only once no one
// has it open.
type folder struct {
	root    string
	seen    os.FileInfo // what was at root
	watcher *watch.Watcher
	paths   map[int32]string // of the watched folders, by watch descriptor; "" is the root
	rootWD  int32
}

// openFolder watches a folder; the folders within follow in walk.
func openFolder(root string, w *watch.Watcher) (*folder, error) {
	f := &folder{root: root, watcher: w, paths: make(map[int32]string)}
	var err error
	if f.rootWD, err = w.Add(root); err != nil {
		return nil, fmt.Errorf("open manifest folder %s: %w", root, err)
	}
	f.paths[f.rootWD] = ""
	if f.seen, err = os.Stat(root); err != nil {
		f.close()
		return nil, fmt.Errorf("open manifest folder: %w", err)
	}
	return f, nil
}

// close ends all watches.
func (f *folder) close() {
	for wd := range f.paths {
		f.watcher.Remove(wd)
	}
}

// present tells whether the folder is still where it was.
func (f *folder) present() bool {
	now, err := os.Stat(f.root)
	return err == nil && os.SameFile(now, f.seen)
}

// at is where a path leads.
func (f *folder) at(path string) string { return f.root + "/" + path }

// listing is what walk found.
type listing struct {
	files  []string
	failed map[string]error // folders within that couldn't be read
}

// walk lists the manifests in the folder and in those below it, and watches
// just the folders that are there now. Watching comes before listing, so that
// no change falls between them.
func (f *folder) walk() (listing, error) {
	l := listing{failed: make(map[string]error)}
	paths := map[int32]string{f.rootWD: ""}
	if err := f.list("", &l, paths); err != nil {
		return l, fmt.Errorf("read manifest folder %s: %w", f.root, err)
	}
	for wd := range f.paths {
		if _, ok := paths[wd]; !ok {
			f.watcher.Remove(wd)
		}
	}
	f.paths = paths
	return l, nil
}

func (f *folder) list(path string, l *listing, paths map[int32]string) error {
	dir, err := os.Open(f.at(path))
	if err != nil {
		return err
	}
	entries, err := dir.ReadDir(-1)
	dir.Close()
	if err != nil {
		return err
	}
	for _, e := range entries {
		entry := e.Name()
		if path != "" {
			entry = path + "/" + entry
		}
		switch {
		case e.IsDir() && e.Name()[0] != '.':
			wd, err := f.watcher.Add(f.at(entry))
			if err == nil {
				paths[wd] = entry
				err = f.list(entry, l, paths)
			}
			if err != nil && !os.IsNotExist(err) {
				l.failed[entry] = err
			}
		case !e.IsDir() && isManifest(e.Name()):
			l.files = append(l.files, entry)
		}
	}
	return nil
}

// isManifest tells from a file's name whether it is read.
func isManifest(name string) bool {
	if name == "" || name[0] == '.' {
		return false
	}
	switch filepath.Ext(name) {
	case ".yaml", ".yml", ".json":
		return true
	}
	return false
}

// within tells whether a path lies in a folder.
func within(path, folder string) bool {
	return strings.HasPrefix(path, folder) && len(path) > len(folder) && path[len(folder)] == '/'
}

// rescan is what a batch of events comes to.
type rescan struct {
	files map[string]bool // to be read again; true: only just created, maybe with nothing in it yet
	all   bool            // everything is to be looked at
	gone  bool            // the folder is no longer where it was
}

// interpret works out what events mean. retry says that a file or
// folder could not be read before, so that a change of its attributes is of interest.
func (f *folder) interpret(events []watch.Event, retry func(path string) bool) rescan {
	r := rescan{files: make(map[string]bool)}
	for _, e := range events {
		if e.Mask&unix.IN_Q_OVERFLOW != 0 {
			r.all = true
			continue
		}
		folder, known := f.paths[e.WD]
		if !known {
			continue // of a watch that has ended
		}
		if e.Name == "" {
			if e.WD == f.rootWD && e.Mask&(unix.IN_DELETE_SELF|unix.IN_MOVE_SELF|unix.IN_UNMOUNT|unix.IN_IGNORED) != 0 {
				r.gone = true
			}
			continue
		}
		f.interpretEntry(&r, e, filepath.Join(folder, e.Name), retry)
	}
	return r
}

// interpretEntry works out what an event of an entry of a folder means.
func (f *folder) interpretEntry(r *rescan, e watch.Event, path string, retry func(path string) bool) {
	switch {
	case e.Mask&unix.IN_ATTRIB != 0:
		if retry(path) {
			r.all = true
		}
	case e.Mask&unix.IN_ISDIR != 0:
		r.all = r.all || e.Name[0] != '.'
	case e.Swaps():
		r.all = true
	case !isManifest(e.Name):
	case e.Mask&unix.IN_CREATE != 0:
		if was, ok := r.files[path]; !ok || was {
			r.files[path] = e.Begins(f.at(path))
		}
	default:
		r.files[path] = false
	}
}
