package manifest

import (
	"maps"
	"slices"
	"time"

	"sluice.dev/sluice/internal/model"
	"sluice.dev/sluice/internal/source/calico"
	"sluice.dev/sluice/internal/source/stamp"
)

// What could not be read at the start may well be in the kernel, from an
// earlier life of the agent: it is not gone, it is lacking. A part that was read
// once and can't be any more is not, as its last good version is known.

// quiet is how long nothing new must have come into a folder that was empty at
// the start before it counts as full: files mostly come one after the other.
const quiet = 2 * time.Second

// noteFilling remembers that the folder was empty, and when a file last came.
func (s *Source) noteFilling(readings []reading) {
	if s.whole {
		return
	}
	if len(s.ledger.files) == 0 {
		s.wasEmpty = true
		return
	}
	if slices.ContainsFunc(readings, func(r reading) bool { return r.known == nil && r.outcome == parsed }) {
		s.filled = time.Now()
	}
}

// settleLacking works out what is lacking, until nothing is. It comes after
// the events that go with it.
func (s *Source) settleLacking() {
	if s.whole {
		return
	}
	lacking := s.findLacking()
	objects := s.findObjects(lacking)
	s.mu.Lock()
	defer s.mu.Unlock()
	mended := len(s.lacking) > 0 && len(lacking) == 0
	s.lacking, s.lackingObjects, s.whole = lacking, objects, len(lacking) == 0
	if mended {
		s.log.Info("everything has been read", "folder", s.path)
	}
}

// findLacking lists what was never read, sorted by path.
func (s *Source) findLacking() []string {
	reasons := make(map[string]string)
	for path := range s.unread {
		if s.ledger.files[path] == nil {
			reasons[path] = "somebody is writing it"
		}
	}
	for folder, err := range s.below {
		reasons[folder] = err.Error()
	}
	for f := range s.ledger.broken {
		switch {
		case f.incomplete:
			reasons[f.path] = "it is at fault"
		case f.err != "" && !f.wasRead():
			reasons[f.path] = f.err
		}
	}
	if len(s.ledger.files) == 0 && len(reasons) == 0 {
		return []string{s.path + ": it holds no manifests"}
	}
	if len(reasons) == 0 && s.wasEmpty && time.Since(s.filled) < quiet {
		return []string{s.path + ": it was empty, and is just being filled"}
	}
	var list []string
	for _, path := range slices.Sorted(maps.Keys(reasons)) {
		list = append(list, path+": "+reasons[path])
	}
	return list
}

// findObjects lists the objects that are lacking, if they are all that is.
func (s *Source) findObjects(lacking []string) (refs []model.Ref) {
	incomplete := 0
	for f := range s.ledger.broken {
		if !f.incomplete || f.unreadable {
			continue
		}
		incomplete++
		for _, o := range f.objects {
			if o.value == nil && !o.duplicate {
				refs = append(refs, calico.KnownAs(o.Ref)...)
			}
		}
	}
	if incomplete < len(lacking) {
		return nil
	}
	return refs
}

// wasRead tells whether a file's content was ever read.
func (f *file) wasRead() bool { return f != nil && f.stamp != stamp.Stamp{} }

// isIncomplete tells whether a file's content, read for the first time or incomplete
// before, has parts of which no good version is known.
func isIncomplete(known *file, now *content) bool {
	if known.wasRead() && !known.incomplete {
		return false
	}
	return now.unreadable || slices.ContainsFunc(now.objects, func(o object) bool { return o.value == nil && !o.duplicate })
}
