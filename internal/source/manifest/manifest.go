// Package manifest is the source that reads Kubernetes objects from a folder
// of manifests and follows its changes.
//
// It reads files whose names end in .yaml, .yml or .json, in the folder and in
// those below it; names that begin with a dot are passed over. A file holds any number
// of objects and lists of them. Those of kinds that no one here acts on are
// counted and passed over. Policies and what belongs to them are decoded strictly: a
// field that isn't known makes the object refused. Where no good version of a
// refused policy is known, one that denies is delivered in its place, if it is
// known whom it applies to; and in place of a network set, one of which only the
// labels are known.
//
// What is at fault never takes more with it than itself. An object that can't
// be understood keeps its last good version, and so does all that a file
// declared in a part that can't be parsed any more, a file that can't be read, or a folder
// that has vanished. A file counts once its writer has closed it. An object
// that two files declare is taken from the one whose name comes first.
//
// A file that is a symbolic link is followed; when the content changes at the
// link's far end, without a change in the folder, that is noticed within a minute, or
// by Flush, and so is what another machine writes on a filesystem of the network. Swapping
// the "..data" link of a mounted ConfigMap is a change in the folder.
package manifest

import (
	"context"
	"fmt"
	"log/slog"
	"maps"
	"runtime/debug"
	"slices"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"sluice.dev/sluice/internal/model"
	"sluice.dev/sluice/internal/source"
	"sluice.dev/sluice/internal/source/stamp"
	"sluice.dev/sluice/internal/source/watch"
)

const (
	// walkInterval is the time between two looks at all files. Not all changes come with an event:
	// another folder is mounted over ours, a link on the way to it is set anew, another machine
	// writes to a filesystem that both have mounted. Whether the folder is the same still, which is
	// one system call, is looked at with each check of the watcher.
	walkInterval = time.Minute

	// patience is how long the first reading waits for files that somebody is
	// writing: without them, what they hold would be taken for deleted.
	patience = time.Second
	// settle is how long after the first reading, or that of a large file, its garbage is given
	// back; by then, everyone who needs memory for the start has had it.
	settle = 2 * time.Second
)

// Source follows one folder. Its methods are safe for concurrent use.
type Source struct {
	path string
	sink source.Sink
	log  *slog.Logger

	started chan struct{} // closed once Run has begun

	work     sync.Mutex     // held while the folder is read and events are delivered
	watcher  *watch.Watcher // nil when Run is not running
	folder   *folder        // nil while the folder isn't open
	parsers  []*parser
	unread   map[string]bool // files to be tried again, as somebody was writing them
	reread   bool            // the whole folder is to be read again
	fresh    bool            // during a step: one of unread was not among them before
	began    time.Time       // when the folder was first read
	filled   time.Time       // when a file last came, as long as something is lacking
	wasEmpty bool            // the folder held nothing at first
	walked   time.Time       // when all files were last looked at
	tidy     *time.Timer     // gives memory back
	tidied   time.Time       // when it does, or did

	mu             sync.Mutex // guards what Status shows; held for short
	ledger         *ledger
	trouble        string           // why the folder can't be read
	below          map[string]error // why folders below can't be
	synced         bool
	lacking        []string // what was never read; see source.Status
	lackingObjects []model.Ref
	whole          bool          // everything was read once: nothing is lacking any more
	logged         []model.Issue // as they were last logged
}

var _ source.Source = (*Source)(nil)

// New returns a source that reads the folder at path and delivers to sink. ignoreRefused has
// refused policies be ignored, where they would deny otherwise.
func New(path string, ignoreRefused bool, sink source.Sink, log *slog.Logger) *Source {
	return &Source{
		path:    path,
		sink:    sink,
		log:     log,
		started: make(chan struct{}),
		parsers: newParsers(ignoreRefused),
		unread:  make(map[string]bool),
		ledger:  newLedger(),
	}
}

// Run implements source.Source. It may be called once.
func (s *Source) Run(ctx context.Context) error {
	w, err := watch.New()
	if err != nil {
		return err
	}
	var collector sync.WaitGroup
	collector.Go(w.Run)
	defer collector.Wait()
	s.follow(ctx, w)
	return nil
}

// follow follows the folder until ctx ends, and closes the watcher.
func (s *Source) follow(ctx context.Context, w *watch.Watcher) {
	s.work.Lock()
	s.watcher = w
	s.work.Unlock()
	close(s.started)
	defer s.stop()

	w.Follow(ctx, s.step)
}

func (s *Source) stop() {
	s.work.Lock()
	defer s.work.Unlock()
	s.detach()
	if s.tidy != nil {
		s.tidy.Stop()
	}
	s.watcher.Close()
	s.watcher = nil
}

// step delivers what has changed; without an event, if there is a reason to suspect that something
// has.
func (s *Source) step(check bool) watch.Next {
	s.work.Lock()
	defer s.work.Unlock()
	if check && !s.suspect() {
		return watch.OnEvent
	}
	s.fresh = false
	if err := s.deliver(false); err == nil && len(s.unread) == 0 {
		return watch.OnEvent
	}
	if s.fresh {
		return watch.Soon
	}
	return watch.Again
}

// suspect tells whether the folder is to be read again without an event, and
// arranges for it.
func (s *Source) suspect() bool {
	if s.folder == nil || len(s.unread) > 0 {
		return true // a Flush may have found that, and gone
	}
	if !s.folder.present() {
		s.detach()
		return true
	}
	if s.synced {
		s.settleLacking() // with time alone
	}
	if time.Since(s.walked) < walkInterval {
		return false
	}
	s.reread = true
	return true
}

// Flush implements source.Source. It waits for files that somebody has open
// for writing; if they are still open when ctx ends, the error names them.
func (s *Source) Flush(ctx context.Context) error {
	select {
	case <-s.started:
	case <-ctx.Done():
		return fmt.Errorf("read manifest folder %s: it isn't watched yet: %w", s.path, ctx.Err())
	}
	all := true
	return watch.Flush(ctx, "manifest folder "+s.path, func() ([]string, error) {
		writing, err := s.flushOnce(all)
		all = false
		return writing, err
	})
}

// flushOnce delivers what can be read, and names the files that are being written.
func (s *Source) flushOnce(all bool) (writing []string, err error) {
	s.work.Lock()
	defer s.work.Unlock()
	if s.watcher == nil {
		return nil, fmt.Errorf("read manifest folder %s: its watcher has ended", s.path)
	}
	err = s.deliver(all)
	return slices.Sorted(maps.Keys(s.unread)), err
}

// deliver brings the sink up to date with what changed; all looks at every
// file for that. An error says why the folder can't be read.
func (s *Source) deliver(all bool) error {
	events := s.watcher.Take()
	if s.folder != nil && all && !s.folder.present() {
		s.detach()
	}
	if s.folder == nil {
		f, err := openFolder(s.path, s.watcher)
		if err != nil {
			return s.lost(err)
		}
		s.folder, s.reread = f, true
	}
	changed := s.folder.interpret(events, s.isUnreadable)
	if changed.gone {
		return s.vanished()
	}
	s.reread = s.reread || changed.all
	for path := range s.unread {
		changed.files[path] = false
	}
	jobs, below, err := s.plan(changed.files, all || s.reread)
	if err != nil {
		return s.lost(err)
	}
	readings := readAll(s.parsers, s.folder, jobs)
	if slices.ContainsFunc(readings, func(r reading) bool { return r.outcome == gone }) && !s.folder.present() {
		return s.vanished()
	}
	if all || s.reread {
		s.setBelow(below)
		s.walked = time.Now()
	}
	s.reread = false
	s.commit(readings)
	return nil
}

// isUnreadable tells whether a file, or a folder below, could not be read.
func (s *Source) isUnreadable(path string) bool {
	f := s.ledger.files[path]
	return f != nil && f.err != "" || s.below[path] != nil
}

// plan makes jobs of the files named, and of all that differ from what is
// known if all is set.
func (s *Source) plan(named map[string]bool, all bool) ([]job, map[string]error, error) {
	jobs := make([]job, 0, len(named))
	for path, created := range named {
		jobs = append(jobs, job{path: path, created: created, known: s.ledger.files[path]})
	}
	if !all {
		return jobs, nil, nil
	}
	l, err := s.folder.walk()
	if err != nil {
		return nil, nil, err
	}
	jobs = slices.Grow(jobs, len(l.files))
	listed := make(map[string]bool, len(s.ledger.files))
	for _, path := range l.files {
		known := s.ledger.files[path]
		if known != nil {
			listed[path] = true
		}
		if _, named := named[path]; !named && (known == nil || s.differs(known)) {
			jobs = append(jobs, job{path: path, known: known})
		}
	}
	for _, path := range s.ledger.paths() {
		if _, named := named[path]; !named && !listed[path] && !inFailed(path, l.failed) {
			jobs = append(jobs, job{path: path, known: s.ledger.files[path]})
		}
	}
	return jobs, l.failed, nil
}

// differs tells whether a file is no longer as it was read.
func (s *Source) differs(f *file) bool {
	var st unix.Stat_t
	err := unix.Stat(s.folder.at(f.path), &st)
	return err != nil || f.err != "" || stamp.Of(&st) != f.stamp
}

// inFailed tells whether a path lies in a folder that can't be read now.
func inFailed(path string, failed map[string]error) bool {
	for folder := range failed {
		if within(path, folder) {
			return true
		}
	}
	return false
}

// commit enters readings, delivers what follows and tells what is wrong.
func (s *Source) commit(readings []reading) {
	waiting := s.remember(readings)
	if s.began.IsZero() {
		s.began = time.Now()
	}
	s.mu.Lock()
	s.trouble = ""
	events := s.ledger.update(readings)
	first := !s.synced && (!waiting || time.Since(s.began) > patience)
	s.synced = s.synced || first
	s.logIssues()
	s.mu.Unlock()

	if len(events) > 0 {
		s.sink.Apply(events)
	}
	s.logJoined(readings)
	s.noteFilling(readings)
	s.settleLacking()
	if first {
		s.sink.SetSynced()
		s.logSynced()
	}
	large := func(r reading) bool { return r.large }
	if now := time.Now(); (first || slices.ContainsFunc(readings, large)) && now.After(s.tidied) {
		s.tidy, s.tidied = time.AfterFunc(settle, debug.FreeOSMemory), now.Add(settle)
	}
}

// remember keeps the files that are to be tried again. A new one among them is
// tried again soon: mostly its writer is just about to go. The result tells
// whether there is one of which nothing is known.
func (s *Source) remember(readings []reading) (waiting bool) {
	last := s.unread
	s.unread = make(map[string]bool)
	for i := range readings {
		r := &readings[i]
		if r.outcome != busy && !r.again {
			continue
		}
		s.unread[r.path] = true
		waiting = waiting || r.outcome == busy && r.known == nil
		s.fresh = s.fresh || !last[r.path]
	}
	return waiting
}

func (s *Source) logSynced() {
	if len(s.lacking) > 0 {
		s.log.Warn("not everything could be read: what the kernel has stays in it until then", "folder", s.path, "lacking", s.lacking)
	}
	s.log.Info("read manifests", "folder", s.path, "files", len(s.ledger.files), "objects", s.ledger.objects())
}

// logJoined tells of files that are read as people mean them, not as they are written.
func (s *Source) logJoined(readings []reading) {
	for i := range readings {
		if n := readings[i].content.joined; n > 0 {
			s.log.Warn("manifests were joined without a line break between them; each is read, but other programs may refuse the file: put each --- on a line of its own", "file", readings[i].path, "places", n)
		}
	}
}

// logIssues logs what has come to be wrong since the last time, and what was mended.
func (s *Source) logIssues() {
	if s.ledger.told {
		return
	}
	s.ledger.told = true
	now := s.ledger.issues()
	was := make(map[model.Issue]bool, len(s.logged))
	for _, i := range s.logged {
		was[i] = true
	}
	for _, i := range now {
		if !was[i] {
			s.log.Warn("object is at fault", "object", i.Object, "source", i.Source, "reason", i.Reason, "inForce", i.InForce)
		}
		delete(was, i)
	}
	for i := range was {
		s.log.Info("object is no longer at fault", "object", i.Object, "source", i.Source, "reason", i.Reason)
	}
	s.logged = now
}

// vanished is the end of the folder that was open.
func (s *Source) vanished() error {
	s.detach()
	return s.lost(fmt.Errorf("read manifest folder %s: it has vanished; what it held stays in force until it is back", s.path))
}

func (s *Source) detach() {
	if s.folder != nil {
		s.folder.close()
		s.folder = nil
	}
}

// lost keeps the reason for which the folder can't be read.
func (s *Source) lost(err error) error {
	s.detach()
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.trouble != err.Error() {
		s.log.Error("manifest folder cannot be read; what it held stays in force", "folder", s.path, "error", err)
	}
	s.trouble = err.Error()
	return err
}

func (s *Source) setBelow(failed map[string]error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for folder, err := range failed {
		if s.below[folder] == nil {
			s.log.Error("manifest folder cannot be read; what it held stays in force", "folder", folder, "error", err)
		}
	}
	s.below = failed
}

// Status implements source.Source.
func (s *Source) Status() source.Status {
	s.mu.Lock()
	defer s.mu.Unlock()
	st := source.Status{
		Name:    "manifests",
		Where:   s.path,
		Synced:  s.synced,
		Objects: s.ledger.objects(),
		Skipped: s.ledger.skipped(),
		Issues:  []model.Issue{},
	}
	if s.trouble != "" {
		st.Issues = append(st.Issues, model.Issue{Object: model.Ref{Kind: model.Kind(s.path)}, Reason: s.trouble})
	}
	for _, folder := range slices.Sorted(maps.Keys(s.below)) {
		st.Issues = append(st.Issues, model.Issue{Object: model.Ref{Kind: model.Kind(folder)}, Reason: s.below[folder].Error()})
	}
	st.Issues = append(st.Issues, s.ledger.issues()...)
	st.Lacking, st.LackingObjects = slices.Clone(s.lacking), slices.Clone(s.lackingObjects)
	return st
}
