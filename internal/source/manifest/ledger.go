package manifest

import (
	"cmp"
	"maps"
	"reflect"
	"slices"

	"sluice.dev/sluice/internal/model"
	"sluice.dev/sluice/internal/source/stamp"
	"sluice.dev/sluice/internal/store"
)

// file is what is known of one file.
type file struct {
	path  string
	stamp stamp.Stamp
	content
	err string // why it can't be read at present
}

func (f *file) faulty() bool { return f.err != "" || len(f.issues) > 0 }

// allIssues are all that is wrong with a file.
func (f *file) allIssues() []model.Issue {
	if f.err == "" {
		return f.issues
	}
	force := model.InForceNothing
	if f.wasRead() {
		force = model.InForceLast
	}
	return append(slices.Clip(f.issues), model.Issue{Object: model.Ref{Kind: model.Kind(f.path)}, Source: f.path, Reason: f.err, InForce: force})
}

// declaration is a file's version of an object.
type declaration struct {
	file  *file
	value any
}

// ledger keeps what each file declares and works out what that comes to. Of
// several files that declare the same object, the first by name counts.
type ledger struct {
	files  map[string]*file
	broken map[*file]struct{} // those with issues

	valid  map[model.Ref]declaration   // the version that counts, and was delivered
	rivals map[model.Ref][]declaration // those that don't, sorted by path
	counts map[model.Kind]int
	passed map[string]int // objects of other kinds, by kind

	told   bool              // the issues are those that were last logged; the logger sets it
	before map[model.Ref]any // during an update: the value that was valid before it, nil for none
	fresh  bool              // during the first update: nothing was valid before it
}

func newLedger() *ledger {
	return &ledger{
		files:  make(map[string]*file),
		broken: make(map[*file]struct{}),
		valid:  make(map[model.Ref]declaration),
		rivals: make(map[model.Ref][]declaration),
		counts: make(map[model.Kind]int),
		passed: make(map[string]int),
		told:   true,
		before: make(map[model.Ref]any),
	}
}

// update enters readings and returns the events that follow from them.
func (l *ledger) update(readings []reading) []store.Event {
	if l.fresh = len(l.valid) == 0; l.fresh {
		l.makeRoom(readings)
	}
	for i := range readings {
		l.enter(&readings[i])
	}
	if l.fresh {
		return l.everything()
	}
	var events []store.Event
	for k, was := range l.before {
		now, ok := l.valid[k]
		switch {
		case !ok && was == nil:
		case !ok:
			l.counts[k.Kind]--
			events = append(events, store.Event{Kind: k.Kind, Name: k.Name})
		default:
			if was == nil {
				l.counts[k.Kind]++
			}
			if !same(was, now.value) {
				events = append(events, store.Event{Kind: k.Kind, Name: k.Name, Object: now.value})
			}
		}
	}
	clear(l.before)
	return events
}

// makeRoom spares the maps from growing step by step while a whole folder is entered.
func (l *ledger) makeRoom(readings []reading) {
	objects := 0
	for i := range readings {
		objects += len(readings[i].content.objects)
	}
	l.valid = make(map[model.Ref]declaration, objects)
	if len(l.files) == 0 {
		l.files = make(map[string]*file, len(readings))
	}
}

// same tells whether two versions are alike; was may be nil.
func same(was, now any) bool {
	return was == now || was != nil && reflect.DeepEqual(was, now)
}

// everything returns an event for each valid object.
func (l *ledger) everything() []store.Event {
	events := make([]store.Event, 0, len(l.valid))
	for k, d := range l.valid {
		l.counts[k.Kind]++
		events = append(events, store.Event{Kind: k.Kind, Name: k.Name, Object: d.value})
	}
	return events
}

// enter puts one reading in place of what was known of its file.
func (l *ledger) enter(r *reading) {
	f := l.files[r.path]
	if r.outcome == busy || r.outcome == gone && f == nil {
		return
	}
	if f == nil {
		f = &file{path: r.path}
		l.files[r.path] = f
	}
	faulty := f.faulty()
	switch r.outcome {
	case failed:
		f.err = r.err.Error()
	case gone:
		l.put(f, content{})
		delete(l.files, r.path)
	default:
		l.put(f, r.content)
		f.stamp = r.stamp
	}
	if !faulty && !f.faulty() {
		return
	}
	l.told = false
	if f.faulty() {
		l.broken[f] = struct{}{}
	} else {
		delete(l.broken, f)
	}
}

// put replaces the content of a file.
func (l *ledger) put(f *file, next content) {
	l.replace(f, next.objects)
	for kind, n := range f.skipped {
		if l.passed[kind] -= n; l.passed[kind] == 0 {
			delete(l.passed, kind)
		}
	}
	for kind, n := range next.skipped {
		l.passed[kind] += n
	}
	f.content, f.err = next, ""
}

// replace withdraws what a file declared and declares what it has now. What is the
// same at both ends of the two lists is not touched: in a long list mostly one
// object changes.
func (l *ledger) replace(f *file, next []object) {
	last := f.objects
	equal := func(a, b *object) bool { return a.Ref == b.Ref && a.value == b.value }
	for len(last) > 0 && len(next) > 0 && equal(&last[0], &next[0]) {
		last, next = last[1:], next[1:]
	}
	for len(last) > 0 && len(next) > 0 && equal(&last[len(last)-1], &next[len(next)-1]) {
		last, next = last[:len(last)-1], next[:len(next)-1]
	}
	for i := range last {
		if last[i].value != nil {
			l.withdraw(last[i].Ref, f)
		}
	}
	for i := range next {
		if next[i].value != nil {
			l.declare(next[i].Ref, declaration{f, next[i].value})
		}
	}
}

// touch remembers what was valid before the update.
func (l *ledger) touch(k model.Ref) {
	if l.fresh {
		return
	}
	if _, ok := l.before[k]; !ok {
		l.before[k] = l.valid[k].value
	}
}

func (l *ledger) withdraw(k model.Ref, f *file) {
	l.touch(k)
	rivals := l.rivals[k]
	if l.valid[k].file != f {
		rivals = slices.DeleteFunc(rivals, func(d declaration) bool { return d.file == f })
	} else if len(rivals) > 0 {
		l.valid[k] = rivals[0]
		rivals = slices.Delete(rivals, 0, 1)
	} else {
		delete(l.valid, k)
	}
	if _, contested := l.rivals[k]; contested {
		l.told = false
	}
	if l.rivals[k] = rivals; len(rivals) == 0 {
		delete(l.rivals, k)
	}
}

func (l *ledger) declare(k model.Ref, d declaration) {
	l.touch(k)
	holder, held := l.valid[k]
	if !held {
		l.valid[k] = d
		return
	}
	if d.file.path < holder.file.path {
		l.valid[k] = d
		d = holder
	}
	rivals := append(l.rivals[k], d)
	slices.SortFunc(rivals, func(a, b declaration) int { return cmp.Compare(a.file.path, b.file.path) })
	l.rivals[k] = rivals
	l.told = false
}

// issues lists all that is wrong, sorted by object.
func (l *ledger) issues() []model.Issue {
	var all []model.Issue
	for f := range l.broken {
		all = append(all, f.allIssues()...)
	}
	for k, rivals := range l.rivals {
		for _, d := range rivals {
			all = append(all, model.Issue{
				Object: k,
				Source: d.file.path,
				Reason: "is declared in " + l.valid[k].file.path + " as well, which counts, as its name comes first; delete one of them",
			})
		}
	}
	slices.SortFunc(all, model.Issue.Compare)
	return all
}

// objects counts the valid objects, skipped those that are of other kinds.
func (l *ledger) objects() map[string]int {
	counts := make(map[string]int)
	for kind, n := range l.counts {
		if n > 0 {
			counts[string(kind)] = n
		}
	}
	return counts
}

func (l *ledger) skipped() map[string]int { return maps.Clone(l.passed) }

// paths are the files known, in no order.
func (l *ledger) paths() []string { return slices.Collect(maps.Keys(l.files)) }
