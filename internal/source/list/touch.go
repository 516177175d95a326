package list

import (
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"

	"sluice.dev/sluice/internal/source/watch"
)

// touched watches the folders of all lists, as far as they are there, and tells
// which files have changed by what was told of them. What isn't told is found
// by looking, so a folder that can't be watched is no fault.
func (s *Source) touched(w *watch.Watcher) map[string]bool {
	folders := make(map[int32]string)
	for _, l := range s.lists {
		folder := filepath.Dir(l.Path)
		// One that is watched already keeps its descriptor.
		if wd, err := w.Add(folder); err == nil {
			folders[wd] = folder
		}
	}
	touched := make(map[string]bool)
	for _, e := range w.Take() {
		folder, ok := folders[e.WD]
		if !ok || e.Name == "" {
			continue
		}
		if strings.HasPrefix(e.Name, "..") {
			// A ConfigMap volume changes by a symbolic link "..data" that is
			// replaced, which changes all the files that lead through it.
			for _, l := range s.lists {
				touched[l.Path] = touched[l.Path] || filepath.Dir(l.Path) == folder
			}
			continue
		}
		path := filepath.Join(folder, e.Name)
		touched[path] = touched[path] || e.Mask&unix.IN_CREATE == 0 || !isNew(path)
	}
	return touched
}

// isNew tells whether a created file is one that somebody is about to fill:
// its content will be told when that is done. A link has its content already.
func isNew(path string) bool {
	var st unix.Stat_t
	err := unix.Lstat(path, &st)
	return err == nil && st.Mode&unix.S_IFMT == unix.S_IFREG && st.Nlink == 1
}
