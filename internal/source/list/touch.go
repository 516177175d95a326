package list

import (
	"path/filepath"

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
		if e.Swaps() {
			for _, l := range s.lists {
				touched[l.Path] = touched[l.Path] || filepath.Dir(l.Path) == folder
			}
			continue
		}
		path := filepath.Join(folder, e.Name)
		touched[path] = touched[path] || !e.Begins(path)
	}
	return touched
}
